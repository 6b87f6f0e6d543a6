"""By how much drift raises the loss is read off the losses between averages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsfl.engine.rise import Rise
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.theory.convergence import RISE, drift, energies, loss_target
from tests.engine.task import Given, algorithm, small_problem

PLAN = Plan((1, 3), (6, 4, 1))


def by_loss(**constants: object) -> Problem:
    problem = small_problem()
    return replace(problem, constants=replace(problem.constants, drift="energy", **constants))


def energy_of(problem: Problem, plan: Plan, rounds: int) -> np.ndarray:
    """The energy of drift in every round: of each tier so many rounds after its last average."""
    known = energies(problem, plan.cuts, max(plan.intervals))
    return np.array([sum(known[t % i, m] for m, i in enumerate(plan.intervals)) for t in range(rounds)])


def shown(
    rise: Rise, problem: Problem, slope: float, *, noise: float = 0.0, rounds: int = 240, plan: Plan = PLAN
) -> None:
    """Losses that fall with time and rise by `slope` times the root of the energy of drift."""
    rng = np.random.default_rng(0)
    rise.begin(problem, plan)
    t = np.arange(rounds)
    losses = (
        2
        - 0.002 * t
        + 2e-6 * t**2
        + slope * energy_of(problem, plan, rounds) ** 0.5
        + noise * rng.standard_normal(rounds)
    )
    for k, loss in enumerate(losses):
        rise.see(float(loss), [m for m, i in enumerate(plan.intervals) if (k + 1) % i == 0])
    rise.end(problem, plan)


def test_the_slope_is_found_beside_a_trend() -> None:
    problem, rise = by_loss(), Rise()
    assert rise.per_root == 0
    shown(rise, problem, 0.16)
    assert rise.per_root == pytest.approx(0.16, rel=1e-6)
    shown(rise, problem, 0.4)
    assert rise.per_root == pytest.approx(0.4, rel=1e-6)


def test_noisy_losses_count_by_what_they_tell() -> None:
    problem = by_loss()
    scale = float(np.ptp(energy_of(problem, PLAN, 48) ** 0.5))
    sure, unsure = Rise(), Rise()
    shown(sure, problem, 0.3, noise=0.02 * scale)
    assert sure.per_root == pytest.approx(0.3, abs=0.02)
    shown(unsure, problem, 0.3, noise=20 * scale, rounds=60)
    assert unsure.per_root < 0.03


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_the_unit_of_the_loss_does_not_matter(unit: float) -> None:
    """A loss in other units, with the step that makes the same of it, is seen to rise by as much of itself."""
    problem, rng, found = by_loss(initial_gap=2.0, first_loss=2.0), np.random.default_rng(1), []
    constants = problem.constants
    assert constants.gradient_dissimilarity is not None
    other = by_loss(
        initial_gap=2 * unit,
        first_loss=2 * unit,
        gradient_variance=unit**2 * constants.gradient_variance,
        gradient_dissimilarity=unit**2 * constants.gradient_dissimilarity,
    )
    other = replace(other, learning_rate=other.learning_rate / unit)
    losses = 2 + 0.3 * energy_of(problem, PLAN, 240) ** 0.5 + 0.1 * rng.standard_normal(240)
    for given, scale in ((problem, 1.0), (other, unit)):
        rise = Rise()
        for _ in range(2):
            rise.begin(given, PLAN)
            for k, loss in enumerate(losses):
                rise.see(scale * float(loss), [m for m, i in enumerate(PLAN.intervals) if (k + 1) % i == 0])
            rise.end(given, PLAN)
        found.append(rise.per_root / scale**0.5)
    assert found[0] > 0 and found[1] == pytest.approx(found[0], rel=1e-9)


def test_rounds_without_a_loss_are_left_out() -> None:
    """Where nobody took part there is no loss; an average after such a round still counts."""
    problem, rise = by_loss(), Rise()
    rise.begin(problem, PLAN)
    for k, energy in enumerate(energy_of(problem, PLAN, 240)):
        loss = None if k % 10 == 5 or (k + 1) % 24 == 0 else 1 + 0.3 * float(energy) ** 0.5
        rise.see(loss, [m for m, i in enumerate(PLAN.intervals) if (k + 1) % i == 0])
    rise.end(problem, PLAN)
    assert rise.per_root == pytest.approx(0.3, rel=1e-6)


@pytest.mark.parametrize(
    "case", ["losses fall with drift", "nothing drifts", "few rounds", "another drift model", "a server's own step"]
)
def test_else_nothing_is_known(case: str) -> None:
    problem, rise = by_loss(), Rise()
    if case == "another drift model":
        problem = replace(problem, constants=replace(problem.constants, drift="refined"))
    if case == "a server's own step":
        problem = replace(problem, averaging="fedavgm")
    always = Plan(PLAN.cuts, (1, 1, 1))
    shown(
        rise,
        problem,
        -0.5 if case == "losses fall with drift" else 0.5,
        rounds=40 if case == "few rounds" else 240,
        plan=always if case == "nothing drifts" else PLAN,
    )
    assert rise.per_root == 0


def test_the_slope_is_in_energies_as_they_are_known_later() -> None:
    """Drift turns out to be a quarter of what was expected, so that the same losses rise twice as steeply."""
    rise, tiers = Rise(), len(PLAN.intervals)
    expected, seen = (by_loss(drift_correction=np.full(tiers, factor)) for factor in (1.0, 0.25))
    rise.begin(expected, PLAN)
    for k, energy in enumerate(energy_of(expected, PLAN, 120)):
        rise.see(1.0 + 0.1 * float(energy) ** 0.5, [m for m, i in enumerate(PLAN.intervals) if (k + 1) % i == 0])
    rise.end(seen, PLAN)
    assert rise.per_root == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize(("first", "least"), [(None, 1.3), (2.0, 1.3), (100.0, 15.0)])
def test_a_rise_counts_as_so_much_of_the_loss(first: float | None, least: float) -> None:
    """Besides 1/J, random drift counts by the square of what it raises the loss by, in units of `RISE` of it; a loss
    that is hardly there any more counts as 0.15 of the first."""
    loss, slope = 1.3, 0.2
    problem = by_loss(initial_gap=loss, first_loss=first, rise=slope)
    without = by_loss(initial_gap=loss, first_loss=first)
    assert problem.constants.gradient_dissimilarity is not None
    random = [
        replace(p, constants=replace(p.constants, gradient_dissimilarity=0 * p.constants.gradient_dissimilarity))
        for p in (problem, without)
    ]
    raised, plain = (drift(p, PLAN.cuts, PLAN.intervals).sum() / loss_target(p) for p in random)
    mean = sum(energies(problem, PLAN.cuts, i)[:, m].mean() for m, i in enumerate(PLAN.intervals))
    systematic = sum(
        energies(replace(p, constants=replace(p.constants, gradient_variance=0 * p.constants.gradient_variance)),
                 PLAN.cuts, i)[:, m].mean()
        for p in (problem,) for m, i in enumerate(PLAN.intervals)
    )  # fmt: skip
    assert raised - plain == pytest.approx((slope / (RISE * least)) ** 2 * (mean - systematic), rel=1e-9)


@pytest.mark.parametrize("iid", [True, False])
def test_training_tells_it_to_the_strategy(iid: bool) -> None:
    """Where data are many and alike, drift is noise and raises the loss; machines with data of their own fit them."""
    strategy, problem = Given([Plan((1, 3), (8, 8, 1))]), replace(by_loss(), learning_rate=0.5)
    trained = algorithm(strategy, problem=problem, iid=iid, samples=12_000)
    list(trained.advance(401))
    *before, last = [asked.constants.rise for _, asked in strategy.asked]
    assert len(before) > 3 and before[0] == 0 and (last > 0) == iid
    assert last == trained.rise.per_root


def test_what_was_learnt_is_restored_and_its_lack_forgiven() -> None:
    """Checkpoints of before losses were looked at are resumed, with nothing learnt."""
    strategy = Given([Plan((1, 3), (8, 8, 1))])
    trained, other = (algorithm(strategy, problem=replace(by_loss(), learning_rate=0.5)) for _ in range(2))
    list(trained.advance(150))
    state = trained.state()
    assert state.rise is not None and state.rise.sums[0][0] > 0
    other.restore(state.model_copy(update={"rise": None}))
    assert other.rise.state() == Rise().state()
    other.restore(type(state).model_validate_json(state.model_dump_json()))
    assert other.rise.state() == trained.rise.state()
