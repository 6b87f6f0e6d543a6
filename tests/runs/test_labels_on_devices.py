"""Labels that stay on the devices, from a scenario file to the report of a run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import hsfl
from hsfl.errors import HsflError, ScenarioError
from hsfl.explorer.planning import PlanAsked, PlanPage
from hsfl.report.page import what_you_see
from hsfl.report.runs import draw_plans
from hsfl.runs.estimating import as_fields
from hsfl.runs.loggers import Logger
from hsfl.runs.retiming import retimed
from hsfl.scenario.dynamics import Conditions
from hsfl.theory.latency import aggregation_latency, split_latency
from tests.scenario.scenarios import ABSENT, changed, load, write

KEPT = {"training.labels": "devices"}
FIXED = KEPT | {"strategy.name": "fixed", "strategy.cuts": [1, 2, 3], "strategy.intervals": [2, 4, 1, 3]}
STILL = {"dynamics": ABSENT}


def test_a_run_is_trained_timed_and_counted(tiny, tmp_path) -> None:
    """Cuts after 24, 16 and 4 values, batches of 2, four devices; both backends, and a run that was resumed."""
    changes = FIXED | STILL | {"stopping.rounds": 7}
    run = hsfl.train(tiny(changes), out=tmp_path / "run")
    samples, value = 7 * 4 * 2, 4
    sent = {"device.up": 24 + 4, "device.down": 24 + 4, "edge.up": 16 + 4, "edge.down": 16 + 4}
    counted = run.metrics[-1].bytes
    assert {link: counted[link] for link in sent} == {link: samples * value * size for link, size in sent.items()}
    head, tail = 8 * 24 + 24, 4 * 3 + 3
    assert counted["device.fed_up"] == counted["device.fed_down"] == 4 * value * (3 * head + 2 * tail)
    assert sorted(counted) == sorted([*sent, *(f"{t}.{w}" for t in ("device", "edge") for w in ("fed_up", "fed_down"))])
    assert [line.averaged for line in run.metrics[2:5]] == [["device"], ["device tail"], ["device", "edge"]]
    problem = hsfl.load_scenario(run.folder / "scenario.toml").training_problem
    cuts = (1, 2, 3)
    fed = aggregation_latency(problem, cuts)
    assert run.metrics[-1].time_s == pytest.approx(7 * split_latency(problem, cuts) + fed @ [3, 1, 0, 2])

    slow = hsfl.train(tiny(changes | {"execution.backend": "reference"}), out=tmp_path / "slow")
    assert [line.loss for line in slow.metrics] == pytest.approx([line.loss for line in run.metrics], abs=1e-5)
    half = hsfl.train(tiny(changes | {"stopping.rounds": 3}), out=tmp_path / "half")
    assert hsfl.resume(half.folder, {"stopping.rounds": 7}).metrics == run.metrics
    with pytest.raises(HsflError, match=r"training.labels is 'devices' in this run, but 'top' now"):
        hsfl.resume(half.folder, {"training.labels": "top"})
    assert "labels on the devices" in what_you_see([run])
    assert [text.get_text() for text in draw_plans(run).axes[0].get_legend().get_texts()][-1] == "device tail"


@pytest.mark.parametrize("participation", [{}, {"cohort": 2, "dropout": 0.2}])
def test_layers_move_as_planned_and_a_resumed_run_goes_on(participation, tiny, tmp_path) -> None:
    changes = KEPT | {
        "tiers.1": ABSENT,
        "strategy.name": "RMA+RMS",
        "stopping.rounds": 40,
        "participation": participation,
    }
    run = hsfl.train(tiny(changes), out=tmp_path / "run")
    assert len({tuple(plan.cuts) for plan in run.plans}) > 1 and all(len(plan.intervals) == 3 for plan in run.plans)
    half = hsfl.train(tiny(changes | {"stopping.rounds": 17}), out=tmp_path / "half")
    assert hsfl.resume(half.folder, {"stopping.rounds": 40}).metrics == run.metrics


def test_a_run_is_timed_again_on_other_machines(tiny, tmp_path) -> None:
    path = tiny(FIXED | STILL | {"stopping.rounds": 6})
    run, scenario = hsfl.train(path, out=tmp_path / "run"), hsfl.load_scenario(path)
    same = retimed(run, scenario)
    assert same is not None and same.metrics[-1].time_s == pytest.approx(run.metrics[-1].time_s)
    slower = retimed(run, scenario.with_overrides({"tiers.device.fed_uplink": "5 kbps"}))
    assert slower is not None and slower.metrics[-1].time_s > run.metrics[-1].time_s


def test_names_of_tiers_reach_loggers_and_constants_fit_the_file(tiny) -> None:
    path = tiny(KEPT | STILL)
    logger = Logger()
    logger.on_start(path.parent, hsfl.load_scenario(path), 0)
    assert logger.names == ["device", "edge", "cloud", "device tail"]
    constants = hsfl.estimate(path, rounds=0, batches=2)
    zeta = constants.gradient_dissimilarity
    assert zeta is not None and len(zeta) == 4 and (zeta[0] == zeta[3]).all()
    fields = as_fields(constants, 3)
    assert len(fields["gradient_dissimilarity"]) == 3
    again = hsfl.load_scenario(path, {f"convergence.{name}": value for name, value in fields.items()}).problem
    np.testing.assert_allclose(again.constants.gradient_dissimilarity, zeta, rtol=1e-3)


def test_what_changes_on_the_devices_changes_their_tail(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("time_s,tier,field,factor\n10,device,compute,0.5\n10,device,fed_uplink,3\n")
    scenario = load(tmp_path, KEPT | {"dynamics": {"trace": "t.csv"}})
    before, later = scenario.system, Conditions(scenario).at(0, 11.0)
    assert later.returns and later.names == before.names == "6 device → 2 edge → 1 cloud → 6 device tail"
    for tier in (0, 3):
        np.testing.assert_allclose(later.tiers[tier].compute_flops, before.tiers[0].compute_flops / 2)
        np.testing.assert_allclose(later.tiers[tier].fed_uplink_bps, 3 * before.tiers[0].fed_uplink_bps)
    assert replace(later, cohort=2).sampled


def test_the_links_to_the_tail_have_codes(tmp_path) -> None:
    scenario = load(tmp_path, KEPT | {"tiers.2.code": {"up": "int4", "down": "bf16"}, "tiers.0.code": "int8"})
    names = [[code.name for code in (t.codes.up, t.codes.down, t.codes.average)] for t in scenario.system.tiers]
    assert names == [["int8"] * 3, ["fp32"] * 3, ["int4", "bf16", "fp32"], ["fp32", "fp32", "int8"]]
    planned = hsfl.plan(load(tmp_path, KEPT | {f"tiers.{m}.code": "auto" for m in range(3)}))
    assert planned.plan.codes is not None and planned.status == "optimal"
    assert [sorted(codes.names()) for codes in planned.plan.codes[2:]] == [["down", "up"], ["average"]]
    with pytest.raises(ScenarioError, match=r"tiers.cloud.code.average = .*one machine"):
        load(tmp_path, KEPT | {"tiers.2.code": {"average": "int4"}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.labels": "device"}, r"training.labels = .device.: it should be 'top' or 'devices'"),
        (KEPT | {"tiers.1.name": "device tail"}, 'tiers.name = "device tail" is used twice'),
        (KEPT | {"strategy": {"name": "fixed", "cuts": [1, 2], "intervals": [1, 1, 1, 1]}}, "3 whole numbers .* tail"),
        (KEPT | {"strategy": {"name": "PSL", "cuts": [1, 2, 5]}}, "between 1 and 4 for 5 layers"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes, said, tmp_path) -> None:
    path = write(tmp_path, changed(changes | {"data": {"name": "mnist-mini"}, "stopping": {"rounds": 1}}))
    with pytest.raises(HsflError, match=said):
        hsfl.train(path, out=tmp_path / "run")


def test_machines_say_that_they_cannot(tmp_path) -> None:
    scenario = hsfl.load_scenario("mnist-mini", KEPT)
    with pytest.raises(ScenarioError, match=r'training.labels = "devices": .* hsfl train, or write "top"'):
        hsfl.run(scenario, out=tmp_path / "run")


def test_plans_of_ones_own_have_a_cut_and_an_interval_more() -> None:
    scenario = hsfl.load_scenario("paper", KEPT)
    best = hsfl.plan(scenario)
    own = hsfl.evaluate(scenario, best.cuts, best.intervals)
    assert own.objective_s == pytest.approx(best.objective_s) == hsfl.evaluate(scenario, best.cuts).objective_s
    assert (
        own.memory_bits[0]
        == own.memory_bits[-1]
        > hsfl.evaluate("paper", best.cuts[:2], best.intervals[:3]).memory_bits[0]
    )
    with pytest.raises(ScenarioError, match="3 whole numbers are needed for 3 tiers and the devices' tail"):
        hsfl.evaluate(scenario, (4, 7), (1, 1, 1, 1))
    with pytest.raises(ScenarioError, match="between 1 and 15"):
        hsfl.evaluate(scenario, (4, 7, 16), (1, 1, 1, 1), allow_empty_tiers=True)


def test_the_plan_is_shown_with_its_tail(command) -> None:
    shown = command("plan", "paper", "--set", "training.labels=devices", "--code", "int8")
    assert shown.code == 0, shown.err
    for text in ("20 device tails", "4 device tail", "with device", "cloud ↓ device tail", "cloud ↑ device tail"):
        assert text in shown.out, text
    swept = command("plan", "paper", "--sweep", "training.labels=top,devices", "--json")
    assert [len(point["cuts"]) for point in json.loads(swept.out)["sweep"]] == [2, 3]
    view = PlanPage(hsfl.load_scenario("paper"), "paper").plan(
        PlanAsked(changes={"training.labels": "devices"}), lambda: False
    )
    tiers = view["plan"]["tiers"]
    assert [tier["name"] for tier in tiers] == ["device", "edge", "cloud", "device tail"]
    assert len({tier["colour"] for tier in tiers}) == 4


@pytest.mark.parametrize(
    ("field", "several"), [("micro_batches", 2), ("micro_batches", "auto"), ("micro_batches", [1, 2]), ("chunks", 4)]
)
def test_a_round_has_one_mini_batch_in_one_piece(field: str, several: object) -> None:
    with pytest.raises(ScenarioError, match=rf'training\.{field} = .*: with labels = "devices" a round has one'):
        hsfl.load_scenario("mnist-mini", {"training.labels": "devices", f"training.{field}": several})
