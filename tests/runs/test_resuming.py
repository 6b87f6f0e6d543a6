"""No work is lost: whatever ends a run, it goes on as if nothing had happened, byte for byte."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import hsfl
from hsfl.engine.checkpoint import Checkpoints
from hsfl.runs.interrupting import InterruptedRun
from tests.runs.conftest import FIXED, results, rounds_of, write_tiny
from tests.scenario.command import contents

#: More rounds than anyone waits for.
ENDLESS = ("--rounds", 10**6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run = hsfl.train(write_tiny(folder), out=folder / "run")
    assert len({tuple(plan.cuts) for plan in run.plans}) > 1  # layers move in it
    return folder / "run"


# --- killed ---


def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(spawn, tiny, tmp_path, whole):
    """Eight kills: each some time after another round, which may be while a checkpoint is written or a plan made."""
    tiny()
    moments = random.Random(1)
    run = tmp_path / "run"
    for kill in range(8):
        options = ("--resume", run) if (run / "scenario.toml").exists() else ("tiny.toml", "--out", run)
        process = spawn("train", *options)
        known, from_then = moments.randrange(3 * kill + 1), moments.uniform(0, 0.06)
        process.wait_for(lambda known=known: rounds_of(run) >= known)
        time.sleep(from_then)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.err  # it was not at its end yet
    last = spawn("train", "--resume", run)
    assert last.wait() == 0, last.err
    assert results(run) == results(whole)


#: The place in the code where a process ends itself as if killed, and how often it may pass there before.
KILL = """\
import os, signal
import hsfl.engine.checkpoint, hsfl.files, hsfl.runs.writing, hsfl.runs.training
real, passed = {place}, 0
def kill(*args, **options):
    global passed
    passed += 1
    if passed == {passes}:
        {partly}
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
{place} = kill
"""
PLACES = {
    "while the tensors are written": ("hsfl.engine.checkpoint.sync", 5, ""),
    "before the tensors get their name": ("os.replace", 9, ""),
    "between tensors and state": ("hsfl.engine.checkpoint.write_whole", 3, ""),
    "while the state is written": ("hsfl.files.os.fsync", 14, ""),
    "between a checkpoint and the removal of the oldest": (
        "hsfl.engine.checkpoint.Checkpoints._prune",
        3,
        "",
    ),
    "in the middle of a line": (
        "hsfl.runs.writing._Log.flush",
        20,
        "log = args[0]; log.file.write((log.waiting or b'{\"round\": 1')[:10])",
    ),
    "before the summary": ("hsfl.runs.training.save_file", 1, ""),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_killed_at_the_worst_moments_ends_as_if_it_had_not_been(spawn, tiny, tmp_path, whole, place):
    """Checkpoints after every round, so that what is broken off is often a checkpoint."""
    tiny({"execution.checkpoint_every": 1})
    name, passes, partly = PLACES[place]
    run = tmp_path / "run"
    setup = KILL.format(place=name, passes=passes, partly=partly or "pass")
    killed = spawn("train", "tiny.toml", "--out", run, setup=setup)
    assert killed.wait() == -signal.SIGKILL, killed.err
    assert not (run / "summary.json").exists()
    assert rounds_of(run) > 0
    again = spawn("train", "--resume", run)
    assert again.wait() == 0, again.err
    assert again.err == "" and "Resumed after round" in again.out
    assert results(run) == results(whole)
    left = [path.name for path in run.rglob(".hsfl-*")]
    assert left == [] and len(list((run / "checkpoints").iterdir())) == 4


def test_a_folder_killed_while_it_was_made_is_free_again(spawn, tiny, tmp_path):
    tiny(FIXED)
    setup = KILL.format(place="hsfl.runs.writing.write_whole", passes=3, partly="pass")
    killed = spawn("train", "tiny.toml", "--rounds", 2, "--out", "run", setup=setup)
    assert killed.wait() == -signal.SIGKILL
    assert (tmp_path / "run").exists() and not (tmp_path / "run" / "scenario.toml").exists()
    again = spawn("train", "tiny.toml", "--rounds", 2, "--out", "run")
    assert again.wait() == 0, again.err
    assert hsfl.Run.load(tmp_path / "run").finished


# --- asked to stop ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_asked_to_stop_saves_itself_and_says_how_to_go_on(spawn, tiny, tmp_path, whole, number):
    tiny({"execution.checkpoint_every": 10**6})
    run = tmp_path / "run"
    stopped = spawn("train", "tiny.toml", *ENDLESS, "--out", run)
    stopped.wait_for(lambda: rounds_of(run) >= 4)
    stopped.send(number)
    assert stopped.wait() == 130
    said = re.fullmatch(r"hsfl: stopped after round (\d+); continue with hsfl (train --resume \S+)\n", stopped.err)
    assert said, stopped.err
    round_ = int(said[1])
    assert rounds_of(run) == round_  # every round is in the folder, the last one too
    assert [path.name for path in (run / "checkpoints").glob("*.json")] == [f"round-{round_:09d}.json"]
    assert hsfl.Run.load(run).summary is None
    rest = spawn(*said[2].split(), "--rounds", max(round_, 30))
    assert rest.wait() == 0, rest.err
    if round_ <= 30:  # else the machine was too fast for the comparison
        assert results(run) == results(whole)


def test_a_second_ctrl_c_ends_at_once(spawn, tiny, tmp_path):
    """Where a round does not end."""
    tiny()
    hang = """\
