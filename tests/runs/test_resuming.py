"""No work is lost: whatever ends a run, it goes on as if nothing had happened, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import hsfl
from hsfl.engine import saving
from hsfl.engine.checkpoint import Checkpoints
from hsfl.runs import resuming
from hsfl.runs.interrupting import InterruptedRun
from hsfl.runs.profiling import profile_model
from hsfl.scenario.reading import read_scenario
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
    "while the tensors are written": ("hsfl.files.sync", 3, ""),
    "before the tensors get their name": ("os.replace", 8, ""),
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
    "before the summary": ("hsfl.runs.training.unfinished", 1, ""),
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


def interrupted(folder: Path, upto: int, changes: Mapping[str, Any] | None = None) -> Path:
    """A run as it was when its checkpoint of a round had been written, with three checkpoints."""

    class Stop(hsfl.Callback):
        def on_round(self, record):
            if record.round == upto:
                raise KeyboardInterrupt

    scenario = write_tiny(folder, {"execution.keep_checkpoints": 3} | dict(changes or {}))
    with pytest.raises(KeyboardInterrupt):
        hsfl.train(scenario, callbacks=[Stop()], out=folder / "run")
    assert [p.stem for p in Checkpoints(folder / "run" / "checkpoints", 3).found()] == [
        f"round-{r:09d}" for r in (18, 15, 12)
    ]
    return folder / "run"


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["altered", "truncated", "missing"])
def test_a_damaged_checkpoint_is_left_out(command, tmp_path, whole, suffix, damage):
    run = interrupted(tmp_path, 19)
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


class Recoding:
    """Other codes at every plan, and other cuts at every second: of activations, gradients and averages."""

    name, replans, needs_constants = "recoding", True, True

    def propose(self, problem, current, round_):
        codes = []
        for m, tier in enumerate(problem.system.tiers):
            allowed = {link: tier.codes.allowed(link) for link in tier.codes.names()}
            codes.append(tier.codes.using({k: v[(round_ + m + len(k)) % len(v)] for k, v in allowed.items()}))
        return hsfl.Plan((1, 2 + round_ // 3 % 2), (2, 1, 1), tuple(codes))


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_a_run_whose_codes_change_goes_on_to_the_bit(tmp_path, backend):
    changes = {"tiers.0.code": "auto", "tiers.1.code": ["bf16", "int4"], "execution.backend": backend}
    (tmp_path / "whole").mkdir()
    scenario = write_tiny(tmp_path / "whole", changes)
    run = hsfl.train(scenario, strategy=Recoding(), out=tmp_path / "whole" / "run")
    assert len({repr(plan.codes) for plan in run.plans}) > 3 and run.plans[0].codes[2] == {}

    class Stop(hsfl.Callback):
        def on_round(self, record):
            if record.round == 19:
                raise KeyboardInterrupt

    (tmp_path / "cut").mkdir()
    with pytest.raises(KeyboardInterrupt):
        hsfl.train(
            write_tiny(tmp_path / "cut", changes), strategy=Recoding(), callbacks=[Stop()], out=tmp_path / "cut" / "run"
        )
    hsfl.resume(tmp_path / "cut" / "run", strategy=Recoding())
    assert results(tmp_path / "cut" / "run") == results(tmp_path / "whole" / "run")


def test_all_checkpoints_damaged_is_an_error_and_nothing_is_touched(command, tmp_path, whole):
    run = interrupted(tmp_path, 19)
    for path in (run / "checkpoints").glob("*.safetensors"):
        flip(path)
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    *warnings, last = ended.err.splitlines()
    assert ended.code == 2 and len(warnings) == 3
    assert last.startswith(f"hsfl: {run / 'checkpoints'}: no checkpoint is whole") and "Traceback" not in ended.err
    assert contents(run) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl"])
def test_lines_that_were_lost_or_changed_are_never_passed_over(command, tmp_path, name):
    """A file that was cut off in the middle takes an older checkpoint; one changed at its start has none."""
    often = {"strategy.drift": "refined"}  # there is a plan just before the last checkpoint
    whole = hsfl.train(write_tiny(tmp_path, often), out=tmp_path / "often").folder
    run = interrupted(tmp_path, 19, often)
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
    assert [found.state for found in checkpoints.whole(pytest.fail)] == [{"round": 30}]


# --- changed ---


def changed_file(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("batch_size = 2", "batch_size = 3", "training.batch_size was 2 and is 3"),
        ("learning_rate = 0.05", "learning_rate = 0.06", "training.learning_rate was 0.05 and is 0.06"),
        ("momentum = 0.5\n", "\n", "training.momentum was 0.5 and is not set"),
        ("seed = 7", "seed = 8", "seed was 7 and is 8"),
        ("evaluate_every = 4", "evaluate_every = 5", "execution.evaluate_every was 4 and is 5"),
        ("replan_every = 3", "replan_every = 4", "strategy.replan_every was 3 and is 4"),
        ("slack = 0.05", "slack = 0.06", "convergence.slack was 0.05 and is 0.06"),
        ('partition = "dirichlet"', 'partition = "iid"', "data.partition was 'dirichlet' and is 'iid'"),
        ("redraw_every = 3", "redraw_every = 2", "dynamics.redraw_every was 3 and is 2"),
        ('compute = "20 kFLOPS"', 'compute = "30 kFLOPS"', "tiers.device.compute was '20 kFLOPS' and is '30 kFLOPS'"),
        ("entities = 2", "entities = 4", "tiers.edge.entities was 2 and is 4"),
    ],
)
def test_a_scenario_that_was_changed_is_named_and_nothing_is_touched(command, tmp_path, whole, old, new, said):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    changed_file(run / "scenario.toml", old, new)
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    assert (ended.code, ended.out) == (2, "")
    said = f"changed since the run began: {said}; bring it back, or start a new run"
    assert ended.err == f"hsfl: {run / 'scenario.toml'}: {said}\n"
    assert contents(run) == before


def test_tiers_in_another_order_are_another_scenario(tmp_path, whole):
    scenario = read_scenario(whole / "scenario.toml", profile_model)
    first, second, last = scenario.raw["tiers"]
    moved = replace(scenario, spec=scenario.spec.model_copy(update={"tiers": scenario.spec.tiers[::-1]}))
    assert scenario.raw["tiers"] == [first, second, last]
    with pytest.raises(hsfl.HsflError, match=r"tiers is \['device', 'edge', 'cloud'\] in this run, but \['cloud'"):
        resuming.check_same(scenario, moved, tmp_path)


def test_what_may_change_may_be_changed_in_the_file(command, tmp_path, whole):
    run = interrupted(tmp_path, 19)
    text = (run / "scenario.toml").read_text()
    for old, new in [("\nrounds = 30\n", "\nrounds = 33\n"), ("checkpoint_every = 3", "checkpoint_every = 11")]:
        assert old in text
        text = text.replace(old, new, 1)
    text = text.replace("keep_checkpoints = 3", "keep_checkpoints = 1").replace('device = "cpu"', 'device = "auto"')
    (run / "scenario.toml").write_text(text)
    ended = command("train", "--resume", run)
    assert ended.code == 0 and ended.err == ""
    assert [p.stem for p in Checkpoints(run / "checkpoints", 1).found()] == ["round-000000033"]


def test_a_file_behind_the_scenario_that_was_changed_is_named(command, tmp_path):
    files = {
        "clients.csv": "sample,client\n" + "".join(f"{n},{n % 4}\n" for n in range(80)),
        "network.csv": "time_s,tier,field,factor\n1,device,uplink,0.5\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    changes = {"data.partition": "csv", "data.assignments": "clients.csv", "dynamics.trace": "network.csv"}
    run = tmp_path / "run"
    hsfl.train(write_tiny(tmp_path, FIXED | changes | {"stopping.rounds": 3}), out=run)
    for name, text in files.items():
        changed_file(tmp_path / name, *((",0\n", ",1\n") if name == "clients.csv" else ("0.5", "0.6")))
        before = contents(run)
        ended = command("train", "--resume", run, "--rounds", 5)
        assert ended.code == 2
        said = f"hsfl: {name}: changed since the run began; bring it back, or start a new run\n"
        assert ended.err == said and contents(run) == before
        (tmp_path / name).write_text(text)
    assert command("train", "--resume", run, "--rounds", 5).code == 0


def test_checkpoints_of_another_run_are_named_and_nothing_is_touched(command, tmp_path, whole):
    """Of the same scenario even: the metrics so far would be those of two runs."""
    run = tmp_path / "run"
    hsfl.train(write_tiny(tmp_path, {"stopping.rounds": 6}), out=run)
    ids = [json.loads((folder / "environment.json").read_text())["run"] for folder in (whole, run)]
    assert len(set(ids)) == 2
    for path in (whole / "checkpoints").iterdir():
        shutil.copy(path, run / "checkpoints")
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    newest = run / "checkpoints" / "round-000000030.json"
    said = f"{newest}: a checkpoint of another run ({ids[0]}, and this one is {ids[1]});"
    assert ended.code == 2 and ended.err.startswith(f"hsfl: {said}") and ended.err.count("\n") == 1
    assert contents(run) == before


def test_a_copy_of_a_run_goes_on(command, tmp_path, whole):
    shutil.copytree(whole, tmp_path / "copy")
    ended = command("train", "--resume", tmp_path / "copy", "--rounds", 31)
    assert ended.code == 0 and ended.err == ""


def test_another_version_of_hsfl_is_said(command, tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    newest = run / "checkpoints" / "round-000000030.json"
    forge(newest, lambda body: body["state"]["origin"].update(hsfl="0.0.9"))
    ended = command("train", "--resume", run, "--rounds", 31)
    assert ended.code == 0
    assert ended.err.startswith(f"hsfl: {newest}: written by hsfl 0.0.9, and this is {hsfl.__version__}, so")


def test_a_run_that_never_came_to_a_checkpoint_begins_as_its_scenario_says_now(command, tmp_path):
    run = tmp_path / "run"
    write_tiny(tmp_path, FIXED | {"stopping.rounds": 4, "execution.checkpoint_every": 0})
    hsfl.train(tmp_path / "tiny.toml", out=run)
    changed_file(run / "scenario.toml", 'partition = "dirichlet"', 'partition = "iid"')
    assert command("train", "--resume", run).code == 0
    fresh = hsfl.train(run / "scenario.toml", out=tmp_path / "fresh")
    assert hsfl.Run.load(run).labels == fresh.labels
    assert results(run) == results(tmp_path / "fresh")


# --- forged: the checksums are right, what they are of is not ---


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a checkpoint says, with a checksum that fits."""
    head, body = path.read_bytes().split(b"\n", 1)
    value = json.loads(body)
    change(value)
    new = json.dumps(value).encode() + b"\n"
    number = json.loads(head)["format"]
    checksum = hashlib.sha256(b"%d\n%s" % (number, new)).hexdigest()
    path.write_bytes(json.dumps({"format": number, "sha256": checksum}).encode() + b"\n" + new)


