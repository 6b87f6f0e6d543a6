"""A forecast as a run records it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

from hsfl.records import ForecastRecord
from hsfl.theory.forecast import loss_law, recent_losses


def forecast(losses: Sequence[float], target: float, round_s: float) -> ForecastRecord | None:
    """How long it takes to a loss after those of all rounds so far, at so many seconds a round.

    None where nothing can be said, and where the loss of the moment is that low already.
    """
    if (law := loss_law(losses)) is None or recent_losses(losses)[-1] <= target:
        return None
    said = law.rounds_to(target)
    rounds, low, high = (max(1, ceil(r)) if isfinite(r) else None for r in (said.rounds, said.low, said.high))
    seconds = None if rounds is None else rounds * round_s
    return ForecastRecord(loss=target, rounds=rounds, low=low, high=high, seconds=seconds)
