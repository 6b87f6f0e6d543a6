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
    largest, smallest = slowness.max(axis=1), slowness.min(axis=1)
    differs = largest > smallest
    if not differs.any():
        return np.array([0])
    varying = slowness if differs.all() else slowness[differs]
    score = (1 / largest[differs]) @ varying
    clients = np.arange(slowness.shape[1])
    kept: list[int] = []
    while len(clients) and len(kept) < _MAX_PASSES:
        worst = int(np.argmax(score))  # the largest sum: dominated by none of the others, except equal ones
        kept.append(int(clients[worst]))
        survives = varying[0] > varying[0, worst]
        for row in varying[1:]:
            survives |= row > row[worst]
        survivors = np.flatnonzero(survives)
        wasteful = len(kept) > _FEW and len(survivors) > 0.9 * len(clients)
        varying, score, clients = varying[:, survivors], score[survivors], clients[survivors]
        if wasteful:
            break
    return np.sort(np.concatenate((kept, clients)).astype(np.int64))
