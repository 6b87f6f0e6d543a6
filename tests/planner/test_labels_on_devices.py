"""Plans whose devices hold the last layers, too: against a round written out, and against every plan there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hsfl.errors import InfeasibleError
from hsfl.planner.baselines import alternatives, random_cuts
from hsfl.planner.bcd import solve_bcd
from hsfl.planner.exact import ExactSolver
from hsfl.planner.learning_rate import optimize_step
from hsfl.planner.result import evaluate_plan
from hsfl.planner.solve import solve
from hsfl.planner.terms import Terms
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.latency import aggregation_latency, arrival_latency, fits_memory, split_latency
from tests.planner.proven import checked, checked_both_ways, hasty_gap
from tests.zoo import (
    cut_vectors,
    exhaustive,
    random_problem,
    with_cohort,
    with_labels_on_devices,
    with_memory_limits,
    with_planned_codes,
)


def small_problem(seed: int, *, codes: bool = False) -> tuple[Problem, bool]:
    """A random problem small enough to try every plan, and whether tiers may be empty."""
    rng = np.random.default_rng([seed, 3])
    tiers = int(rng.integers(2, 3 if codes else 4))
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers + 1, 6 if codes else 8)),
        num_clients=int(rng.integers(3, 7)),
        drift=str(rng.choice(["paper", "refined", "energy"])),
        single_top=bool(rng.integers(2)),
        longest_interval=3 if codes else 6,
    )
    problem = with_labels_on_devices(problem)
    if codes:
        problem = with_planned_codes(rng, problem, 2)
    return with_memory_limits(rng, problem) if rng.integers(3) else problem, bool(rng.integers(2))


def round_by_hand(problem: Problem, cuts: list[int]) -> tuple[float, float, bool]:
    """A round's time, what its average of the tail takes, and whether all memories suffice, without a shortcut."""
    p, b, L, tree = problem.profile, problem.batch_size, problem.num_layers, problem.system.tiers[:-1]
    work, bounds, slowest, fits = p.forward_flops + p.backward_flops, [0, *cuts, L], 0.0, True
    rules = {"plain": 0, "corrected": 2}[problem.averaging]
    for n in range(len(tree[0].compute_flops)):
        entity, seconds, path = n, 0.0, []
        for m, tier in enumerate(tree):
            hosted = np.bincount(problem.system.hosts[m])
            layers = slice(bounds[m], bounds[m + 1])
            copies = 1 + (rules if len(hosted) > 1 else 0)
            held = p.optimizer_bits[layers].sum() + copies * p.parameter_bits[layers].sum()
            held += b * (p.activation_bits[layers] + p.gradient_bits[layers]).sum()
            seconds += hosted[entity] * b * work[layers].sum() / tier.compute_flops[entity]
            if m == 0:
                tail = slice(cuts[-1], L)
                seconds += b * work[tail].sum() / tier.compute_flops[n]
                held += p.optimizer_bits[tail].sum() + (1 + rules * (len(hosted) > 1)) * p.parameter_bits[tail].sum()
                held += b * (p.activation_bits[tail] + p.gradient_bits[tail]).sum()
            fits &= bool(hosted[entity] * held < tier.memory_bits[entity])
            if tier.parents is not None:
                path.append((hosted[entity] / tier.uplink_bps[entity], hosted[entity] / tier.downlink_bps[entity]))
                entity = tier.parents[entity]
        for cut, (up, down) in zip(cuts, path, strict=False):
            seconds += b * (p.activation_bits[cut - 1] * up + p.gradient_bits[cut - 1] * down)
        for up, down in path:  # what the top sends goes down every link, its gradient up every link
            seconds += b * (p.activation_bits[cuts[-1] - 1] * down + p.gradient_bits[cuts[-1] - 1] * up)
        slowest = max(slowest, seconds)
    fed = 1 / tree[0].fed_uplink_bps.min() + 1 / tree[0].fed_downlink_bps.min()
    return slowest, p.parameter_bits[cuts[-1] :].sum() * fed, fits


@pytest.mark.parametrize("seed", range(8))
def test_a_round_by_hand(seed: int) -> None:
    problem, _ = small_problem(seed)
    fitting = 0
    for cuts in cut_vectors(problem, False):
        seconds, tail_s, fits = round_by_hand(problem, cuts.tolist())
        assert split_latency(problem, cuts) == pytest.approx(seconds, rel=1e-12)
        assert aggregation_latency(problem, cuts)[-1] == pytest.approx(tail_s, rel=1e-12)
        assert fits_memory(problem, cuts).all() == fits
        plan = evaluate_plan(problem, Plan(tuple(cuts.tolist()), (1,) * problem.system.num_tiers))
        assert plan.fits_memory == fits and problem.system.num_tiers - 1 not in plan.tiers_over_memory
        fitting += fits
    assert fitting


@pytest.mark.parametrize("block", range(2))
def test_against_exhaustive_search(block: int) -> None:
    limited = 0
    for seed in range(20 * block, 20 * (block + 1)):
        problem, allow_empty = small_problem(seed)
        best = exhaustive(problem, allow_empty_tiers=allow_empty)
        assert best is not None
        assert round_by_hand(problem, list(best.cuts))[2]
        for limit in (10**9, 0):
            checked(problem, ExactSolver(problem, allow_empty_tiers=allow_empty, table_limit=limit), best.objective_s)
        result = solve(problem, allow_empty_tiers=allow_empty)
        assert result.status == "optimal" and result.objective_s == pytest.approx(best.objective_s, rel=1e-11)
        plan, history = solve_bcd(problem, allow_empty_tiers=allow_empty)
        assert fits_memory(problem, plan.cuts).all()
        values = [step.objective_s for step in history]
        assert values[-1] >= best.objective_s * (1 - 1e-12)
        assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values))
        limited += any(limit.kind == "memory" and limit.tier == 0 for limit in result.limits)
    assert limited  # some plan is kept away by head and tail on one device


