"""Machines in one process: streams are queues, and whatever can happen to a stream or a machine can happen here."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hsfl.data import Dataset, Feed, Sampler
from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.coordinator import Coordinator
from hsfl.distributed.entity_work import EntityWork
from hsfl.distributed.fed_work import FedWork
from hsfl.distributed.machines import Machines
from hsfl.distributed.membership import Connected, Event, Gone, Heard, Send
from hsfl.distributed.node import Node
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.shapes import Crossing
from hsfl.distributed.tensors import Packed, WireError
from hsfl.engine.reference import ReferenceBackend
from hsfl.problem.topology import Topology
from tests.engine.test_backends import BATCH, CLASSES, OPTIMIZERS, RandomTree, layers


def feed(clients: int) -> Feed:
    """Images of numbers and their classes, some for every client."""
    rng = np.random.default_rng(3)
    inputs = torch.from_numpy(rng.normal(size=(12 * clients, 2, 6, 6))).float()
    targets = torch.from_numpy(rng.integers(0, CLASSES, 12 * clients))
    parts = np.array_split(rng.permutation(12 * clients), clients)
    data = Dataset("numbers", (inputs, targets), (inputs, targets), None, None)
    return Feed(data, Sampler(parts, BATCH, 1, ()), torch.device("cpu"))


class Task:
    """A random tree, and backends for it that are made alike."""

    def __init__(
        self,
        seed: int,
        optimizer: str = "momentum",
        norm: str = "batch",
        dropout: float = 0.3,
        settings: Mapping[str, Any] | None = None,
        *,
        weighted: bool = False,
        **options: Any,
    ) -> None:
        """`weighted`: clients count differently."""
        self.tree = RandomTree(seed)
        if weighted:
            options["weights"] = [1 + n**2 for n in range(self.tree.clients)]
        self.cuts, self.seed = self.tree.cuts(), seed
        self._made = lambda kind: kind(
            [layer.float() for layer in layers(norm, dropout)],
            self.tree.hosts,
            self.cuts,
            OPTIMIZERS[optimizer] | dict(settings or {}),
            data=feed(self.tree.clients),
            seed=seed,
            **options,
        )

    def reference(self) -> ReferenceBackend:
        return self._made(ReferenceBackend)

    def machines(self) -> Machines:
        return self._made(Machines)

    def places(self) -> Places:
        return Places(Topology.from_hosts(self.tree.hosts), [f"tier{m}" for m in range(self.tree.tiers)])


class Network:
    """All machines but the coordinator, whose transport this is.

    `chance` is asked what happens next; with `faults` left, machines crash and streams break at any message.
    """

    def __init__(self, task: Task, folder: Path, chance: random.Random, faults: int = 0) -> None:
        self.task, self.folder, self.chance, self.faults = task, folder, chance, faults
        self.places = task.places()
        self.nodes: dict[str, Node] = {}
        self.queues: dict[tuple[str, str], deque[Event]] = {}
        """What is on its way, by sender and receiver; a stream is there while both directions are."""
        self.old: list[Heard] = []
        """Messages that were lost; they may come again."""
        self.ends: list[Event] = []
        """Streams of the coordinator that are over."""
        self.happened: list[str] = []
        self.asleep: dict[str, int] = {}
        """Machines that take no message, and for how many messages of others."""
        self.lateness = 0.0
        """How likely a deadline passes at any message, where a round has one."""

    # --- the coordinator's transport ---

    def send(self, name: str, message: wire.Message, tensors: Sequence[Packed] = ()) -> None:
        self._put(Send(name, message, tensors), COORDINATOR)

    def refuse(self, name: str, reason: str) -> None:
        self.happened.append(f"refused {name}: {reason}")
        self._break(COORDINATOR, name)

    def receive(self, timeout_s: float) -> Event | None:
        for _ in range(1_000_000):
            if self.faults and self.chance.random() < 0.01:
                self.faults -= 1
                self._fault()
            if self.lateness and self.chance.random() < self.lateness:
                self._overdue()
            if self.ends:
                return self.ends.pop(0)
            ahead = [name for name, node in self.nodes.items() if node.due_s == 0.0]
            if ahead and self.chance.random() < 0.5:
                self._next(self.chance.choice(ahead))
                continue
            pairs = [pair for pair, queue in self.queues.items() if queue and not self.asleep.get(pair[1])]
            self.asleep = {name: left - 1 for name, left in self.asleep.items() if left > 1}
            if not pairs and not ahead:
                self._overdue()
            if not pairs or self.chance.random() < 0.02:
                self._mend()
                continue
            sender, receiver = self.chance.choice(pairs)
            event = self.queues[sender, receiver].popleft()
            if receiver == COORDINATOR:
                return event
            self._handle(receiver, event)
        raise AssertionError("nothing comes of it")

    # --- machines ---

    def _handle(self, name: str, event: Event) -> None:
        try:
            sent = [*self.nodes[name].handle(event), *self.nodes[name].work.impatience()]
        except WireError as error:
            self.happened.append(f"{name} refused {event.name}: {error}")
            self._break(name, event.name)
            self._gone(event.name, name)
            sent = self.nodes[name].handle(Gone(event.name))
        for one in sent:
            self._put(one, name)

    def _overdue(self) -> None:
        """Deadlines pass."""
        for name, node in self.nodes.items():
            if node.due_s:
                self.happened.append(f"{name} waits no longer")
                for one in node.overdue():
                    self._put(one, name)

    def _next(self, name: str) -> None:
        """A machine does what it has to do at once."""
        self.happened.append(f"{name} works ahead")
        for one in self.nodes[name].overdue():
            self._put(one, name)

    def _put(self, sent: Send, sender: str) -> None:
        """What arrives has memory of its own."""
        message = wire.Message.FromString(sent.message.SerializeToString())
        heard = Heard(sender, message, [Packed(about, memoryview(bytearray(data))) for about, data in sent.tensors])
        if (sender, sent.name) in self.queues:
            self.queues[sender, sent.name].append(heard)
        else:
            self.old.append(heard)

    def _mend(self) -> None:
        """Start what is not there, dial who is not dialled."""
        for name in self.places.nodes:
            if name not in self.nodes:
                self.nodes[name] = self._start(name)
            for uplink in self.places.uplinks(name):
                if (name, uplink) not in self.queues and (uplink == COORDINATOR or uplink in self.nodes):
                    self.queues[name, uplink] = deque()
                    self.queues[uplink, name] = deque([Connected(uplink)])

    def _start(self, name: str) -> Node:
        parts, saves = self.task.machines(), Saves(self.folder / name)
        if name == FED:
            return Node(FedWork(parts, self.places, saves), self.happened.append)
        return Node(EntityWork(parts, self.places, name, saves, Crossing(parts)), self.happened.append)

    def _fault(self) -> None:
        """A machine crashes, a stream breaks, or something old comes again."""
        kind = self.chance.choice(("crash", "break", "again"))
        if kind == "crash" and self.nodes:
            self.crash(self.chance.choice(sorted(self.nodes)))
        elif kind == "break" and self.queues:
            one, other = self.chance.choice(sorted(self.queues))
            self.happened.append(f"{one} and {other} lost each other")
            self._break(one, other)
            self._gone(one, other)
            self._gone(other, one)
        elif kind == "again" and self.old:
            heard = self.chance.choice(self.old)
            for (a, _), queue in self.queues.items():
                if a == heard.name and heard.message.epoch:
                    queue.append(heard)

    def crash(self, name: str) -> None:
        self.happened.append(f"{name} crashed")
        del self.nodes[name]
        for other in sorted({b for a, b in self.queues if a == name}):
            self._break(name, other)
            self._gone(other, name)

    def _break(self, one: str, other: str) -> None:
        for pair in ((one, other), (other, one)):
            for event in self.queues.pop(pair, ()):
                if isinstance(event, Heard):
                    self.old.append(event)

    def _gone(self, name: str, whom: str) -> None:
        if name == COORDINATOR:
            self.ends.append(Gone(whom))
        elif name in self.nodes:
            self._handle(name, Gone(whom))


def connected(
    task: Task, folder: Path, chance: random.Random, faults: int = 0, notify: Callable[[str], None] = lambda text: None
) -> tuple[Machines, Network]:
    network = Network(task, folder, chance, faults)
    machines = task.machines()
    machines.connect(Coordinator(network, network.places, notify))
    return machines, network
