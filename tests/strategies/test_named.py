"""The strategies of the paper choose as they say, and can be named everywhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import hsfl
from hsfl.errors import ScenarioError
from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import evaluate_plan
from hsfl.planner.solve import solve
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.strategies import NAMES, Named, make_strategy
from hsfl.strategies.named import PLANNED
from hsfl.theory.convergence import loss_target
from hsfl.theory.latency import round_latency, split_latency
from tests.zoo import code_vectors

ASKED = range(0, 40_000, 10)  # rounds at which a strategy is asked
LITTLE = np.full(3, 0.02)  # of the drift that is predicted
GIVEN = {"PSL": {"strategy.cuts": [3, 8]}, "FIXED": {"strategy.cuts": [3, 8], "strategy.intervals": [5, 2, 1]}}


@pytest.fixture(scope="module")
def problem() -> Problem:
    """The paper's, with a target that every random interval reaches."""
    return hsfl.load_scenario("paper", {"convergence.target": 500.0}).problem


def named(name: str, **overrides: object) -> Named:
    given = GIVEN.get(name.upper(), {}) | {key.replace("__", "."): value for key, value in overrides.items()}
    strategy = make_strategy(hsfl.load_scenario("paper", {"strategy.name": name, **given}))
    assert isinstance(strategy, Named)
    return strategy


def uniform(drawn: list[object], values: int) -> bool:
    counts = Counter(drawn)
    return len(counts) == values and stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_names_work_in_any_case_and_proposals_are_plans(name: str, problem: Problem) -> None:
    strategy = named(name.lower())
    assert strategy.name == name
    plan = strategy.propose(problem, None, 0)
    assert len(plan.cuts) == 2
    assert strategy.propose(problem, plan, 0) == plan  # no state
    planned = {"HSFL", "RMA+MS", "MA+RMS"}
    assert strategy.needs_constants == (name in planned)
    assert strategy.replans == (name not in {"PSL", "FedAvg", "fixed"})


@pytest.mark.parametrize("target", [8.0, 500.0])
def test_hsfl_is_the_exact_planner(target: float) -> None:
    scenario = hsfl.load_scenario("paper", {"convergence.target": target})
    assert named("HSFL").propose(scenario.problem, None, 7) == hsfl.plan(scenario).plan


@pytest.mark.parametrize("name", ["RMA+MS", "RMA+RMS", "RMA+AMS"])
def test_random_intervals_are_uniform_and_drawn_anew(name: str, problem: Problem) -> None:
    strategy = named(name)
    asked = ASKED if name == "RMA+RMS" else ASKED[:500]
    drawn = [strategy.propose(problem, None, round_).intervals for round_ in asked]
    assert {i[2] for i in drawn} == {1}  # one cloud
    for tier in range(2):
        assert uniform([i[tier] for i in drawn], 25)


@pytest.mark.parametrize("name", ["MA+RMS", "RMA+RMS", "DAMA+RMS"])
def test_random_cuts_are_uniform_and_drawn_anew(name: str, problem: Problem) -> None:
    strategy = named(name)
    asked = ASKED[:2000] if name == "MA+RMS" else ASKED
    assert uniform(
        [strategy.propose(problem, None, round_).cuts for round_ in asked], len([*combinations(range(12), 2)])
    )


def test_what_is_not_drawn_is_the_best_for_what_is(problem: Problem) -> None:
    for round_ in range(4):
        plan = named("RMA+MS").propose(problem, None, round_)
        assert plan == ExactSolver(problem).solve(plan.intervals).plan
        best = min(
            evaluate_plan(problem, replace(plan, cuts=cuts)).objective_s for cuts in combinations(range(1, 16), 2)
        )
        assert evaluate_plan(problem, plan).objective_s == pytest.approx(best)
        plan = named("MA+RMS").propose(problem, None, round_)
        best = min(
            evaluate_plan(problem, replace(plan, intervals=(i, j, 1))).objective_s
            for i in range(1, 40)
            for j in range(1, 40)
        )
        assert evaluate_plan(problem, plan).objective_s == pytest.approx(best)


@pytest.mark.parametrize("name", NAMES)
def test_all_of_them_plan_codes_that_are_left_to_the_planner(name: str) -> None:
    """In the best codes for the cuts and intervals that they choose."""
    given = {"strategy.name": name, "convergence.target": 500.0} | GIVEN.get(name.upper(), {})
    codes = {"tiers.device.code": {"up": ["bf16", "int8"], "average": "auto"}, "tiers.edge.code": {"down": "auto"}}
    scenario = hsfl.load_scenario("paper", given | codes | {"convergence.coding_noise_down": [2000.0] * 16})
    strategy, problem = make_strategy(scenario), scenario.problem
    assert strategy.needs_constants and strategy.replans
    plan = strategy.propose(problem, None, 3)
    assert plan.codes is not None and plan.codes[2] == problem.system.tiers[2].codes
    ours = evaluate_plan(problem, plan)
    for other in code_vectors(problem):
        assert not evaluate_plan(problem, replace(plan, codes=other)).objective_s < ours.objective_s * (1 - 1e-9)


