"""What the page of runs is told: the curves of the files, several seeds together, and what is going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hsfl
from hsfl.errors import HsflError
from hsfl.explorer.watching import RunsAsked, RunsPage
from hsfl.report.groups import seed_groups
from hsfl.report.pace import Pace
from hsfl.runs.reading import total_bytes
from tests.runs.test_reading import write_run


def with_seed(folder: Path, seed: int) -> Path:
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text.replace("[training]", f"[training]\nseed = {seed}"))
    return folder


def test_a_folder_of_runs_is_shown_as_it_is(tmp_path) -> None:
    write_run(tmp_path / "a", strategy="HSFL")
    write_run(tmp_path / "b", strategy="PSL", summary=False, rounds=40)
    answer = RunsPage([tmp_path]).runs(RunsAsked())
    json.dumps(answer, allow_nan=False)
    a, b = answer["view"]["runs"]
    run = hsfl.Run.load(tmp_path / "a")
    assert a["accuracy"]["y"] == [100 * (line.accuracy or 0.0) for line in run.evaluations()]
    assert a["accuracy"]["bytes"] == [total_bytes(line) for line in run.evaluations()]
    assert a["loss"]["round"][-1] == run.metrics[-1].round and len(a["clients"]["losses"]) == len(run.evaluations()) - 1
    assert [plan["cuts"] for plan in a["plans"]["plans"]] == [plan.cuts for plan in run.plans]
    assert [tier["tier"] for tier in a["drift"]] == ["device", "edge"]
    assert b["label"] == "b" and answer["on"]
    assert answer["states"][0]["now"] == "ended by rounds after 100 rounds"
    assert answer["states"][1]["now"].startswith("round 40")


def test_what_a_window_has_seen_is_not_sent_again(tmp_path) -> None:
    folder = write_run(tmp_path / "a", summary=False, rounds=20)
    page = RunsPage([folder])
    seen = page.runs(RunsAsked())
    again = page.runs(RunsAsked(seen=seen["version"]))
    assert "view" in seen and "view" not in again and again["states"]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 21, "time_s": 50.0, "loss": 0.5, "bytes": {}}) + "\n")
    more = page.runs(RunsAsked(seen=seen["version"]))
    assert more["view"]["runs"][0]["loss"]["round"][-1] == 21 and more["states"][0]["now"].startswith("round 21")


def test_runs_that_begin_or_break_while_they_are_watched_are_named(tmp_path) -> None:
    write_run(tmp_path / "a")
    page = RunsPage([tmp_path])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "scenario.toml").write_text("name = ")
    later = write_run(tmp_path / "c")
    (later / "metrics.jsonl").write_text("")
    others = {other["label"]: other["now"] for other in page.runs(RunsAsked())["others"]}
    assert "not valid TOML" in others["b"] and others["c"] == "preparing: no round yet"


def test_several_seeds_are_a_mean_and_a_range(tmp_path) -> None:
    folders = [with_seed(write_run(tmp_path / str(s), accuracy=0.7 + 0.1 * s), s) for s in range(3)]
    folders.append(write_run(tmp_path / "other", strategy="PSL"))
    runs = [hsfl.Run.load(folder) for folder in folders]
    assert seed_groups(runs) == [[0, 1, 2], [3]]
    group = RunsPage(folders).runs(RunsAsked())["view"]["groups"][0]
    assert group["label"] == "HSFL (3 seeds)"
    last = [100 * (run.evaluations()[-1].accuracy or 0.0) for run in runs[:3]]
    assert group["accuracy"]["mean"][-1] == pytest.approx(sum(last) / 3)
    assert group["accuracy"]["low"][-1] == pytest.approx(min(last))
    assert group["accuracy"]["high"][-1] == pytest.approx(max(last))


def test_a_folder_without_a_run_is_refused(tmp_path) -> None:
    with pytest.raises(HsflError, match="not a run"):
        RunsPage([tmp_path])


@given(rate=st.floats(0.1, 1e3), window=st.floats(1, 100), rounds=st.integers(3, 60))
def test_a_steady_pace_is_told_as_it_is(rate: float, window: float, rounds: int) -> None:
    pace = Pace(window)
    assert pace.rate is None and pace.left_s(10, None) is None
    for round_ in range(rounds):
        pace.add(round_ / rate, round_, 2.0 * round_)
    assert pace.rate == pytest.approx(rate)
    assert pace.left_s(rounds + 9, None) == pytest.approx(10 / rate)
    assert pace.left_s(float("inf"), None) is None
    assert pace.left_s(rounds + 9, 2.0 * (rounds + 1)) == pytest.approx(2 / rate)
    assert pace.left_s(0, None) == 0.0
