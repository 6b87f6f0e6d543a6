"""How drift grows under momentum, against machines that really step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hsfl.problem.problem import Problem
from hsfl.theory.convergence import drift, predicted_drift
from tests.theory.test_by_hand import CUTS
from tests.theory.test_by_hand import problem as problem

MOMENTUM, AVERAGES = 0.8, 4000


def by_loss(problem: Problem, in_force: tuple[int, ...] | None = None, **changes: Any) -> Problem:
    near = None if in_force is None else np.array(in_force)
    constants = replace(problem.constants, drift="energy", intervals_in_force=near)
    step = problem.step
    return replace(problem, constants=constants, momentum=MOMENTUM, **changes).with_step(step)


def simulated(problem: Problem, interval: int, common: bool) -> float:
    """The mean squared distance of the devices just before averages, of as many copies of the device tier as averages.

    Each device has its own mean gradient and noise of its own as the constants say; `common` gives all devices the mean
    velocity after an average.
    """
    rng = np.random.default_rng(0)
    J, mu, lr = problem.system.entities[0], problem.momentum, problem.learning_rate
    assert problem.constants.gradient_dissimilarity is not None
    layers = CUTS[0]
    sigma = np.sqrt(problem.constants.gradient_variance[:layers].sum() / (problem.system.num_clients / J))
    own = np.linspace(-1, 1, J)
    own *= np.sqrt(problem.constants.gradient_dissimilarity[0, :layers].sum() / np.mean(own**2))
    w, v, seen = np.zeros((AVERAGES, J)), np.zeros((AVERAGES, J)), 0.0
    for _ in range(40):
        for _ in range(interval):
            v = mu * v + own + sigma * rng.standard_normal(v.shape)
            w = w - lr * v
        seen = float(((w - w.mean(1, keepdims=True)) ** 2).mean())
        w = np.zeros_like(w)
        if common:
            v = np.broadcast_to(v.mean(1, keepdims=True), v.shape)
    return seen


@pytest.mark.parametrize("interval", [1, 2, 5, 12])
@pytest.mark.parametrize("averaging", ["plain", "corrected"])
def test_drift_grows_as_machines_with_momentum_drift(problem: Problem, averaging: str, interval: int) -> None:
    """Own velocities remember noise; a common one makes all drift slowly at first."""
    asked = by_loss(problem, averaging=averaging)
    found = simulated(asked, interval, averaging == "corrected")
    assert predicted_drift(asked, CUTS, interval)["refined"][0] == pytest.approx(found, rel=0.05)


def test_optimizers_that_are_averaged_start_again_too(problem: Problem) -> None:
    averaged, corrected = by_loss(problem, average_optimizer=True), by_loss(problem, averaging="corrected")
    assert (predicted_drift(averaged, CUTS, 3)["refined"] == predicted_drift(corrected, CUTS, 3)["refined"]).all()


@pytest.mark.parametrize("averaging", ["plain", "corrected"])
@pytest.mark.parametrize("near", [2, 3, 7])
def test_the_quadratic_is_right_near_the_intervals_in_force(problem: Problem, averaging: str, near: int) -> None:
    """At twice the intervals always; at them too, but where that would make drift at 2 negative; never below 0."""
    asked = by_loss(problem, (near, near, 1), averaging=averaging)
    unit = replace(asked, constants=replace(asked.constants, gradient_variance=np.zeros(asked.num_layers)))

    def law(interval: int) -> float:
        """The mean over the rounds of an interval of the drift that is predicted, systematic alone."""
        return float(np.mean([predicted_drift(unit, CUTS, k)["refined"][0] for k in range(interval)]) / unit.step**2)

    assert drift(unit, CUTS, (2 * near, 1, 1))[0] == pytest.approx(law(2 * near))
    assert drift(unit, CUTS, (near, 1, 1))[0] >= law(near) * (1 - 1e-9)
    if averaging == "plain":
        assert drift(unit, CUTS, (near, 1, 1))[0] == pytest.approx(law(near))
    steps = [drift(unit, CUTS, (interval, 1, 1))[0] for interval in range(1, 40)]
    assert (np.diff(steps) >= -1e-12).all()
    assert steps[0] == 0


def test_published_plans_know_no_momentum(problem: Problem) -> None:
    refined = replace(problem, constants=replace(problem.constants, drift="refined"), momentum=MOMENTUM)
    assert predicted_drift(refined, CUTS, 4)["refined"] == pytest.approx(
        refined.step**2 / problem.step**2 * predicted_drift(problem, CUTS, 4)["refined"]
    )
