"""A round of several chunks, pipelined through the tiers: mini-batches, or parts of one.

All k chunks of a client go up through the stages F_1, A_1, F_2, .., A_{M-1}, F_M; then all come down through B_M,
G_{M-1}, .., G_1, B_1. A stage takes them one by one, and the next stage begins with the first while it goes on with the
second. With the times of one chunk

    T_n(c, k) = T_n(c) + (k-1) [ max(F_m, A_m) + max(B_m, G_m) ].

Proof: a chunk enters a stage once it has left the stage before and the one before it has left this stage, so the
last one leaves the last stage after the longest path from (first stage, first chunk) to there, by steps of one
stage or one chunk. Such a path meets every stage once and k-1 of them once more, at best the slowest each time.

A maximum of sums is a maximum over sums: each pair of a stage up and a stage down, with k times their slowness, is a
virtual client whose round takes a sum of products, and the client's takes as long as the slowest of these.
"""

from __future__ import annotations

import numpy as np

from hsfl.problem.profile import FloatArray


def by_stage(slowness: FloatArray) -> FloatArray:
    """(4M-2, N) from `System.slowness` (3M-2, N): FLOPs forward and backward have rows of their own."""
    tiers = (len(slowness) + 2) // 3
    return np.concatenate((slowness[:tiers], slowness))


def stages(rows: int) -> tuple[list[int], list[int]]:
    """The rows of `by_stage`, so many, that go up, F_m and A_m, and those that come down, B_m and G_m."""
    M = (rows + 2) // 4
    up = [*range(M), *range(2 * M, 3 * M - 1)]
    down = [*range(M, 2 * M), *range(3 * M - 1, rows)]
    return up, down


def pipelined_latency(demand: FloatArray, slowness: FloatArray, count: int) -> FloatArray:
    """T_n(c, k) of demands (..., 4M-2) for clients given by columns of `by_stage`: (..., N)."""
    total: FloatArray = demand @ slowness
    for way in stages(len(slowness)):
        slowest = np.zeros_like(total)
        for row in way:
            np.maximum(slowest, demand[..., row, None] * slowness[row], out=slowest)
        total += (count - 1) * slowest
    return total


def as_sums(demand: FloatArray, slowness: FloatArray, count: int) -> FloatArray:
    """The columns of `by_stage` as they count at one demand (4M-2,): the slowest stage each way k times; (4M-2, N)."""
    found, clients = slowness.copy(), np.arange(slowness.shape[1])
    for way in stages(len(slowness)):
        slowest = np.array(way)[(demand[way, None] * slowness[way]).argmax(axis=0)]
        found[slowest, clients] *= count
    return found


def virtual_clients(slowness: FloatArray, count: int) -> FloatArray:
    """The virtual clients of each column of `by_stage`: (4M-2, N (2M-1)^2)."""
    up, down = stages(len(slowness))
    times = np.ones((len(slowness), len(up), len(down)))
    times[up, range(len(up)), :] = count
    times[down, :, range(len(down))] = count
    return np.asarray(slowness[:, :, None] * times.reshape(len(slowness), 1, -1)).reshape(len(slowness), -1)
