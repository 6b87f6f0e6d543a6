"""Chances of a random cohort: K of N clients, drawn uniformly and without replacement."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray


@lru_cache(maxsize=16)
def slowest_chances(clients: int, cohort: int) -> FloatArray:
    """(N,): how likely the slowest of a cohort is the slowest of all clients, the second slowest, and so on.

    C(N-r, K-1) / C(N, K) for rank r = 1..N, each from the one before. Ties need no care: equal times, equal sums.
    """
    rank = np.arange(1.0, clients)
    ratios = np.maximum(clients - cohort - rank + 1, 0.0) / (clients - rank)
    chances: FloatArray = np.cumprod(np.concatenate(([cohort / clients], ratios)), dtype=float)
    chances.flags.writeable = False
    return chances


def expected_slowest(seconds: FloatArray, clients: IntArray, chances: FloatArray) -> float:
    """The expected slowest of the entities that host one of a cohort, given how many clients each hosts.

    An entity is the slowest if one of its clients is drawn and none of a slower entity: the chance that the first
    client drawn, counted from the slowest entity on, is one of its own.
    """
    order = np.argsort(-seconds, kind="stable")
    ends = np.cumsum(clients[order])
    return float(seconds[order] @ np.add.reduceat(chances, ends - clients[order]))


def hit_chances(clients: IntArray, chances: FloatArray) -> FloatArray:
    """How likely each entity hosts one of a cohort, given how many clients it hosts."""
    found: FloatArray = np.cumsum(chances)[clients - 1]
    return found