def test_ams_is_the_fastest_round_of_all(problem: Problem) -> None:
    fastest = min(combinations(range(1, 16), 2), key=lambda cuts: float(split_latency(problem, cuts)))
    assert {named("RMA+AMS").propose(problem, None, round_).cuts for round_ in range(5)} == {fastest}


def test_ams_with_averages_is_the_fastest_round_with_them(problem: Problem) -> None:
    for round_ in range(3):
        plan = named("RMA+AMS-averages").propose(problem, None, round_)
        assert plan.intervals == named("RMA+AMS").propose(problem, None, round_).intervals
        seconds = {c: float(round_latency(problem, c, plan.intervals)) for c in combinations(range(1, 16), 2)}
        assert plan.cuts == min(seconds, key=seconds.__getitem__) != named("RMA+AMS").propose(problem, None, 0).cuts


def test_intervals_out_of_reach_get_the_best_cuts_of_an_easier_target(problem: Problem) -> None:
    strict = replace(problem, constants=replace(problem.constants, target=2.5))
    for round_ in range(20):
        plan = named("RMA+MS").propose(strict, None, round_)
        easier = strict
        while not evaluate_plan(easier, plan).reaches_target:
            easier = replace(easier, constants=replace(easier.constants, target=2 * easier.constants.target))
        assert plan == ExactSolver(easier).solve(plan.intervals).plan


def test_planned_intervals_at_most_double_from_plan_to_plan() -> None:
    problem = hsfl.load_scenario("paper", {"convergence.target": 500.0, "convergence.drift": "refined"}).problem
    free = named("HSFL").propose(problem, None, 0)
    assert min(free.intervals[:2]) > 6  # else there is nothing to limit
    small = hsfl.Plan((4, 7), (1, 3, 1))
    plan = named("HSFL").propose(problem, small, 100)
    assert plan == ExactSolver(problem).solve((2, 6, 1)).plan
    assert named("HSFL").propose(problem, hsfl.Plan((4, 7), free.intervals), 100) == free
    drawn = named("MA+RMS").propose(problem, small, 100)
    assert drawn.intervals == (2, 6, 1)


def test_the_paper_s_bound_knows_no_such_limit(problem: Problem) -> None:
    small = hsfl.Plan((4, 7), (1, 1, 1))
    for name in ("HSFL", "MA+RMS"):
        plan = named(name).propose(problem, small, 100)
        assert min(plan.intervals[:2]) > 2 and plan == named(name).propose(problem, None, 100)


def test_depth_aware_averaging_has_a_period_of_ten(problem: Problem) -> None:
    strategy = named("DAMA+RMS")
    plan = strategy.propose(problem, None, 0)
    assert all(strategy.averages(plan, 0, rounds) for rounds in range(1, 31))
    assert [rounds for rounds in range(1, 31) if not strategy.averages(plan, 1, rounds)] == [1, 2, 11, 12, 21, 22]


def test_psl_never_averages(problem: Problem) -> None:
    assert named("PSL").propose(problem, None, 0) == hsfl.Plan((3, 8), (NEVER, NEVER, 1))


def test_hsfl_keeps_what_is_given(problem: Problem) -> None:
    plan = named("HSFL", strategy__cuts=[3, 8]).propose(problem, None, 0)
    assert plan == hsfl.Plan((3, 8), ExactSolver(problem).solve(cuts=(3, 8)).plan.intervals)
    plan = named("HSFL", strategy__intervals=[10, 4, 1]).propose(problem, None, 0)
    assert plan == ExactSolver(problem).solve((10, 4, 1)).plan


