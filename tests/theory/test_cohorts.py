"""Random cohorts: every expectation against the mean over all cohorts there are, and against drawn ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.problem.cohort import slowest_chances
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.convergence import drift, margin, noise_floor, staying_cohort
from hsfl.theory.latency import (
    aggregation_latency,
    demands,
    fits_memory,
    mean_slowest,
    round_parts,
    slowest_round,
    split_latency,
)
from hsfl.theory.sampling import of_all_clients, sampling_variance, within_cohort
from tests.zoo import cohorts, cut_vectors, latencies_by_cohorts, random_problem, with_memory_limits

seeds = st.integers(0, 2**32 - 1)


def any_problem(seed: int, drift_model: str = "refined") -> tuple[Problem, np.ndarray]:
    """A random problem for a random cohort, and cuts."""
    rng = np.random.default_rng(seed)
    tiers = int(rng.integers(2, 5))
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers, 8)),
        num_clients=int(rng.integers(4, 9)),
        drift=drift_model,
        single_top=bool(rng.integers(2)),
    )
    cohort = int(rng.integers(1, problem.system.num_clients))
    return of(problem, cohort), rng.choice(cut_vectors(problem, False))


def of(problem: Problem, cohort: int | None) -> Problem:
    return replace(problem, system=replace(problem.system, cohort=cohort))


@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_the_chances_of_every_rank(clients: int, data: st.DataObject) -> None:
    cohort = data.draw(st.integers(1, clients))
    exact = [float(Fraction(comb(clients - r, cohort - 1), comb(clients, cohort))) for r in range(1, clients + 1)]
    assert slowest_chances(clients, cohort) == pytest.approx(exact, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("cohort", [1, 2, 100, 99_999, 100_000])
def test_chances_of_many_clients_stay_exact(cohort: int) -> None:
    chances = slowest_chances(100_000, cohort)
    assert (chances >= 0).all() and chances.sum() == pytest.approx(1, rel=1e-11)
    assert chances[0] == cohort / 100_000
    assert chances[5] == pytest.approx(float(Fraction(comb(99_994, cohort - 1), comb(100_000, cohort))), rel=1e-12)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_latencies_are_the_means_over_all_cohorts(seed: int) -> None:
    problem, cuts = any_problem(seed)
    split_s, aggregation_s = latencies_by_cohorts(problem, cuts)
    assert split_latency(problem, cuts) == pytest.approx(split_s, rel=1e-12)
    assert aggregation_latency(problem, cuts) == pytest.approx(aggregation_s, rel=1e-12)
    client, total, parts = slowest_round(problem, cuts)
    assert (total, parts.total_s) == (pytest.approx(split_s, rel=1e-12), pytest.approx(split_s, rel=1e-12))
    each = round_parts(problem, cuts).total_s
    assert abs(each[client] - total) == np.abs(each - total).min()


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_machines_are_shared_by_those_who_take_part(seed: int) -> None:
    """`sharing` is the mean over the cohorts that an entity takes part in for one client; `working` and `missable` are
    counted; no cohort has more clients on an entity than `most_hosted`, and some has as many."""
    system = any_problem(seed)[0].system
    counts = [
        np.array([np.bincount(row[list(cohort)], minlength=J) for cohort in cohorts(system)])
        for row, J in zip(system.hosts, system.entities, strict=True)
    ]
    for m, count in enumerate(counts):
        together = (count**2).sum(axis=0) / count.sum(axis=0)  # of an entity's clients, seen by one of them
        assert system.sharing[m] == pytest.approx(together, rel=1e-12)
        assert system.working[m] == pytest.approx((count > 0).sum(axis=1).mean(), rel=1e-12)
        assert system.missable[m] == (m > 0 and bool((count == 0).any()))
        assert (system.most_hosted[m] == count.max(axis=0)).all()


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_a_mean_client_is_never_slower_than_the_slowest_is_expected_to_be(seed: int) -> None:
    problem, cuts = any_problem(seed)
    every = cut_vectors(problem, False)
    column = mean_slowest(problem, demands(problem, cuts))
    assert demands(problem, cuts) @ column == pytest.approx(float(split_latency(problem, cuts)), rel=1e-12)
    assert (demands(problem, every) @ column <= split_latency(problem, every) * (1 + 1e-12)).all()


@given(seeds, st.sampled_from(["paper", "refined", "energy"]))
@settings(max_examples=40, deadline=None)
def test_larger_cohorts_take_longer_and_add_less_noise(seed: int, drift_model: str) -> None:
    problem, cuts = any_problem(seed, drift_model)
    N, intervals = problem.system.num_clients, np.full(problem.system.num_tiers, 3)
    every = [of(problem, cohort) for cohort in range(1, N + 1)]
    split_s = [float(split_latency(p, cuts)) for p in every]
    assert split_s == sorted(split_s)
    averages = np.array([aggregation_latency(p, cuts) for p in every])
    assert (np.diff(averages, axis=0) >= -1e-12 * averages[1:]).all()
    floors = [noise_floor(p) for p in every]
    assert floors == sorted(floors, reverse=True)
    alone = every[0].system
    assert split_s[0] == pytest.approx(round_parts(every[0], cuts).total_s.mean(), rel=1e-12)
    assert all((own == 1).all() for own in alone.sharing)
    everybody, today = every[-1], of(problem, None)
    assert split_s[-1] == float(split_latency(today, cuts))
    assert (averages[-1] == aggregation_latency(today, cuts)).all()
    assert float(margin(everybody, cuts, intervals)) == float(margin(today, cuts, intervals))
    assert (fits_memory(everybody, cuts) == fits_memory(today, cuts)).all()


def test_drawn_cohorts_take_as_long_as_expected() -> None:
    """2,000 draws of 12 out of 200 clients: the mean is within four standard errors."""
    rng = np.random.default_rng(3)
    problem = of(random_problem(rng, num_tiers=3, num_layers=6, num_clients=200), 12)
    slowness, cuts = problem.system.slowness, (2, 4)
    drawn = [float(split_latency(problem, cuts, slowness[:, rng.choice(200, 12, replace=False)])) for _ in range(2000)]
    error = np.std(drawn) / np.sqrt(len(drawn))
    assert 0 < error < 0.05 * np.mean(drawn)
    assert np.mean(drawn) == pytest.approx(float(split_latency(problem, cuts)), abs=4 * error)


def grouped(seed: int) -> tuple[System, np.ndarray, np.ndarray]:
    """Four edges of three clients whose gradients differ alike within every edge; and the dissimilarity, (3, 1)."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_tiers=3, num_layers=3, num_clients=12)
    device, edge, cloud = problem.system.tiers
    edge = replace(edge, **{f: np.resize(getattr(edge, f), 4) for f in ("compute_flops", "memory_bits")})
    edge = replace(edge, **{f: np.resize(getattr(edge, f), 4) for f in ("uplink_bps", "downlink_bps")})
    edge = replace(edge, fed_uplink_bps=np.ones(4), fed_downlink_bps=np.ones(4), parents=np.zeros(4, dtype=int))
    system = System((replace(device, parents=np.repeat(np.arange(4), 3)), edge, cloud), int(rng.integers(1, 12)))
    pattern, centres = rng.normal(size=(3, 5)), rng.normal(size=(4, 5))
    gradients = (centres[:, None] + rng.choice([-1.0, 1.0], (4, 1, 1)) * pattern).reshape(12, 5)
    between = [((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean()]
    means = gradients.reshape(4, 3, 5).mean(axis=1)
    between.append(((means - gradients.mean(axis=0)) ** 2).sum(axis=1).mean())
    return system, gradients, np.array([*between, 0.0])[:, None]


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_dissimilarity_within_cohorts_and_between_them(seed: int) -> None:
    """Between the clients of a cohort, between its edges by their clients, and of its mean from that of all: each is
    the mean over all cohorts; and from what a cohort shows, that of all clients is found again."""
    system, gradients, zeta = grouped(seed)
    found, between = np.zeros(2), 0.0
    every = [list(cohort) for cohort in cohorts(system)]
    for members in every:
        mean = gradients[members].mean(axis=0)
        between += ((mean - gradients.mean(axis=0)) ** 2).sum() / len(every)
        found[0] += ((gradients[members] - mean) ** 2).sum() / len(members) / len(every)
        for edge in set(system.hosts[1][members]):
            own = [n for n in members if system.hosts[1][n] == edge]
            part = len(own) / len(members) / len(every)
            found[1] += part * ((gradients[own].mean(axis=0) - mean) ** 2).sum()
    assert within_cohort(system, zeta)[:, 0] == pytest.approx([*found, 0.0], rel=1e-9, abs=1e-12)
    problem = random_problem(np.random.default_rng(0), num_tiers=3, num_layers=3, num_clients=12)
    constants = replace(
        problem.constants, gradient_dissimilarity=zeta, gradient_second_moment=None, gradient_variance=np.zeros(1)
    )
    assert sampling_variance(replace(problem, system=system, constants=constants)) == pytest.approx(between, rel=1e-9)
    if system.participants > 1:
        assert of_all_clients(system, within_cohort(system, zeta)) == pytest.approx(zeta, rel=1e-9, abs=1e-9)


def test_a_cohort_that_stays_by_hand() -> None:
    """Two clients, one at a time, zeta^2 = 3 in each of two layers: v = 1 of 2 over 1 of 1 times 6."""
    problem = random_problem(np.random.default_rng(1), num_tiers=2, num_layers=2, num_clients=2, drift="refined")
    constants = replace(
        problem.constants,
        gradient_dissimilarity=np.array([[3.0, 3.0], [0.0, 0.0]]),
        gradient_second_moment=None,
        gradient_variance=np.array([0.5, 0.5]),
    )
    problem = of(replace(problem, constants=constants, learning_rate=0.05), 1)
    by_step, v = 2.0 * 0.05, (2 - 1) / (1 * 1) * 6.0
    assert noise_floor(problem) == pytest.approx(by_step * (1.0 + v))
    at_four = by_step * v * 3 + by_step**2 * v * (3 * 7) / 6
    assert drift(problem, (1,), (4, 1)) == pytest.approx([at_four, 0.0])
    assert drift(problem, (1,), (1, 1)) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("stay", [2, 10, 40])
def test_a_cohort_that_stays_is_as_much_more_noise_as_on_a_quadratic(stay: int) -> None:
    """Clients pull with curvature beta towards points of their own, in steps that are short: what is left of the mean
    squared gradient grows with the stay of cohorts as the bound says, to within a tenth.

    From w a stay ends at a + q (w - a) with q = (1 - beta gamma)^I and a the mean point of the cohort, so that at the
    end w varies (1 - q) / (1 + q) times as much as a.
    """
    problem = random_problem(np.random.default_rng(1), num_tiers=2, num_layers=2, num_clients=9, drift="refined")
    constants = replace(
        problem.constants, gradient_dissimilarity=np.ones((2, 2)), gradient_variance=np.zeros(2), smoothness=2.0
    )
    problem = of(replace(problem, constants=constants, learning_rate=0.001), 3)
    left = [(1 - q) / (1 + q) for q in ((1 - 2.0 * 0.001) ** rounds for rounds in (1, stay))]
    by_step, by_square = staying_cohort(problem)
    longer = noise_floor(problem) + float(np.polyval(by_step + by_square, stay))
    assert longer / noise_floor(problem) == pytest.approx(left[1] / left[0], rel=0.1)


def test_where_no_dissimilarity_is_known_the_second_moment_stands_for_it() -> None:
    problem = of(random_problem(np.random.default_rng(2), num_tiers=2, num_layers=3, num_clients=5), 2)
    unknown = replace(problem, constants=replace(problem.constants, gradient_dissimilarity=None))
    moment = problem.constants.gradient_second_moment
    assert moment is not None
    assert sampling_variance(unknown) == pytest.approx((5 - 2) / (2 * 4) * moment.sum())


def test_memory_is_held_for_those_who_can_take_part() -> None:
    rng = np.random.default_rng(4)
    problem = with_memory_limits(rng, random_problem(rng, num_tiers=3, num_layers=6, num_clients=9))
    cuts = cut_vectors(problem, False)
    fewer = fits_memory(of(problem, 2), cuts)
    assert (fewer >= fits_memory(problem, cuts)).all() and (fewer > fits_memory(problem, cuts)).any()
