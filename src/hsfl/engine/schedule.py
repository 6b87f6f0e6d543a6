"""When what happens: which tiers are averaged after a round, when a plan is due, and who takes part.

Tier m is averaged if the rounds since the last change of I_m are a multiple of I_m, or as the strategy's own `averages`
says. A plan is due at the start and, for a strategy that re-plans, once every tier with several entities has been
averaged since the last plan and some rounds have passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.engine.asking import averages
from hsfl.engine.attendance import Attendance
from hsfl.engine.clock import Clock
from hsfl.engine.participation import Participation
from hsfl.engine.state import ScheduleRecord
from hsfl.errors import HsflError
from hsfl.problem.codes import LinkCodes
from hsfl.problem.plan import Plan
from hsfl.problem.strategy import Strategy
from hsfl.problem.topology import Clients, Topology

#: The fewest rounds before the second plan that is made by the loss: before training begins, little is known.
FIRST_WAIT = 16


@dataclass(frozen=True)
class Average:
    """A tier that is averaged now."""

    tier: int
    rounds: int
    """Since the average before."""
    moved: bool
    """Whether layers changed tiers since then."""


@dataclass(frozen=True)
class Present:
    """Who takes part in a round."""

    clients: Clients
    failed: Clients = ()
    """Those who were to, and failed."""
    late: Clients = ()
    """Those who would not be at the top in time."""
    waited_s: float = 0.0
    """How long the others were waited for."""


@dataclass(frozen=True)
class Exchange:
    """The entities of a tier that send to the fed server and those that fetch from it; None: all of them."""

    tier: int
    senders: Sequence[int] | None
    receivers: Sequence[int] | None


class Schedule:
    """Counts rounds. The same object runs a training and times one again on other machines."""

    def __init__(
        self,
        topology: Topology,
        strategy: Strategy,
        replan_every: int,
        by_loss: bool = False,
        participation: Participation | None = None,
    ) -> None:
        """`replan_every`: the fewest rounds between plans; 0 keeps the first.

        Where plans are made `by_loss`, the second may come after `FIRST_WAIT`, later ones after twice as many each
        time. `participation` says who takes part (default: everybody).
        """
        self._topology, self._strategy, self._replan_every = topology, strategy, replan_every
        self._first_wait = FIRST_WAIT if by_loss else replan_every
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
        self.participation = participation or Participation(topology.num_clients)
        self.cohort: Clients | None = () if self.participation.draws else None
        """Who may take part now; None: everybody."""
        self._gathered_at: int | None = None
        """When it was drawn."""
        tiers = topology.num_tiers  # what is averaged together counts as one layer
        self._attendance = Attendance(topology, tiers, range(1, tiers), self.cohort)
        self._up_to_date: list[set[int] | None] = [None] * tiers
        """The entities of every tier that have its last average; None: all of them."""

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

    def gather(self, clock: Clock) -> bool:
        """Draw who may take part, where that is due; whether it was. Where nobody is there, time passes."""
        rules, at = self.participation, self._gathered_at
        due = at is None or (self.round > at if rules.every_round else self._averaged_at[0] > at)
        if not rules.draws or not due:
            return False
        cuts = tuple(range(1, self._topology.num_tiers)) if self.plan is None else self.plan.cuts
        while not (chosen := rules.chosen(self.round, clock.time_s, lambda: clock.round_s(cuts))):
            clock.wait(rules.comes_back_s(clock.time_s))
        self.cohort = None if len(chosen) == self._topology.num_clients else chosen
        self._attendance.cohort, self._gathered_at = self.cohort, self.round
        return True

    def participants(self, clock: Clock) -> Present:
        """The clients that take part in the next round."""
        rules, cohort = self.participation, self._attendance.enrolled
        if not (rules.dropout or rules.failures or rules.deadline_s is not None):
            return Present(cohort)
        assert self.plan is not None
        failed = rules.failing(self.round, cohort)
        left = tuple(n for n in cohort if n not in failed)
        late: Clients = ()
        if rules.deadline_s is not None and left:
            arrive = clock.arrival_s(self.plan.cuts, left)
            late = tuple(np.array(left)[arrive > rules.deadline_s].tolist())
        here = tuple(n for n in left if n not in set(late)) if late else left
        waited_s = 0.0
        if failed or late:
            waited_s = rules.deadline_s or (0.0 if here else float(clock.round_s(self.plan.cuts)[list(cohort)].max()))
        return Present(here if failed or late else cohort, tuple(sorted(failed)), late, waited_s)

    def exchange(self, tier: int) -> Exchange | None:
        """Who sends and who fetches what when a tier is averaged now; None: nobody took part, so that nothing is."""
        if self._attendance.complete(tier):
            found = Exchange(tier, None, None)
        elif senders := list(self._attendance.shares(tier, tier)):
            found = Exchange(tier, senders, self._hosts(tier))
        else:
            return None
        self._attendance.averaged([tier])
        self._up_to_date[tier] = None if found.receivers is None else set(found.receivers)
        return found

    def joining(self) -> list[Exchange]:
        """Who has to fetch the last average of its tier before the next round, because it missed that."""
        found = []
        for tier, there in enumerate(self._up_to_date):
            if there is not None and (missing := sorted(set(self._hosts(tier)) - there)):
                there.update(missing)
                found.append(Exchange(tier, (), missing))
        return found

    def holders(self) -> list[Sequence[int]] | None:
        """The entities of every tier that have copies of their own; None: all of them."""
        if self.cohort is None:
            return None
        return [self._attendance.needed(tier) for tier in range(self._topology.num_tiers)]

    def _hosts(self, tier: int) -> list[int]:
        """The entities of a tier that serve the cohort."""
        hosts = self._topology.hosts[tier]
        return np.unique(hosts if self.cohort is None else hosts[list(self.cohort)]).tolist()

    def finish_round(self, took_part: Clients | None = None) -> list[Average]:
        """Count a round, of some clients or all; the tiers that are averaged after it, from the devices up."""
        assert self.plan is not None
        self.round += 1
        self._attendance.trained(self._attendance.enrolled if took_part is None else took_part)
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
            micro_batches=None if self.plan is None else self.plan.micro_batches,
            plan_round=self.plan_round,
            interval_since=self._interval_since,
            averaged_at=self._averaged_at,
            moved_at=self._moved_at,
            gathered_at=self._gathered_at,
            attendance=self._attendance.state(),
            up_to_date=[None if there is None else sorted(there) for there in self._up_to_date],
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
            self.plan = Plan(tuple(state.cuts), tuple(state.intervals), codes, state.micro_batches)
        self._interval_since, self._averaged_at = list(state.interval_since), list(state.averaged_at)
        self._attendance.restore(state.attendance, state.round, range(1, self._topology.num_tiers))
        self.cohort, self._gathered_at = self._attendance.cohort, state.gathered_at
        self._up_to_date = [None if there is None else set(there) for there in state.up_to_date]
