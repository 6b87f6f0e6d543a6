"""hsfl sweep: what it trains, sorts, skips and goes on with, and what it refuses before anything is trained."""

from __future__ import annotations

import csv
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import hsfl
from hsfl.errors import HsflError
from hsfl.experiments.side_by_side import each, processes
from hsfl.experiments.sweep import Goal
from hsfl.report.sweeps import sweep_table
from hsfl.runs.reading import Run
from tests.report.test_groups import runs_of
from tests.runs.conftest import FIXED, results, write_tiny

SHORT = FIXED | {"stopping.rounds": 4, "execution.evaluate_every": 2, "execution.checkpoint_every": 2}
RATES = "training.learning_rate"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path, SHORT)


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "results.csv").read_text().splitlines()))


def test_a_grid_over_seeds_is_trained_once_sorted_and_reported(command, tiny, tmp_path) -> None:
    line = ["sweep", tiny, "--vary", f"{RATES}=0.0001,0.1,1e30", "--seeds", 2, "--jobs", 1, "--goal", "loss"]
    ended = command(*line, "--out", "s")
    assert ended.code == 0, ended
    assert "6 runs, 6 of them trained now; report in s/report/report.html" in ended.out
    found = rows(tmp_path / "s")
    assert [row[RATES] for row in found] == ["0.1"] * 2 + ["0.0001"] * 2 + ["1e+30"] * 2, "best first, diverged last"
    assert [row["ended"] for row in found] == ["rounds"] * 4 + ["diverged"] * 2 and all(r["why"] for r in found[4:])
    losses = [Run.load(tmp_path / "s" / "runs" / row["run"]).metrics[-1].test_loss for row in found[:4]]
    assert [float(row["test_loss"]) for row in found[:4]] == losses and sum(losses[:2]) < sum(losses[2:])
    page = (tmp_path / "s" / "report" / "report.html").read_text()
    assert "learning_rate 0.1 (2 seeds)" in page
    # Again, with one that was lost and one that was interrupted: only these are trained, and the same comes out.
    first, second = (tmp_path / "s" / "runs" / row["run"] for row in found[:2])
    whole = {folder: results(folder) for folder in (first, second)}
    shutil.rmtree(first)
    for name in ("summary.json", "model.safetensors"):
        (second / name).unlink()
    again = command(*line, "--out", "s")
    assert again.code == 0 and "6 runs, 2 of them trained now" in again.out
    assert {folder: results(folder) for folder in (first, second)} == whole


def test_more_rounds_go_on_from_where_runs_ended(tiny, tmp_path) -> None:
    out = tmp_path / "s"
    hsfl.sweep(tiny, {RATES: [0.1]}, out=out, report=False)
    longer = hsfl.load_scenario(tiny, {"stopping.rounds": 6})
    found = hsfl.sweep(longer, {RATES: [0.1, 0.2]}, out=out, report=False)
    assert [run.metrics[-1].round for run in found.runs] == [6, 6] and found.best[RATES] in (0.1, 0.2)
    assert repr(found) == f"<Sweep {out}: 2 points of {RATES}, 2 runs>"
    with pytest.raises(HsflError, match=r"training.batch_size is 2 in this run, but 3 now"):
        hsfl.sweep(hsfl.load_scenario(tiny, {"training.batch_size": 3}), {RATES: [0.1]}, out=out)
    one = found.runs[0].folder
    before = sorted(path.name for path in one.iterdir())
    with pytest.raises(HsflError, match=r"the folder of one run, not of a sweep; choose another folder"):
        hsfl.sweep(tiny, {RATES: [0.1]}, out=one)
    assert sorted(path.name for path in one.iterdir()) == before


def test_what_is_stopped_goes_on(tiny, tmp_path) -> None:
    class Stop(hsfl.Callback):
        def on_start(self, folder: Path, scenario: Any, round_: int) -> None:
            self.here = folder.name

        def on_round(self, record: Any) -> None:
            if (self.here, record.round) == ("learning_rate=0.2", 1):
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            hsfl.sweep(tiny, {RATES: [0.1, 0.2, 0.3]}, out=tmp_path / "s", callbacks=[Stop()])
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(path.name for path in (tmp_path / "s" / "runs").iterdir()) == [
        "learning_rate=0.1",
        "learning_rate=0.2",
    ]
    stopped = Run.load(tmp_path / "s" / "runs" / "learning_rate=0.2")
    assert not stopped.finished and stopped.metrics[-1].round < 4
    found = hsfl.sweep(tiny, {RATES: [0.1, 0.2, 0.3]}, out=tmp_path / "s", report=False)
    assert len(found.runs) == 3 and all(run.finished for run in found.runs)


