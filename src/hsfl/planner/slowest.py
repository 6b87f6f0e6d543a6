"""Which clients can ever be the slowest: all a planner has to look at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hsfl.problem.profile import FloatArray

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
