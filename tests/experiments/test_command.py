"""hsfl reproduce: what it writes, shows and refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.reproduce import Progress
from hsfl.report.progress import RunsProgress
from hsfl.runs.reading import Run


def test_a_figure_is_written_with_its_page(command, tmp_path) -> None:
    out = tmp_path / "new" / "folder"
    ended = command("reproduce", "fig2c", "--quick", "--out", out)
    assert ended.code == 0, ended
    assert "strongly" in ended.out and "0 runs, 0 of them trained now" in ended.out
    assert sorted(path.name for path in out.iterdir()) == ["fig2c.csv", "fig2c.json", "fig2c.png", "results.md"]
    assert json.loads((out / "fig2c.json").read_text())["claims"][0]["verdict"] in ("holds", "holds in part")
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


def test_progress_tells_runs_done_running_and_left() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = RunsProgress(console)
    progress.update(Progress(total=8, done=3, trained=2, current="fig4: cifar10, iid, HSFL, 0"))
    progress.round, progress.rounds = 1200, 2000
    text = progress._text().plain
    assert (
        "3 runs done, 1 running, 4 left" in text
        and "fig4: cifar10, iid, HSFL, 0" in text
        and "round 1,200 of 2,000" in text
    )
    log = RunsProgress(Console(file=io.StringIO(), width=200))
    log.update(Progress(total=8, done=4, current="fig6: MA+RMS, compute, 4.0"))
    assert log.console.file.getvalue() == "[4/8] fig6: MA+RMS, compute, 4.0\n"
