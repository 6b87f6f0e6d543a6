"""BCD's gap and wrong constants: known systems, verdicts by construction, and what no plan can do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsfl import api
from hsfl.errors import InfeasibleError
from hsfl.experiments import random_systems
from hsfl.experiments.random_systems import (
    DRIFTS,
    FACTORS,
    bcd_gap,
    measure_gap,
    measure_losses,
    mistaken,
    random_problem,
)
from hsfl.experiments.result import FAILS, HOLDS, IN_PART
from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import PlanResult, evaluate_plan
from hsfl.planner.solve import solve
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.theory.convergence import drift_coefficients, noise_floor, quadratic, rounds_needed
from hsfl.theory.objective import objective

BOTH = pytest.mark.parametrize("drift", DRIFTS)
PROBLEMS = [(k, drift) for k in range(12) for drift in DRIFTS]
SHOWN = [f for f in FACTORS if f != 1]


@pytest.mark.parametrize(("index", "drift"), PROBLEMS)
def test_random_systems_are_as_the_notes_say(index: int, drift: str) -> None:
    problem = random_problem(index, 3, drift)
    system, floor = problem.system, noise_floor(problem)
    devices, edges, *above = system.entities
    assert 10 <= devices <= 60 and 2 <= edges <= 10 and (not above or above[-1] == 1)
    assert all(len(np.unique(hosts)) == count for hosts, count in zip(system.hosts, system.entities, strict=True))
    everything_averaged = np.ones(system.num_tiers)
    rounds = rounds_needed(problem, np.arange(1, system.num_tiers), everything_averaged)
    assert 299.9 < rounds < 30_001 and problem.step <= 1 / problem.constants.smoothness
    on_devices = drift_coefficients(problem)[:, 0].sum(axis=-1)
    assert floor + quadratic(on_devices, np.array(1.999)) < problem.constants.target
    assert floor + quadratic(on_devices, np.array(60.01)) > problem.constants.target


def test_a_seed_and_an_index_name_a_system() -> None:
    def mark(index: int, seed: int) -> float:
        return solve(random_problem(index, seed, "paper")).objective_s

    assert mark(4, 0) == mark(4, 0)
    assert len({mark(4, 0), mark(4, 1), mark(5, 0)}) == 3


def test_the_gap_is_never_negative_and_not_always_nothing() -> None:
    gaps = [measure_gap(random_problem(k, 0, drift)).gap for k, drift in PROBLEMS]
    assert min(gaps) >= -1e-9
    assert max(gaps) > random_systems.NEAR


def test_the_gap_of_the_scenario_paper() -> None:
    exact, bcd = api.plan("paper"), api.plan("paper", "bcd")
    found = measure_gap(api.load_scenario("paper").problem)
    assert found.gap == bcd.objective_s / exact.objective_s - 1 > random_systems.NEAR
    assert (found.other_cuts, found.other_intervals) == (bcd.cuts != exact.cuts, bcd.intervals != exact.intervals)


def test_gaps_by_kind_of_system() -> None:
    result = bcd_gap(10, seed=2)
    rows = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
    number = {label: row["number"] for label, row in rows.items()}
    assert number["all"] == 10 == sum(number.get(f"{m} tiers", 0) for m in (2, 3, 4))
    assert number["paper drift"] == 5 == number["refined drift"]
    gaps = [measure_gap(random_problem(k, 2, DRIFTS[k % 2])).gap for k in range(10)]
    assert rows["all"]["largest above the optimum (%)"] == 100 * max(gaps)
    assert rows["all"]["optimum found (%)"] == pytest.approx(100 * np.mean(np.array(gaps) < 1e-9))
    assert result.claims[0].verdict == random_systems.near_verdict(gaps)
    for series, own in zip(result.panels[0].series, (gaps[::2], gaps[1::2]), strict=True):
        assert list(series.y) == [100 * max(g, 1e-6) for g in sorted(own)]
        assert list(series.x) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    again = bcd_gap(10, seed=2)
    assert again.claims == result.claims and again.panels == result.panels
    assert [row[:-1] for row in again.rows] == [row[:-1] for row in result.rows]


def test_an_error_of_bcd_counts_as_an_infinite_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(problem: Problem, method: str = "exact") -> PlanResult:
        if method == "bcd" and problem.constants.drift == "refined":
            raise InfeasibleError("HiGHS gave up")
        return solve(problem, method)

    monkeypatch.setattr(random_systems, "solve", failing)
    result = bcd_gap(4)
    rows = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
    assert rows["all"]["largest above the optimum (%)"] is None
    assert rows["refined drift"]["optimum found (%)"] == 0 and rows["paper drift"]["optimum found (%)"] > 0
    assert "BCD raised an error in 2" in result.claims[0].measured
    assert result.claims[0].verdict != HOLDS


@pytest.mark.parametrize(
    ("near", "far", "verdict"),
    [(95, 5, HOLDS), (94, 6, IN_PART), (50, 50, IN_PART), (49, 51, FAILS)],
)
def test_near_the_optimum_by_construction(near: int, far: int, verdict: str) -> None:
    assert random_systems.near_verdict([0.01] * near + [0.0101] * (far - 1) + [np.inf]) == verdict


@BOTH
def test_losses(drift: str) -> None:
    systems = [random_problem(k, 1, drift) for k in range(25)]
    found = [measure_losses(problem) for problem in [*systems, random_systems._paper(drift)]]
    for losses in found:
        for (name, factor), (loss, hopeless) in losses.items():
            assert loss >= -1e-9
            if factor == 1:
                assert loss == 0 and not hopeless
            if factor >= 1 or hopeless:
                assert np.isfinite(loss), "a plan that is good enough for worse constants reaches the target"
            if name == "initial_gap":
                assert loss == 0, "the initial gap scales the time of all plans"
    assert any(np.isinf(losses["smoothness", 0.1][0]) for losses in found)
    assert any(losses["all", 10.0][1] for losses in found)
    assert any(0 < losses["smoothness", 2.0][0] < np.inf for losses in found)


@BOTH
def test_a_loss_by_hand(drift: str) -> None:
    problem = random_problem(7, 1, drift)
    losses = measure_losses(problem)
    best = solve(problem).objective_s
    for name, names in random_systems.wrong_constants(drift).items():
        for factor in (0.5, 2.0):
            chosen = solve(mistaken(problem, names, factor)).plan
            assert losses[name, factor][0] == evaluate_plan(problem, chosen).objective_s / best - 1


def test_a_target_that_seems_out_of_reach_means_full_synchronisation() -> None:
    problem = random_problem(3, 0, "refined")
    floor = noise_floor(problem)
    problem = replace(problem, constants=replace(problem.constants, target=1.5 * floor))
    with pytest.raises(InfeasibleError, match="noise floor"):
        solve(mistaken(problem, ["gradient_variance"], 2.0))
    solver = ExactSolver(problem)
    cuts, every = solver.terms.segments.cuts, (1,) * problem.system.num_tiers
    times = objective(problem, cuts, np.ones((len(cuts), len(every))))
    loss, hopeless = measure_losses(problem)["gradient_variance", 2.0]
    assert hopeless and loss == pytest.approx(times.min() / solve(problem).objective_s - 1)
    assert loss > 0 and solve(problem).plan != Plan(tuple(cuts[np.argmin(times)]), every)


def test_wrong_constants_keep_the_target_and_end_at_the_step() -> None:
    problem = api.load_scenario("paper").problem.with_step(0.2 / 20.1)
    wrong = mistaken(problem, ["smoothness", "gradient_variance"], 10.0).constants
    assert wrong.smoothness == 1 / problem.step == pytest.approx(5 * problem.constants.smoothness)
    assert mistaken(problem, ["smoothness"], 2.0).constants.smoothness == 2 * problem.constants.smoothness
    assert (wrong.gradient_variance == 10 * problem.constants.gradient_variance).all()
    assert wrong.gradient_second_moment is problem.constants.gradient_second_moment
    assert (wrong.target, wrong.initial_gap) == (problem.constants.target, problem.constants.initial_gap)


def losses_of(**changed: list[float]) -> dict[float, list[float]]:
    """Hundred systems that lose nothing, but for some factors: up2 is 2, down2 is 1/2."""
    names = {f"up{f:g}": f for f in FACTORS if f > 1} | {f"down{f:g}": 1 / f for f in FACTORS if f > 1}
    return {f: [0.0] * 100 for f in FACTORS} | {names[k]: v + [0.0] * (100 - len(v)) for k, v in changed.items()}


@pytest.mark.parametrize(
    ("losses", "factor", "verdict"),
    [
        (losses_of(), 10, HOLDS),
        (losses_of(up10=[0.05] * 50), 10, HOLDS),
        (losses_of(up10=[0.05] * 51), 5, IN_PART),
        (losses_of(up10=[0.049] * 100), 10, HOLDS),
        (losses_of(down5=[np.inf] * 5), 10, HOLDS),
        (losses_of(down5=[np.inf] * 6), 2, IN_PART),
        (losses_of(down2=[np.inf] * 6), 1, FAILS),
        (losses_of(up2=[1.0] * 51), 1, FAILS),
    ],
)
def test_tolerance_by_construction(losses: dict[float, list[float]], factor: float, verdict: str) -> None:
    assert random_systems.tolerance(losses) == (factor, verdict)


def test_robustness_counts_all_systems() -> None:
    result = random_systems.robustness(5, seed=4)
    assert random_systems.robustness(5, seed=4) == result != random_systems.robustness(5, seed=5)
    assert [tuple(row[:3]) for row in result.rows] == [
        (drift, name, factor) for drift in DRIFTS for name in random_systems.wrong_constants(drift) for factor in SHOWN
    ]
    for n, drift in enumerate(DRIFTS):
        found = [measure_losses(random_problem(k, 4, drift)) for k in range(5)]
        paper = measure_losses(random_systems._paper(drift))
        for row in (row for row in result.rows if row[0] == drift):
            losses = sorted(one[row[1], row[2]][0] for one in found)
            expected = [
                losses[2],
                losses[4],
                np.mean(np.isinf(losses)),
                np.mean([one[row[1], row[2]][1] for one in found]),
            ]
            expected.append(paper[row[1], row[2]][0])
            assert row[3:] == [100 * x if np.isfinite(x) else None for x in expected]
        lost, missed = result.panels[2 * n : 2 * n + 2]
        smoothness = sorted(one["smoothness", 2.0][0] for one in found)
        line = next(series for series in lost.series if series.label == "smoothness")
        at = FACTORS.index(2.0)
        assert (line.low[at], line.y[at], line.high[at]) == tuple(100 * max(smoothness[i], 1e-3) for i in (0, 2, 4))
        assert missed.series[-1].y[0] == 100 * np.mean([np.isinf(one["all", 0.1][0]) for one in found])
        assert line.y[FACTORS.index(1.0)] == 100 * random_systems.LEAST_LOSS
