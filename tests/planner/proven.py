"""What is asked of everything that `ExactSolver` proves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hsfl.errors import InfeasibleError
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.planner.result import Evaluation, evaluate_plan
from hsfl.problem.problem import Problem


def checked_both_ways(
    problem: Problem, best: Evaluation | None, *, allow_empty: bool
) -> Iterator[tuple[ExactSolver, Solution]]:
    """By table and by search: what is found, as `checked`; nothing where codes keep every plan from the target."""
    for limit in (10**9, 0):
        solver = ExactSolver(problem, allow_empty_tiers=allow_empty, table_limit=limit)
        if best is None:
            with pytest.raises(InfeasibleError, match="codes"):
                solver.solve()
            continue
        yield solver, checked(problem, solver, best.objective_s)


def checked(problem: Problem, solver: ExactSolver, optimum_s: float) -> Solution:
    """The solution, which is as good as the best plan there is, fits the memories, and has that for a lower bound."""
    solution = solver.solve()
    found = evaluate_plan(problem, solution.plan)
    assert found.objective_s == pytest.approx(optimum_s, rel=1e-11)
    lower = 2 * problem.constants.initial_gap / problem.step * solution.lower_bound
    assert lower == pytest.approx(optimum_s, rel=1e-9)
    assert found.fits_memory
    return solution


def hasty_gap(problem: Problem) -> float:
    """The gap of a solver that has no time to branch: its plan reaches the target, its bound is true."""
    optimum = ExactSolver(problem).solve().ratio
    hasty = ExactSolver(problem, table_limit=0, time_limit_s=0.0).solve()
    assert evaluate_plan(problem, hasty.plan).reaches_target
    assert hasty.lower_bound <= optimum * (1 + 1e-12) <= hasty.ratio * (1 + 2e-12)
    return 1 - hasty.lower_bound / hasty.ratio