def test_draws_have_a_seed_of_their_own(problem: Problem) -> None:
    def plans(**seeds: int) -> list[hsfl.Plan]:
        return [named("RMA+RMS", **seeds).propose(problem, None, round_) for round_ in range(5)]

    assert plans(training__seed=3) == plans(strategy__seed=3) != plans(training__seed=9)
    assert plans(training__seed=9, strategy__seed=3) == plans(strategy__seed=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "RMA"}, r"strategy.name = 'RMA': no such strategy.*there are HSFL.*package.module:Class"),
        ({"name": "MA+RMS", "cuts": [3, 8]}, "strategy.cuts: name = 'MA\\+RMS' chooses its own cuts; remove"),
        ({"name": "PSL", "cuts": [3, 8], "intervals": [1, 1, 1]}, "strategy.intervals: name = 'PSL' chooses"),
        ({"name": "PSL"}, "strategy.cuts is missing; name = 'PSL' needs cuts"),
        ({"name": "fixed", "cuts": [3, 8]}, "strategy.intervals is missing; .* needs intervals and cuts"),
        ({"cuts": [3, 8], "intervals": [1, 1, 1]}, "strategy.cuts and strategy.intervals: .* plans at least one"),
        ({"name": "nowhere:Mine"}, "strategy.name = 'nowhere:Mine': no module nowhere in"),
        ({"name": "types:SimpleNamespace"}, "a SimpleNamespace has no name; a strategy needs name, replans"),
    ],
)
def test_what_cannot_be_is_said(given: dict[str, object], message: str) -> None:
    scenario = hsfl.load_scenario("paper", {f"strategy.{key}": value for key, value in given.items()})
    with pytest.raises(ScenarioError, match=message):
        make_strategy(scenario)


def test_ones_own_class_is_found_beside_the_scenario(tmp_path, monkeypatch) -> None:
    source = """
    from hsfl import Plan
    class Mine:
        name, replans, needs_constants = "mine", False, False
        def propose(self, problem, current, round_):
            return Plan((1, 2), (1, 1, 1))
        def averages(self, plan, tier, rounds):
            return rounds % 3 == 1
    """
    (tmp_path / "ideas_of_mine.py").write_text("\n".join(line[4:] for line in source.splitlines()))
    hsfl_file = tmp_path / "s.toml"
    scenario = hsfl.load_scenario("mnist-mini", {"stopping.rounds": 5, "strategy.name": "ideas_of_mine:Mine"})
    from hsfl.scenario.template import scenario_text

    hsfl_file.write_text(scenario_text(scenario.raw))
    run = hsfl.train(hsfl_file, out=tmp_path / "run")
    assert run.strategy == "mine"
    assert [sorted(line.averaged) for line in run.metrics[1:]] == [
        both if round_ in (1, 4) else [] for both in [["gateway", "sensor"]] for round_ in range(1, 6)
    ]


def test_a_strategy_s_draws_leave_the_mini_batches_alone(tmp_path) -> None:
    """The first rounds, before anything is averaged, have the same losses whoever drew which intervals."""
    losses = []
    for seed in (1, 2):
        overrides = {"strategy.name": "RMA+RMS", "stopping.rounds": 1, "strategy.seed": seed}
        run = hsfl.train(hsfl.load_scenario("mnist-mini", overrides), out=tmp_path / str(seed))
        losses.append(run.metrics[-1].loss)
        assert np.isfinite(losses[-1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class Wrong:
    """Each attribute of a strategy, wrong in one way."""

    name, replans, needs_constants = "wrong", False, False

    def __init__(self, where: str) -> None:
        self.where = where

    def propose(self, problem, current, round_):
        if self.where == "propose":
            raise KeyError("no such thing")
        return hsfl.Plan((1, 2), (1, 1, 1))

    def averages(self, plan, tier, rounds):
        return rounds / 0 == 1


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Wrong("propose"), r"strategy wrong: propose raised KeyError \('no such thing'\) in .*, line \d+; correct it"),
        (Wrong("averages"), r"strategy wrong: averages raised ZeroDivisionError \(.*\) in .*, line \d+; correct it"),
        (Wrong, "strategy: Wrong is a class; give an object of it"),
        (3, "strategy: a int has no name; a strategy needs"),
    ],
)
def test_mistakes_of_ones_own_strategy_are_one_sentence(strategy: object, message: str, tmp_path) -> None:
    scenario = hsfl.load_scenario("mnist-mini", {"stopping.rounds": 2})
    with pytest.raises(ScenarioError, match=message):
        hsfl.train(scenario, strategy=strategy, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ({}, True),
        ({"training.averaging": "corrected"}, False),
        ({"training.optimizer": "adam"}, False),
        ({"strategy.name": "RMA+MS"}, False),
        ({"strategy.drift": "refined", "convergence.rounds": 100, "convergence.slack": 1}, False),
    ],
)
def test_what_corrected_averages_would_gain_is_told_where_there_is_a_choice(changes, tells) -> None:
    scenario = hsfl.load_scenario("mnist-mini", changes)
    problem = scenario.training_problem
    shape = (problem.system.num_tiers, problem.num_layers)
    constants = replace(
        problem.constants,
        initial_gap=2.3,
        target=np.nan,
        gradient_variance=np.ones(shape[1]),
        gradient_second_moment=np.ones(shape[1]),
        gradient_dissimilarity=np.ones(shape),
    )
    problem = scenario.with_target(replace(problem, constants=constants))
    gain = make_strategy(scenario).corrected_gain(problem)
    assert gain > 1 if tells else gain is None


