"""Branch and bound, time limits and large systems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import hsfl
from hsfl.planner import solve as solve_module
from hsfl.planner.exact import ExactSolver
from hsfl.planner.slowest import slowest_clients
from hsfl.theory.latency import demands
from hsfl.theory.objective import objective
from tests.planner.proven import hasty_gap
from tests.zoo import random_problem, with_planned_codes


@pytest.mark.parametrize("drift", ["paper", "refined", "energy"])
@pytest.mark.parametrize("allow_empty", [False, True])
def test_branch_and_bound_equals_the_table(drift: str, allow_empty: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(15):
        tiers = int(rng.integers(2, 6))
        problem = random_problem(
            rng,
            num_tiers=tiers,
            num_layers=14,
            num_clients=200,
            drift=drift,
            single_top=False,
            generosity=10,
            memory=True,
        )
        table, search = (
            ExactSolver(problem, allow_empty_tiers=allow_empty, table_limit=limit).solve() for limit in (10**9, 0)
        )
        assert search.ratio == pytest.approx(table.ratio, rel=1e-11)
        assert search.lower_bound == pytest.approx(search.ratio, rel=1e-9)


def test_billions_of_cut_vectors_are_solved_to_proven_optimality() -> None:
    problem = random_problem(np.random.default_rng(3), num_tiers=6, num_layers=200, num_clients=1000, generosity=30)
    solver = ExactSolver(problem)
    assert solver.terms.segments.count > 2e9 and not solver.tabulated
    solution = solver.solve()
    assert solution.lower_bound == pytest.approx(solution.ratio, rel=1e-9)
    # No neighbour is better: each cut moved by one, each interval by one.
    best = objective(problem, solution.plan.cuts, solution.plan.intervals)
    for values, slot in ((solution.plan.cuts, 0), (solution.plan.intervals, 1)):
        for m in range(len(values)):
            for step in (-1, 1):
                moved = list(values)
                moved[m] += step
                plan = [list(solution.plan.cuts), list(solution.plan.intervals)]
                plan[slot] = moved
                if sorted(set(plan[0])) == plan[0] and plan[0][0] > 0 and plan[0][-1] < 200 and min(plan[1]) >= 1:
                    assert objective(problem, *plan) >= best * (1 - 1e-12)


@pytest.mark.parametrize("codes", [False, True])
def test_out_of_time_the_bound_is_still_true(codes: bool) -> None:
    """With no time to branch there is a plan, a bound below the optimum, and an honest gap."""
    gaps = []
    for seed in range(6 if codes else 12):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, num_tiers=4, num_layers=20, num_clients=100, single_top=False, generosity=30)
        problem = with_planned_codes(rng, problem, 2) if codes else problem
        gaps.append(hasty_gap(problem))
    assert 0 < max(gaps) < 1


@pytest.mark.parametrize("clients", [65, 400, 3000])
@pytest.mark.parametrize("seed", range(4))
def test_the_clients_left_are_as_slow_as_all(seed: int, clients: int) -> None:
    """Whatever a round asks for, every cut vector's demands among it, the slowest of all clients are still there."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_tiers=4, num_layers=14, num_clients=clients)
    slowness = problem.system.slowness
    left = slowest_clients(slowness)
    of_cuts = demands(problem, list(itertools.combinations(range(1, 14), 3)))
    shares = rng.dirichlet(np.full(len(slowness), 0.3), 2000) / slowness.mean(axis=1)  # often mostly of one kind
    asked = np.concatenate((of_cuts, shares))
    slowest = set((asked @ slowness).argmax(axis=1))
    assert len(slowest) > 5, "few clients are ever the slowest: little is tested"
    assert slowest <= set(left) and len(left) < clients


def test_a_hundred_thousand_clients_plan_like_their_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are never the slowest do not matter to the plan, only to the shares and the noise."""
    problem = random_problem(np.random.default_rng(5), num_tiers=3, num_layers=16, num_clients=100_000)
    table, search = (ExactSolver(problem, table_limit=limit).solve() for limit in (10**9, 0))
    monkeypatch.setattr("hsfl.planner.exact.slowest_clients", lambda slowness: np.arange(slowness.shape[1]))
    every = ExactSolver(problem, table_limit=10**9).solve()
    assert table.plan == search.plan == every.plan
    assert table.ratio == pytest.approx(every.ratio, rel=1e-12)


def test_a_small_solver_is_kept_with_its_problem_and_a_large_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning again gives the same, with its own time; what is planned with other constants has its own solver."""
    problem = hsfl.load_scenario("paper").problem
    first, again = solve_module.solve(problem), solve_module.solve(problem)
    (solver,) = vars(problem)["_solvers"].values()
    assert first.to_dict() | {"solve_ms": 0} == again.to_dict() | {"solve_ms": 0}
    other = replace(problem, constants=replace(problem.constants, target=2 * problem.constants.target))
    assert solve_module.solve(other).objective_s < first.objective_s
    assert vars(other)["_solvers"] and solver not in vars(other)["_solvers"].values()
    monkeypatch.setattr(solve_module, "_SMALL", 10)
    large = replace(problem)
    assert solve_module.solve(large).objective_s == first.objective_s and not vars(large)["_solvers"]
