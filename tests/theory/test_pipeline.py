"""Several mini-batches in a round, or one in chunks: the clock against a pipeline that is run event by event."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import numpy as np
import pytest

import hsfl
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


def path_of(problem: Problem, cuts: np.ndarray, client: int) -> list[tuple[tuple[str, int], float]]:
    """What a chunk needs one after the other, made from rates and layers: who works on it, and for how long."""
    system, profile, b = problem.system, problem.profile, problem.batch_size / problem.chunks
    edges = [0, *cuts.tolist(), problem.num_layers]
    up: list[tuple[tuple[str, int], float]] = []
    down: list[tuple[tuple[str, int], float]] = []
    for m, tier in enumerate(system.tiers):
        host = system.hosts[m][client]
        share = system.clients_per_entity[m][host]
        own = slice(edges[m], edges[m + 1])
        up.append((("machine", m), b * profile.forward_flops[own].sum() * share / tier.compute_flops[host]))
        down.append((("machine", m), b * profile.backward_flops[own].sum() * share / tier.compute_flops[host]))
        if m < system.num_tiers - 1:
            last, sent = edges[m + 1] - 1, b if edges[m + 1] < problem.num_layers else 0  # nothing to an empty top
            sizes = (
                tier.codes.up.crossing_bits(profile.activation_bits),
                tier.codes.down.crossing_bits(profile.gradient_bits),
            )
            up.append((("up", m), sent * sizes[0][last] * share / tier.uplink_bps[host]))
            down.append((("down", m), sent * sizes[1][last] * share / tier.downlink_bps[host]))
    return up + down[::-1]


def simulated(path: list[tuple[tuple[str, int], float]], pieces: int) -> float:
    """When the last chunk is back: whoever is free takes what came first. Nothing of the formula is used."""
    events: list[tuple[float, int, int, int]] = []
    waiting: dict[tuple[str, int], list[tuple[int, int]]] = {}
    busy: set[tuple[str, int]] = set()
    number, end = itertools.count(), 0.0

    def begin(now: float, who: tuple[str, int]) -> None:
        if who not in busy and waiting.get(who):
            busy.add(who)
            piece, step = waiting[who].pop(0)
            heapq.heappush(events, (now + path[step][1], next(number), piece, step))

    for piece in range(pieces):
        waiting.setdefault(path[0][0], []).append((piece, 0))
    begin(0.0, path[0][0])
    while events:
        end, _, piece, step = heapq.heappop(events)
        busy.remove(path[step][0])
        if step + 1 < len(path):
            waiting.setdefault(path[step + 1][0], []).append((piece, step + 1))
            begin(end, path[step + 1][0])
        begin(end, path[step][0])
    return end


COUNTS = [(1, 1), (2, 1), (3, 1), (7, 1), (1, 4), (2, 3)]


@pytest.mark.parametrize(("count", "chunks"), COUNTS)
def test_the_clock_is_that_of_a_pipeline(count: int, chunks: int) -> None:
    """To the digit where links take longest and computing hardly anything, else nearly so, mostly above."""
    ratios = []
    for seed in range(12):
        problem = some_problem(seed, count, chunks)
        tiers = tuple(replace(tier, compute_flops=1e12 * tier.compute_flops) for tier in problem.system.tiers)
        links = replace(problem, system=replace(problem.system, tiers=tiers))
        for cuts in cut_vectors(problem, True)[:: seed + 1]:
            for one, exact in ((links, True), (problem, count * chunks == 1)):
                paths = [path_of(one, cuts, n) for n in range(one.system.num_clients)]
                truth = np.array([simulated(path, count * chunks) for path in paths])
                found = client_latency(one, demands(one, cuts), one.system.slowness)
                if exact:
                    assert found == pytest.approx(truth, rel=1e-6)
                ratios += (found / truth).tolist()
                resources = [{who: sum(s for w, s in path if w == who) for who, _ in path} for path in paths]
                for seconds, path, of in zip(found, paths, resources, strict=True):
                    alone = sum(s for _, s in path)
                    assert seconds == pytest.approx(alone + (count * chunks - 1) * max(of.values()), rel=1e-9)
                assert round_parts(one, cuts).total_s == pytest.approx(found, rel=1e-12)
                client, total, parts = slowest_round(one, cuts)
                assert found[client] == found.max()
                assert total == pytest.approx(found.max(), rel=1e-12) == parts.total_s
    assert min(ratios) > 0.7 and max(ratios) < 1.4 and np.median(ratios) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("code", "cuts"), [("fp32", (2, 4)), ("fp32", (4, 7)), ("int4", (2, 4))])
def test_rounds_of_the_paper_s_system_are_those_of_a_pipeline(code: str, cuts: tuple[int, int]) -> None:
    """At the cuts that plans have there: to a hundredth, and not above."""
    for chunks in (1, 2, 4, 8):
        problem = hsfl.load_scenario("paper", {"training.chunks": chunks, "tiers.*.code": code}).bare_problem
        truth = max(simulated(path_of(problem, np.array(cuts), n), chunks) for n in range(20))
        assert 0.988 * truth < float(split_latency(problem, cuts)) < (1 + 1e-9) * truth


@pytest.mark.parametrize(("count", "chunks"), COUNTS)
def test_all_is_at_the_top_when_the_last_chunk_is(count: int, chunks: int) -> None:
    for seed in range(6):
        problem = some_problem(seed, count, chunks)
        for cuts in cut_vectors(problem, True)[:: seed + 1]:
            paths = [path_of(problem, cuts, n)[: 2 * problem.system.num_tiers - 2] for n in range(6)]
            truth = [simulated(path, count * chunks) for path in paths]
            assert arrival_latency(problem, cuts) == pytest.approx(truth, rel=1e-12)


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
