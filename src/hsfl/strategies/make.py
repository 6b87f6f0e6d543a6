"""Strategies by name, as scenarios and commands give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hsfl.errors import ScenarioError
from hsfl.factory import Factory
from hsfl.problem.messages import nearest
from hsfl.problem.scenario import Scenario
from hsfl.problem.strategy import Strategy
from hsfl.strategies.named import CHOICES, Named

NAMES = tuple(CHOICES)


def fixed(cuts: Sequence[int], intervals: Sequence[int]) -> Named:
    """One plan for the whole of training: M-1 cuts (counts of layers) and M intervals (rounds)."""
    return Named("fixed", tuple(intervals), tuple(cuts))


def make_strategy(scenario: Scenario) -> Strategy:
    """The strategy that a scenario's [training] section names."""
    training = scenario.spec.training
    if ":" in training.strategy:
        return _users_own(training.strategy, scenario)
    name = {known.lower(): known for known in NAMES}.get(training.strategy.lower())
    if name is None:
        raise ScenarioError(
            f"training.strategy = {training.strategy!r}: no such strategy{nearest(training.strategy, NAMES)}; there "
            f"are {', '.join(NAMES)}, and your own as package.module:Class"
        )
    chosen: dict[str, Sequence[int] | str] = {}
    for field, how in zip(("intervals", "cuts"), CHOICES[name], strict=True):
        given = getattr(training, field)
        if given is None and how is None:
            raise ScenarioError(f"training.{field} is missing; strategy = {name!r} needs {_needed(name)}")
        if given is not None and how is not None and name != "HSFL":
            raise ScenarioError(
                f"training.{field}: strategy = {name!r} chooses its own {field}; remove them, or write strategy = "
                '"fixed" (--strategy fixed)'
            )
        chosen[field] = tuple(given) if given is not None else cast(str, how)
    if name == "HSFL" and training.cuts is not None and training.intervals is not None:
        raise ScenarioError(
            'training.cuts and training.intervals: strategy = "HSFL" plans at least one of them; remove one, or write '
            'strategy = "fixed" (--strategy fixed)'
        )
    seeds = (training.strategy_seed, training.seed, scenario.spec.seed)
    return Named(
        name,
        **chosen,
        seed=next(seed for seed in seeds if seed is not None),
        planner=training.planner,
        allow_empty_tiers=training.allow_empty_tiers,
    )


def _needed(name: str) -> str:
    return " and ".join(f for f, how in zip(("intervals", "cuts"), CHOICES[name], strict=True) if how is None)


def _users_own(spec: str, scenario: Scenario) -> Strategy:
    label = f"training.strategy = {spec!r}"
    return checked(Factory(spec, scenario.folder, label, ScenarioError).call(), label)


def checked(strategy: Any, label: str) -> Strategy:
    """An object of a user's own, if it has what a strategy needs."""
    what = strategy.__name__ if isinstance(strategy, type) else f"a {type(strategy).__name__}"
    if isinstance(strategy, type):
        raise ScenarioError(f"{label}: {what} is a class; give an object of it")
    for member in ("name", "replans", "measures", "propose"):
        if not hasattr(strategy, member):
            raise ScenarioError(
                f"{label}: {what} has no {member}; a strategy needs name, replans, measures and propose(problem, "
                "current, round_)"
            )
    return cast(Strategy, strategy)
