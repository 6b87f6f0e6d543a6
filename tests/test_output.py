"""Output that goes away, with real processes and pipes: training outlives it, and nothing ends in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hsfl
from tests.runs.conftest import FIXED, write_tiny
from tests.scenario.command import environment

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")


def start(*args: object, cwd: Path, **streams: Any) -> subprocess.Popen[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen(
        [sys.executable, "-m", "hsfl", *map(str, args)], cwd=cwd, env=environment(), text=True, **streams
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    with process:
        said = process.stderr.read() if process.stderr else ""
        return process.wait(120), said


def head(*args: object, cwd: Path, lines: int = 0, **streams: Any) -> tuple[int, str]:
    """As in `hsfl ARGUMENTS | head -LINES`."""
    process = start(*args, cwd=cwd, **streams)
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline()
    process.stdout.close()
    return ended(process)


def full(*args: object, cwd: Path, **streams: Any) -> tuple[int, str]:
    """As in `hsfl ARGUMENTS > /dev/full`."""
    with open("/dev/full", "w") as device:
        return ended(start(*args, cwd=cwd, stdout=device, **streams))


def closed(*args: object, cwd: Path) -> tuple[int, str]:
    """As in `hsfl ARGUMENTS >&-`."""
    return ended(start(*args, cwd=cwd, stdout=None, preexec_fn=lambda: os.close(1)))


def both_closed(*args: object, cwd: Path) -> tuple[int, str]:
    return ended(start(*args, cwd=cwd, stdout=None, stderr=None, preexec_fn=lambda: os.closerange(1, 3)))


def both_full(*args: object, cwd: Path) -> tuple[int, str]:
    return full(*args, cwd=cwd, stderr=subprocess.STDOUT)


def after_a_line(*args: object, cwd: Path) -> tuple[int, str]:
    return head(*args, cwd=cwd, lines=1)


HOW = [
    after_a_line,
    pytest.param(closed, marks=pytest.mark.slow),
    both_closed,
    pytest.param(both_full, marks=needs_full),
]


@pytest.mark.parametrize("how", HOW)
def test_training_outlives_its_output(how: Callable[..., tuple[int, str]], tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # or the lines come together, when training is over
    write_tiny(tmp_path, FIXED | {"stopping.rounds": 40})
    assert how("train", "tiny.toml", "--out", "run", cwd=tmp_path) == (0, "")
    run = hsfl.Run.load(tmp_path / "run")
    assert run.summary is not None and run.summary.rounds == 40
    assert (run.folder / "model.safetensors").is_file()


def test_a_reader_that_ends_while_lines_are_still_held_back(tmp_path):
    write_tiny(tmp_path, FIXED | {"stopping.rounds": 4})
    assert head("train", "tiny.toml", "--out", "run", cwd=tmp_path) == (0, "")
    assert hsfl.Run.load(tmp_path / "run").finished


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    return hsfl.train(write_tiny(folder, FIXED | {"stopping.rounds": 2}), out=folder / "run").folder


CALLS = [["plan", "paper", "--json"], ["--version"], ["report", "RUN"]]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_other_commands_end_quietly_without_a_reader(call, run, tmp_path):
    call = [str(run) if word == "RUN" else word for word in call]
    assert head(*call, cwd=tmp_path) == (0, "")
    assert closed(*call, cwd=tmp_path) == (0, "")


@needs_full
@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_other_commands_say_that_there_is_no_room(call, run, tmp_path):
    call = [str(run) if word == "RUN" else word for word in call]
    sentence = "hsfl: the output could not be written (No space left on device); make room, or write it elsewhere\n"
    assert full(*call, cwd=tmp_path) == (2, sentence)
    assert both_full(*call, cwd=tmp_path) == (2, "")


@needs_full
def test_a_sentence_nobody_can_read_still_ends_in_2(tmp_path):
    with open("/dev/full", "w") as device:
        assert ended(start("plan", "nothing", cwd=tmp_path, stderr=device))[0] == 2
    assert both_closed("plan", "nothing", cwd=tmp_path)[0] == 2


def test_a_closed_output_lends_its_number_to_no_other_file(tmp_path):
    """What a library writes to file 1 must not end up in the metrics."""
    write_tiny(tmp_path, FIXED | {"stopping.rounds": 4})
    task = tmp_path / "task.py"
    talking = "import os\nfrom torch import nn\nclass Talking(nn.Linear):\n    def forward(self, x):\n"
    talking += "        os.write(1, b'chatter')\n        return super().forward(x)\n"
    task.write_text(talking + task.read_text().replace("nn.Linear(4, 3)", "Talking(4, 3)"))
    assert closed("train", "tiny.toml", "--backend", "reference", "--out", "run", cwd=tmp_path) == (0, "")
    assert all(b"chatter" not in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
