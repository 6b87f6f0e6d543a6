"""What training asks for plans; hsfl.strategies has some, and any object of this form will do."""

from __future__ import annotations

from typing import Protocol

from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem


class Strategy(Protocol):
    """Proposes plans while training. It keeps no state, so that a run can be resumed.

    One that averages tiers otherwise than every I_m rounds also has `averages(plan, tier, rounds)`: whether a tier
    (counted from 0) is averaged after so many rounds since its interval last changed. One whose intervals may be
    shortened between plans, where drift is weighed against the loss and does harm, has `guarded`, which is True. One
    that can tell how many times as fast its plan would be with corrected averages has `corrected_gain(problem)`.
    """

    @property
    def name(self) -> str: ...

    @property
    def replans(self) -> bool:
        """Whether it wants to be asked again once every tier has been averaged."""
        ...

    @property
    def needs_constants(self) -> bool:
        """Whether the constants are to be measured before it is asked (which takes time), and a target given."""
        ...

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        """The plan for the rounds after `round_` (0 at the start); InfeasibleError if there is none."""
        ...
