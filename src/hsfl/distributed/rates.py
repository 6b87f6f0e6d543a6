"""How fast machines and links are, as seen while they run: medians of the last rounds and messages."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hsfl.distributed.places import FED, Places
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.system import System
from hsfl.problem.topology import edges

#: The number of rounds or messages that a median is taken over.
_WINDOW = 15
#: Messages up to so many bytes tell how long nothing takes; those from so many on, how long a byte.
_SMALL, _LARGE = 2_000, 16_000


class LinkMeter:
    """The rate at which one machine hears another, from when messages were sent and when they arrived.

    The clocks of two machines differ, but by the same for all messages: what a small one takes is taken off.
    """

    def __init__(self) -> None:
        self._least: deque[float] = deque(maxlen=10 * _WINDOW)
        self._rates: deque[float] = deque(maxlen=_WINDOW)
        self._last = float("-inf")

    def see(self, size: int, sent_s: float, arrived_s: float) -> float:
        """See a message of so many bytes, with the sender's clock and the own; how long its way took, where known."""
        before, self._last = self._last, arrived_s
        if size <= _SMALL:
            self._least.append(arrived_s - sent_s)
        elif size >= _LARGE and self._least:
            # It had the link for itself from when it was sent, or else from when the one before had arrived.
            took = arrived_s - max(before, sent_s + min(self._least))
            if took > 0:
                self._rates.append(8 * size / took)
        return arrived_s - sent_s - min(self._least) if self._least else 0.0

    @property
    def bps(self) -> float | None:
        return statistics.median(self._rates) if self._rates else None


class Measured:
    """What machines said of themselves and of what they hear."""

    def __init__(self) -> None:
        self._flops: dict[str, deque[float]] = {}
        self.bps: dict[str, float] = {}
        """By "SENDER>RECEIVER"."""

    def see(self, compute_s: Mapping[str, float], bps: Mapping[str, float], work: Mapping[str, float]) -> None:
        """See a round: seconds of every entity, FLOPs that it had to do, and rates of links."""
        self.bps |= bps
        for name, seconds in compute_s.items():
            if seconds > 0 and work[name] > 0:
                self._flops.setdefault(name, deque(maxlen=_WINDOW)).append(work[name] / seconds)

    def system(self, given: System, places: Places) -> System:
        """The machines as they were measured; what is not known yet is as given."""
        tiers = []
        for m, tier in enumerate(given.tiers):
            names = [places.name(m, number) for number in range(tier.entities)]
            above = [places.parent(name) for name in names]
            changes: dict[str, Any] = {
                "compute_flops": self._with(tier.compute_flops, [self._compute(name) for name in names]),
                "fed_uplink_bps": self._with(tier.fed_uplink_bps, [self._rate(name, FED) for name in names]),
                "fed_downlink_bps": self._with(tier.fed_downlink_bps, [self._rate(FED, name) for name in names]),
            }
            if m < given.num_tiers - 1:
                pairs = list(zip(names, above, strict=True))
                changes["uplink_bps"] = self._with(tier.uplink_bps, [self._rate(a, b) for a, b in pairs])
                changes["downlink_bps"] = self._with(tier.downlink_bps, [self._rate(b, a) for a, b in pairs])
            tiers.append(replace(tier, **changes))
        return replace(given, tiers=tuple(tiers))

    def _with(self, given: FloatArray, known: Sequence[float | None]) -> FloatArray:
        return np.array([was if now is None else now for was, now in zip(given, known, strict=True)])

    def _compute(self, name: str) -> float | None:
        return statistics.median(self._flops[name]) if name in self._flops else None

    def _rate(self, sender: str, receiver: str) -> float | None:
        return self.bps.get(f"{sender}>{receiver}")


def work_of(problem: Problem, places: Places, cuts: Sequence[int]) -> dict[str, float]:
    """The FLOPs of every entity in a round: those of its layers, for all its clients' mini-batches."""
    of_chunk = np.diff(problem.work_flops[edges(np.asarray(cuts), problem.num_layers)])
    per_client = problem.chunks_per_round * of_chunk
    counts = problem.system.clients_per_entity
    return {name: float(per_client[m] * counts[m][number]) for name, (m, number) in places.entities.items()}