def test_planned_codes_against_exhaustive_search() -> None:
    coded = 0
    for seed in range(12):
        problem, allow_empty = small_problem(seed, codes=True)
        best = exhaustive(problem, allow_empty_tiers=allow_empty, longest=3)
        for _, solution in checked_both_ways(problem, best, allow_empty=allow_empty):
            assert solution.plan.codes is not None
            coded += "up" in solution.plan.codes[-2].names()  # the top's, to the devices
    assert coded


def test_cohorts_against_every_cohort() -> None:
    for seed in range(4):
        rng = np.random.default_rng([seed, 5])
        problem = random_problem(rng, num_tiers=2, num_layers=5, num_clients=5, drift="energy", memory=False)
        problem = with_cohort(rng, with_labels_on_devices(problem), 3, longest_interval=5)
        best = exhaustive(problem, longest=5)
        assert best is not None
        for limit in (10**9, 0):
            checked(problem, ExactSolver(problem, table_limit=limit), best.objective_s)


def large(seed: int = 11, **options: object) -> Problem:
    rng = np.random.default_rng(seed)
    sizes: dict = {"num_tiers": 3, "num_layers": 14, "num_clients": 60, "generosity": 10} | options
    return with_memory_limits(rng, with_labels_on_devices(random_problem(rng, **sizes)))


@pytest.mark.parametrize("seed", range(4))
def test_search_and_table_agree_on_more_than_can_be_tried(seed: int) -> None:
    problem = large(seed)
    table, search = (ExactSolver(problem, table_limit=limit).solve() for limit in (10**9, 0))
    assert search.ratio == pytest.approx(table.ratio, rel=1e-11)
    assert search.lower_bound == pytest.approx(search.ratio, rel=1e-9)


def test_out_of_time_the_bound_is_still_true() -> None:
    hasty_gap(large(2))


def test_a_learning_rate_is_planned_with_little_memory() -> None:
    problem = large(1, num_layers=8, num_clients=10)
    solver = ExactSolver(problem)
    best = optimize_step(solver)
    found = evaluate_plan(problem.with_step(best.step), best.plan)
    assert found.fits_memory and found.objective_s <= best.lower_bound_s * (1 + 2e-3)
    for factor in (0.7, 0.9, 1.1, 1.3):
        other = problem.with_step(min(factor * best.step, 1 / problem.constants.smoothness))
        try:
            ratio = ExactSolver(other).solve().plan
        except InfeasibleError:
            continue
        assert evaluate_plan(other, ratio).objective_s >= best.lower_bound_s * (1 - 1e-9)


def test_nothing_of_the_same_kind_beats_the_plan_and_all_fit() -> None:
    problem = large(3, num_clients=20)
    plan, seen = solve(problem), {}
    for other in alternatives(problem, plan.plan):
        seen[other.name] = other
        if not other.name.startswith("no "):
            assert other.evaluation is not None and other.evaluation.fits_memory
            assert other.evaluation.objective_s >= plan.objective_s * (1 - 1e-9)
    assert {"no tier2", "no tier3"} <= seen.keys() and "no tier1 tail" not in seen
    fewer = seen["no tier3"].problem.system
    assert [tier.name for tier in fewer.tiers] == ["tier1", "tier2", "tier1 tail"] and fewer.returns


def test_random_cuts_are_uniform_over_those_that_fit() -> None:
    problem = large(0, num_layers=6)
    segments = Terms.from_problem(problem).segments
    rng = np.random.default_rng(0)
    drawn = [random_cuts(segments, rng) for _ in range(3000)]
    every = {tuple(c) for c in segments.cuts.tolist()}
    assert len(every) == segments.count > 2
    assert set(drawn) <= every and fits_memory(problem, np.array(drawn)).all()
    narrow = {c for c in every if all(3 <= cut <= 4 for cut in c)}
    share = 1 / len(narrow or every)
    counts = [drawn.count(c) / len(drawn) for c in narrow or every]
    assert max(abs(count - share) for count in counts) < 0.05


def test_too_little_memory_for_head_and_tail_names_the_devices() -> None:
    """Room for either layer at the end, not for both."""
    problem = with_labels_on_devices(
        random_problem(np.random.default_rng(2), num_tiers=2, num_layers=4, num_clients=3, single_top=True)
    )
    size = problem.client_memory_bits
    first, last = size[0, 1], size[-1, -1] - size[-1, -2]
    for room, fits in ((0.999, False), (1.001, True)):
        device = replace(problem.system.tiers[0], memory_bits=np.full(3, room * (first + last)))
        limited = replace(problem, system=System.returning((device, problem.system.tiers[1])))
        if fits:
            assert solve(limited).cuts == (1, 3)
            continue
        for plan in (solve, solve_bcd):
            with pytest.raises(InfeasibleError, match=r"cuts \(1, 3\).* of tier 1 \(tier1\).*tiers.tier1.memory"):
                plan(limited)


def test_clients_are_left_out_by_when_they_are_at_the_top() -> None:
    """The way back is none of it: as without it, for the same layers below the top."""
    plain = random_problem(np.random.default_rng(4), num_tiers=3, num_layers=6, num_clients=5)
    there_and_back = with_labels_on_devices(plain)
    np.testing.assert_allclose(arrival_latency(there_and_back, [1, 3, 5]), arrival_latency(plain, [1, 3]), rtol=1e-14)
