"""Plans for random cohorts: against every plan there is with every cohort there is, and what else knows of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hsfl
from hsfl.errors import InfeasibleError, ScenarioError
from hsfl.planner.baselines import alternatives, random_intervals
from hsfl.planner.corrected import corrected_gain
from hsfl.planner.exact import ExactSolver
from hsfl.planner.learning_rate import GAP, optimize_step
from hsfl.planner.result import evaluate_plan
from hsfl.planner.solve import solve, solve_with_step
from hsfl.problem.problem import Problem
from hsfl.report.landscape import over_cuts, over_intervals
from tests.planner.proven import checked_both_ways, hasty_gap
from tests.zoo import exhaustive, random_problem, with_cohort, with_memory_limits, with_planned_codes


def of(problem: Problem, cohort: int | None) -> Problem:
    return replace(problem, system=replace(problem.system, cohort=cohort))


def small_problem(seed: int, *, codes: bool = False) -> tuple[Problem, bool, int]:
    """A random problem for a random cohort, whether tiers may be empty, and the longest interval worth trying."""
    rng = np.random.default_rng([seed, 15])
    tiers, longest = int(rng.integers(2, 4 if codes else 5)), 4 if codes else 6
    problem = random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers, 6 if codes else 7)),
        num_clients=int(rng.integers(3, 6 if codes else 8)),
        drift=str(rng.choice(["paper", "refined", "energy"])),
        single_top=bool(rng.integers(2)),
    )
    problem = with_cohort(rng, problem, int(rng.integers(1, problem.system.num_clients)), longest)
    if codes:
        problem = with_planned_codes(rng, problem, 3 if tiers == 2 else 2)
    return with_memory_limits(rng, problem) if rng.integers(2) else problem, bool(rng.integers(2)), longest


@pytest.mark.parametrize("codes", [False, True])
def test_against_every_plan_with_every_cohort(codes: bool) -> None:
    """55 problems: the planner's optimum is that of trying every plan, its latencies the means over all cohorts; and
    the lower bound is the optimum. By table and by search, with and without codes to choose."""
    ordered = several = 0
    for seed in range(10 if codes else 45):
        problem, allow_empty, longest = small_problem(seed, codes=codes)
        best = exhaustive(problem, allow_empty_tiers=allow_empty, longest=longest)
        for _, solution in checked_both_ways(problem, best, allow_empty=allow_empty):
            missed = np.array(solution.plan.intervals)[problem.system.missable]
            assert (missed <= solution.plan.intervals[0]).all()
            ordered += bool((missed == solution.plan.intervals[0]).any() and solution.plan.intervals[0] > 1)
            several += max(solution.plan.intervals) > 1
    assert codes or (ordered > 5 and several > 10)


def test_everybody_is_planned_as_if_there_were_no_cohorts() -> None:
    problem = hsfl.load_scenario("paper").problem
    ours, today = (solve(of(problem, cohort)).to_dict() for cohort in (20, None))
    del ours["solve_ms"], today["solve_ms"]
    assert ours == today


@pytest.mark.parametrize("scenario", ["paper", "tight-memory"])
def test_search_and_table_agree_on_more_than_can_be_tried(scenario: str) -> None:
    problem = hsfl.load_scenario(scenario).problem
    for cohort in (2, 7, 15):
        one = replace(of(problem, cohort), constants=replace(problem.constants, target=4 * problem.constants.target))
        table, search = (ExactSolver(one, table_limit=limit).solve() for limit in (10**9, 0))
        assert search.ratio == pytest.approx(table.ratio, rel=1e-11)
        assert table.proven and search.proven


def test_out_of_time_the_bound_is_still_true() -> None:
    gaps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, num_tiers=4, num_layers=16, num_clients=60, single_top=False, generosity=30)
        problem = with_cohort(rng, problem, 20, 40)
        gaps.append(hasty_gap(problem))
    assert 0 < max(gaps) < 1


def test_a_city_is_planned_for_a_cohort() -> None:
    """100,000 devices, 100 at a time: proven optimal; the clients that are never the slowest of all count too."""
    scenario = hsfl.load_scenario("city", {"participation.cohort": 0.001})
    assert scenario.problem.system.cohort == 100
    found, everybody = hsfl.plan(scenario), hsfl.plan("city")
    assert found.status == "optimal"
    assert found.split_latency_s < hsfl.evaluate("city", found.cuts, (1, 1, 1)).split_latency_s
    assert found.memory_bits[1] < everybody.memory_bits[1]


def test_a_learning_rate_is_planned_with_a_cohort() -> None:
    """No learning rate of a fine grid beats the planned one by more than the gap, and the bound is below all."""
    problem = of(hsfl.load_scenario("paper").problem, 4)
    best = optimize_step(ExactSolver(problem))
    value = evaluate_plan(problem.with_step(best.step), best.plan).objective_s
    grid = np.geomspace(best.step / 30, min(30 * best.step, 1 / problem.constants.smoothness), 60)
    tried = []
    for step in grid:
        try:
            tried.append(solve(problem.with_step(float(step))).objective_s)
        except InfeasibleError:
            continue
    assert len(tried) > 20
    assert min(tried) >= best.lower_bound_s * (1 - 1e-9) and value <= min(tried) / (1 - GAP)
    assert solve_with_step(problem).objective_s == pytest.approx(value)


def test_nothing_of_the_same_kind_beats_the_plan() -> None:
    problem = of(hsfl.load_scenario("paper").problem, 5)
    result = solve(problem)
    rows = list(alternatives(problem, result.plan))
    assert "BCD" not in [row.name for row in rows]
    for row in rows:
        if not row.name.startswith(("no ", "4 ")) and row.evaluation is not None:
            assert row.evaluation.objective_s >= result.objective_s * (1 - 1e-12)
    rng = np.random.default_rng(0)
    drawn = [random_intervals(problem, rng) for _ in range(50)]
    assert all(edge <= device for device, edge, _ in drawn) and any(device > 1 for device, *_ in drawn)


@pytest.mark.parametrize("code", ["fp32", "auto"])
def test_the_landscape_has_the_plan_as_its_lowest_point(code: str) -> None:
    """Every cut vector in the codes of the plan, with the best intervals for it."""
    problem = of(hsfl.load_scenario("tight-memory", {"tiers.*.code": code}).problem, 30)
    result = solve(problem)
    landscape = over_cuts(problem, result.evaluation)
    assert landscape.seconds.min() == pytest.approx(result.objective_s, rel=1e-9)
    assert tuple(landscape.cuts[np.argmin(landscape.seconds)]) == result.cuts
    worst = int(np.argmax(np.where(np.isfinite(landscape.seconds), landscape.seconds, 0)))
    there = ExactSolver(problem.as_planned(result.plan), plan_codes=False).solve(cuts=landscape.cuts[worst].tolist())
    scale = 2 * problem.constants.initial_gap / problem.step
    assert landscape.seconds[worst] == pytest.approx(scale * there.ratio, rel=1e-9)
    for tier, at, seconds in over_intervals(problem, result.evaluation):
        assert seconds.min() == pytest.approx(result.objective_s, rel=1e-9)
        if problem.system.missable[tier]:
            assert at.max() <= result.intervals[0]


def test_what_knows_no_cohorts_says_so() -> None:
    scenario = hsfl.load_scenario("paper", {"participation.cohort": 5})
    with pytest.raises(ScenarioError, match=r'"bcd": it knows no cohorts'):
        hsfl.plan(scenario, method="bcd")
    with pytest.raises(ScenarioError, match=r"tier 2 \(edge\) is averaged less often than the devices.*at most 1"):
        hsfl.evaluate(scenario, (4, 7), (1, 2, 1))
    assert hsfl.evaluate(scenario, (4, 7), (2, 2, 1)).reaches_target
    refined = hsfl.load_scenario("tight-memory", {"participation.cohort": 30}).problem
    assert corrected_gain(refined) == 1 != corrected_gain(of(refined, None))
