"""When what happens: which tiers are averaged after a round, when a plan is due, and who takes part.

Tier m is averaged if the rounds since the last change of I_m are a multiple of I_m, or as the strategy's own `averages`
says. A plan is due at the start and, for a strategy that re-plans, once every tier with several entities has been
averaged since the last plan and some rounds have passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hsfl.engine.asking import averages
from hsfl.errors import HsflError
from hsfl.problem.codes import LinkCodes
from hsfl.problem.plan import Plan
from hsfl.problem.strategy import Strategy
from hsfl.problem.topology import Topology
from hsfl.records import ScheduleRecord


@dataclass(frozen=True)
class Average:
    """A tier that is averaged now."""

    tier: int
    rounds: int
    """Since the average before."""
    moved: bool
    """Whether layers changed tiers since then."""


class Schedule:
    """Counts rounds. The same object runs a training and times one again on other machines."""

    def __init__(
        self, topology: Topology, strategy: Strategy, replan_every: int, first_wait: int | None = None
    ) -> None:
        """`replan_every`: the fewest rounds between plans; 0 keeps the first.

        Where `first_wait` is given, the second plan may come after so many, later ones after twice as many each time.
        """
        self._topology, self._strategy, self._replan_every = topology, strategy, replan_every
        self._first_wait = replan_every if first_wait is None else first_wait
        self.round = 0
        self.plan: Plan | None = None
        self.plan_round = 0
        """When the plan in force was made."""
        self._interval_since = [0] * topology.num_tiers
        """When each tier's interval last changed."""
        self._averaged_at = [0] * topology.num_tiers
        """When each tier was last averaged; all entities are equal at the start."""
        self._moved_at = 0
        """When layers last changed tiers."""

    def plan_is_due(self) -> bool:
        """Whether the strategy is to be asked before the next round."""
        if self.plan is None:
            return True
        if not (self._strategy.replans and self._replan_every) or self.round - self.plan_round < self._wait():
            return False
        several = self._topology.averaged
        return all(at > self.plan_round for at, wanted in zip(self._averaged_at, several, strict=True) if wanted)

    def _wait(self) -> int:
        """The fewest rounds from the plan in force to the next."""
        return min(self._replan_every, max(self._first_wait, self.plan_round))

    def adopt(self, plan: Plan) -> None:
        """From now on `plan` is in force."""
        before, self.plan, self.plan_round = self.plan, plan, self.round
        for m, interval in enumerate(plan.intervals):
            if before is None or interval != before.intervals[m]:
                self._interval_since[m] = self.round
        if before is None or before.cuts != plan.cuts:
            self._moved_at = self.round

    def participants(self) -> Sequence[int]:
        """The clients that take part in the next round: all of them."""
        return range(self._topology.num_clients)

    def finish_round(self) -> list[Average]:
        """Count a round; the tiers that are averaged after it, from the devices up."""
        assert self.plan is not None
        self.round += 1
        due = []
        for m, several in enumerate(self._topology.averaged):
            if several and averages(self._strategy, self.plan, m, self.round - self._interval_since[m]):
                since, self._averaged_at[m] = self._averaged_at[m], self.round
                due.append(Average(m, self.round - since, moved=since < self._moved_at))
        return due

    def state(self) -> ScheduleRecord:
        """The schedule as a checkpoint holds it."""
        return ScheduleRecord(
            round=self.round,
            cuts=None if self.plan is None else list(self.plan.cuts),
            intervals=None if self.plan is None else list(self.plan.intervals),
            codes=None if self.plan is None else self.plan.code_names(),
            plan_round=self.plan_round,
            interval_since=self._interval_since,
            averaged_at=self._averaged_at,
            moved_at=self._moved_at,
        )

    def restore(self, state: ScheduleRecord, codes: tuple[LinkCodes, ...] | None = None) -> None:
        """Go on from there, with the codes that the state names; HsflError where it is one of another tree."""
        if {len(state.interval_since), len(state.averaged_at)} != {self._topology.num_tiers}:
            raise HsflError(
                f"the schedule is one of {len(state.averaged_at)} tiers; here are {self._topology.num_tiers}"
            )
        self.round, self.plan_round, self._moved_at = state.round, state.plan_round, state.moved_at
        self.plan = None
        if state.cuts is not None and state.intervals is not None:
            self.plan = Plan(tuple(state.cuts), tuple(state.intervals), codes)
        self._interval_since, self._averaged_at = list(state.interval_since), list(state.averaged_at)
