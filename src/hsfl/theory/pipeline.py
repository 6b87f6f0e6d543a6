"""A round of several chunks, pipelined through the tiers: mini-batches, or parts of one.

All k chunks of a client go up through the tiers, and the gradient of each comes back down as soon as it is there. What
a chunk needs one after the other are machines, each for a forward and a backward pass, and links up and down. Each
works on one chunk at a time, while the others work on others. So the first chunk takes as long as it would alone, and
with each of the others what takes longest is done once more:

    T_n(c, k) = T_n(c) + (k-1) max_r t_r

with the times of one chunk, t_r, over r: F_m + B_m of each tier's machine, A_m up and G_m down of each link. Where a
link takes longest no schedule is faster. Where the machine of a lower tier does, it works ahead while a chunk is above
it, and the round may be shorter; where forward and backward passes of different chunks get in each other's way, it is a
little longer. benchmarks/machines.md compares it with machines on links of given rates.

A maximum of sums is a maximum over sums: each r, with k times its slowness, is a virtual client whose round takes a sum
of products, and the client's takes as long as the slowest of these.
"""

from __future__ import annotations

import numpy as np

from hsfl.problem.profile import FloatArray


def pipelined_latency(demand: FloatArray, slowness: FloatArray, count: int) -> FloatArray:
    """T_n(c, k) of demands (..., 3M-2) for clients given by columns of `System.slowness`: (..., N)."""
    total: FloatArray = demand @ slowness
    slowest = np.zeros_like(total)
    for row, seconds in enumerate(slowness):
        np.maximum(slowest, demand[..., row, None] * seconds, out=slowest)
    total += (count - 1) * slowest
    return total


def as_sums(demand: FloatArray, slowness: FloatArray, count: int) -> FloatArray:
    """The columns of `System.slowness` as they count at one demand (3M-2,): what takes longest k times; (3M-2, N)."""
    found = slowness.copy()
    found[(demand[:, None] * slowness).argmax(axis=0), np.arange(slowness.shape[1])] *= count
    return found


def virtual_clients(slowness: FloatArray, count: int) -> FloatArray:
    """The virtual clients of each column of `System.slowness`: (3M-2, N (3M-2))."""
    times = 1 + (count - 1) * np.eye(len(slowness))
    return np.asarray(slowness[:, :, None] * times[:, None, :]).reshape(len(slowness), -1)
