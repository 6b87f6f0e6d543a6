"""Latency of split training and of aggregation (paper, Section V-A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem, cumulative
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import edges
from hsfl.theory.pipeline import as_sums, pipelined_latency, virtual_clients

#: How many latencies `split_latency` holds in memory at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class RoundParts:
    """Where clients' rounds spend their time, in seconds; the last axis is the tier.

    Of several chunks: of one, and of all of them where it takes longest.
    """

    compute_s: FloatArray
    """(..., M): forward and backward passes, T^F + T^B."""
    uplink_s: FloatArray
    """(..., M-1): activations from each tier to the one above, T^A."""
    downlink_s: FloatArray
    """(..., M-1): gradients back down to each tier, T^G."""

    @property
    def total_s(self) -> FloatArray:
        """T_n."""
        total: FloatArray = self.compute_s.sum(-1) + self.uplink_s.sum(-1) + self.downlink_s.sum(-1)
        return total


def demands(problem: Problem, cuts: npt.ArrayLike) -> FloatArray:
    """What a chunk asks of every client by each plan: (..., 3M-2), FLOPs per tier, bits up and down per cut.

    In the order of the rows of `System.slowness`, so that T_n(c) = demands(c) @ slowness[:, n].
    """
    cuts = np.asarray(cuts)
    b, tier, at = problem.chunk_samples, np.arange(problem.system.num_tiers - 1), edges(cuts, problem.num_layers)
    done = problem.work_flops[at]
    up, down = problem.uplink_bits[tier, cuts - 1], problem.downlink_bits[tier, cuts - 1]
    return np.concatenate((done[..., 1:] - done[..., :-1], b * up, b * down), axis=-1)


def columns(problem: Problem, slowness: FloatArray) -> FloatArray:
    """What clients, given by columns of `System.slowness`, are to a planner: columns in the order of `demands`.

    T_S(c) is the maximum over them of demands(c) @ column. Where a round has several chunks they are virtual.
    """
    count = problem.chunks_per_round
    return slowness if count == 1 else virtual_clients(slowness, count)


def client_latency(problem: Problem, demand: FloatArray, slowness: FloatArray) -> FloatArray:
    """T_n at demands (..., D) of clients given by columns of `System.slowness`: (..., N)."""
    count = problem.chunks_per_round
    if count == 1:
        found: FloatArray = demand @ slowness
        return found
    return pipelined_latency(demand, slowness, count)


def round_parts(problem: Problem, cuts: npt.ArrayLike, clients: Sequence[int] | None = None) -> RoundParts:
    """T^F, T^B, T^A and T^G of the given clients (default: all): arrays (..., clients, tiers)."""
    slowness = problem.system.slowness if clients is None else problem.system.slowness[:, clients]
    seconds = np.moveaxis(demands(problem, cuts)[..., :, None] * slowness, -1, -2)
    if problem.chunks_per_round > 1:
        longest = seconds.argmax(axis=-1, keepdims=True)
        of_all = problem.chunks_per_round * np.take_along_axis(seconds, longest, axis=-1)
        np.put_along_axis(seconds, longest, of_all, axis=-1)
    return _parts(problem, seconds)


def _parts(problem: Problem, seconds: FloatArray) -> RoundParts:
    """Seconds in the order of `demands` along the last axis, by tier."""
    M = problem.system.num_tiers
    return RoundParts(seconds[..., :M], seconds[..., M : 2 * M - 1], seconds[..., 2 * M - 1 :])


def arrival_latency(problem: Problem, cuts: npt.ArrayLike, clients: Sequence[int] | None = None) -> FloatArray:
    """How long it takes what clients (default: all) send up to be at the top tier: (clients,).

    The forward passes of the tiers below, T^F, and what they send, T^A; of several chunks, the last one.
    """
    M, top, slowness = problem.system.num_tiers, len(problem.system.tree) - 1, problem.system.slowness
    chosen = slowness if clients is None else slowness[:, clients]
    forward = cumulative(problem.chunk_samples * problem.profile.forward_flops)[edges(cuts, problem.num_layers)]
    flops, up = np.diff(forward)[:top], demands(problem, cuts)[2 - 2 * M : 2 - 2 * M + top]
    arrival: FloatArray = flops @ chosen[:top] + up @ chosen[M : M + top]
    if problem.chunks_per_round > 1:
        stages = np.concatenate((flops, up))[:, None] * np.concatenate((chosen[:top], chosen[M : M + top]))
        arrival += (problem.chunks_per_round - 1) * stages.max(axis=0)
    return arrival


def latency_by_cut(problem: Problem, slowness: FloatArray) -> tuple[FloatArray, FloatArray]:
    """T_n(c) regrouped by cuts, for clients given by `columns`: (P,) and (M-1, P, L+1).

    T_n(c) = base_n + sum_m g_{m,n}(c_m), with base_n = W_L / f_{M,n} and
    g_{m,n}(l) = W_l (1/f_{m,n} - 1/f_{m+1,n}) + b psi_l / r^A_{m,n} + b chi_l / r^G_{m,n}.
    """
    M, b, work = problem.system.num_tiers, problem.chunk_samples, problem.work_flops
    f, up, down = slowness[:M], slowness[M : 2 * M - 1], slowness[2 * M - 1 :]
    none = np.zeros((M - 1, 1))
    activations = np.concatenate((none, b * problem.uplink_bits), axis=1)[:, None]
    gradients = np.concatenate((none, b * problem.downlink_bits), axis=1)[:, None]
    per_cut = (f[:-1] - f[1:])[:, :, None] * work + up[:, :, None] * activations + down[:, :, None] * gradients
    return work[-1] * f[-1], per_cut


def split_latency(problem: Problem, cuts: npt.ArrayLike, slowness: FloatArray | None = None) -> FloatArray:
    """T_S(c) = max_n T_n(c): (...), over all clients, expected of a random cohort where only some take part.

    Or over those given by columns of `System.slowness`: those of a cohort that was drawn.
    """
    demand, system = demands(problem, cuts), problem.system
    if slowness is None and system.sampled:
        return expected_latency(problem, demand)
    slowness = system.slowness if slowness is None else slowness
    if problem.chunks_per_round == 1:
        return slowest_latency(demand, slowness)
    flat, by_block = _in_blocks(demand, slowness.shape[1])
    slowest = [client_latency(problem, flat[rows], slowness).max(axis=1) for rows in by_block]
    return np.concatenate(slowest).reshape(demand.shape[:-1])


def slowest_latency(demand: FloatArray, slowness: FloatArray) -> FloatArray:
    """max_n T_n for demands (..., D) on clients given by `columns`: (...)."""
    flat, by_block = _in_blocks(demand, slowness.shape[1])
    if len(by_block) == 1:
        slowest: FloatArray = (slowness.T @ flat.T).max(axis=0)
        return slowest.reshape(demand.shape[:-1])
    latency = [(flat[rows] @ slowness).max(axis=1) for rows in by_block]
    return np.concatenate(latency).reshape(demand.shape[:-1])


def _in_blocks(demand: FloatArray, clients: int) -> tuple[FloatArray, list[slice]]:
    """Demands as rows, (K, D), and slices of them whose latencies for so many clients fit in memory."""
    flat, rows = demand.reshape(-1, demand.shape[-1]), max(1, _AT_ONCE // clients)
    return flat, [slice(k, k + rows) for k in range(0, max(1, len(flat)), rows)]


def expected_latency(problem: Problem, demand: FloatArray) -> FloatArray:
    """T_S of a random cohort at demands (..., D), expected: sum_r P(the slowest is the r-th slowest client) T_(r)."""
    slowness, chances = problem.system.slowness, problem.system.slowest_chances
    flat, by_block = _in_blocks(demand, slowness.shape[1])
    parts = (client_latency(problem, flat[rows], slowness) for rows in by_block)
    expected = np.concatenate([np.sort(latency, axis=1)[:, ::-1] @ chances for latency in parts])
    return expected.reshape(demand.shape[:-1])


def mean_slowest(problem: Problem, demand: FloatArray) -> FloatArray:
    """(D,): the column of the slowest of a random cohort at a demand (D,), its mean over all cohorts.

    At that demand it takes the expected time of the slowest. At any other it takes no longer than that: it is the mean
    over cohorts of one client of each, of several chunks one virtual client.
    """
    slowness, chances = problem.system.slowness, problem.system.slowest_chances
    order = np.argsort(-client_latency(problem, demand, slowness), kind="stable")
    weights = np.empty_like(chances)
    weights[order] = chances
    if problem.chunks_per_round > 1:
        slowness = as_sums(demand, slowness, problem.chunks_per_round)
    return slowness @ weights


def slowest_round(problem: Problem, cuts: npt.ArrayLike) -> tuple[int, FloatArray, RoundParts]:
    """The client, counted from 0, that decides T_S of one plan, T_S, and where that client's round goes.

    With cohorts: the client whose round is nearest to the expected T_S, and where the slowest's rounds go in the mean.
    """
    demand, slowness = demands(problem, cuts), problem.system.slowness
    latency = client_latency(problem, demand, slowness)
    if problem.system.sampled:
        total: FloatArray = np.sort(latency)[::-1] @ problem.system.slowest_chances
        client, slowest = int(np.abs(latency - total).argmin()), mean_slowest(problem, demand)
        return client, total, _parts(problem, demand * slowest)
    client, count = int(latency.argmax()), problem.chunks_per_round
    slowest = slowness[:, client]
    if count > 1:
        slowest = as_sums(demand, slowness[:, [client]], count)[:, 0]
    return client, latency[client], _parts(problem, demand * slowest)


def aggregation_latency(problem: Problem, cuts: npt.ArrayLike) -> FloatArray:
    """T_{m,A}(c): (..., M), 0 for a tier with one entity.

    The paper leaves the top tier out because it has one server there; here it counts like any other.
    """
    return averaged_bits(problem, cuts) * problem.system.fed_seconds_per_bit


def round_latency(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """T_S(c) + sum_m T_{m,A}(c) / I_m, the mean over many rounds: (...)."""
    averaging: FloatArray = (aggregation_latency(problem, cuts) / np.asarray(intervals)).sum(-1)
    return split_latency(problem, cuts) + averaging


def averaged_bits(problem: Problem, cuts: npt.ArrayLike) -> FloatArray:
    """What one entity of each tier sends to the fed server, and gets back: (..., M)."""
    at, tier = edges(cuts, problem.num_layers), np.arange(problem.system.num_tiers)
    total: FloatArray = problem.averaged_bits[tier, at[..., 1:]] - problem.averaged_bits[tier, at[..., :-1]]
    return total


def client_memory(problem: Problem, cuts: npt.ArrayLike) -> FloatArray:
    """Bits each tier holds for one client: (..., M), the sum in C5, held for each that takes part.

    Devices that are the last tier, too, hold what both tiers do: in the place of either.
    """
    at, tier = edges(cuts, problem.num_layers), np.arange(problem.system.num_tiers)
    total: FloatArray = problem.client_memory_bits[tier, at[..., 1:]] - problem.client_memory_bits[tier, at[..., :-1]]
    if problem.system.returns:
        total[..., 0] += total[..., -1]
        total[..., -1] = total[..., 0]
    return total


def fits_memory(problem: Problem, cuts: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """C5: whether every entity of each tier holds what it has to: (..., M)."""
    return client_memory(problem, cuts) < problem.system.memory_per_client_bits
