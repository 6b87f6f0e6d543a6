"""The planner's choice, and a given one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hsfl.errors import ScenarioError
from hsfl.planner.solve import METHODS, solve
from hsfl.problem.messages import nearest
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.schema import TrainingSection
from hsfl.problem.strategy import Strategy

NAMES = ("planned", "fixed")


@dataclass(frozen=True)
class Planned:
    """The planner's optimum for the problem as it stands, by "exact" or "bcd"."""

    method: str = "exact"
    allow_empty_tiers: bool = False
    name: str = "planned"
    replans: bool = True
    measures: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ScenarioError(f"planner {self.method!r}: it must be one of {', '.join(METHODS)}")

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        return solve(problem, self.method, allow_empty_tiers=self.allow_empty_tiers).plan


@dataclass(frozen=True)
class Fixed:
    """One plan for the whole of training: M-1 cuts (counts of layers) and M intervals (rounds)."""

    cuts: Sequence[int]
    intervals: Sequence[int]
    name: str = "fixed"
    replans: bool = False
    measures: bool = False

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        return Plan(tuple(self.cuts), tuple(self.intervals))


def make_strategy(training: TrainingSection) -> Strategy:
    """The strategy that a scenario's [training] section names."""
    given = [f for f in ("cuts", "intervals") if getattr(training, f) is not None]
    if training.strategy == "planned":
        if given:
            raise ScenarioError(
                f'training.{given[0]}: only with strategy = "fixed" (--strategy fixed); give that or remove it'
            )
        return Planned(training.planner, training.allow_empty_tiers)
    if training.strategy == "fixed":
        if training.cuts is None or training.intervals is None:
            missing = "cuts" if training.cuts is None else "intervals"
            raise ScenarioError(f'training.{missing} is missing; strategy = "fixed" needs cuts and intervals')
        return Fixed(tuple(training.cuts), tuple(training.intervals))
    raise ScenarioError(
        f"training.strategy = {training.strategy!r}: no such strategy{nearest(training.strategy, NAMES)}; there are "
        f"{', '.join(NAMES)}"
    )
