"""Rounds with a deadline: who is late is left out, alike at all machines, and what was decided can be done again."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hsfl
from hsfl.engine.algorithm import Algorithm
from hsfl.engine.reference import ReferenceBackend
from hsfl.engine.schedule import Present
from hsfl.runs.preparing import prepare
from tests.distributed.network import Task, connected
from tests.distributed.test_same_numbers import RULES, assert_same, rule
from tests.runs.conftest import write_tiny

pytestmark = pytest.mark.filterwarnings("ignore:waiting for")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_out_by_chance_can_be_left_out_again(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages in any order, deadlines at any message, from the third seed on crashes and broken streams, too.

    The reference, given who took part, has the same losses and in the end the same bits.
    """
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 3)
    options = {"averaging": rule(RULES[seed % 3]), "codes": "int8" if seed % 4 == 3 else None}
    task = Task(seed, "adam" if seed % 3 == 2 else "momentum", **options)
    faults = 8 if seed >= 2 else 0
    machines, network = connected(task, tmp_path, random.Random(seed), faults=faults)
    machines.deadline_s, network.lateness = 1000.0, 0.05
    reference, rng = task.reference(), np.random.default_rng(seed)
    reference.counts_rounds = False  # machines count all clients alike, late or not
    intervals = rng.integers(1, 5, task.tree.tiers)
    missed = 0
    for t in range(1, 13):
        ours = machines.train_round()
        missed += task.tree.clients - len(machines.took_part)
        assert torch.equal(ours, reference.train_round(machines.took_part))
        for tier in range(task.tree.tiers):
            if t % intervals[tier] == 0:
                for backend in (machines, reference):
                    backend.average(tier)
        if t in (4, 9):
            cuts = task.tree.cuts()
            for backend in (machines, reference):
                backend.move(cuts)
    assert missed
    assert_same(machines, reference)
    refused = [text for text in network.happened if "refused" in text]
    assert not refused or faults, refused


def test_a_deadline_leaves_nobody_out_who_is_there(tmp_path: Path) -> None:
    task = Task(1)
    machines, network = connected(task, tmp_path, random.Random(0))
    machines.deadline_s = 1000.0
    reference = task.reference()
    for _ in range(3):
        assert torch.equal(machines.train_round(), reference.train_round())
        assert len(machines.took_part) == machines.num_clients
    assert_same(machines, reference)
    assert not network.happened


def test_some_of_the_clients_can_be_named(tmp_path: Path) -> None:
    task = Task(2)
    machines, _ = connected(task, tmp_path, random.Random(0), faults=3)
    reference = task.reference()
    reference.counts_rounds = False  # as machines
    for present in ([0], [1, 3], [0, 2, 3]):
        ours, theirs = (backend.train_round(present) for backend in (machines, reference))
        assert torch.equal(ours, theirs)
        assert machines.took_part == reference.took_part
    assert_same(machines, reference)


@pytest.mark.parametrize(("name", "kind"), [("tier0-2", "round"), ("tier1-1", "round"), ("tier0-2", "average")])
def test_who_is_waited_for_is_said_while_it_is_waited_for(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that takes no messages for a while is named by those above it."""
    task, said = Task(1), []
    machines, network = connected(task, tmp_path, random.Random(0), notify=said.append)
    machines.train_round()
    for module in ("work", "coordinator"):
        monkeypatch.setattr(f"hsfl.distributed.{module}.PATIENCE_S", 0.0)
    machines.coordinator._longest_s.clear()
    network.asleep = {name: 10_000}
    said.clear()
    if kind == "round":
        assert torch.isfinite(machines.train_round()).all()
        assert f"waiting for {name} to do round 2" in said
    else:
        machines.average(0)
        assert f"waiting for {name} to do a command (average)" in said


class Pausing(hsfl.Callback):
    """Stops a machine after some rounds, and lets it go on after some more."""

    def __init__(self, place: Path, name: str, first: int, last: int) -> None:
        self.place, self.name, self.signals = place, name, {first: signal.SIGSTOP, last: signal.SIGCONT}

    def on_round(self, record: Any) -> None:
        if record.round in self.signals:
            (file,) = self.place.glob(f"hsfl-machines-*/{self.name}/pid")
            os.kill(int(file.read_text()), self.signals[record.round])


def test_a_machine_that_pauses_is_left_out_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes. Nobody waits for it but averages; what was recorded, done again, gives the same model."""
    threads = torch.get_num_threads()
    fixed = {"strategy.name": "fixed", "strategy.cuts": [1, 3], "strategy.intervals": [12, 3, 1]}
    own = {"stopping.rounds": 24, "execution.deadline": "0.4 s"}
    own |= {"execution.evaluate_every": 12, "execution.checkpoint_every": 0}
    scenario = hsfl.load_scenario(write_tiny(tmp_path, {**fixed, **own}))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pausing = Pausing(tmp_path, "device-2", 3, 8)
    run = hsfl.run(scenario, out=tmp_path / "run", callbacks=[pausing])
    without = [line.round for line in run.metrics if "device-2" in line.late]
    assert set(range(5, 8)) <= set(without), without
    assert set(range(9, 25)) - set(without), "it never came back"
    assert run.summary is not None
    assert run.summary.late["device-2"] == len(without)
    torch.set_num_threads(1)
    prepared = prepare(scenario, None, None, ReferenceBackend)
    again = Algorithm(prepared.backend, prepared.task)
    late = [{int(name.rpartition("-")[2]) - 1 for name in line.late} for line in run.metrics]
    prepared.backend.counts_rounds = False  # machines count all clients alike, late or not
    again.schedule.participants = lambda clock: Present(  # type: ignore[method-assign]
        tuple(n for n in range(4) if n not in late[again.round + 1])
    )
    records = list(again.advance(24))
    torch.set_num_threads(threads)
    model = load_file(tmp_path / "run" / "model.safetensors")
    for key, value in prepared.backend.global_state().items():
        assert torch.equal(model[key], value), key
    assert [line.loss for line in run.metrics[1:]] == [line.loss for line in records if hasattr(line, "loss")]
