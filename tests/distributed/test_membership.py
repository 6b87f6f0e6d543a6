"""The state machine of machines, without sockets: whatever comes in whatever order, all end up in the same place."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import (
    Action,
    Begin,
    Choose,
    Connected,
    Damaged,
    Event,
    Gone,
    Heard,
    Load,
    Loaded,
    Member,
    Phase,
    Prepare,
    Run,
    Saved,
    Send,
    Work,
    after,
)

ROOT = "root"


class World:
    """Members of a tree, the streams between them, and what each has saved. Every machine but the root may crash."""

    def __init__(self, parents: dict[str, str], chance: random.Random) -> None:
        self.parents, self.chance = parents, chance
        self.uplinks = {n: (p,) if n == "fed" else (p, "fed") for n, p in parents.items()}
        self.children = {n: tuple(c for c, p in parents.items() if p == n) for n in (ROOT, *parents)}
        self.members: dict[str, Member] = {ROOT: Member(self.children[ROOT], ())}
        self.queues: dict[tuple[str, str], deque[Event]] = {}
        self.saved = {name: {ROOT: frozenset(range(9))}.get(name, frozenset()) for name in (ROOT, *parents)}
        self.loaded: dict[str, int] = {}
        self.sent: list[tuple[tuple[str, str], wire.Message]] = []
        self.runs: list[tuple[int, int]] = []
        """Epoch and position of every beginning."""

    def happen(self, name: str, event: Event) -> None:
        member, actions = after(self.members[name], event, "session")
        assert member.epoch >= self.members[name].epoch
        self.members[name] = member
        for action in actions:
            self.do(name, action)

    def do(self, name: str, action: object) -> None:
        member = self.members[name]
        match action:
            case Send(to, message):
                self.sent.append(((name, to), message))
                if (name, to) in self.queues:
                    self.queues[name, to].append(Heard(name, message))
            case Prepare():
                self.loaded.pop(name, None)
                self.happen(name, Saved(self.saved[name]))
            case Load(restore):
                if name != ROOT and restore.position:
                    assert restore.position in self.saved[name]
                    if self.chance.random() < 0.05:  # the disk has lost it
                        self.saved[name] -= {restore.position}
                        self.happen(name, Damaged())
                        return
                self.loaded[name] = restore.position
                self.happen(name, Loaded())
            case Choose(held):
                assert all(held <= self.saved[other] for other in self.parents)
                self.happen(name, Begin(wire.Restore(position=max(held, default=0))))
            case Run():
                # All are where the root is, and nobody is anywhere else in this epoch.
                position = self.loaded[ROOT]
                for other in self.parents:
                    assert self.members[other].epoch >= member.epoch
                    if self.members[other].epoch == member.epoch and self.members[other].phase is Phase.RUNNING:
                        assert self.loaded[other] == position
                self.runs.append((member.epoch, position))
                for child in self.children[ROOT]:
                    self.do(ROOT, Send(child, wire.Message(epoch=member.epoch, round=wire.Round())))
            case Work(Heard(_, message)):
                assert member.phase is Phase.RUNNING
                assert message.epoch == member.epoch
                assert (member.epoch, self.loaded[name]) in self.runs
                if message.HasField("round"):
                    self.saved[name] |= {self.chance.randrange(1, 9)}
                    for child in self.children[name]:
                        self.do(name, Send(child, message))

    def mend(self) -> None:
        for name in self.parents:
            self.members.setdefault(name, Member(self.children[name], self.uplinks[name]))
        for name in self.parents:
            for uplink in self.uplinks[name]:
                if (name, uplink) not in self.queues:
                    self.queues[name, uplink], self.queues[uplink, name] = deque(), deque()
                    self.happen(name, Connected(uplink))

    def disconnect(self, one: str, other: str) -> None:
        for pair in ((one, other), (other, one)):
            self.queues.pop(pair, None)
        for name, gone in ((one, other), (other, one)):
            if name in self.members:
                self.happen(name, Gone(gone))

    def fault(self) -> None:
        kind = self.chance.choice(("crash", "break", "again", "twice"))
        pairs = sorted(self.queues)
        if kind == "crash" and (alive := sorted(set(self.members) - {ROOT})):
            name = self.chance.choice(alive)
            del self.members[name]
            self.loaded.pop(name, None)
            for other in {b for a, b in pairs if a == name}:
                self.disconnect(name, other)
        elif kind == "break" and pairs:
            self.disconnect(*self.chance.choice(pairs))
        elif kind == "again" and self.sent:
            pair, message = self.chance.choice(self.sent)
            if message.epoch and pair in self.queues:
                self.queues[pair].append(Heard(pair[0], message))
        elif kind == "twice" and (full := [pair for pair in pairs if self.queues[pair]]):
            queue = self.queues[self.chance.choice(full)]
            queue.appendleft(queue[0])

    def step(self) -> bool:
        """Let one message arrive; False where there is none."""
        pairs = sorted(pair for pair, queue in self.queues.items() if queue)
        if not pairs:
            return False
        sender, receiver = self.chance.choice(pairs)
        self.happen(receiver, self.queues[sender, receiver].popleft())
        return True


TREES = [
    {"fed": ROOT, "cloud": ROOT, "a": "cloud", "b": "cloud"},
    {"fed": ROOT, "cloud": ROOT, "e": "cloud", "f": "cloud", "a": "e", "b": "e", "c": "f"},
    {"fed": ROOT, "x": ROOT, "y": ROOT, "a": "x", "b": "y", "c": "y"},
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chance=st.randoms(use_true_random=False),
    tree=st.sampled_from(TREES),
    steps=st.lists(st.sampled_from(("step", "step", "step", "step", "mend", "fault")), max_size=150),
)
def test_all_end_up_running_in_one_epoch_from_one_position(
    chance: random.Random, tree: dict[str, str], steps: list[str]
) -> None:
    world = World(tree, chance)
    for what in ("mend", *steps):
        getattr(world, what)()
    for _ in range(10_000):
        world.mend()
        if not world.step():
            break
    epochs = {member.epoch for member in world.members.values()}
    assert {member.phase for member in world.members.values()} == {Phase.RUNNING}
    assert len(epochs) == 1
    assert len(set(world.loaded.values())) == 1
    assert [epoch for epoch, _ in world.runs] == sorted({epoch for epoch, _ in world.runs})  # each begins once


@pytest.mark.parametrize("kind", ["prepare", "restore", "round"])
def test_an_epoch_that_was_seen_is_not_taken_again(kind: str) -> None:
    """Not even from the parent: what comes again was sent before a restart."""
    member = Member((), ("parent",), phase=Phase.RUNNING, epoch=5, connected=frozenset({"parent"}), told=True)
    for epoch in (1, 4, *(() if kind == "round" else (5,))):
        message = wire.Message(epoch=epoch)
        getattr(message, kind).SetInParent()
        assert after(member, Heard("parent", message)) == (member, [])


def test_who_is_not_a_parent_begins_no_epoch() -> None:
    member = Member(
        ("child",), ("parent", "fed"), connected=frozenset({"parent", "fed"}), complete={"child": 0}, told=True
    )
    for name in ("child", "fed", "stranger"):
        message = wire.Message(epoch=9, prepare=wire.Prepare(session="s"))
        assert after(member, Heard(name, message)) == (member, [])


def test_who_is_missing_is_said_by_name() -> None:
    """From below up to the root, as often as it changes."""

    def told(actions: list[Action]) -> list[list[str]]:
        return [list(one.message.lost.names) for one in actions if isinstance(one, Send)]

    server = Member(("gateway-1",), ("coordinator", "fed"))
    server, actions = after(server, Connected("coordinator"))
    assert told(actions) == [["fed", "gateway-1"]]
    server, actions = after(server, Connected("fed"))
    assert told(actions) == [["gateway-1"]]
    below = Heard("gateway-1", wire.Message(lost=wire.Lost(names=["sensor-2"])))
    server, actions = after(server, below)
    assert told(actions) == [["sensor-2"]]
    assert after(server, below)[1] == []
    root, _ = after(Member(("server-1",), ()), Heard("server-1", wire.Message(lost=wire.Lost(names=["sensor-2"]))))
    assert root.missing == ["sensor-2"]
