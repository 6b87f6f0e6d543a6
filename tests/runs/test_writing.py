"""Run folders have one writer at a time, and whoever comes too late takes nothing away."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

import hsfl
from hsfl.engine import saving
from hsfl.engine.checkpoint import Checkpoints
from hsfl.files import unfinished
from hsfl.records import RoundRecord
from hsfl.runs import writing
from hsfl.runs.writing import RunFolder
from tests.scenario.command import contents

_FORKS = multiprocessing.get_context("fork")
CONTENTS = {"scenario.toml": b"name = 1\n", "environment.json": b"{}\n", "labels.json": b"{}\n"}
IN_USE = "another process is writing this run; wait for it, or end it"


# --- two that start on one folder ---


def start(out: Path, gate, lines: int, answer) -> None:
    """Make a run folder at the same moment as another process, write some lines, and say what came of it."""
    gate.wait()
    try:
        with closing(RunFolder.create(out, "stem", CONTENTS)) as folder:
            for round_ in range(lines):
                folder.append("metrics.jsonl", RoundRecord(round=round_, time_s=os.getpid()))
                folder.flush()
    except hsfl.HsflError as error:
        answer.put((os.getpid(), str(error)))
    else:
        answer.put((os.getpid(), None))


@pytest.mark.parametrize("exists", [False, True], ids=["new", "empty"])
def test_of_two_that_start_on_one_folder_one_wins_and_its_folder_is_whole(tmp_path, exists):
    for race in range(30):
        out = tmp_path / f"run-{race}"
        if exists:
            out.mkdir()
        gate, answer = _FORKS.Barrier(2), _FORKS.Queue()
        both = [_FORKS.Process(target=start, args=(out, gate, race % 3, answer)) for _ in range(2)]
        for process in both:
            process.start()
        said = dict(answer.get(timeout=30) for _ in both)
        for process in both:
            process.join()
        winners = [pid for pid, error in said.items() if error is None]
        assert len(winners) == 1, said
        (lost,) = (error for error in said.values() if error is not None)
        assert lost.startswith(f"{out}: ") and (IN_USE in lost or "exists already" in lost)
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        lines = [{"round": round_, "time_s": winners[0]} for round_ in range(race % 3)]
        assert [json.loads(line) for line in found.pop("metrics.jsonl").splitlines()] == lines
        assert found == CONTENTS | {".lock": b"", "plans.jsonl": b""}


# --- the lock ---


def hold(path: Path, other) -> None:
    with closing(RunFolder(path)) as folder:
        folder.lock()
        other.send("locked")
        other.recv()


@contextmanager
def another_writer(path: Path) -> Iterator[multiprocessing.Process]:
    here, there = _FORKS.Pipe()
    process = _FORKS.Process(target=hold, args=(path, there))
    process.start()
    try:
        assert here.poll(30) and here.recv() == "locked"
        yield process
    finally:
        process.kill()
        process.join()


def test_a_locked_run_is_free_once_its_process_was_killed(tmp_path):
    with another_writer(tmp_path) as process:
        with pytest.raises(hsfl.HsflError, match=IN_USE):
            RunFolder(tmp_path).lock()
        process.kill()
        process.join()
        with closing(RunFolder(tmp_path)) as folder:
            folder.lock()
            with pytest.raises(hsfl.HsflError, match=IN_USE):  # in this process too
                RunFolder(tmp_path).lock()
        with closing(RunFolder(tmp_path)) as folder:
            folder.lock()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch, recwarn, number):
    fcntl = pytest.importorskip("fcntl")

    def none(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    with closing(RunFolder.create(tmp_path / "run", "stem", CONTENTS)) as folder:
        folder.append("metrics.jsonl", RoundRecord(round=0, time_s=0.0))
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"round":0,"time_s":0.0}\n'
    assert not recwarn.list


def test_a_lock_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(hsfl.HsflError, match=r"cannot be written \(Is a directory\); choose another place"):
        RunFolder(tmp_path).lock()


def test_what_cannot_be_filled_is_empty_again_and_what_another_writes_is_left_alone(tmp_path, monkeypatch):
    def full(path, data, **options):
        if path.name == "scenario.toml":
            raise hsfl.HsflError("no room")
        write(path, data, **options)

    write = writing.write_whole
    monkeypatch.setattr(writing, "write_whole", full)
    with another_writer(tmp_path):
        (tmp_path / "environment.json").write_text("of the other")
        with pytest.raises(hsfl.HsflError, match=IN_USE):
            RunFolder.create(tmp_path, "stem", CONTENTS)
        assert (tmp_path / "environment.json").read_text() == "of the other"
    with pytest.raises(hsfl.HsflError, match="no room"):
        RunFolder.create(tmp_path, "stem", CONTENTS)
    assert list(tmp_path.iterdir()) == []


# --- killed while it saves ---


def save_large_tensors(run: Path, name: str) -> None:
    tensors = {"large": torch.zeros(64 * 2**20)}
    if name == "checkpoints":
        Checkpoints(run / name, 1).write(3, lambda path: saving.write(path, {}, tensors), {})
    else:
        with unfinished(run / name) as place:
            saving.save(place, tensors)


@pytest.mark.parametrize("name", ["checkpoints", "model.safetensors"])
def test_what_a_process_killed_while_it_saves_leaves_goes_when_the_run_goes_on(tmp_path, name):
    run = tmp_path / "run"
    RunFolder.create(run, "stem", CONTENTS).close()
    before = contents(run)
    process = _FORKS.Process(target=save_large_tensors, args=(run, name))
    process.start()
    while not (partly := [path for path in run.rglob("*") if path.is_file() and path.stat().st_size > 2**20]):
        assert process.is_alive()
    process.kill()
    process.join()
    assert partly[0].exists() and partly[0].suffix != ".safetensors"  # it was killed in the middle
    with closing(RunFolder(run)) as folder:
        folder.lock()
    assert contents(run) == before | ({"checkpoints": None} if name == "checkpoints" else {})


def test_a_file_that_cannot_be_removed_is_one_sentence(tmp_path):
    folder = RunFolder(tmp_path)
    folder.remove("summary.json")
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(hsfl.HsflError, match=r"summary.json: cannot be removed \(Is a directory\); remove it yourself"):
        folder.remove("summary.json")
