"""The learning rate chosen together with the plan."""

from __future__ import annotations

import numpy as np
import pytest

from hsfl.errors import InfeasibleError
from hsfl.planner.exact import ExactSolver
from hsfl.planner.learning_rate import optimize_step
from hsfl.planner.result import evaluate_plan
from tests.zoo import random_problem, with_planned_codes


@pytest.mark.parametrize(("drift", "codes"), [("paper", False), ("refined", False), ("paper", True), ("refined", True)])
def test_no_step_on_a_fine_grid_is_better_than_proven(drift: str, codes: bool) -> None:
    rng = np.random.default_rng(2)
    for _ in range(2 if codes else 6):
        problem = random_problem(rng, num_tiers=3, num_layers=6, num_clients=10, drift=drift, generosity=3)
        problem = with_planned_codes(rng, problem) if codes else problem
        best = optimize_step(ExactSolver(problem))
        assert 0 < best.step <= 1 / problem.constants.smoothness
        found = evaluate_plan(problem.with_step(best.step), best.plan).objective_s
        assert best.lower_bound_s <= found * (1 + 1e-12)
        assert found <= best.lower_bound_s / (1 - 1.01e-3)
        for step in np.geomspace(1e-3, 1, 120) / problem.constants.smoothness:
            other = problem.with_step(float(step))
            solver = ExactSolver(other)
            if solver.terms.margin <= 0:
                continue
            try:
                plan = solver.solve().plan
            except InfeasibleError:
                assert codes  # their noise is more than the margin
                continue
            assert evaluate_plan(other, plan).objective_s >= best.lower_bound_s * (1 - 1e-9)
