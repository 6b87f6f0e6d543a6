"""Machines have the weights of the reference backend to the bit, whatever they train and whatever happens to them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.coordinator import Coordinator
from hsfl.distributed.machines import Machines
from hsfl.distributed.membership import Send
from hsfl.distributed.places import COORDINATOR, FED
from hsfl.distributed.tensors import Packed
from hsfl.engine.averaging import AveragingRule
from hsfl.engine.reference import ReferenceBackend
from hsfl.errors import DivergedError
from hsfl.problem.codes import tier_codes
from tests.distributed.network import Task, connected

RULES = ["plain", "corrected", "state"]


def rule(name: str) -> str | AveragingRule:
    return AveragingRule(average_state=True) if name == "state" else name


def train_alike(task: Task, reference: ReferenceBackend, machines: Machines, rounds: int) -> None:
    """Rounds, averages at random intervals, moves; losses are the same, and so is the drift where weights are sent."""
    rng = np.random.default_rng(task.seed)
    intervals = rng.integers(1, 4, task.tree.tiers)
    for t in range(1, rounds + 1):
        ours, theirs = machines.train_round(), reference.train_round()
        assert torch.equal(ours, theirs)
        for tier in range(task.tree.tiers):
            if t % intervals[tier] == 0:
                drifts = machines.drift(tier), reference.drift(tier)
                for backend in (machines, reference):
                    backend.average(tier)
                if machines.topology.averaged[tier] and not machines._keeps_last(tier):
                    assert torch.allclose(*drifts, rtol=1e-12, atol=0)
        if t in (3, 5, 6):
            cuts = task.tree.cuts()
            for backend in (machines, reference):
                backend.move(cuts)


def assert_same(machines: Machines, reference: ReferenceBackend) -> None:
    ours, theirs = machines._kept(), reference._kept()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(ours[key][0], value[0]), key
    ours, theirs = machines.global_state(), reference.global_state()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(("seed", "name"), [*enumerate(2 * RULES), (3, "fedadam"), (7, "fedavgm")])
def test_machines_equal_the_reference(seed: int, name: str, tmp_path: Path) -> None:
    options = {"averaging": rule(name), "codes": "int8" if seed in (3, 4) else None}
    if seed == 5:
        task = Task(seed)
        tiers = task.tree.tiers
        options["codes"] = [{"up": "int4", "down": "bf16"}] * (tiers - 1) + [None]
    task = Task(seed, "adam" if seed % 3 == 2 else "momentum", weighted=seed in (1, 4), **options)
    machines, _ = connected(task, tmp_path, random.Random(seed))
    reference = task.reference()
    train_alike(task, reference, machines, 8)
    assert_same(machines, reference)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_steps_clipping_and_losses_of_ones_own_are_the_same(optimizer: str, tmp_path: Path) -> None:
    """Machines know the round, and so its step; the loss is where the top tier is."""

    def smooth(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.2)

    settings = {"clip": 0.2, "schedule": lambda round_: 1.0 / (1 + round_)}
    averaging = "corrected" if optimizer == "momentum" else "plain"
    task = Task(1, optimizer, settings=settings, loss=smooth, averaging=averaging)
    machines, _ = connected(task, tmp_path, random.Random(1))
    reference = task.reference()
    train_alike(task, reference, machines, 6)
    assert_same(machines, reference)
    held = [torch.arange(n, n + 3) for n in range(task.tree.clients)]
    for own in (False, True):
        assert machines.evaluate_clients(held, own=own) == reference.evaluate_clients(held, own=own)


@pytest.mark.parametrize(("seed", "chunks", "faults"), [(0, 2, 0), (1, 4, 0), (2, 4, 0), (3, 2, 9), (4, 4, 9)])
def test_mini_batches_in_chunks_are_the_same(
    seed: int, chunks: int, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines work ahead, and gradients come back while they do; numbers are those of one chunk after the other."""
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 2)
    options = {"averaging": rule(RULES[seed % 3]), "codes": "int8" if seed % 2 else None}
    task = Task(seed, norm=["none", "group"][seed % 2], weighted=seed == 2, chunks=chunks, **options)
    machines, network = connected(task, tmp_path, random.Random(seed), faults)
    reference = task.reference()
    train_alike(task, reference, machines, 6)
    assert_same(machines, reference)
    assert not network.faults and any("works ahead" in text for text in network.happened)


