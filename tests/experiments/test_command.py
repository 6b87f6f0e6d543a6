"""hsfl reproduce: what it writes, shows and refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import hsfl
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.reproduce import RunCounts
from hsfl.records import RoundRecord, Summary
from hsfl.report.progress import RunsProgress
from hsfl.runs.reading import Run


def test_a_figure_is_written_with_its_page(command, tmp_path) -> None:
    out = tmp_path / "new" / "folder"
    ended = command("reproduce", "fig2c", "--quick", "--out", out)
    assert ended.code == 0, ended
    assert "strongly" in ended.out and "0 runs, 0 of them trained now" in ended.out
    assert sorted(path.name for path in out.iterdir()) == ["fig2c.csv", "fig2c.json", "fig2c.png", "results.md"]
    assert json.loads((out / "fig2c.json").read_text())["claims"][0]["verdict"] in ("holds", "in part")
    assert "![" in (out / "results.md").read_text()
    assert command("reproduce", "FIG2C", "--quick", "--seeds", 2, "--out", out).code == 0
    assert "--seeds 2" in (out / "results.md").read_text()


def test_the_list_has_every_recipe(command) -> None:
    shown = command("reproduce", "--list").out
    assert all(f"{name} " in shown for name in RECIPES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name what to reproduce: all, or some of fig2a"),
        (["fig10"], "fig10: no such figure"),
        (["fig2c", "--device", "tpu"], "execution.device = 'tpu'"),
        (["fig2c", "--seeds", "0"], "--seeds"),
        (["fig2c", "--precision", "fp8"], 'execution.precision = "fp8"'),
        (["fig2c", "--out", sys.executable], f"{sys.executable}: there is a file; choose another folder"),
    ],
)
def test_what_cannot_be_is_said(command, tmp_path, arguments: list[str], said: str) -> None:
    ended = command("reproduce", "--out", tmp_path / "out", *arguments)
    assert ended.code == 2 and said in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_missing_data_is_one_sentence(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HSFL_DATA", str(tmp_path / "nowhere"))
    ended = command("reproduce", "fig2b", "--jobs", 1, "--device", "cpu", "--out", tmp_path / "out")
    assert ended.code == 2 and "run hsfl data get cifar10" in ended.err.splitlines()[-1]


@pytest.fixture
def side_by_side(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """fig8, two runs of it being trained."""
    line = [sys.executable, "-m", "hsfl", "reproduce", "fig8", "--quick", "--jobs", "2", "--out", "out"]
    began = subprocess.Popen(
        line, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while sum(len(path.read_bytes().splitlines()) > 2 for path in tmp_path.glob("out/runs/*/metrics.jsonl")) < 2:
        assert time.monotonic() < deadline and began.poll() is None
        time.sleep(0.05)
    yield began
    with contextlib.suppress(ProcessLookupError):
        os.killpg(began.pid, signal.SIGKILL)


def ended_all(group: int, seconds: float = 60) -> bool:
    """Whether no process of a group is left, soon."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_asked_to_stop_stops_with_all_it_started_and_can_go_on(tmp_path, side_by_side, number) -> None:
    side_by_side.send_signal(number)
    _, said = side_by_side.communicate(timeout=60)
    assert (side_by_side.returncode, said) == (130, "hsfl: stopped; the same command goes on from here\n")
    assert ended_all(side_by_side.pid)
    runs = [Run.load(path) for path in (tmp_path / "out" / "runs").iterdir()]
    begun = [run for run in runs if run.summary is None]
    assert begun and len(runs) <= 4, "what waited is not begun"
    assert all(list((run.folder / "checkpoints").glob("*.json")) for run in begun)


def test_what_is_killed_leaves_no_process_behind(side_by_side) -> None:
    side_by_side.kill()
    assert side_by_side.wait(60) == -signal.SIGKILL
    assert ended_all(side_by_side.pid)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to find the workers")
def test_a_worker_that_is_killed_is_one_sentence(side_by_side) -> None:
    workers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if b"spawn_main" in path.read_bytes() and os.getpgid(int(path.parent.name)) == side_by_side.pid:
                workers.append(int(path.parent.name))
    os.kill(workers[0], signal.SIGKILL)
    _, said = side_by_side.communicate(timeout=60)
    assert side_by_side.returncode == 2 and said.startswith("hsfl: a process that trained was ended from outside")
    assert "--jobs 1" in said and said.count("\n") == 1 and ended_all(side_by_side.pid)


def test_progress_shows_runs_and_rounds() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    scenario = hsfl.load_scenario("mnist-mini", {"stopping.rounds": 2000})

    def shown() -> list[str]:
        screen = Console(file=io.StringIO(), width=100)
        screen.print(progress.bars)
        return [" ".join(line.split()) for line in screen.file.getvalue().splitlines()]

    with RunsProgress(console) as progress:
        progress.update(RunCounts(total=8, done=3, trained=2, current="fig4: cifar10, [iid], HSFL, 0"))
        assert len(shown()) == 1
        assert re.match(r"runs: fig4: cifar10, \[iid\], HSFL, 0 \S+ 3/8 ", shown()[0])
        progress.on_start(Path("run"), scenario, 0)
        progress.on_round(RoundRecord(round=0, time_s=0.0, accuracy=0.125))
        progress.on_round(RoundRecord(round=1200, time_s=1.0))
        assert re.match(r"rounds: accuracy 12.50% at round 0 \S+ 1200/2000 ", shown()[1])
        progress.on_start(Path("run"), scenario, 7)
        assert shown()[1].startswith("rounds 7/2000")  # the last run's accuracy is not this one's
        progress.on_end(Summary(ended="rounds", accuracy=0.5))
        progress.update(RunCounts(total=8, done=4, trained=3, current="fig4: cifar10, iid, PSL, 0"))
        assert len(shown()) == 1
    assert "[4/8]" not in console.file.getvalue()


def test_a_log_has_a_line_per_run() -> None:
    log = RunsProgress(Console(file=io.StringIO(), width=200))
    counts = RunCounts(total=8, done=3)
    with log:
        counts.done, counts.current = 4, "fig6: MA+RMS, compute, 4.0"
        log.update(counts)
        counts.current = "fig6: the next"
        log.update(counts)
    assert log.console.file.getvalue() == "[4/8] fig6: MA+RMS, compute, 4.0\n"

    log = RunsProgress(Console(file=io.StringIO(), width=200))
    log.update(RunCounts(total=2, current="fig4: HSFL"))
    log.on_start(Path("run"), hsfl.load_scenario("mnist-mini"), 0)
    log.on_end(Summary(ended="rounds", accuracy=0.5, time_s=90.0))
    for done, current in ((1, "fig4: HSFL"), (1, "fig4: PSL"), (2, "fig4: PSL"), (2, "fig4: drawn")):  # PSL was stored
        log.update(RunCounts(total=2, done=done, current=current))
    trained, stored = log.console.file.getvalue().splitlines()
    assert re.fullmatch(r"\[1/2\] fig4: HSFL: 50.00% after 1 min 30 s simulated, \S+ [mµ]?s here", trained)
    assert stored == "[2/2] fig4: PSL"
