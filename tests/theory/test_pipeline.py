"""Several mini-batches in a round, or one in chunks: the clock against a pipeline that is run event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsfl.problem.problem import Problem
from hsfl.theory.convergence import energy_drift, margin, noise_floor, paper_drift, refined_drift
from hsfl.theory.latency import (
    arrival_latency,
    client_latency,
    client_memory,
    columns,
    demands,
    latency_by_cut,
    round_parts,
    slowest_latency,
    slowest_round,
    split_latency,
)
from tests.zoo import cut_vectors, latencies_by_cohorts, random_problem, with_cohort


def some_problem(seed: int, count: int, chunks: int = 1) -> Problem:
    rng = np.random.default_rng(seed)
    tiers = int(rng.integers(2, 5))
    problem = random_problem(rng, num_tiers=tiers, num_layers=tiers + 2, num_clients=6, single_top=bool(seed % 2))
    profile = replace(problem.profile, backward_flops=problem.profile.forward_flops * rng.uniform(0.2, 4, tiers + 2))
    batch = chunks * problem.batch_size
    return replace(problem, profile=profile, micro_batches=count, batch_size=batch, chunks=chunks)


def piped(stages: list[float], ready: list[float]) -> list[float]:
    """When each chunk leaves the last of some stages, which take them one by one as they come."""
    for seconds in stages:
        free, left = 0.0, []
        for came in ready:
            free = max(free, came) + seconds
            left.append(free)
        ready = left
    return ready


def simulated(problem: Problem, cuts: np.ndarray, client: int) -> tuple[float, float]:
    """T_n and when all is at the top, of stages made from rates and layers: nothing of the formula is used."""
    system, profile, b = problem.system, problem.profile, problem.batch_size / problem.chunks
    pieces = problem.micro_batches * problem.chunks
    edges, up, down = [0, *cuts.tolist(), problem.num_layers], [], []
    for m, tier in enumerate(system.tiers):
        host = system.hosts[m][client]
        share = system.clients_per_entity[m][host]
        own = slice(edges[m], edges[m + 1])
        up.append(b * profile.forward_flops[own].sum() * share / tier.compute_flops[host])
        down.append(b * profile.backward_flops[own].sum() * share / tier.compute_flops[host])
        if m < system.num_tiers - 1:
            last, sent = edges[m + 1] - 1, b if edges[m + 1] < problem.num_layers else 0  # nothing to an empty top
            up.append(sent * profile.activation_bits[last] * share / tier.uplink_bps[host])
            down.append(sent * profile.gradient_bits[last] * share / tier.downlink_bps[host])
    start = [0.0] * pieces
    at_top = piped(up, start)[-1]
    return piped(down[::-1], [at_top] * pieces)[-1], piped(up[:-1], start)[-1]


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (2, 1), (3, 1), (7, 1), (1, 4), (2, 3)])
def test_the_clock_is_that_of_a_pipeline(count: int, chunks: int) -> None:
    for seed in range(12):
        problem = some_problem(seed, count, chunks)
        for cuts in cut_vectors(problem, True)[:: seed + 1]:
            truth = np.array([simulated(problem, cuts, n) for n in range(problem.system.num_clients)]).T
            slowness = problem.system.slowness
            assert client_latency(problem, demands(problem, cuts), slowness) == pytest.approx(truth[0], rel=1e-12)
            assert arrival_latency(problem, cuts) == pytest.approx(truth[1], rel=1e-12)
            assert round_parts(problem, cuts).total_s == pytest.approx(truth[0], rel=1e-12)
            client, total, parts = slowest_round(problem, cuts)
            assert truth[0, client] == pytest.approx(truth[0].max(), rel=1e-12)
            assert total == pytest.approx(truth[0].max(), rel=1e-12) == parts.total_s


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (2, 1), (5, 1), (1, 2), (3, 2)])
def test_what_planners_see_is_the_same(count: int, chunks: int) -> None:
    """Virtual clients as columns, and the sums by cuts of them, take as long as the clients."""
    for seed in range(8):
        problem = some_problem(seed, count, chunks)
        cuts = cut_vectors(problem, True)
        seen, truth = columns(problem, problem.system.slowness), split_latency(problem, cuts)
        assert slowest_latency(demands(problem, cuts), seen) == pytest.approx(truth, rel=1e-12)
        base, per_cut = latency_by_cut(problem, seen)
        by_cuts = base + sum(per_cut[m][:, cuts[:, m]].T for m in range(cuts.shape[1]))
        assert by_cuts.max(axis=1) == pytest.approx(truth, rel=1e-9)


def test_the_expected_slowest_of_a_cohort_is_the_mean_over_cohorts() -> None:
    rng = np.random.default_rng(3)
    for seed in range(4):
        problem = with_cohort(rng, some_problem(seed, 3 - 2 * (seed % 2), 1 + seed % 2), 3)
        for cuts in cut_vectors(problem, False)[:4]:
            truth, _ = latencies_by_cohorts(problem, cuts)
            assert float(split_latency(problem, cuts)) == pytest.approx(truth, rel=1e-12)
            _, total, parts = slowest_round(problem, cuts)
            assert float(total) == pytest.approx(truth, rel=1e-12) == float(parts.total_s)


def test_memory_and_noise() -> None:
    """All mini-batches are held; their noise is averaged, what pulls apart is not; G^2 stays an upper bound."""
    one = some_problem(1, 1)
    four, cuts = one.with_micro_batches(4), cut_vectors(one, False)[0]
    last = one.num_layers
    held = one.profile.activation_bits + one.profile.gradient_bits
    more = client_memory(four, cuts).sum() - client_memory(one, cuts).sum()
    assert more == pytest.approx(3 * one.batch_size * held[:last].sum(), rel=1e-12)
    assert noise_floor(four) == pytest.approx(noise_floor(one) / 4, rel=1e-15)
    assert np.array_equal(paper_drift(four), paper_drift(one))
    assert one.constants.gradient_dissimilarity is not None
    alike = replace(one.constants, gradient_dissimilarity=0 * one.constants.gradient_dissimilarity)
    for drift in (refined_drift, energy_drift):
        random = drift(replace(one, constants=alike))
        assert drift(replace(four, constants=alike)) == pytest.approx(random / 4, rel=1e-12)
        assert drift(one) - drift(four) == pytest.approx(0.75 * random, rel=1e-9, abs=1e-18)
    ones = np.ones(one.system.num_tiers)
    assert margin(four, cuts, ones) - margin(one, cuts, ones) == pytest.approx(0.75 * noise_floor(one), rel=1e-9)


def test_chunks_cost_time_alone() -> None:
    """More of them never take longer, nor less than the slowest stages; memory, noise and drift stay what they are."""
    whole = some_problem(2, 1, 4)
    one, cuts = replace(whole, chunks=1), cut_vectors(whole, False)
    pieces = {count: replace(whole, chunks=count) for count in (1, 2, 4)}
    seconds = [split_latency(problem, cuts) for problem in pieces.values()]
    assert np.all(seconds[0] > seconds[1]) and np.all(seconds[1] > seconds[2])
    for problem in pieces.values():
        assert np.array_equal(client_memory(problem, cuts), client_memory(one, cuts))
        assert noise_floor(problem) == noise_floor(one)
        for drift in (paper_drift, refined_drift):
            assert np.array_equal(drift(problem), drift(one))
