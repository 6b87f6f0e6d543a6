"""Random choices on the clock: what is drawn, and what a draw costs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from hsfl.experiments.draws import DRAWN, of_training, planned_by_the_paper, seconds_per_round
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.result import EXCEEDS, FAILS, HOLDS, IN_PART, judged
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import QUICK, SMALL
from hsfl.planner.exact import ExactSolver
from hsfl.problem.plan import Plan
from hsfl.strategies.named import DEPTH_AWARE, RANDOM, Named
from hsfl.theory.latency import aggregation_latency, round_latency, split_latency

FULL = Settings()


@pytest.mark.parametrize("dataset", FULL.datasets)
def test_the_paper_s_bound_plans_every_interval_1_at_all_cuts(dataset: str) -> None:
    problem = planned_by_the_paper(FULL, dataset)
    assert problem is not None
    solver = ExactSolver(problem)
    assert {solver.solve(cuts=cuts).plan.intervals for cuts in combinations(range(3, 15), 2)} == {(1, 1, 1)}


def test_data_without_constants_are_left_out() -> None:
    """LeNet-5 on images of CIFAR-10 has a profile that is measured, without gradient statistics."""
    result = RECIPES["draws"].show(Settings(SMALL, seeds=(0,)), {})
    assert {row[0] for row in result.rows} == {"mnist"} and [panel.title for panel in result.panels] == ["mnist"]


def test_a_round_has_the_averages_that_fall_on_it() -> None:
    problem = planned_by_the_paper(FULL, "cifar10")
    assert problem is not None
    plan = Plan((3, 8), (5, 2, 1))
    evenly = seconds_per_round(problem, Named("RMA+RMS", RANDOM, RANDOM), plan, 10)
    assert evenly == pytest.approx(float(round_latency(problem, plan.cuts, plan.intervals)))
    every_round = Plan(plan.cuts, (1, 1, 1))
    depth_aware = seconds_per_round(problem, Named("DAMA+RMS", DEPTH_AWARE, RANDOM), every_round, 10)
    device, edge, _ = aggregation_latency(problem, plan.cuts)
    assert depth_aware == pytest.approx(float(split_latency(problem, plan.cuts) + device + 0.8 * edge))


def test_a_training_is_the_mean_of_its_plans() -> None:
    problem = planned_by_the_paper(FULL, "cifar10")
    assert problem is not None
    one, two = (of_training(problem, "RMA+RMS", 3, plans, 50) for plans in (1, 2))
    assert one == of_training(problem, "RMA+RMS", 3, 1, 50) != of_training(problem, "RMA+RMS", 4, 1, 50)
    second = Named("RMA+RMS", RANDOM, RANDOM, 3)
    later = seconds_per_round(problem, second, second.propose(problem, None, 50), 50)
    assert two == pytest.approx(np.mean([one, later]))


def test_quick_draws_have_every_strategy() -> None:
    result = RECIPES["draws"].show(Settings(QUICK, seeds=(0,)), {})
    assert [row[1] for row in result.rows] == ["HSFL", *(name for name in DRAWN for _ in range(2))]
    assert [series.label for series in result.panels[0].series] == list(DRAWN)


@pytest.mark.parametrize(
    ("measured", "low", "high", "verdict"),
    [
        (8.0, 7.0, 9.0, HOLDS),
        (9.0, 8.5, 9.5, HOLDS),
        (20.0, 17.0, 23.0, EXCEEDS),
        (4.0, 3.0, 5.0, IN_PART),
        (0.9, 0.5, 1.3, FAILS),
    ],
)
def test_verdicts_on_a_number(measured: float, low: float, high: float, verdict: str) -> None:
    assert judged(measured, low, high, 8.1, nothing=1.0) == verdict