def test_a_run_that_fails_is_recorded_and_the_others_go_on(command, tiny, tmp_path) -> None:
    ended = command("sweep", tiny, "--vary", "data.factory=task:data,task:nothing", "--jobs", 1, "--out", "s")
    assert ended.code == 0 and "module task has no nothing" in ended.err and "Traceback" not in ended.err
    good, bad = rows(tmp_path / "s")
    assert (good["ended"], bad["ended"]) == ("rounds", "failed") and "has no nothing" in bad["why"]
    assert "1 run, 1 of them trained now" in ended.out
    none = command("sweep", tiny, "--vary", "data.factory=task:nothing", "--jobs", 1, "--out", "t")
    assert none.code == 2 and "t: no run could be trained; the first: " in none.err


def test_several_are_trained_side_by_side_as_one_by_one(tiny, tmp_path) -> None:
    rates = {RATES: "log:0.01..0.1"}
    one, two = (
        hsfl.sweep(tiny, rates, random=2, out=tmp_path / str(jobs), jobs=jobs, report=False).runs for jobs in (1, 2)
    )
    assert len(one) == len(two) == 2
    assert [results(run.folder) for run in one] == [results(run.folder) for run in two]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing is varied; name a field and its values"),
        (["--vary", "training.rate=1,2"], "unknown field training.rate"),
        (["--vary", f"{RATES}=0.1,fast"], "training.learning_rate"),
        (["--vary", f"{RATES}=1e-3..1e-1"], "a range has no end of values; draw from it with --random N"),
        (["--vary", f"{RATES}=0.1", "--vary", f"{RATES}=0.2"], "training.learning_rate is varied twice"),
        (["--vary", "training.seed=1,2", "--seeds", "2"], "training.seed is varied already"),
        (["--vary", "strategy.cuts=[1],[1,3]"], "strategy.cuts = [1]: 2 whole numbers are needed"),
        (["--vary", "strategy.name=fixed,best"], "strategy.intervals is missing"),
        (["--vary", f"{RATES}=0.1", "--goal", "speed"], "--goal speed: write accuracy, loss, time, or time=0.9"),
        (["--vary", f"{RATES}=0.1", "--goal", "time=90"], "as a share, as in time=0.9"),
        (["--vary", f"{RATES}=0.1", "--device", "tpu"], "execution.device = 'tpu'"),
        (["--vary", "tiers.device.uplink=1 Mbps,1Mbps"], "two points would have this folder"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(command, tiny, tmp_path, arguments, said) -> None:
    ended = command("sweep", tiny, *arguments, "--out", "s")
    assert ended.code == 2 and said in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "s").exists()


def test_goals(tmp_path) -> None:
    fast, slow = runs_of(tmp_path, {"HSFL": [2.0], "fixed": [1.0]})
    assert Goal("time", 0.9).of(fast) == 10 and Goal("time", 0.9).of(slow) == 20
    assert Goal("time", 0.95).of(fast) == float("inf") and Goal("time").of(fast) == float("inf")
    assert Goal("accuracy").of(fast) == -0.9 and Goal("loss").of(fast) == fast.metrics[-1].test_loss
    assert Goal.parsed("time=0.9") == Goal("time", 0.9)


def test_time_to_an_accuracy_sorts_and_names_the_column(tiny, tmp_path) -> None:
    """Machines that differ in speed learn the same, the faster ones sooner."""
    speeds = {"tiers.device.compute": ["20 kFLOPS", "80 kFLOPS"]}
    trained = hsfl.sweep(tiny, speeds, out=tmp_path / "s", report=False).runs[0]
    reached = max(line.accuracy for line in trained.evaluations() if line.round > 0)
    found = hsfl.sweep(tiny, speeds, out=tmp_path / "s", report=False, goal=f"time={0.9 * reached}")
    assert found.best == {"tiers.device.compute": "80 kFLOPS"}
    assert sweep_table(found).header[2] == f"time to {90 * reached:.1f} %"


def test_processes_take_gpus_in_turn() -> None:
    with processes(2, ["3", "5"]) as pool:
        seen = {pool.submit(_slow_look).result() for _ in range(1)} | {
            f.result() for f in [pool.submit(_slow_look) for _ in range(4)]
        }
    assert seen <= {"3", "5"} and seen


def _slow_look() -> str | None:
    import time

    time.sleep(0.2)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_what_a_pool_was_given_comes_back_with_what_became_of_it() -> None:
    from concurrent.futures import ThreadPoolExecutor

    assert sorted(each(str, [1, 2, 3], jobs=1, pool=ThreadPoolExecutor(2))) == [(1, "1"), (2, "2"), (3, "3")]
