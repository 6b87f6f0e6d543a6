"""Watches training between plans, from average to average: intervals that do harm are shortened at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hsfl.engine.state import GuardRecord
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.theory.convergence import margin

#: Plans leave at least half of the margin to progress where averaging is dear, and more elsewhere.
LEAST_LEFT = 0.25
#: How many times the lowest loss the loss may be; both are means over about `_MEMORY` losses.
MOST_LOSS = 1.5
_MEMORY = 5
#: The fewest rounds between two looks: each waits for the device.
EVERY = 8


class Guard:
    """Has seen losses and drifts; says at an average whether intervals are too long, and why.

    A machine's loss on its own data falls while it drifts. So only those losses count that follow an average of the
    tier that is averaged most rarely.
    """

    def __init__(self) -> None:
        self.loss: float | None = None
        self.lowest: float | None = None
        self.alarm: str | None = None
        """Why the intervals are to be shortened before the next round."""
        self._seen, self._fresh, self._looked = 0, False, 0

    def is_due(self, round_: int) -> bool:
        return round_ >= self._looked + EVERY

    def see(self, loss: float, averaged: Collection[int], plan: Plan) -> None:
        """A round's mean loss, and the tiers that were averaged after it."""
        fresh, self._fresh = self._fresh, plan.intervals.index(max(plan.intervals)) in averaged
        if not fresh:
            return
        self._seen += 1
        self.loss = loss if self.loss is None else self.loss + (loss - self.loss) / min(self._seen, _MEMORY)
        if self._seen >= _MEMORY:
            self.lowest = self.loss if self.lowest is None else min(self.lowest, self.loss)

    def look(self, problem: Problem, plan: Plan, round_: int) -> None:
        """After averages: raise the alarm where drift, as last seen, or the loss has grown too much."""
        self._looked = round_
        if all(interval == 1 for interval in plan.intervals):
            return
        whole = float(margin(problem, plan.cuts, (1,) * len(plan.intervals)))
        left = float(margin(problem, plan.cuts, plan.intervals))
        if left < LEAST_LEFT * whole:
            self.alarm = f"the drift seen leaves {max(left / whole, 0.0):.0%} of the margin"
        elif self.loss is not None and self.lowest is not None and self.loss > MOST_LOSS * self.lowest:
            self.alarm = f"the loss rose from {self.lowest:.3g} to {self.loss:.3g}"
            self.lowest = self.loss

    def shortened(self, plan: Plan) -> Plan:
        """The plan with its intervals halved; the alarm is over."""
        self.alarm = None
        return replace(plan, intervals=tuple(max(1, interval // 2) for interval in plan.intervals))

    def state(self) -> GuardRecord:
        """The guard as a checkpoint holds it."""
        return GuardRecord(
            loss=self.loss,
            lowest=self.lowest,
            alarm=self.alarm,
            seen=self._seen,
            fresh=self._fresh,
            looked=self._looked,
        )

    def restore(self, state: GuardRecord) -> None:
        self.loss, self.lowest, self.alarm = state.loss, state.lowest, state.alarm
        self._seen, self._fresh, self._looked = state.seen, state.fresh, state.looked
