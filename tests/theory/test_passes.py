"""How random drift grows where clients see their samples again, against machines that really step."""

from dataclasses import replace

import numpy as np
import pytest

from hsfl.problem.problem import Problem
from hsfl.theory import convergence
from hsfl.theory.convergence import drift, predicted_drift
from tests.theory.test_by_hand import CUTS
from tests.theory.test_by_hand import problem as problem
from tests.theory.test_momentum import by_loss

MACHINES, SAMPLES = 4000, 24


def with_samples(problem: Problem, samples: float | None, micro_batches: int = 1) -> Problem:
    """Only noise, no dissimilarity, plain SGD."""
    found = replace(by_loss(problem), momentum=0.0, learning_rate=problem.step, micro_batches=micro_batches)
    constants = found.constants
    assert constants.gradient_dissimilarity is not None
    nothing = 0.0 * constants.gradient_dissimilarity
    return replace(found, constants=replace(constants, samples_per_client=samples, gradient_dissimilarity=nothing))


def simulated(batch: int, rounds: int) -> float:
    """The mean square of a sum of mini-batch means, over machines with samples of their own that are drawn alike, in
    units of that of one mini-batch; shuffles begin anywhere."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((MACHINES, SAMPLES))
    passes = -(-rounds * batch // SAMPLES) + 1
    stream = np.concatenate([rng.permuted(samples, axis=1) for _ in range(passes)], axis=1)
    start = batch * rng.integers(SAMPLES // batch, size=MACHINES)
    seen = np.take_along_axis(stream, start[:, None] + np.arange(rounds * batch), axis=1)
    return float(((seen.sum(1) / batch) ** 2).mean() * batch)


@pytest.mark.parametrize("rounds", [2, 5, 8, 12, 20, 50])
def test_drift_grows_as_machines_that_see_samples_again_drift(problem: Problem, rounds: int) -> None:
    """Up to a pass like that of fresh samples, give or take little; then with the square of the rounds."""
    batch = 3
    one = replace(with_samples(problem, SAMPLES), batch_size=batch)
    fresh = replace(with_samples(problem, None), batch_size=batch)
    unit = predicted_drift(fresh, CUTS, 1)["refined"][0]
    assert predicted_drift(fresh, CUTS, rounds)["refined"][0] == pytest.approx(rounds * unit)
    found = simulated(batch, rounds)
    assert predicted_drift(one, CUTS, rounds)["refined"][0] / unit == pytest.approx(found, rel=0.1)


def test_several_mini_batches_go_through_samples_as_much_faster(problem: Problem) -> None:
    """Four mini-batches of 3 are one of 12: a quarter of the variance, and as many passes."""
    four = replace(with_samples(problem, SAMPLES, micro_batches=4), batch_size=3)
    long = replace(with_samples(problem, SAMPLES), batch_size=12)
    rounds = np.array([[2], [7], [30]])
    several, one = (predicted_drift(each, CUTS, rounds)["refined"] for each in (four, long))
    assert several == pytest.approx(one / 4)


@pytest.mark.parametrize("counts", [0.0, 0.7])
def test_samples_seen_again_count_as_is_said_but_no_less_than_noise(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, counts: float
) -> None:
    """What is added in the mean over the rounds of an interval, times 1/J at least, where J = 3 and 2."""
    monkeypatch.setattr(convergence, "AGAIN", counts)
    one, fresh = (replace(with_samples(problem, samples), batch_size=6) for samples in (SAMPLES, None))
    near = replace(one, constants=replace(one.constants, intervals_in_force=np.array([20.0, 20.0, 1.0])))
    added = drift(near, CUTS, (40, 40, 1)) - drift(fresh, CUTS, (40, 40, 1))  # where its quadratic is exact
    rounds = np.arange(40.0)[:, None]
    seen_again, once = (predicted_drift(each, CUTS, rounds)["refined"].mean(0) for each in (one, fresh))
    assert added == pytest.approx(np.maximum(counts, [1 / 3, 1 / 2, 1]) * (seen_again - once) / one.step**2)


def test_the_bound_of_the_paper_and_the_refined_one_do_not_count_samples(problem: Problem) -> None:
    refined = replace(problem, constants=replace(problem.constants, drift="refined"))
    known = replace(refined, constants=replace(refined.constants, samples_per_client=10.0))
    assert (drift(known, CUTS, (9, 9, 1)) == drift(refined, CUTS, (9, 9, 1))).all()
    assert (predicted_drift(known, CUTS, 9)["refined"] == predicted_drift(refined, CUTS, 9)["refined"]).all()