def by_loss(problem: Problem, loss: float, first_gradients: np.ndarray | None = None) -> Problem:
    """The problem at a loss against which drift is weighed."""
    energy = replace(
        problem.constants, drift="energy", initial_gap=loss, first_gradients=first_gradients, drift_correction=LITTLE
    )
    found = replace(problem, constants=energy)
    return replace(found, constants=replace(energy, target=loss_target(found)))


def test_systematic_drift_counts_more_until_training_has_begun_unless_averages_are_dear(problem: Problem) -> None:
    strategy, current = named("HSFL"), Plan((3, 8), (10**6, 10**6, 1))
    constants = problem.constants
    first = np.vstack([constants.gradient_variance, constants.gradient_dissimilarity])
    careful = first * np.array([1.0, 15.0, 15.0, 15.0])[:, None]
    begun, early = by_loss(problem, 2.0), by_loss(problem, 2.0, first)
    assert strategy.propose(begun, current, 10**6) == solve(begun).plan
    plan = strategy.propose(early, current, 10**6)
    assert plan == solve(by_loss(problem, 2.0, careful)).plan  # what was seen since does not matter
    assert max(plan.intervals) < max(solve(early).plan.intervals) < max(solve(begun).plan.intervals)
    slow = {f"tiers.{m}.fed_{way}link": "2 Mbps" for m in (1, 2) for way in ("up", "down")}
    dear = replace(early, system=hsfl.load_scenario("paper", slow).problem.system)
    assert strategy.propose(dear, current, 10**6) == solve(dear).plan
    with_target = replace(problem, constants=replace(constants, drift="refined", first_gradients=1e6 * first))
    assert strategy.propose(with_target, current, 10**6) == solve(with_target).plan  # only where the loss is weighed
    at_cuts = Named("MA", PLANNED, (4, 5))  # full synchronisation at the same cuts is what it is compared with
    solved = ExactSolver(by_loss(problem, 2.0, careful)).solve(cuts=(4, 5)).plan
    assert at_cuts.propose(early, current, 10**6).intervals == solved.intervals


def best_for(problem: Problem, intervals: tuple[int, ...]) -> Plan:
    return ExactSolver(problem).solve(intervals).plan


def test_intervals_are_no_longer_than_what_is_known_of_drift_reaches(problem: Problem) -> None:
    """At first at most 8 rounds, later a quarter of those so far, and twice the last; with the best cuts for them."""
    strategy, current = named("HSFL"), Plan((3, 8), (10**6, 10**6, 1))
    begun = by_loss(problem, 2.0)
    free = solve(begun).plan
    assert min(free.intervals[:2]) > 20  # else there is nothing to limit
    for round_, longest in ((0, 8), (32, 8), (40, 10), (79, 19), (10**6, 10**6)):
        expected = tuple(min(interval, longest) for interval in free.intervals)
        assert strategy.propose(begun, None if round_ == 0 else current, round_) == best_for(begun, expected)
    assert strategy.propose(begun, Plan((3, 8), (2, 2, 1)), 10**6).intervals == (4, 4, 1)
    drawn = named("MA+RMS").propose(begun, current, 40)
    assert max(drawn.intervals) == 10


def test_intervals_stay_short_until_training_has_begun_unless_longer_ones_pay(problem: Problem) -> None:
    """At most 8 on the first plateau, whose gradients would allow more, but where averages are dear."""
    strategy, current = named("HSFL"), Plan((3, 8), (10**6, 10**6, 1))
    constants = problem.constants
    assert constants.gradient_dissimilarity is not None
    alike = replace(problem, constants=replace(constants, gradient_dissimilarity=0 * constants.gradient_dissimilarity))
    first = 1e-9 * np.vstack([constants.gradient_variance, constants.gradient_dissimilarity])
    begun, early = by_loss(alike, 2.0), by_loss(alike, 2.0, first)
    assert min(strategy.propose(begun, current, 160).intervals[:2]) > 20
    assert max(strategy.propose(early, current, 160).intervals) == 8
    slow = {f"tiers.{m}.fed_{way}link": "2 Mbps" for m in (1, 2) for way in ("up", "down")}
    dear = replace(early, system=hsfl.load_scenario("paper", slow).problem.system)
    plan = strategy.propose(dear, current, 160)
    assert max(plan.intervals) == 40
    short = best_for(dear, tuple(min(interval, 8) for interval in plan.intervals))
    assert round_latency(dear, short.cuts, short.intervals) > 1.3 * round_latency(dear, plan.cuts, plan.intervals)