@pytest.mark.parametrize("seed", range(4))
def test_crashes_and_broken_streams_change_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen faults at any message, several at once; machines save every other round."""
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 2)
    task = Task(seed, averaging=rule([*RULES, "fedadam"][seed]), codes="int8" if seed % 2 else None)
    machines, network = connected(task, tmp_path, random.Random(seed), faults=12)
    reference = task.reference()
    train_alike(task, reference, machines, 8)
    assert_same(machines, reference)
    assert not network.faults
    assert any("crashed" in text for text in network.happened)


@pytest.mark.parametrize("seed", [1, 3])
def test_files_are_those_of_the_reference(seed: int, tmp_path: Path) -> None:
    """Machines go on from a file of the reference, as often as they lose somebody, and the reference from theirs."""
    task = Task(seed, averaging="corrected", codes="int8")
    reference = task.reference()
    for _ in range(3):
        reference.train_round()
        reference.average(0)
    reference.save(tmp_path / "reference")
    machines, network = connected(task, tmp_path, random.Random(seed), faults=3)
    machines.train_round()  # forgotten
    machines.load(tmp_path / "reference")
    train_alike(task, reference, machines, 4)
    network.faults = 3
    machines.save(tmp_path / "machines")
    other = task.reference()
    other.load(tmp_path / "machines")
    assert_same(machines, other)
    assert_same(machines, reference)


def test_a_damaged_save_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 2)
    task = Task(1)
    machines, network = connected(task, tmp_path, random.Random(0))
    reference = task.reference()
    for _ in range(5):
        assert torch.equal(machines.train_round(), reference.train_round())
    saved = sorted(tmp_path.glob("tier0-1/*.safetensors"), key=lambda path: int(path.stem))
    assert [path.stem for path in saved] == ["2", "4"]
    saved[-1].write_bytes(saved[-1].read_bytes()[:-40])
    network.crash("tier0-1")
    assert torch.equal(machines.train_round(), reference.train_round())
    assert any("cannot be read" in text for text in network.happened)
    assert_same(machines, reference)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_machine_that_lost_its_disk_goes_on_from_the_last_checkpoint(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round before it is trained again; other machines crash meanwhile, and layers have moved."""
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 2)
    task = Task(seed, averaging=rule(RULES[seed % 3]), codes="int8" if seed % 2 else None)
    machines, network = connected(task, tmp_path, random.Random(seed))
    reference = task.reference()
    train_alike(task, reference, machines, 3)
    machines.save(tmp_path / "checkpoint")
    for _ in range(2):
        assert torch.equal(machines.train_round(), reference.train_round())
    given: list[int] = []
    send = network.send

    def listened(name: str, message: wire.Message, *tensors: Sequence[Packed]) -> None:
        if message.HasField("round"):
            given.append(message.round.round)
        send(name, message, *tensors)

    monkeypatch.setattr(network, "send", listened)
    name = sorted(network.nodes)[seed]
    network.crash(name)
    shutil.rmtree(tmp_path / name)
    network.faults = 2
    train_alike(task, reference, machines, 2)
    assert min(given) == 3
    assert_same(machines, reference)


def test_not_finite_weights_are_told_as_in_one_process(tmp_path: Path) -> None:
    task = Task(1, codes="int8")
    machines, network = connected(task, tmp_path, random.Random(0))
    machines.train_round()
    with torch.no_grad():
        next(network.nodes["tier0-2"].work.entity.layers[0].module.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"tier0-2: layer 1 of client \d+ has weights that are not finite"):
        machines.average(0)


def test_a_new_coordinator_goes_on_with_machines_that_waited(tmp_path: Path) -> None:
    """It knows no epoch; they have seen some, and what they saved is of another session."""
    task = Task(1, averaging="corrected", codes="int8")
    machines, network = connected(task, tmp_path, random.Random(4), faults=2)
    reference = task.reference()
    train_alike(task, reference, machines, 4)
    machines.save(tmp_path / "saved")
    machines.train_round()  # lost with the coordinator
    for child in network.places.children(COORDINATOR):
        network._break(COORDINATOR, child)
        network._gone(child, COORDINATOR)
    network.ends.clear()
    other = task.machines()
    other.connect(Coordinator(network, network.places, lambda text: None))
    other.load(tmp_path / "saved")
    train_alike(task, reference, other, 4)
    assert_same(other, reference)


def test_an_average_is_no_matter_of_the_tiers_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, network = connected(Task(1), tmp_path, random.Random(0))
    machines.train_round()
    told: list[str] = []
    put = network._put

    def seen(sent: Send, sender: str) -> None:
        if sent.message.HasField("average"):
            told.append(sent.name)
        put(sent, sender)

    monkeypatch.setattr(network, "_put", seen)
    (tier,) = [m for m, several in enumerate(machines.topology.averaged) if several and m > 0]
    machines.average(tier)
    assert sorted(told) == sorted([FED, *(name for name, (m, _) in network.places.entities.items() if m >= tier)])


@pytest.mark.parametrize("seed", range(4))
def test_codes_change_between_rounds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is lost, and from a file as well, all machines write in the codes of the moment."""
    monkeypatch.setattr("hsfl.distributed.machines.SAVE_EVERY", 2)
    chance, entities = random.Random(seed), Task(seed).places().topology.entities
    last = len(entities) - 1
    tiers = [tier_codes("auto", "code", top=m == last, entities=count) for m, count in enumerate(entities)]
    task = Task(seed, averaging=rule(RULES[seed % 3]), codes=tiers)
    machines, network = connected(task, tmp_path, chance, faults=8 * (seed % 2))
    reference = task.reference()
    for t in range(6):
        chosen = [one.using({link: chance.choice(codes) for link, codes in one.planned}) for one in tiers]
        assert machines.recode(chosen) == reference.recode(chosen)
        train_alike(task, reference, machines, 1 + t % 2)
    assert_same(machines, reference)
    machines.save(tmp_path / "file")
    for one in (machines, reference):
        one.load(tmp_path / "file")
    network.faults = 2
    train_alike(task, reference, machines, 2)
    assert_same(machines, reference)
