"""The number of mini-batches in a round, given or planned: as good as the best of every plan with every number."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from hsfl.errors import InfeasibleError, ScenarioError
from hsfl.planner.bcd import solve_bcd
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.planner.micro_batches import best_of_all
from hsfl.planner.result import evaluate_plan
from hsfl.planner.solve import best_at, completed, solve, solve_with_step
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.theory.convergence import noise_floor
from tests.planner.proven import checked
from tests.zoo import Best, exhaustive, random_problem, with_cohort, with_memory_limits, with_planned_codes

LONGEST = 14
CHOICES = (1, 2, 5)


def problem_of(seed: int, kind: str) -> tuple[Problem, bool]:
    """A random problem small enough to try every plan, and whether tiers may be empty."""
    rng = np.random.default_rng([seed, 11])
    tiers = 2 if kind == "codes" else int(rng.integers(2, 4))
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers + 1, 6)),
        num_clients=int(rng.integers(4, 8)),
        drift="paper" if kind == "codes" else str(rng.choice(["paper", "refined"])),
        single_top=bool(rng.integers(2)),
        longest_interval=6,
    )
    if kind == "cohorts":
        problem = with_cohort(rng, problem, 3, 5)
    # Noise that is worth averaging, and not so much that one mini-batch is never enough.
    noise, floor = problem.constants.gradient_variance, noise_floor(problem)
    left = problem.constants.target - floor
    scaled = noise * rng.uniform(0.1, 1.2) * left / (noise_floor(problem) or 1.0)
    problem = replace(problem, constants=replace(problem.constants, gradient_variance=scaled, target=left))
    if kind == "codes":
        problem = with_planned_codes(rng, problem, 2)
    if rng.integers(2):
        problem = with_memory_limits(rng, problem)
    if kind == "chunks":
        problem = replace(problem, batch_size=3 * problem.batch_size, chunks=3)
    return replace(problem, micro_batch_choices=CHOICES), bool(rng.integers(2))


def tried(problem: Problem, allow_empty: bool) -> dict[int, Best]:
    each = {k: problem.with_micro_batches(k) for k in CHOICES}
    found = {k: exhaustive(one, allow_empty_tiers=allow_empty, longest=LONGEST) for k, one in each.items()}
    return {k: best for k, best in found.items() if best is not None}


@pytest.mark.parametrize("kind", ["plain", "chunks", "cohorts", "codes"])
def test_against_exhaustive_search(kind: str) -> None:
    """Of each number the proven optimum, by table and by search; of all of them the best, with the proof."""
    chosen = set()
    for seed in range(12):
        problem, allow_empty = problem_of(seed, kind)
        best = tried(problem, allow_empty)
        for k, found in best.items():
            for limit in (10**9, 0):
                one = problem.with_micro_batches(k)
                solver = ExactSolver(one, allow_empty_tiers=allow_empty, table_limit=limit)
                checked(one, solver, found.objective_s)
        if not best:
            with pytest.raises(InfeasibleError):
                solve(problem, allow_empty_tiers=allow_empty)
            continue
        least = min(best, key=lambda k: best[k].objective_s)
        result = solve(problem, allow_empty_tiers=allow_empty)
        assert result.status == "optimal" and result.plan.micro_batches == least
        assert result.objective_s == pytest.approx(best[least].objective_s, rel=1e-11)
        assert result.lower_bound_s == pytest.approx(best[least].objective_s, rel=1e-9)
        assert result.to_dict()["micro_batches"] == least
        again = completed(problem, Plan(result.cuts, result.intervals))
        assert evaluate_plan(problem, again).objective_s <= result.objective_s * (1 + 1e-11)
        at = evaluate_plan(problem, best_at(problem, result.cuts))
        assert at.objective_s <= result.objective_s * (1 + 1e-11)
        chosen.add(least)
    assert len(chosen) > 1


def test_numbers_that_cannot_be_best_are_not_tried() -> None:
    """What they cannot get below is one more problem: a few solutions, and the same plan as of all sixteen."""
    skipped = 0
    for seed in range(10):
        problem, allow_empty = problem_of(seed, "cohorts" if seed % 3 == 0 else "plain")
        problem, asked = replace(problem, micro_batch_choices=tuple(range(1, 17))), []

        def solved(one: Problem, asked: list[int] = asked, allow_empty: bool = allow_empty) -> Solution:
            asked.append(one.micro_batches)
            return ExactSolver(one, allow_empty_tiers=allow_empty).solve()

        each = []
        for k in problem.micro_batch_choices:
            with contextlib.suppress(InfeasibleError):
                each.append((solved(problem.with_micro_batches(k)).ratio, k))
        asked.clear()
        if each:
            best = best_of_all(problem, solved)
            assert (best.ratio, best.plan.micro_batches) == min(each)
            assert best.lower_bound == pytest.approx(best.ratio, rel=1e-9)
            skipped += max(asked) < 16
    assert skipped > 3


def test_bcd_with_a_given_number_never_beats_the_optimum() -> None:
    for seed in range(6):
        problem, allow_empty = problem_of(seed, "plain")
        problem = replace(problem, micro_batch_choices=None, micro_batches=2)
        try:
            optimum = solve(problem, allow_empty_tiers=allow_empty)
        except InfeasibleError:
            continue
        plan, _ = solve_bcd(problem, allow_empty_tiers=allow_empty)
        assert evaluate_plan(problem, plan).objective_s >= optimum.objective_s * (1 - 1e-11)
        assert optimum.plan.micro_batches is None


def test_bcd_plans_no_number() -> None:
    problem, _ = problem_of(0, "plain")
    with pytest.raises(ScenarioError, match="micro_batches"):
        solve(problem, "bcd")


def test_with_a_planned_learning_rate_the_best_number_wins() -> None:
    problem, _ = problem_of(1, "plain")
    result = solve_with_step(problem)
    alone = [solve_with_step(replace(problem, micro_batch_choices=None, micro_batches=k)) for k in CHOICES]
    assert result.objective_s == min(one.objective_s for one in alone)
    assert result.plan.micro_batches == CHOICES[int(np.argmin([one.objective_s for one in alone]))]
