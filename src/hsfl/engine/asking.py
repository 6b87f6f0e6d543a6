"""A strategy, asked: what it answers is checked, and what goes wrong in a user's own is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hsfl.errors import HsflError, InfeasibleError, ScenarioError, raised
from hsfl.problem.codes import LINKS, LinkCodes
from hsfl.problem.plan import Plan, make_plan
from hsfl.problem.problem import Problem
from hsfl.problem.strategy import Strategy
from hsfl.problem.system import System
from hsfl.theory.latency import fits_memory


def proposed(strategy: Strategy, problem: Problem, current: Plan | None, round_: int) -> Plan:
    """What a strategy proposes, in order, if it is a plan that the machines can hold."""
    name, system = strategy.name, problem.system
    try:
        found = strategy.propose(problem, current, round_)
    except HsflError:
        raise
    except Exception as error:
        raise _raised(strategy, "propose", error) from error
    try:
        plan = make_plan(
            found.cuts,
            found.intervals,
            entities=system.entities,
            num_layers=problem.num_layers,
            codes=_allowed(getattr(found, "codes", None), system),
            micro_batches=_among(getattr(found, "micro_batches", None), problem),
            allow_empty_tiers=True,
            returns=system.returns,
        )
    except (AttributeError, TypeError):
        raise ScenarioError(f"strategy {name} proposed {found!r}; it must propose an hsfl.Plan") from None
    except ScenarioError as error:
        raise ScenarioError(f"strategy {name}: {error}") from None
    if len(over := np.flatnonzero(~fits_memory(problem.as_planned(plan), plan.cuts))):
        tier = system.tiers[int(over[0])].name
        raise InfeasibleError(
            f"strategy {name}: cuts {list(plan.cuts)} need more memory than tier {tier} has; choose other cuts"
        )
    return plan


def _among(count: int | None, problem: Problem) -> int | None:
    """The number of mini-batches of a proposed plan, if it is one to choose from."""
    if count is not None and count not in (problem.micro_batch_choices or (problem.micro_batches,)):
        raise ScenarioError(f"micro_batches {count!r} is none of those that training.micro_batches allows")
    return None if problem.micro_batch_choices is None else count


def _allowed(codes: object, system: System) -> tuple[LinkCodes, ...] | None:
    """The codes of a proposed plan, if the machines allow them."""
    if codes is None:
        return None
    given, found = list(codes) if isinstance(codes, Iterable) else [], []
    for own, tier in zip(given, system.tiers, strict=False):
        if not isinstance(own, LinkCodes) or any(getattr(own, k) not in tier.codes.allowed(k) for k in LINKS):
            raise ScenarioError(f"codes {own} of tier {tier.name} are none of those that tiers.{tier.name}.code allows")
        found.append(tier.codes.using({link: getattr(own, link) for link in LINKS}))
    if len(given) != system.num_tiers:
        raise ScenarioError(
            f"codes {codes!r}: {system.num_tiers} hsfl.problem.codes.LinkCodes are needed, one for each tier"
        )
    return tuple(found)


def corrected_gain(strategy: Strategy, problem: Problem) -> float | None:
    """How many times as fast the strategy's plan would be with corrected averages, where it can tell."""
    own: Callable[[Problem], float | None] | None = getattr(strategy, "corrected_gain", None)
    if own is None:
        return None
    try:
        return own(problem)
    except Exception as error:
        raise _raised(strategy, "corrected_gain", error) from error


def averages(strategy: Strategy, plan: Plan, tier: int, rounds: int) -> bool:
    """Whether a tier is averaged so many rounds after its interval changed: every I_m, or as the strategy says."""
    own: Callable[[Plan, int, int], bool] | None = getattr(strategy, "averages", None)
    if own is None:
        return rounds % plan.intervals[tier] == 0
    try:
        return bool(own(plan, tier, rounds))
    except Exception as error:
        raise _raised(strategy, "averages", error) from error


def _raised(strategy: Strategy, function: str, error: Exception) -> ScenarioError:
    return ScenarioError(f"strategy {strategy.name}: {function} raised {raised(error)}; correct it")
