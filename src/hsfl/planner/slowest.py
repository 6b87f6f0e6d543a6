"""Which clients can ever be the slowest: all a planner has to look at; with cohorts, which mean clients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.latency import columns, expected_latency, mean_slowest

#: Fewer clients than this are not worth filtering.
_FEW = 64
_MAX_PASSES = 200


def slowest_clients(slowness: FloatArray) -> npt.NDArray[np.int64]:
    """Clients (columns) left after dropping those that another client equals or exceeds in every coefficient.

    T_n(c) is a sum of client n's coefficients with factors that are never negative, so a dominated client is never
    slower than the one that dominates it. The clients dropped are certain; some that could be dropped may stay, once
    another pass over them would cost more than it saves.
    """
    if slowness.shape[1] <= _FEW:
        return np.arange(slowness.shape[1])
    # Pivots: clients with a large sum of coefficients, each on the scale of its range, dominate many others.
    sample = slowness[:, :: max(1, slowness.shape[1] // 1000)]
    spread = sample.max(axis=1) - sample.min(axis=1)
    score = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0) @ slowness
    rows = list(slowness)
    clients = np.arange(slowness.shape[1])
    alive = len(clients)
    kept: list[int] = []
    while alive and len(kept) < _MAX_PASSES:
        pivot = int(np.argmax(score))
        kept.append(int(clients[pivot]))
        survives = rows[0] > rows[0][pivot]
        for row in rows[1:]:
            survives |= row > row[pivot]
        survives &= score > -np.inf
        before, alive = alive, int(np.count_nonzero(survives))
        if alive < 0.6 * len(clients):  # copying what is left costs more than a few passes over it
            left = np.flatnonzero(survives)
            rows, score, clients = [row[left] for row in rows], score[left], clients[left]
        else:
            score[~survives] = -np.inf
        if len(kept) > _FEW and alive > 0.98 * before:
            break
    return np.sort(np.concatenate((kept, clients[score > -np.inf])).astype(np.int64))


class MeanClients:
    """The expected slowest of a random cohort as a maximum, over clients that do not exist.

    Put the clients in any order and take of each cohort the first: the mean over cohorts is a mean client, no slower
    than the slowest is expected to be; and as slow where the order is that of the clients' times. So T_S(c) is the
    maximum over mean clients, one for each order, as that of all clients is over clients. A planner begins with the
    mean of all and adds the one that decides wherever it looks: until then T_S is at least what it knows.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[bytes, float] = {}
        self.slowness = columns(problem, problem.system.slowness.mean(axis=1, keepdims=True))
        """(D, P): of the mean clients so far."""

    def split_s(self, demand: FloatArray) -> tuple[float, bool]:
        """T_S at a demand (D,), and whether the mean clients have one more by that."""
        key = demand.tobytes()
        new = key not in self._known
        if new:
            self._known[key] = float(expected_latency(self._problem, demand))
            decisive = mean_slowest(self._problem, demand)
            self.slowness = np.column_stack((self.slowness, decisive))
        return self._known[key], new
