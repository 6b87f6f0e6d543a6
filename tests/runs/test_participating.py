"""Runs in which a part of the clients takes part: from the scenario to the folder, resumed, and what is refused."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import hsfl
from hsfl.data.partition import OwnDraws
from hsfl.report.page import summary_rows, what_you_see
from hsfl.report.run_view import _clients
from hsfl.runs.preparing import prepare
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario
from tests.explorer.test_watching import with_seed
from tests.runs.conftest import FIXED, results, write_tiny

COHORT: dict[str, Any] = {"participation.cohort": 2, "participation.dropout": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "planned": COHORT | {"stopping.rounds": 14},
    "every round, reference": COHORT | FIXED | {"participation.redraw": "round", "execution.backend": "reference"},
    "by speed, averaged adam": COHORT
    | FIXED
    | {
        "participation.choose": "speed",
        "training.optimizer": "adam",
        "training.average_optimizer": True,
    },
    "availability and a deadline": FIXED | {"participation.availability": "there.csv", "execution.deadline": "1 s"},
    "failures": FIXED | {"participation.failures": "fails.csv", "participation.cohort": 0.5},
}
THERE = "time_s,client,available\n" + "".join(f"{t},{n},{(t + n) % 2}\n" for t in range(0, 60, 3) for n in range(4))
FAILS = "round,client\n" + "".join(f"{t},{n}\n" for t in (3, 4) for n in range(4))


def written(folder: Path, changes: dict[str, Any]) -> Scenario:
    (folder / "there.csv").write_text(THERE)
    (folder / "fails.csv").write_text(FAILS)
    path = write_tiny(folder)
    if "training.optimizer" in changes:
        path.write_text(path.read_text().replace("momentum = 0.5\n", ""))
    return hsfl.load_scenario(path, changes)


def test_constants_are_measured_on_a_cohort_and_told_of_all(tmp_path: Path) -> None:
    every, most = (hsfl.estimate(written(tmp_path, {"participation.cohort": k}), rounds=4) for k in (None, 3))
    assert most.initial_gap == pytest.approx(every.initial_gap, rel=0.2)
    assert most.gradient_variance.sum() == pytest.approx(every.gradient_variance.sum(), rel=0.5)
    assert most.gradient_dissimilarity is not None and most.gradient_dissimilarity[0].sum() > 0


@pytest.mark.parametrize("changes", [{"redraw": "round"}, {"choose": "speed"}, {"dropout": 0.1}])
def test_plans_say_what_they_do_not_know(changes: dict[str, Any], tmp_path: Path) -> None:
    given = {f"participation.{name}": value for name, value in changes.items()}
    assert written(tmp_path, {"participation.cohort": 2}).caveat is None
    said = written(tmp_path, {"participation.cohort": 2} | given).caveat
    assert said is not None and f"participation.{next(iter(changes))}" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_as_if_it_had_not_stopped(kind: str, tmp_path: Path) -> None:
    class Stop(hsfl.Callback):
        def on_round(self, record):
            if record.round == 7:
                raise KeyboardInterrupt

    scenario = written(tmp_path, KINDS[kind])
    whole = hsfl.train(scenario, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        hsfl.train(scenario, callbacks=[Stop()], out=tmp_path / "run")
    hsfl.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert any(line.losses_of for line in whole.metrics)
    for line in whole.metrics:
        assert line.losses is None or len(line.losses) == len(line.losses_of or range(4))


def test_a_round_of_nobody_passes(tmp_path: Path) -> None:
    """All fail in rounds 3 and 4: nothing is learnt, time passes, and every reader goes on."""
    run = hsfl.train(written(tmp_path, KINDS["failures"]), out=tmp_path / "run")
    lines = run.metrics[2:5]
    assert [line.loss is None for line in lines] == [False, True, True]
    assert all(len(line.failed) == 2 for line in lines[1:]) and not lines[0].failed
    assert lines[0].time_s < lines[1].time_s < lines[2].time_s
    assert [line.took_part for line in lines] == [2, 0, 0]
    other = hsfl.train(written(tmp_path, FIXED | {"stopping.rounds": 2}), out=tmp_path / "all")
    per_round = ["1.867 (0 to 2) of 4", "4 of 4"]  # 2 in 28 of 30 rounds
    header, rows = summary_rows([run, other])
    assert [row[header.index("clients per round")] for row in rows] == per_round
    twice = [run, Run.load(with_seed(copytree(run.folder, tmp_path / "twin"), 1))]
    header, rows = summary_rows(twice)
    assert len(rows) == 1 and rows[0][header.index("clients per round")] == "1.867 (0 to 2) of 4"
    assert "clients per round" not in summary_rows([other])[0]
    view = _clients(run)
    assert view is not None and view["count"] == 4
    assert "test accuracy" in what_you_see([run])


def test_all_of_them_is_everybody(tmp_path: Path) -> None:
    hsfl.train(written(tmp_path, {}), out=tmp_path / "one")
    hsfl.train(written(tmp_path, {"participation.cohort": 4}), out=tmp_path / "other")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "other" / "model.safetensors"
    ).read_bytes()
    assert (tmp_path / "one" / "metrics.jsonl").read_text() == (tmp_path / "other" / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"participation.cohort": 5}, "participation.cohort = 5: there are 4 clients"),
        ({"participation.choose": "speed"}, 'participation.choose = "speed": nobody is chosen where all take part'),
        (COHORT | {"training.averaging": "corrected"}, 'training.averaging = "corrected": it takes for granted'),
        (COHORT | {"participation.failures": "fails.csv"}, "participation has dropout and failures; give one of them"),
        ({"participation.availability": "no.csv"}, "participation.availability = 'no.csv': cannot be read"),
        ({"participation.availability": "fails.csv"}, "the first line must be time_s,client,available"),
        ({"participation.failures": "odd.csv"}, "line 2: client = '4' must be a whole number from 0 to 3"),
        ({"participation.availability": "never.csv"}, "nobody is available after 0 s; let somebody come back"),
        ({"data.samples_per_client": 5, "data.held_out": 0.2}, "data.held_out: with data.samples_per_client others"),
    ],
)
def test_what_cannot_be_meant_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("round,client\n1,4\n")
    (tmp_path / "never.csv").write_text("time_s,client,available\n" + "".join(f"0,{n},0\n" for n in range(4)))
    with pytest.raises(hsfl.HsflError) as error:
        hsfl.train(written(tmp_path, changes), out=tmp_path / "run")
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_adam_needs_the_state_of_others(tmp_path: Path) -> None:
    path = written(tmp_path, COHORT | {"training.optimizer": "adam"})
    with pytest.raises(hsfl.HsflError, match="a device that joins has no state of its own to go on from"):
        hsfl.train(path, out=tmp_path / "run")


def test_a_fleet_takes_the_memory_of_its_cohort() -> None:
    """100,000 clients: rows and modules for the cohort, samples worked out when they are asked for."""
    scenario = hsfl.load_scenario("fleet", {"execution.device": "cpu", "participation.cohort": 3})
    backend = prepare(scenario).backend
    parts = backend.data.sampler._parts
    assert isinstance(parts, OwnDraws) and len(parts) == 100_000
    assert [len(parts[n]) for n in (0, 99_999)] == [50, 50] and (parts[7] == parts[7]).all()
    backend.enrol([5, 700, 99_999])
    backend.move([2, 4])
    assert len(backend.train_round()) == 3
    assert [len(tier.weights) for tier in backend._tiers] == [4, 4, 1]
    backend.average(0)
    backend.enrol([6, 701, 99_998])
    assert len(backend.train_round([6, 99_998])) == 2
    assert len(backend._tiers[0].weights) == 4


def test_a_trace_that_was_changed_is_noticed(tmp_path: Path) -> None:
    scenario = written(tmp_path, KINDS["failures"])
    hsfl.train(scenario, out=tmp_path / "run")
    (tmp_path / "fails.csv").write_text("round,client\n2,0\n")
    with pytest.raises(hsfl.HsflError, match=r"fails\.csv: changed since the run began"):
        hsfl.resume(tmp_path / "run", {"stopping.rounds": 30})
