"""The learning rate chosen together with the plan."""

from __future__ import annotations

import numpy as np
import pytest

from hsfl.planner.exact import ExactSolver
from hsfl.planner.learning_rate import optimize_step
from hsfl.theory.objective import objective
from tests.zoo import random_problem


@pytest.mark.parametrize("drift", ["paper", "refined"])
def test_no_step_on_a_fine_grid_is_better_than_proven(drift: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(6):
        problem = random_problem(rng, num_tiers=3, num_layers=6, num_clients=10, drift=drift, generosity=3)
        best = optimize_step(ExactSolver(problem))
        assert 0 < best.step <= 1 / problem.constants.smoothness
        found = float(objective(problem.with_step(best.step), best.plan.cuts, best.plan.intervals))
        assert best.lower_bound_s <= found * (1 + 1e-12)
        assert found <= best.lower_bound_s / (1 - 1.01e-3)
        for step in np.geomspace(1e-3, 1, 120) / problem.constants.smoothness:
            other = problem.with_step(float(step))
            solver = ExactSolver(other)
            if solver.terms.margin <= 0:
                continue
            plan = solver.solve().plan
            assert float(objective(other, plan.cuts, plan.intervals)) >= best.lower_bound_s * (1 - 1e-9)