def forge_tensors(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the tensors of a checkpoint and what is said of them, with checksums that fit."""
    file = path.with_suffix(".safetensors")
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["hsfl"])
    change(about, tensors := load_file(file))
    saving.write(file, about, tensors)
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    forge(path, lambda body: body.update(tensors=checksum))


def setting(field: str, value: Any) -> Callable[[dict[str, Any]], object]:
    *path, last = field.split(".")

    def change(body: dict[str, Any]) -> None:
        place = body
        for key in path:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


#: A field of a checkpoint, what it is set to (...: removed), and the field that is named.
FORGED = [
    ("round", 18.5, "round"),
    ("round", 10**20, "it is of round"),
    ("state", [], "state"),
    ("state.algorithm.schedule", ..., "algorithm.schedule"),
    ("state.algorithm.schedule.round", float("nan"), "algorithm.schedule.round"),
    ("state.algorithm.schedule.round", 17, "algorithm.schedule.round"),
    ("state.algorithm.schedule.cuts", [9, 2], "algorithm.schedule: cuts"),
    ("state.algorithm.schedule.cuts", None, "algorithm.schedule: cuts"),
    ("state.algorithm.schedule.cuts", [1], "algorithm.schedule: cuts"),
    ("state.algorithm.schedule.intervals", [1, 0, 1], "algorithm.schedule: intervals"),
    ("state.algorithm.schedule.averaged_at", [0], "the schedule is one of 1 tiers"),
    ("state.algorithm.schedule.moved_at", 10**9, "algorithm.schedule"),
    ("state.algorithm.bits", {}, "algorithm.bits"),
    ("state.algorithm.time_s", "late", "algorithm.time_s"),
    ("state.algorithm.time_s", float("inf"), "algorithm.time_s"),
    ("state.losses", [0.0], "losses"),
    ("state.waiting", 3, "waiting"),
    ("state.files", {}, "files"),
    ("state.files.plans", {"size": "0", "checksum": 3}, "files.plans.size"),
    ("state.files.plans", {"size": -1, "checksum": ""}, "files.plans.size"),
    ("state.algorithm.estimate", None, "algorithm.estimate"),
    ("state.algorithm.estimate.correction", [], "algorithm.estimate.correction"),
    ("state.algorithm.constants.gradient_variance", [1.0], "algorithm.constants.gradient_variance"),
    ("state.algorithm.constants.drift", "mine", "algorithm.constants.drift"),
    ("state.origin", ..., "origin"),
    ("state.origin.fields", ["seed"], "origin.fields"),
]


@pytest.mark.parametrize(("field", "value", "named"), FORGED)
def test_a_forged_state_leaves_a_checkpoint_out(command, tmp_path, whole, field, value, named):
    run = interrupted(tmp_path, 19)
    newest = run / "checkpoints" / "round-000000018.json"
    forge(newest, setting(field, value))
    ended = command("train", "--resume", run)
    assert ended.code == 0, ended.err
    said = rf"hsfl: {newest}: (damaged|not a checkpoint of this run) \({re.escape(named)}\b.*\), so it is left out\n"
    assert re.fullmatch(said, ended.err), ended.err
    assert results(run) == results(whole)


TENSORS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no cuts": lambda about, tensors: about.pop("cuts"),
    "cuts in words": lambda about, tensors: about.update(cuts="middle"),
    "other cuts": lambda about, tensors: about.update(cuts=[1, 1]),
    "another round": lambda about, tensors: about.update(round=17),
    "a round in words": lambda about, tensors: about.update(round="late"),
    "another seed": lambda about, tensors: about.update(seed=8),
    "other hosts": lambda about, tensors: about.update(hosts=None),
    "one tensor less": lambda about, tensors: tensors.popitem(),
    "another shape": lambda about, tensors: tensors.update({min(tensors): torch.zeros(1, 2, 3)}),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_forged_tensors_leave_a_checkpoint_out(command, tmp_path, whole, kind):
    run = interrupted(tmp_path, 19)
    newest = run / "checkpoints" / "round-000000018.json"
    forge_tensors(newest, TENSORS[kind])
    ended = command("train", "--resume", run)
    assert ended.code == 0, ended.err
    said = rf"hsfl: {newest}: not a checkpoint of this run \(.+\), so it is left out\n"
    assert re.fullmatch(said, ended.err), ended.err
    assert results(run) == results(whole)


def test_a_mark_in_the_middle_of_a_line_leaves_a_checkpoint_out(command, tmp_path, whole):
    run = interrupted(tmp_path, 19)
    newest = run / "checkpoints" / "round-000000018.json"
    part = (run / "plans.jsonl").read_bytes()[:-5]
    mark = {"size": len(part), "checksum": hashlib.sha256(part).hexdigest()}
    forge(newest, lambda body: body["state"]["files"].update({"plans.jsonl": mark}))
    ended = command("train", "--resume", run)
    assert ended.code == 0 and f"{run / 'plans.jsonl'} lacks" in ended.err
    assert results(run) == results(whole)


def test_forged_metrics_are_an_error_and_nothing_is_touched(command, tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "metrics.jsonl").write_bytes(b"no JSON\n")
    mark = {"size": 8, "checksum": hashlib.sha256(b"no JSON\n").hexdigest()}
    for path in (run / "checkpoints").glob("*.json"):
        forge(path, lambda body: body["state"]["files"].update({"metrics.jsonl": mark}))
    before = contents(run)
    ended = command("train", "--resume", run, "--rounds", 40)
    assert ended.code == 2 and "Traceback" not in ended.err
    assert ended.err.splitlines()[-1].startswith(f"hsfl: {run / 'checkpoints'}: no checkpoint is whole")
    assert contents(run) == before


ODD = [{"run": 3}, {"scenario_folder": 7}, {"data_folder": "a\0"}, {"data_folder": "\ud800"}, {}, [], "[" * 10**5]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_an_environment_that_says_nothing_is_one_sentence(command, tmp_path, whole, value):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    path = run / "environment.json"
    if isinstance(value, dict) and value:
        value = json.loads(path.read_text()) | value
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    ended = command("train", "--resume", run, "--rounds", 31)
    assert ended.code == 2 and re.fullmatch(rf"hsfl: {path}: cannot be read, or has no \w+; .+\n", ended.err)


# --- no room ---

#: Files may not grow beyond a size, or only those that are appended to: the kernel says so like a full disk.
LIMIT = """\
import resource, hsfl.runs.writing
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
{when}
"""
WHEN_SAVING = """\
from hsfl.engine.checkpoint import Checkpoints
real = Checkpoints.write
def write(self, *given):
    limit(12000)
    real(self, *given)
Checkpoints.write = write
"""
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
    full = spawn("train", "tiny.toml", "--out", run, setup=LIMIT.format(when=WHEN_SAVING))
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
