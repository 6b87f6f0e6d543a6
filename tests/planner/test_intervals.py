"""P1: the closed form, Newton-Jacobi and the whole-number optimum agree with each other and with brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from hsfl.planner.bcd import newton_jacobi
from hsfl.planner.exact import ExactSolver
from hsfl.planner.terms import best_intervals
from hsfl.problem.plan import NEVER
from hsfl.theory.objective import objective
from tests.zoo import cut_vectors, random_problem

positive = st.floats(1e-3, 1e3)


@given(positive, st.lists(st.tuples(positive, positive), min_size=1, max_size=4), positive)
@settings(max_examples=200, deadline=None)
def test_newton_jacobi_finds_the_closed_form(a: float, tiers: list[tuple[float, float]], c0: float) -> None:
    """I_m = s (b_m / d_m)^(1/3), s the positive root of 2 k a s^3 + 3 k A s^2 = c0, A = sum b^(2/3) d^(1/3)."""
    b, kd = np.array(tiers).T
    A = (b ** (2 / 3) * kd ** (1 / 3)).sum()
    s = brentq(lambda s: 2 * a * s**3 + 3 * A * s**2 - c0, 0, np.sqrt(c0 / (3 * A)) + 1, xtol=1e-15, rtol=1e-14)
    found = newton_jacobi(a, b, np.stack((kd, 0 * kd, 0 * kd)), c0)
    assert found == pytest.approx(s * np.cbrt(b / kd), rel=1e-7)


@given(positive, st.floats(0, 10), st.floats(0, 10), positive)
@settings(max_examples=300, deadline=None)
def test_best_interval_for_a_price_is_the_best_of_all(b: float, a: float, zeta: float, price: float) -> None:
    """Both drift models, against trying every interval up to one that is certainly too long."""
    paper = np.array([[zeta + 0.01], [0.0], [0.0]])
    refined = np.array([[zeta / 3], [(a - zeta) / 2], [zeta / 6 - a / 2]])
    for drift in (paper, refined):
        intervals = np.arange(1, 20001)
        cost = b / intervals + price * (intervals > 1) * ((drift[0] * intervals + drift[1]) * intervals + drift[2])
        found = int(best_intervals(np.array([b]), drift, price)[0][0])
        if found <= len(intervals):
            assert cost[found - 1] == pytest.approx(cost.min(), rel=1e-9)
        else:  # so little drift that the best interval lies beyond those tried: the cost still falls at their end
            assert cost[-1] <= cost[-2] and cost[-1] == cost.min()


def test_no_drift_means_never_and_no_cost_means_always() -> None:
    none = np.zeros((3, 2))
    assert best_intervals(np.array([1.0, 0.0]), none, 1.0)[0].tolist() == [NEVER, 1]


@pytest.mark.parametrize("drift", ["paper", "refined", "energy"])
def test_best_intervals_for_cuts_equal_brute_force(drift: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        problem = random_problem(rng, num_tiers=3, num_layers=6, num_clients=8, drift=drift, single_top=False)
        cuts = tuple(map(int, rng.choice(cut_vectors(problem, False))))
        grid = np.stack(np.meshgrid(*[np.arange(1, 10)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        grid = grid[(grid == 1)[:, ~problem.system.averaged].all(axis=1)]
        found = ExactSolver(problem).solve(cuts=cuts).plan.intervals
        assert objective(problem, cuts, found) == pytest.approx(objective(problem, cuts, grid).min(), rel=1e-12)


def test_rounding_the_joint_optimum_is_not_always_best() -> None:
    """Tier 2's real optimum lies below 1; at 1 it stops drifting, which leaves room for a longer interval in tier 1."""
    a, b, kd, c0 = 0.12, np.array([8.0, 0.07]), np.array([0.0014, 0.42]), 1.0

    def theta(intervals: np.ndarray) -> np.ndarray:
        return (a + (b / intervals).sum(-1)) / (c0 - ((intervals > 1) * kd * intervals**2).sum(-1))

    root = newton_jacobi(a, b, np.stack((kd, 0 * kd, 0 * kd)), c0)
    rounded = np.array([[first, 1.0] for first in (np.floor(root[0]), np.ceil(root[0]))])
    assert root[1] < 1
    every = np.array([[first, 1.0] for first in np.arange(1.0, 26.0)])
    assert theta(rounded).min() > theta(every).min() * 1.005
    price = theta(every).min()
    assert best_intervals(b, np.stack((kd, 0 * kd, 0 * kd)), price)[0].tolist() == every[theta(every).argmin()].tolist()


def test_tiers_that_are_cheap_to_average_are_averaged_more_often() -> None:
    """The paper's insight on Proposition 1: with equal drift, a smaller b_m gives a shorter interval."""
    b = np.array([1.0, 8.0, 64.0])
    drift = np.array([[1e-4] * 3, [0.0] * 3, [0.0] * 3])
    found = newton_jacobi(1.0, b, drift, 1.0)
    assert found[1] / found[0] == pytest.approx(2) and found[2] / found[1] == pytest.approx(2)
