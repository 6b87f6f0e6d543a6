"""One suite for every planner: problems whose optima are known, by hand or by trying every plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hsfl.errors import InfeasibleError
from hsfl.planner.bcd import solve_bcd
from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import evaluate_plan
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.latency import fits_memory
from hsfl.theory.objective import objective
from tests.planner.proven import checked, checked_both_ways
from tests.zoo import exhaustive, random_problem, with_memory_limits, with_planned_codes

Planner = Callable[..., Plan]


def exact(problem: Problem, **options: bool) -> Plan:
    return ExactSolver(problem, **options).solve().plan


def search(problem: Problem, **options: bool) -> Plan:
    return ExactSolver(problem, table_limit=0, **options).solve().plan


def bcd(problem: Problem, **options: bool) -> Plan:
    return solve_bcd(problem, **options)[0]


PROVEN = [exact, search]
ALL = [exact, search, bcd]


def small_problem(seed: int) -> tuple[Problem, bool]:
    """A random problem small enough to try every plan, and whether tiers may be empty."""
    rng = np.random.default_rng(seed)
    tiers = int(rng.integers(2, 6))
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers, 8 if tiers < 5 else 7)),
        num_clients=int(rng.integers(4, 10)),
        drift=str(rng.choice(["paper", "refined", "energy"])),
        single_top=bool(rng.integers(2)),
        memory=bool(rng.integers(2)),
        longest_interval=8 if tiers < 5 else 6,
    )
    return problem, bool(rng.integers(2))


@pytest.mark.parametrize("block", range(10))
def test_against_exhaustive_search(block: int) -> None:
    """400 problems: M from 2 to 5, ragged hosts, memory limits, single-entity tiers, several top entities, both drift
    models, empty tiers allowed or not. `exact` is as good as the best plan there is, by table and by branch and bound,
    and its lower bound is the optimum; `bcd` is feasible, never better, and its iterations never get worse."""
    for seed in range(40 * block, 40 * (block + 1)):
        problem, allow_empty = small_problem(seed)
        best = exhaustive(problem, allow_empty_tiers=allow_empty)
        assert best is not None
        for limit in (10**9, 0):
            checked(
                problem,
                ExactSolver(problem, allow_empty_tiers=allow_empty, table_limit=limit),
                best.objective_s,
            )
        plan, history = solve_bcd(problem, allow_empty_tiers=allow_empty)
        assert fits_memory(problem, plan.cuts).all()
        values = [step.objective_s for step in history]
        assert history[-1].plan == plan and values[-1] >= best.objective_s * (1 - 1e-12), seed
        assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values)), seed


def problem_with_codes(seed: int) -> tuple[Problem, bool]:
    """A random problem in which codes are planned too, small enough to try every plan in every code."""
    rng = np.random.default_rng([seed, 7])
    tiers = int(rng.integers(2, 4))
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers, 6)),
        num_clients=int(rng.integers(3, 7)),
        drift=str(rng.choice(["paper", "refined", "energy"])),
        single_top=bool(rng.integers(2)),
        longest_interval=4,
    )
    problem = with_planned_codes(rng, problem, 4 if tiers == 2 else 2)
    return with_memory_limits(rng, problem) if rng.integers(2) else problem, bool(rng.integers(2))


@pytest.mark.parametrize("block", range(6))
def test_planned_codes_against_exhaustive_search(block: int) -> None:
    """120 problems: the codes of every link are chosen as well as cuts and intervals, by table and by search."""
    mixed = 0
    for seed in range(20 * block, 20 * (block + 1)):
        problem, allow_empty = problem_with_codes(seed)
        best = exhaustive(problem, allow_empty_tiers=allow_empty, longest=4)
        for solver, solution in checked_both_ways(problem, best, allow_empty=allow_empty):
            assert solver.solve(solution.plan.intervals).plan == solution.plan
            assert solver.solve(solution.plan.intervals, cuts=solution.plan.cuts).plan == solution.plan
            names = {name for codes in solution.plan.codes or () for name in codes.names().values()}
            mixed += len(names) > 1
    assert mixed > 10


def simple(seed: int = 0, **options: object) -> Problem:
    defaults: dict = {"num_tiers": 3, "num_layers": 6, "num_clients": 8}
    return random_problem(np.random.default_rng(seed), **(defaults | options))


@pytest.mark.parametrize("planner", ALL)
def test_free_aggregation_is_done_every_round(planner: Planner) -> None:
    problem = simple()
    free = replace(problem, system=problem.system.with_free_aggregation())
    assert planner(free).intervals == (1, 1, 1)


@pytest.mark.parametrize("planner", ALL)
def test_without_drift_nothing_is_averaged(planner: Planner) -> None:
    problem = simple(1)
    constants = replace(problem.constants, gradient_second_moment=0 * problem.constants.gradient_variance)
    intervals = planner(replace(problem, constants=constants)).intervals
    assert intervals == tuple(NEVER if a else 1 for a in problem.system.averaged)


@pytest.mark.parametrize("planner", ALL)
def test_a_useless_middle_tier_only_relays(planner: Planner) -> None:
    """Edges slower than the devices, with links that cost nothing: with empty tiers allowed they hold no layer."""
    problem = simple(2)
    device, edge, cloud = problem.system.tiers
    free = np.full(edge.entities, 1e15)
    slow = replace(edge, compute_flops=1e-6 * edge.compute_flops, uplink_bps=free, downlink_bps=free)
    problem = replace(problem, system=System((device, slow, cloud)))
    cuts = planner(problem, allow_empty_tiers=True).cuts
    assert cuts[0] == cuts[1]
    strict = planner(problem).cuts
    assert strict[1] == strict[0] + 1


@pytest.mark.parametrize("planner", ALL)
def test_free_links_and_a_fast_top_take_all_they_can(planner: Planner) -> None:
    """Communication and averaging cost nothing and the cloud is fastest: one layer each below, the rest on top."""
    problem = simple(3)
    device, edge, cloud = problem.system.with_free_aggregation().tiers
    far = 1e18
    tiers = (
        replace(device, uplink_bps=far * device.uplink_bps, downlink_bps=far * device.downlink_bps),
        replace(edge, uplink_bps=far * edge.uplink_bps, downlink_bps=far * edge.downlink_bps),
        replace(cloud, compute_flops=1e6 * cloud.compute_flops),
    )
    assert planner(replace(problem, system=System(tiers))) == Plan((1, 2), (1, 1, 1))


@pytest.mark.parametrize("planner", ALL)
def test_as_many_layers_as_tiers_leaves_one_plan(planner: Planner) -> None:
    assert planner(simple(4, num_layers=3)).cuts == (1, 2)


@pytest.mark.parametrize("planner", ALL)
def test_memory_that_holds_nothing_is_an_error_naming_the_tier(planner: Planner) -> None:
    problem = simple(5)
    device, edge, cloud = problem.system.tiers
    full = replace(problem, system=System((device, replace(edge, memory_bits=np.full(edge.entities, 1.0)), cloud)))
    with pytest.raises(InfeasibleError, match=r"tier 2 \(tier2\).*short of"):
        planner(full)


@pytest.mark.parametrize("planner", PROVEN)
def test_given_intervals_get_their_best_cuts(planner: Planner) -> None:
    limit = 10**9 if planner is exact else 0
    for seed in range(20):
        problem = simple(seed, num_layers=7, drift="refined" if seed % 2 else "paper")
        intervals = (2, 1, 1)
        plans = [(objective(problem, (a, b), intervals), (a, b)) for a in range(1, 6) for b in range(a + 1, 7)]
        if not np.isfinite(min(plans)[0]):
            with pytest.raises(InfeasibleError):
                ExactSolver(problem, table_limit=limit).solve(intervals)
            continue
        assert ExactSolver(problem, table_limit=limit).solve(intervals).plan.cuts == min(plans)[1]


def test_bcd_can_end_above_the_optimum() -> None:
    """Why the exact solver exists: alternating blocks get stuck."""
    ratios = []
    for seed in range(100):
        problem = simple(seed, num_tiers=4, num_layers=8, single_top=False, generosity=20)
        ours, theirs = (evaluate_plan(problem, planner(problem)).objective_s for planner in (exact, bcd))
        ratios.append(theirs / ours)
    assert min(ratios) > 1 - 1e-12
    assert max(ratios) > 1.001