import time
from hsfl.engine.algorithm import Algorithm
real = Algorithm._round
def slow(self):
    if self.round == 5:
        open("hangs", "w").close()
        time.sleep(1000)
    return real(self)
Algorithm._round = slow
"""
    stopped = spawn("train", "tiny.toml", "--out", "run", setup=hang)
    stopped.wait_for((tmp_path / "hangs").exists)
    stopped.send(signal.SIGINT)
    time.sleep(0.3)
    assert stopped.process.is_alive()
    stopped.send(signal.SIGINT)
    assert stopped.wait(10) == 130
    assert "Traceback" not in stopped.err
    # What was saved before is still good.
    again = spawn("train", "--resume", "run")
    assert again.wait() == 0 and "Resumed after round 3" in again.out


def test_from_python_an_interrupt_is_a_keyboard_interrupt_and_resume_goes_on(tiny, tmp_path, whole):
    class Stop(hsfl.Callback):
        def on_round(self, record):
            if record.round == 10:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRun, match="--resume") as caught:
        hsfl.train(tiny(), callbacks=[Stop()], out=tmp_path / "run")
    assert isinstance(caught.value, KeyboardInterrupt) and caught.value.folder == tmp_path / "run"
    assert signal.getsignal(signal.SIGINT) is before
    assert hsfl.resume(tmp_path / "run").finished
    assert results(tmp_path / "run") == results(whole)


def test_a_callback_that_fails_costs_nothing(tiny, tmp_path, whole):
    heard: list[str] = []

    class Fails(hsfl.Callback):
        def on_round(self, record):
            if record.round == 10:
                raise ZeroDivisionError("mine")

    class Listens(hsfl.Callback):
        def on_stop(self):
            heard.append("stop")

    with pytest.raises(ZeroDivisionError, match="mine"):
        hsfl.train(tiny(), callbacks=[Fails(), Listens()], out=tmp_path / "run")
    assert heard == ["stop"]
    assert list((tmp_path / "run" / "checkpoints").glob("round-00000001?.json"))
    hsfl.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(whole)


# --- damaged ---


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def interrupted(folder: Path, whole: Path, upto: int) -> Path:
    """The uninterrupted run as it was when its checkpoint of a round had been written, with three checkpoints."""

    class Stop(hsfl.Callback):
        def on_round(self, record):
            if record.round == upto:
                raise KeyboardInterrupt

    scenario = write_tiny(folder, {"execution.keep_checkpoints": 3})
    with pytest.raises(KeyboardInterrupt):
        hsfl.train(scenario, callbacks=[Stop()], out=folder / "run")
    assert [p.stem for p in Checkpoints(folder / "run" / "checkpoints", 3).found()] == [
        f"round-{r:09d}" for r in (18, 15, 12)
    ]
    return folder / "run"


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["altered", "truncated", "missing"])
def test_a_damaged_checkpoint_is_left_out(command, tmp_path, whole, suffix, damage):
    run = interrupted(tmp_path, whole, 19)
    damaged = run / "checkpoints" / f"round-000000018{suffix}"
    damage(damaged)
    ended = command("train", "--resume", run)
    assert ended.code == 0, ended.err
    assert "Resumed after round 15" in ended.out
    if suffix == ".json" and damage is Path.unlink:
        assert ended.err == ""  # it was never complete
    else:
        assert re.fullmatch(rf"hsfl: {damaged.with_suffix('.json')}: damaged \(.+\), so it is left out\n", ended.err)
    assert results(run) == results(whole)


def test_all_checkpoints_damaged_is_an_error_and_nothing_is_touched(command, tmp_path, whole):
    run = interrupted(tmp_path, whole, 19)
    for path in (run / "checkpoints").glob("*.safetensors"):
        flip(path)
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    *warnings, last = ended.err.splitlines()
    assert ended.code == 2 and len(warnings) == 3
    assert last.startswith(f"hsfl: {run / 'checkpoints'}: no checkpoint is whole") and "Traceback" not in ended.err
    assert contents(run) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl"])
def test_lines_that_were_lost_or_changed_are_never_passed_over(command, tmp_path, whole, name):
    """A file that was cut off in the middle takes an older checkpoint; one changed at its start has none."""
    run = interrupted(tmp_path, whole, 19)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    keep = [line for line in lines if json.loads(line)["round"] <= 14]
    (run / name).write_bytes(b"".join(keep))
    ended = command("train", "--resume", run)
    assert ended.code == 0 and f"{run / name} lacks" in ended.err
    assert results(run) == results(whole)
    flip_first = (run / name).read_bytes().replace(b"0", b"1", 1)
    (run / name).write_bytes(flip_first)
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    assert ended.code == 2 and "no checkpoint is whole" in ended.err
    assert contents(run) == before


def test_a_damaged_newest_checkpoint_does_not_cost_the_next_one(tmp_path):
    """The one just written is kept, though a damaged one has a later round."""

    def save(path):
        path.write_bytes(b"tensors")

    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.write(40, save, {"round": 40})
    cut(tmp_path / "round-000000040.safetensors")
    checkpoints.write(30, save, {"round": 30})
    assert [path.name for path in checkpoints.found()] == ["round-000000030.json"]
    assert [state for _, _, state in checkpoints.whole(pytest.fail)] == [{"round": 30}]


# --- no room ---

#: Files may not grow beyond a size, or only those that are appended to: the kernel says so like a full disk.
LIMIT = """\
import resource, hsfl.runs.writing
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
{when}
"""
ALWAYS = "limit(12000)"
WHEN_APPENDING = """\
real = hsfl.runs.writing._Log.flush
def flush(self, sync):
    limit(7000)
    try:
        real(self, sync)
    finally:
        limit(resource.RLIM_INFINITY)
