"""How the learning rate changes: what part of it a round takes, a function of the round alone, counted from 0.

So a run that goes on needs to remember nothing, and machines need not be told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import cos, pi

#: What part of the learning rate a round takes.
StepSchedule = Callable[[int], float]


def cosine(horizon: int, begin: int = 0) -> StepSchedule:
    """From all of it at round `begin` down half a wave, 0 at `horizon`; from there on as in the round before it."""

    def factor(round_: int) -> float:
        done = min(max(round_, begin), horizon - 1) - begin
        return 0.5 * (1 + cos(pi * done / (horizon - begin)))

    return factor


def steps(at: Sequence[int], decay: float) -> StepSchedule:
    """`decay` of what it was from each of some rounds on."""
    return lambda round_: decay ** bisect_right(at, round_)


def warmed_up(schedule: StepSchedule, rounds: int) -> StepSchedule:
    """The same, but for so many rounds in which it rises evenly."""
    return lambda round_: min(1.0, (round_ + 1) / rounds) * schedule(round_)
