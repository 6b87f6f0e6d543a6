"""Who is asked to take part in rounds, and who fails: drawn from the seed and the round, so that no draw is saved."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hsfl.errors import HsflError
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import Clients

#: What separates these random streams from others with the same seed.
_COHORT, _FAILURES = 105, 106


@dataclass(frozen=True, eq=False)
class Availability:
    """From which time on clients are there or not; before the first one, a client is."""

    times_s: FloatArray
    """In order."""
    clients: npt.NDArray[np.int64]
    available: npt.NDArray[np.bool_]

    def at(self, time_s: float, num_clients: int) -> npt.NDArray[np.int64]:
        """Those who are there at a time, in order."""
        there, count = np.ones(num_clients, dtype=bool), bisect_right(self.times_s, time_s)
        there[self.clients[:count]] = self.available[:count]  # of several, the last one counts
        return np.flatnonzero(there)

    def change_after(self, time_s: float) -> float | None:
        """When somebody next comes; None: nobody does."""
        coming = self.times_s[self.available & (self.times_s > time_s)]
        return float(coming[0]) if len(coming) else None


@dataclass(frozen=True, eq=False)
class Participation:
    """The rules; by default everybody takes part, always."""

    num_clients: int
    seed: int = 0
    cohort: int | None = None
    """How many take part at a time; None: all."""
    every_round: bool = False
    """Whether they are drawn anew for every round, and not only when the devices have been averaged."""
    by_speed: bool = False
    """Whether who has fast rounds is more likely to be drawn."""
    availability: Availability | None = None
    dropout: float = 0.0
    """How likely one who was drawn fails in a round."""
    failures: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Who fails in which rounds, counted from 1."""
    deadline_s: float | None = None
    """How long a round waits for what clients send to be at the top tier."""

    @property
    def draws(self) -> bool:
        """Whether there are cohorts at all."""
        return self.cohort is not None or self.availability is not None

    @property
    def by_machines(self) -> bool:
        """Whether it depends on the machines who takes part."""
        return (
            (self.by_speed and self.cohort is not None) or self.availability is not None or self.deadline_s is not None
        )

    def chosen(self, round_: int, time_s: float, round_s: Callable[[], FloatArray]) -> Clients:
        """Who is to take part from a round on, counted from 0, that begins at a time; nobody, where nobody is there.

        `round_s` tells how long every client's round takes. By speed, one after the other is drawn of those left, each
        with a probability in proportion to the rounds it does in a second.
        """
        there = np.arange(self.num_clients)
        if self.availability is not None:
            there = self.availability.at(time_s, self.num_clients)
        count = len(there) if self.cohort is None else min(self.cohort, len(there))
        if count == len(there):
            return tuple(there.tolist())
        generator = np.random.default_rng([self.seed, _COHORT, round_])
        if self.by_speed:
            # The first in a race of exponential waiting times: the same as drawing one after the other.
            waits = generator.exponential(size=len(there)) * round_s()[there]
            drawn = there[np.argpartition(waits, count - 1)[:count]]
        else:
            drawn = there[generator.choice(len(there), count, replace=False, shuffle=False)]
        return tuple(np.sort(drawn).tolist())

    def comes_back_s(self, time_s: float) -> float:
        """How long to wait where nobody is there; HsflError where nobody comes any more."""
        assert self.availability is not None
        if (then := self.availability.change_after(time_s)) is None:
            raise HsflError(
                f"participation.availability: nobody is available after {time_s:g} s; let somebody come back, or stop "
                "before that (stopping.time_limit)"
            )
        return then - time_s

    def failing(self, round_: int, cohort: Clients) -> frozenset[int]:
        """The clients of a cohort that fail in a round, counted from 0."""
        found = self.failures.get(round_ + 1, frozenset()).intersection(cohort)
        if self.dropout:
            chances = np.random.default_rng([self.seed, _FAILURES, round_]).random(len(cohort))
            found |= {n for n, chance in zip(cohort, chances.tolist(), strict=True) if chance < self.dropout}
        return found
