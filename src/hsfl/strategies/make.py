"""Strategies by name, as scenarios and commands give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hsfl.errors import ScenarioError, nearest
from hsfl.factory import Factory
from hsfl.problem.strategy import Strategy
from hsfl.scenario.checking import listed_tiers
from hsfl.scenario.scenario import Scenario
from hsfl.strategies.named import CHOICES, LOCAL_STEPS, Named

NAMES = tuple(CHOICES)


def fixed(cuts: Sequence[int], intervals: Sequence[int]) -> Named:
    """One plan for the whole of training: M-1 cuts (counts of layers) and M intervals (rounds)."""
    return Named("fixed", tuple(intervals), tuple(cuts))


def make_strategy(scenario: Scenario) -> Strategy:
    """The strategy that a scenario's [strategy] section names."""
    given = scenario.spec.strategy
    if given.local_steps is not None and ("strategy" in scenario.objects or given.name.lower() != "fedavg"):
        raise ScenarioError(
            f'strategy.local_steps = {given.local_steps}: only name = "FedAvg" (--strategy FedAvg) has local steps; '
            "elsewhere intervals say after how many rounds a tier is averaged"
        )
    if (own := scenario.objects.get("strategy")) is not None:
        return checked(own, "strategy")
    if ":" in given.name:
        return _users_own(given.name, scenario)
    name = {known.lower(): known for known in NAMES}.get(given.name.lower())
    if name is None:
        raise ScenarioError(
            f"strategy.name = {given.name!r}: no such strategy{nearest(given.name, NAMES)}; there "
            f"are {', '.join(NAMES)}, and your own as package.module:Class"
        )
    if name == "FedAvg" and scenario.system.returns:
        raise ScenarioError(
            'training.labels = "devices": with strategy.name = "FedAvg" every layer is on the devices, and labels stay '
            "there anyway; remove labels"
        )
    chosen: dict[str, Sequence[int] | str] = {}
    for field, how in zip(("intervals", "cuts"), CHOICES[name], strict=True):
        value = getattr(given, field)
        if value is None and how is None:
            raise ScenarioError(f"strategy.{field} is missing; name = {name!r} needs {_needed(name)}")
        if value is not None and how is not None and name != "HSFL":
            instead = "give local_steps instead" if how == LOCAL_STEPS else "remove them"
            raise ScenarioError(
                f"strategy.{field}: name = {name!r} chooses its own {field}; {instead}, or write name = "
                '"fixed" (--strategy fixed)'
            )
        if value is not None and len(value) != (wanted := len(scenario.tier_names) - (field == "cuts")):
            tiers = listed_tiers(scenario.spec)
            raise ScenarioError(f"strategy.{field} = {value}: {wanted} whole numbers are needed for {tiers}")
        chosen[field] = tuple(value) if value is not None else cast(str, how)
    if name == "HSFL" and given.cuts is not None and given.intervals is not None:
        raise ScenarioError(
            'strategy.cuts and strategy.intervals: name = "HSFL" plans at least one of them; remove one, or write '
            'name = "fixed" (--strategy fixed)'
        )
    seeds = (given.seed, scenario.spec.training.seed, scenario.spec.seed)
    return Named(
        name,
        **chosen,
        seed=next(seed for seed in seeds if seed is not None),
        planner=given.planner,
        allow_empty_tiers=given.allow_empty_tiers,
        plans_codes=scenario.system.plans_codes,
        plans_micro_batches=scenario.spec.training.micro_batch_choices is not None,
        local_steps=given.local_steps or 1,
        may_correct=scenario.spec.training.averaging == "plain" and scenario.spec.training.correctable,
    )


def _needed(name: str) -> str:
    return " and ".join(f for f, how in zip(("intervals", "cuts"), CHOICES[name], strict=True) if how is None)


def _users_own(spec: str, scenario: Scenario) -> Strategy:
    label = f"strategy.name = {spec!r}"
    return checked(Factory(spec, scenario.folder, label, ScenarioError).call(), label)


def checked(strategy: Any, label: str) -> Strategy:
    """A user's own strategy object; an error where it lacks what a strategy needs."""
    what = strategy.__name__ if isinstance(strategy, type) else f"a {type(strategy).__name__}"
    if isinstance(strategy, type):
        raise ScenarioError(f"{label}: {what} is a class; give an object of it")
    for member in ("name", "replans", "needs_constants", "propose"):
        if not hasattr(strategy, member):
            raise ScenarioError(
                f"{label}: {what} has no {member}; a strategy needs name, replans, needs_constants and "
                "propose(problem, current, round_)"
            )
    return cast(Strategy, strategy)