hsfl.runs.writing._Log.flush = flush
"""


def test_no_room_for_a_checkpoint(spawn, tiny, tmp_path, whole):
    tiny()
    run = tmp_path / "run"
    full = spawn("train", "tiny.toml", "--out", run, setup=LIMIT.format(when=ALWAYS))
    assert full.wait() == 2
    assert re.fullmatch(r"hsfl: \S+checkpoints: a checkpoint cannot be written \(.+\); make room, .+\n", full.err)
    assert rounds_of(run) == 3
    assert contents(run / "checkpoints") == {}
    again = spawn("train", "--resume", run)
    assert again.wait() == 0, again.err
    assert results(run) == results(whole)


def test_no_room_for_metrics(spawn, tiny, tmp_path, whole):
    tiny()
    run = tmp_path / "run"
    full = spawn("train", "tiny.toml", "--out", run, setup=LIMIT.format(when=WHEN_APPENDING))
    assert full.wait() == 2
    said = "cannot be written (File too large); make room, then continue with hsfl train --resume"
    assert full.err == f"hsfl: {run}: {said} {run}\n"
    lines = (run / "metrics.jsonl").read_bytes()
    assert lines.endswith(b"}\n") and (whole / "metrics.jsonl").read_bytes().startswith(lines)
    again = spawn("train", "--resume", run)
    assert again.wait() == 0, again.err
    assert results(run) == results(whole)


def test_a_full_disk(spawn, tiny, tmp_path, whole):
    """A file system that really is full, at every size from too small for anything to large enough."""
    tiny()
    run = tmp_path / "disk" / "run"
    run.parent.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", run.parent], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        codes = []
        for size in (8, 32, 48, 64, 80, 96, 112, 4096):
            subprocess.run(["mount", "-o", f"remount,size={size}k", run.parent], check=True)
            options = ("--resume", run) if (run / "scenario.toml").exists() else ("tiny.toml", "--out", run)
            process = spawn("train", *options)
            codes.append(process.wait())
            if codes[-1]:
                assert codes[-1] == 2 and re.fullmatch(r"hsfl: .+; make room.*\n", process.err), process.err
        assert codes[0] == codes[1] == 2 and codes[-1] == 0
        assert results(run) == results(whole)
    finally:
        subprocess.run(["umount", run.parent], check=True)
