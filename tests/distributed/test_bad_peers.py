"""A peer that may speak, but not like that: its stream is closed, the machine goes on, and no weight changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Heard, Send
from hsfl.distributed.tensors import Packed, WireError, pack
from tests.distributed.network import Network, Task, connected

DEVICE, EDGE, FED = "tier0-1", "tier1-1", "fed"


Said = tuple[wire.Message, list[Packed]]


def activations(client: int, shape: tuple[int, ...] = (4, 4, 6, 6)) -> Said:
    return wire.Message(activations=wire.Activations(client=client)), [pack(torch.zeros(shape))] * 2


def words(**body: Any) -> Said:
    return wire.Message(**body), []


def contribution(tier: int, layers: list[int]) -> Said:
    return words(contribution=wire.Contribution(tier=tier, layers=layers))


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Machines in the middle of nothing: a round is done."""
    machines, found = connected(Task(1), tmp_path, random.Random(0))
    machines.train_round()
    found.machines = machines  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("to", "source", "make"),
    [
        (EDGE, DEVICE, lambda: activations(0)),  # no round is under way
        (EDGE, DEVICE, lambda: activations(10**6)),
        (EDGE, DEVICE, lambda: activations(0, (10**4, 3))),
        (EDGE, DEVICE, lambda: words(gradients=wire.Gradients(client=0))),
        (EDGE, DEVICE, lambda: words(round=wire.Round(round=1))),  # only a parent commands
        (EDGE, DEVICE, lambda: words(held=wire.Held(name=EDGE))),
        (EDGE, DEVICE, lambda: words(mean=wire.Mean())),
        (EDGE, DEVICE, lambda: words(moved_layer=wire.MovedLayer(layer=10**6))),
        (EDGE, DEVICE, lambda: words(done=wire.Done())),
        (EDGE, DEVICE, lambda: words(wanted=wire.Wanted())),
        (FED, DEVICE, lambda: contribution(1, [0])),  # of a tier that it is not in
        (FED, DEVICE, lambda: contribution(0, [4])),  # of a layer that it does not have
        (FED, DEVICE, lambda: contribution(0, [0])),  # without tensors
        (FED, DEVICE, lambda: words(held=wire.Held(name=EDGE))),
        (FED, DEVICE, lambda: words(average=wire.Average(tier=0))),
    ],
)
def test_what_a_peer_may_not_send_is_refused(to: str, source: str, make: Callable[[], Said], network: Network) -> None:
    node = network.nodes[to]
    message, tensors = make()
    message.epoch, message.number = node.member.epoch, node.work._number
    before = {key: value.clone() for key, value in node.work.kept().items()}
    with pytest.raises(WireError):
        node.handle(Heard(source, message, tensors))
    assert all(torch.equal(value, before[key]) for key, value in node.work.kept().items())


def test_the_run_goes_on_after_a_peer_was_refused(network: Network) -> None:
    """Its stream is closed; it dials again, and all go on from where they were."""
    reference = network.task.reference()
    reference.train_round()
    node = network.nodes[EDGE]
    child = node.work.children[0]
    message, tensors = activations(10**6)
    message.epoch, message.number = node.member.epoch, node.work._number
    network._handle(EDGE, Heard(child, message, tensors))
    assert any(f"{EDGE} refused {child}" in text for text in network.happened)
    assert torch.equal(network.machines.train_round(), reference.train_round())  # type: ignore[attr-defined]


def test_chunks_come_in_order_and_once(tmp_path: Path) -> None:
    """Gradients of what was not sent yet, or of what they were sent for before, and activations out of turn."""
    machines, network = connected(Task(1, norm="none", chunks=2), tmp_path, random.Random(0))
    machines.train_round()

    def say(to: str, source: str, said: Said) -> list[Send]:
        node = network.nodes[to]
        message, tensors = said
        message.epoch, message.number = node.member.epoch, node.work._number + message.HasField("round")
        return node.handle(Heard(source, message, tensors))

    parent = network.places.parent(DEVICE)
    (sent,) = say(DEVICE, parent, words(round=wire.Round(round=1)))
    client, (values, targets) = sent.message.activations.client, sent.tensors
    assert sent.message.activations.chunk == 0 and network.nodes[DEVICE].due_s == 0.0

    def gradients(chunk: int) -> Said:
        return wire.Message(gradients=wire.Gradients(client=client, chunk=chunk)), [values]

    with pytest.raises(WireError, match=f"gradients of chunk 2 of client {client + 1}"):
        say(DEVICE, parent, gradients(1))
    assert say(DEVICE, parent, gradients(0)) == []
    with pytest.raises(WireError, match="gradients of chunk 1"):
        say(DEVICE, parent, gradients(0))
    say(parent, network.places.parent(parent), words(round=wire.Round(round=1)))
    for chunk in (1, 2):
        message = wire.Message(activations=wire.Activations(client=client, chunk=chunk))
        with pytest.raises(WireError, match=f"chunk {chunk + 1} of client {client + 1}"):
            say(parent, DEVICE, (message, [values, targets]))
