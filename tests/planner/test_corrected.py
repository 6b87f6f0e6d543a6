"""Whether corrected averages would pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsfl.planner.corrected import REMAINS, corrected_gain
from hsfl.planner.solve import solve
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.convergence import loss_target
from tests.zoo import random_problem


def by_loss(seed: int, dissimilarity: float) -> Problem:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_tiers=3, num_layers=6, num_clients=6, drift="energy")
    zeta = rng.uniform(0.5, 1.0, (3, 6)) * dissimilarity
    problem = replace(problem, constants=replace(problem.constants, gradient_dissimilarity=zeta))
    return replace(problem, constants=replace(problem.constants, target=loss_target(problem)))


@pytest.mark.parametrize("seed", range(8))
def test_they_pay_by_what_they_take_out_of_systematic_drift(seed: int) -> None:
    assert corrected_gain(by_loss(seed, 0.0)) == 1.0
    problem = by_loss(seed, 2.0)
    left = REMAINS * problem.constants.gradient_dissimilarity
    without = replace(problem, constants=replace(problem.constants, gradient_dissimilarity=left))
    gain = corrected_gain(problem)
    assert gain == pytest.approx(solve(problem).objective_s / solve(without).objective_s, rel=1e-9)
    assert gain > 1


def test_they_have_to_fit_the_memories() -> None:
    problem = by_loss(0, 2.0)
    held = solve(problem).evaluation.memory_bits
    tight = [
        replace(tier, memory_bits=np.full(tier.entities, bits * 1.01))
        for tier, bits in zip(problem.system.tiers, held, strict=True)
    ]
    limited = replace(problem, system=System(tuple(tight)))
    assert corrected_gain(limited) < corrected_gain(problem)
