"""The setting of the experiments: the paper's machines, fewer tiers, and all of them faster or slower."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import hsfl
from hsfl.experiments import sizes
from hsfl.experiments.benchmarks import full_sync_cuts
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.settings import LINKS, Settings, client_cloud, client_edge, one_edge_server, scaled
from hsfl.experiments.store import content
from hsfl.problem.system import System
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy
from hsfl.theory.latency import aggregation_latency, split_latency

FULL, SMALL, QUICK = Settings(), Settings(sizes.SMALL), Settings(sizes.QUICK, seeds=(0,))
RATES = ("compute_flops", "uplink_bps", "downlink_bps", "fed_uplink_bps", "fed_downlink_bps")


def rates(system: System) -> list[list[float]]:
    return [getattr(tier, rate).tolist() for tier in system.tiers for rate in RATES]


def test_fewer_tiers_are_the_built_in_scenarios() -> None:
    paper = FULL.scenario("cifar10", "shards", 0)
    assert rates(paper.system) == rates(hsfl.load_scenario("paper").system)
    assert rates(client_edge(paper).system) == rates(hsfl.load_scenario("client-edge").system)
    assert rates(client_cloud(paper).system) == rates(hsfl.load_scenario("client-cloud").system)


@pytest.mark.parametrize("settings", [FULL, SMALL, QUICK], ids=["full", "small", "quick"])
def test_one_edge_server_serves_all_devices_and_is_never_averaged(settings: Settings) -> None:
    scenario = settings.scenario(settings.dataset, "shards", 0)
    problem = one_edge_server(scenario).training_problem
    edge, one = scenario.system.tiers[1], problem.system.tiers[1]
    assert problem.system.entities == (scenario.system.num_clients, 1)
    assert one.compute_flops.tolist() == [edge.compute_flops[0]]
    assert problem.system.slowness[1].tolist() == [problem.system.num_clients / edge.compute_flops[0]] * 20
    assert problem.system.tiers[0].uplink_bps.tolist() == scenario.system.tiers[0].uplink_bps.tolist()
    assert aggregation_latency(problem, (2,))[1] == 0


@pytest.mark.parametrize("code", [None, LINKS, {"average": "int4"}], ids=["plain", "beyond", "averages only"])
@pytest.mark.parametrize("settings", [FULL, SMALL, QUICK], ids=["full", "small", "quick"])
def test_full_synchronisation_has_the_cuts_with_the_shortest_round(
    settings: Settings, code: dict[str, str] | None
) -> None:
    coded = {"tiers.1.code": code, "tiers.2.code": code} if code else {}
    for dataset in settings.datasets:
        problem = settings.scenario(dataset, "iid", 0, coded).training_problem
        seconds = {
            cuts: float(split_latency(problem, cuts) + aggregation_latency(problem, cuts).sum())
            for cuts in combinations(range(1, problem.num_layers), 2)
        }
        assert full_sync_cuts(settings, coded) == min(seconds, key=seconds.__getitem__)


def test_cuts_of_full_synchronisation_depend_on_what_links_carry() -> None:
    averages = {"tiers.1.code": {"average": "int4"}, "tiers.2.code": {"average": "int4"}}
    assert (full_sync_cuts(FULL), full_sync_cuts(FULL, averages)) == ((2, 4), (4, 7))


def test_machines_are_the_same_for_all_seeds() -> None:
    one, two = (FULL.scenario("cifar10", "iid", seed) for seed in (0, 1))
    assert rates(one.system) == rates(two.system)
    assert (one.spec.training.seed, two.spec.training.seed) == (0, 1)


@pytest.mark.parametrize("settings", [FULL, SMALL, QUICK], ids=["full", "small", "quick"])
def test_scaling_compute_and_communication(settings: Settings) -> None:
    scenario = settings.scenario(settings.dataset, "iid", 0)
    twice = scaled(scenario, 2.0, 2.0).training_problem
    problem = scenario.training_problem
    cuts = settings.size.cuts
    assert split_latency(twice, cuts) == pytest.approx(split_latency(problem, cuts) / 2)
    assert aggregation_latency(twice, cuts) == pytest.approx(aggregation_latency(problem, cuts) / 2)
    slow = scaled(scenario, 1.0, 0.25)
    assert np.allclose(aggregation_latency(slow.training_problem, cuts), 4 * aggregation_latency(problem, cuts))
    assert [t.compute_flops.tolist() for t in slow.system.tiers] == [
        t.compute_flops.tolist() for t in scenario.system.tiers
    ]


@pytest.mark.parametrize("settings", [FULL, SMALL, QUICK], ids=["full", "small", "quick"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_wants_runs_that_can_be_trained(name: str, settings: Settings) -> None:
    """All of full size too: scenarios that are valid, and one setting for all, but for the recipe that looks for it."""
    one = replace(settings, seeds=(0,)) if name == "step" else settings  # whose network is profiled for every run
    wanted = RECIPES[name].runs(one)
    assert wanted or name in ("fig2c", "draws", "bcd", "robustness")
    for scenario in wanted.values():
        training = scenario.spec.training
        strategy = make_strategy(scenario)
        if not strategy.needs_constants:
            strategy.propose(scenario.training_problem, None, 0)
        if name not in ("setting", "step"):
            rate = settings.size.data[scenario.name].steps[0]
            assert (training.optimizer, training.learning_rate, scenario.spec.model.factory) == ("momentum", rate, None)


@pytest.mark.parametrize("name", ["fig4", "fig5"])
def test_headlines_have_all_seeds_and_nothing_but_the_paper_s(name: str) -> None:
    wanted = RECIPES[name].runs(replace(FULL, seeds=(0, 1, 2, 3, 4)))
    headlines = {"HSFL", "MA+RMS", "RMA+RMS", "full sync"}
    for dataset, variants in (("cifar10", 1), ("mnist", 0)):
        of = [key for key in wanted if key[0] == dataset]
        assert len({key[:3] for key in of}) == 2 * (7 + variants)
        assert {key[3] for key in of} == {0, 1, 2, 3, 4}
        assert {key[2] for key in of if key[3] > 2} == headlines
        assert len({key[2] for key in of if key[3] == 2}) == 7 + variants
    for (_, _, strategy, _), scenario in wanted.items():
        assert set(coded(scenario)) == {("fp32", "fp32", "fp32")} and scenario.spec.training.averaging == "plain"
        if make_strategy(scenario).needs_constants:
            assert scenario.training_problem.constants.drift == "paper"
        assert scenario.spec.stopping.until_converged == (strategy in headlines)
        assert (scenario.spec.stopping.rounds == 8000) == (strategy in headlines)


def coded(scenario: Scenario) -> list[tuple[str, ...]]:
    return [(c.up.name, c.down.name, c.average.name) for c in (t.codes for t in scenario.system.tiers[:-1])]


def test_both_ways_of_planning_are_beside_each_other() -> None:
    wanted = RECIPES["as-hsfl"].runs(FULL)
    paper, ours = ({key[1:] for key in wanted if key[0] == how} for how in ("as the paper plans", "as hsfl plans"))
    assert paper - ours == {key for key in paper if key[2] == "full sync"} and not ours - paper
    known = set(map(content, RECIPES["fig4"].runs(FULL).values()))
    for (how, *_), scenario in wanted.items():
        if how == "as hsfl plans":
            assert set(coded(scenario)) == {("int4", "int4", "int8")}
            assert scenario.spec.training.averaging == "corrected"
            assert scenario.training_problem.constants.drift == "energy"
        else:
            assert content(scenario) in known


def test_the_paper_s_step_is_the_paper_s() -> None:
    wanted = RECIPES["step"].runs(FULL)
    assert len(wanted) == 2 * 5
    for scenario in wanted.values():
        training = scenario.spec.training
        assert (training.optimizer, training.learning_rate) == ("sgd", 5e-4)
    assert next(iter(wanted.values())).training_problem.num_layers == 16


def test_what_goes_past_the_paper_is_on_by_itself_and_together() -> None:
    wanted = RECIPES["beyond"].runs(FULL)
    assert {key[0] for key in wanted} == {"iid", "shards"} and {key[2] for key in wanted} == {0, 1, 2}
    seen = set()
    for (_, label, _), scenario in wanted.items():
        assert set(coded(scenario)) == {("int4", "int4", "int8") if "coded" in label else ("fp32", "fp32", "fp32")}
        assert (scenario.spec.training.averaging == "corrected") == ("corrected" in label)
        if "planned" in label:
            assert scenario.training_problem.constants.drift == "energy"
        else:
            assert make_strategy(scenario).intervals == (1, 1, 1)
        seen.add(("planned" in label, "corrected" in label, "coded" in label))
    alone, together = [(True, False, False), (True, True, False), (False, False, True)], (True, True, True)
    assert seen == {(False, False, False), *alone, together}


def test_the_grid_of_fixed_plans_is_large_enough_and_of_one_seed() -> None:
    wanted = RECIPES["hindsight"].runs(FULL)
    for partition in ("iid", "shards"):
        plans = {key[1:] for key in wanted if key[0] == partition and len(key) == 3}
        assert len(plans) >= 12
        assert next(key for key in wanted if key[0] == partition and len(key) == 3)[1:] == ((2, 4), (1, 1))
    assert {scenario.spec.training.seed for scenario in wanted.values()} == {0}


def test_few_quick_runs_are_for_what_goes_past_the_paper() -> None:
    past = ("beyond", "hindsight", "as-hsfl")
    of = {name: set(map(content, recipe.runs(QUICK).values())) for name, recipe in RECIPES.items()}
    others = set().union(*(runs for name, runs in of.items() if name not in past))
    assert 0 < len((of["beyond"] | of["hindsight"]) - others) <= 6
