"""What training asks for plans; hsfl.strategies has some, and any object of this form will do."""

from __future__ import annotations

from typing import Protocol

from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem


class Strategy(Protocol):
    """Proposes plans while training. A strategy keeps no state, so that a run can be resumed.

    Three more members are looked for and may be absent. `averages(plan, tier, rounds)`, where tiers are averaged
    otherwise than every I_m rounds: whether a tier (counted from 0) is averaged so many rounds after its interval last
    changed. `guarded`, which is True where intervals may be shortened between plans, because drift is weighed against
    the loss and does harm. `corrected_gain(problem)`: how many times as fast the plan would be with corrected averages.
    """

    @property
    def name(self) -> str: ...

    @property
    def replans(self) -> bool:
        """Whether the strategy wants to be asked again once every tier has been averaged."""
        ...

    @property
    def needs_constants(self) -> bool:
        """Whether constants are to be measured, which takes time, and a target given before the strategy is asked."""
        ...

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        """The plan for the rounds after `round_` (0 at the start); InfeasibleError if there is none."""
        ...
