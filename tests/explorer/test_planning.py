"""What the plan page is told is what hsfl.plan, evaluate, compare and sweep say of the same values."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

import hsfl
from hsfl.cli import app
from hsfl.errors import HsflError
from hsfl.explorer.planning import OwnPlan, PlanAsked, PlanPage, SweepAsked
from hsfl.explorer.server import GoneError
from hsfl.scenario.form import form, may_turn
from hsfl.scenario.template import scenario_text
from hsfl.scenario.toml_format import toml_or_text


def stays() -> bool:
    return False


def page(name: str = "paper") -> PlanPage:
    return PlanPage(hsfl.load_scenario(name), name)


def asked(**given_: Any) -> PlanAsked:
    return PlanAsked.model_validate(given_)


@settings(deadline=None, max_examples=15)
@given(rate=st.floats(5, 2000), batch=st.integers(1, 64), slack=st.booleans())
def test_a_plan_is_that_of_hsfl_plan(rate: float, batch: int, slack: bool) -> None:
    changes = {"tiers.device.uplink": f"{rate} Mbps", "training.batch_size": str(batch)}
    if slack:
        changes |= {"convergence.rounds": "1500", "convergence.slack": "0.3"}
    view = page().plan(asked(changes=changes), stays)
    overrides = {path: toml_or_text(text) for path, text in changes.items()}
    result = hsfl.plan(hsfl.load_scenario("paper", overrides))
    assert view["plan"]["cuts"] == list(result.cuts) and view["plan"]["intervals"] == list(result.intervals)
    assert view["plan"]["objective_s"] == result.objective_s and view["status"] == result.status
    lowest = min(s for s in view["landscape"]["seconds"] if s is not None)
    assert lowest == pytest.approx(result.objective_s)
    for curve in view["intervals"]:
        at = curve["at"].index(result.intervals[curve["tier"]])
        assert curve["seconds"][at] == pytest.approx(result.objective_s)
        assert min(s for s in curve["seconds"] if s is not None) == pytest.approx(result.objective_s)


@pytest.mark.parametrize("name", ["paper", "four-tier", "client-edge", "tight-memory"])
def test_a_round_is_the_sum_of_its_steps(name: str) -> None:
    view = page(name).plan(asked(), stays)["plan"]
    assert view["steps"][-1]["start"] + view["steps"][-1]["seconds"] == pytest.approx(view["round_s"])
    for before, after in zip(view["steps"], view["steps"][1:], strict=False):
        assert after["start"] == pytest.approx(before["start"] + before["seconds"])
    assert [tier["first"] for tier in view["tiers"]] == [0, *view["cuts"]]


@pytest.mark.parametrize("name", ["paper", "tight-memory"])
def test_a_cohort_is_planned_and_shown(name: str) -> None:
    """The steps add up to the expected round, the curves stay where cohorts miss nobody, and so do plans by hand."""
    changes = {"participation.cohort": "15"}
    view = page(name).plan(asked(changes=changes, own={"cuts": [1, 2], "intervals": [1, 2, 1]}), stays)
    plan, result = view["plan"], hsfl.plan(hsfl.load_scenario(name, {"participation.cohort": 15}))
    assert plan["objective_s"] == result.objective_s and "15 clients at a time" in view["system"]
    assert sum(step["seconds"] for step in plan["steps"]) == pytest.approx(plan["round_s"])
    assert re.search(r"the slowest of 15 of \d+ clients .* \(client \d+ is nearest to it\)", plan["client"])
    assert min(s for s in view["landscape"]["seconds"] if s is not None) == pytest.approx(result.objective_s)
    for curve in view["intervals"]:
        at = curve["at"].index(result.intervals[curve["tier"]])
        assert curve["seconds"][at] == pytest.approx(result.objective_s) == min(filter(None, curve["seconds"]))
    assert "averaged less often than the devices" in view["own"]["error"]


@pytest.mark.parametrize("count", ["4", "auto", "[2, 8]"])
def test_several_mini_batches_are_planned_and_shown(count: str) -> None:
    """The steps add up to the round, and what is drawn around the plan is drawn for its number."""
    changes = {"training.micro_batches": count, "convergence.target": "0.15"}
    view = page().plan(asked(changes=changes, own={"cuts": [4, 7]}), stays)
    plan, field = view["plan"], next(f for f in view["fields"] if f["path"] == "training.micro_batches")
    assert field["kind"] == "choice" and field["text"] == count and count in field["choices"]
    assert sum(step["seconds"] for step in plan["steps"]) == pytest.approx(plan["round_s"])
    assert min(s for s in view["landscape"]["seconds"] if s is not None) == pytest.approx(plan["objective_s"])
    for curve in view["intervals"]:
        at = curve["at"].index(plan["intervals"][curve["tier"]])
        assert curve["seconds"][at] == pytest.approx(plan["objective_s"])
    assert ("micro_batches" in plan) == (count != "4") and "mini-batches in a pipeline" in plan["client"]
    assert view["own"]["slowdown"] >= 1
    points = page().sweep(
        SweepAsked(field="training.micro_batches", values=["1", "2", "auto"], changes={"convergence.target": "0.15"}),
        stays,
    )["points"]
    assert points[2]["seconds"] <= min(point["seconds"] for point in points) and "a round" in points[2]["intervals"]


def test_chunks_are_chosen_and_shown() -> None:
    view = page().plan(asked(changes={"training.chunks": "4"}), stays)
    field = next(f for f in view["fields"] if f["path"] == "training.chunks")
    assert (field["kind"], field["text"], field["choices"]) == ("choice", "4", ("1", "2", "4", "8", "16"))
    assert view["plan"]["chunks"] == 4 and "in 4 chunks in a pipeline" in view["plan"]["client"]
    assert sum(step["seconds"] for step in view["plan"]["steps"]) == pytest.approx(view["plan"]["round_s"])


def test_a_plan_by_hand_says_what_it_costs() -> None:
    own = page().plan(asked(own={"cuts": [3, 8], "intervals": [10, 5, 1]}), stays)["own"]
    mine, best = hsfl.evaluate("paper", (3, 8), (10, 5, 1)), hsfl.plan("paper")
    assert own["slowdown"] == mine.objective_s / best.objective_s > 1
    assert own["cuts"] == [3, 8] and not own["best_intervals"]


def test_cuts_by_hand_come_in_their_best_intervals() -> None:
    view = page().plan(asked(own={"cuts": [3, 8]}), stays)
    at = view["landscape"]["cuts"].index([3, 8])
    assert view["own"]["objective_s"] == pytest.approx(view["landscape"]["seconds"][at])
    found = hsfl.evaluate("paper", (3, 8))
    assert view["own"]["intervals"] == list(found.plan.intervals)
    for m in range(2):
        other = list(found.plan.intervals)
        other[m] += 1
        assert hsfl.evaluate("paper", (3, 8), other).objective_s >= found.objective_s


def test_a_plan_by_hand_that_does_not_fit_is_shown_all_the_same() -> None:
    fitting = page("tight-memory").plan(asked(), stays)["landscape"]["cuts"]
    cuts = next([a, b] for a in range(1, 5) for b in range(a + 1, 5) if [a, b] not in fitting)
    own = page("tight-memory").plan(asked(own={"cuts": cuts}), stays)["own"]
    assert own["missing"] and not own["fits_memory"]


def test_a_wrong_plan_by_hand_leaves_the_plan_alone() -> None:
    view = page().plan(asked(own={"cuts": [9, 2]}), stays)
    assert "they must be rising" in view["own"]["error"] and view["plan"]["cuts"] == [4, 7]


def test_alternatives_and_sweeps_are_those_of_the_command() -> None:
    rows = page().compare(asked(), stays)["rows"]
    result = hsfl.plan("paper")
    others = hsfl.compare("paper", result)
    assert [row["name"] for row in rows] == ["HSFL", *(other.name for other in others)]
    for row, other in zip(rows[1:], others, strict=True):
        assert other.evaluation is not None
        reached = other.evaluation.reaches_target
        assert row["slowdown"] == (other.evaluation.objective_s / result.objective_s if reached else None)
    values = ["10 Mbps", "nonsense", "500 Mbps"]
    swept = SweepAsked(field="tiers.device.uplink", values=values)
    low, wrong, high = page().sweep(swept, stays)["points"]
    assert low["seconds"] == hsfl.plan(hsfl.load_scenario("paper", {"tiers.device.uplink": "10 Mbps"})).objective_s
    assert high["seconds"] < low["seconds"] and wrong["error"].startswith('tiers.device.uplink = "nonsense"')


def test_nobody_waits_for_an_answer_that_nobody_wants() -> None:
    for answer in (
        lambda: page().compare(asked(), lambda: True),
        lambda: page().sweep(SweepAsked(field="training.batch_size", values=["1", "2"]), lambda: True),
    ):
        with pytest.raises(GoneError):
            answer()


@pytest.mark.parametrize("name", hsfl.scenario_names())
def test_every_field_says_what_the_scenario_says(name: str) -> None:
    scenario = hsfl.load_scenario(name)
    for field in form(scenario):
        assert may_turn(scenario, field.path) and field.description
        if field.text:
            again = scenario.with_overrides({field.path: toml_or_text(field.text)})
            assert again.spec == scenario.spec, field
        if field.low is not None and field.numbers:
            assert field.low <= min(field.numbers) and max(field.numbers) <= (field.high or float("inf"))


def test_limits_come_from_the_schema() -> None:
    fields = {field.path: field for field in form(hsfl.load_scenario("paper"))}
    assert (fields["training.batch_size"].low, fields["training.batch_size"].high) == (1, 10**9)
    assert fields["training.optimizer"].choices == ("sgd", "momentum", "adam", "adamw")
    assert fields["tiers.device.code"].choices == ("fp32", "bf16", "int8", "int4", "auto")
    assert fields["tiers.device.uplink"].form == "uniform" and fields["tiers.device.uplink"].numbers == (75e6, 80e6)
    assert fields["tiers.device.uplink"].kind == "rate" and "tiers.cloud.uplink" not in fields
    for cohort, kind, low, high in ((None, "whole", 1, None), (5, "whole", 1, None), (0.25, "number", 0, 1)):
        found = {f.path: f for f in form(hsfl.load_scenario("paper", {"participation.cohort": cohort}))}
        field = found["participation.cohort"]
        assert (field.kind, field.low, field.high) == (kind, low, high)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("model.factory", "os:getcwd"),
        ("model.profile", "/etc/passwd"),
        ("data.factory", "os:getcwd"),
        ("strategy.name", "os:getcwd"),
        ("dynamics.trace", "/etc/passwd"),
        ("tiers", "[]"),
        ("tiers.device.name", "x"),
        ("tiers.nobody.uplink", "1 Mbps"),
        ("tiers.*.uplink", "1 Mbps"),
        ("", ""),
    ],
)
def test_only_fields_of_the_form_can_be_changed(path: str, text: str) -> None:
    for call in (page().plan, page().compare, page().file):
        with pytest.raises(HsflError, match="not a field that can be changed here"):
            call(asked(changes={path: text}), stays)
    with pytest.raises(HsflError, match="not a field"):
        page().sweep(SweepAsked(field=path, values=[text]), stays)
    with pytest.raises(HsflError, match="no such built-in scenario"):
        page().plan(asked(scenario="../secret.toml"), stays)


def test_a_request_of_another_form_is_refused() -> None:
    for wrong in ({"changes": {"a": 1}}, {"own": {"cuts": "4,7"}}, {"extra": 1}, {"changes": {"a": "x" * 30_000}}):
        with pytest.raises(ValidationError):
            asked(**wrong)


def test_the_sentence_belongs_to_the_field_it_names() -> None:
    changes = {"training.learning_rate": "0.5", "training.batch_size": "32"}
    try:
        page().plan(asked(changes=changes), stays)
    except HsflError as error:
        found = page().wrong(error, asked(changes=changes))
    assert found["field"] == "training.learning_rate"
    assert found["error"].startswith("training.learning_rate = 0.5: above 1/smoothness")


def test_the_saved_file_and_the_command_plan_the_same(tmp_path, monkeypatch) -> None:
    changes = {"tiers.device.uplink": '{ uniform = ["20 Mbps", "30 Mbps"] }', "tiers.edge.code": "int8"}
    what = asked(changes=changes, own=OwnPlan(cuts=[3, 8]).model_dump())
    view = page().plan(what, stays)
    file = page().file(what, stays)
    (tmp_path / "mine.toml").write_text(file["text"])
    assert list(hsfl.plan(tmp_path / "mine.toml").cuts) == view["plan"]["cuts"]
    assert hsfl.plan(tmp_path / "mine.toml").objective_s == view["plan"]["objective_s"]
    words = shlex.split(view["commands"]["plan"])
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0 and str(view["plan"]["objective_s"]) in done.stdout
    assert "--strategy fixed --cuts 3,8" in view["commands"]["train"]
    gone = page("tight-memory").plan(asked(changes={f"tiers.{_first('tight-memory')}.memory": ""}), stays)
    assert gone["commands"]["plan"] == "hsfl plan scenario.toml"


def test_a_file_that_names_others_says_where_it_belongs(tmp_path) -> None:
    profile = hsfl.load_scenario("paper").profile
    (tmp_path / "layers.csv").write_text(profile.to_csv())
    raw = dict(hsfl.load_scenario("paper").raw) | {"model": {"profile": "layers.csv"}}
    (tmp_path / "mine.toml").write_text(scenario_text(raw))
    found = PlanPage(hsfl.load_scenario(tmp_path / "mine.toml"), "mine.toml").file(asked(), stays)
    assert found["note"] == f"It names layers.csv: put the file into {tmp_path}."
    assert page().file(asked(), stays)["note"] == ""


def _first(name: str) -> str:
    return hsfl.load_scenario(name).spec.tiers[0].name
