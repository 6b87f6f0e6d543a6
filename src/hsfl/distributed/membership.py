"""Who is there, and from where all go on together: a pure function of what happens at one machine.

    WAITING   somebody at or below this machine is missing
    PREPARED  Prepare(e) has come: everything older is dropped; Ready goes up once all below are ready
    RUNNING   all below have restored the same position; commands follow

A machine tells its parent when it and all below it are there (Complete) and when they no longer are (Lost). The
coordinator, which is the root, begins a new epoch whenever all are there; an epoch is greater than any that anybody
has seen, so that what was sent in an older one can do no harm. Nothing but membership is spoken in an epoch before the
root has heard that all have restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.tensors import Packed


class Phase(Enum):
    WAITING = "waiting"
    PREPARED = "prepared"
    RUNNING = "running"


@dataclass(frozen=True)
class Member:
    """What one machine knows. `uplinks` begin with the parent; the root has none."""

    children: tuple[str, ...]
    uplinks: tuple[str, ...]
    phase: Phase = Phase.WAITING
    epoch: int = 0
    """The greatest epoch seen."""
    connected: frozenset[str] = frozenset()
    """The uplinks to which there is a stream."""
    complete: Mapping[str, int] = field(default_factory=dict)
    """Children that are there with all below them, and the greatest epoch seen there."""
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Machines that children miss, as far as they said so."""
    told: bool = False
    """Whether the parent was told that all machines are there."""
    said: tuple[str, ...] = ()
    """The machines that the parent was told are missing, if it was not told that all are there."""
    ready: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Children that are ready in this epoch, and the positions that they can restore."""
    restoring: bool = False
    loaded: bool = False
    """Whether this machine has restored its own state."""
    restored: frozenset[str] = frozenset()
    """Children that have restored their own states."""

    @property
    def root(self) -> bool:
        return not self.uplinks

    @property
    def all_there(self) -> bool:
        return self.connected >= set(self.uplinks) and self.complete.keys() >= set(self.children)

    @property
    def missing(self) -> list[str]:
        """Those that this machine waits for, as far as it can see."""
        found = [name for name in self.uplinks if name not in self.connected]
        for child in self.children:
            if child not in self.complete:
                found += self.absent.get(child) or (child,)
        return list(dict.fromkeys(found))


# What happens.


@dataclass(frozen=True)
class Connected:
    """The stream to an uplink is open."""

    uplink: str


@dataclass(frozen=True)
class Gone:
    """A stream, to an uplink or from a child, is over."""

    name: str


@dataclass(frozen=True)
class Heard:
    """A message came from an uplink or a child."""

    name: str
    message: wire.Message
    tensors: Sequence[Packed] = ()
    at_s: float = field(default=0.0, compare=False)
    """When the message came."""
    way_s: float = field(default=0.0, compare=False)
    """How long the message was on its way."""


@dataclass(frozen=True)
class Saved:
    """Everything that this machine can restore is here: asked for when it gets ready."""

    held: frozenset[int]


@dataclass(frozen=True)
class Loaded:
    """This machine has restored its own state."""


@dataclass(frozen=True)
class Damaged:
    """This machine cannot restore what it thought it held."""


@dataclass(frozen=True)
class Begin:
    """At the root: all are to restore this."""

    restore: wire.Restore


Event = Connected | Gone | Heard | Saved | Loaded | Damaged | Begin


# What is to be done.


@dataclass(frozen=True)
class Send:
    name: str
    message: wire.Message
    tensors: Sequence[Packed] = ()


@dataclass(frozen=True)
class Prepare:
    """Drop all work; answer with Saved."""

    session: str


@dataclass(frozen=True)
class Load:
    """Restore this; answer with Loaded."""

    restore: wire.Restore


@dataclass(frozen=True)
class Choose:
    """At the root: all are ready; answer with Begin, for one of the positions that all hold, or 0."""

    held: frozenset[int]


@dataclass(frozen=True)
class Run:
    """At the root: all have restored."""


@dataclass(frozen=True)
class Work:
    """A message of this epoch, which is no matter of membership."""

    heard: Heard


Action = Send | Prepare | Load | Choose | Run | Work
Step = tuple[Member, list[Action]]


def after(member: Member, event: Event, session: str = "") -> Step:
    """What a machine knows and does after something has happened; `session` is the root's."""
    actions: list[Action] = []
    match event:
        case Connected(uplink):
            member = replace(member, connected=member.connected | {uplink})
        case Gone(name) if name in member.uplinks:
            member = replace(member, connected=member.connected - {name})
            if name == member.uplinks[0]:  # a lost parent knows nothing any more
                member = replace(member, told=False, said=())
        case Gone(name):
            member = replace(member, complete=_without(member.complete, name), absent=_without(member.absent, name))
        case Heard():
            member, actions = _heard(member, event)
        case Saved(held):
            if member.phase is Phase.PREPARED and not member.ready.keys() - set(member.children):
                member = replace(member, ready={**member.ready, _SELF: held})
                actions = _if_ready(member)
        case Loaded():
            member = replace(member, loaded=member.restoring)
            member, actions = _if_restored(member)
        case Damaged():  # all have to get ready anew
            member = replace(member, phase=Phase.WAITING, restoring=False, told=False)
            actions = [Send(member.uplinks[0], wire.Message(lost=wire.Lost()))]
        case Begin(restore):
            if member.phase is Phase.PREPARED:
                member, actions = _restore(member, restore)
    return _settled(member, actions, session)


_SELF = ""
T = TypeVar("T")


def _heard(member: Member, heard: Heard) -> Step:
    name, message = heard.name, heard.message
    kind, epoch = message.WhichOneof("body"), message.epoch
    from_parent = bool(member.uplinks) and name == member.uplinks[0]
    if kind == "complete" and name in member.children:
        return replace(member, complete={**member.complete, name: message.complete.seen}), []
    if kind == "lost" and name in member.children:
        absent = {**member.absent, name: tuple(message.lost.names)}
        return replace(member, complete=_without(member.complete, name), absent=absent), []
    if kind == "prepare" and from_parent and epoch > member.epoch:
        member = replace(member, epoch=epoch)
        return _prepared(member, message.prepare.session) if member.all_there else (member, [])
    if epoch != member.epoch:
        return member, []
    if kind == "stop":  # whoever is missing: nobody is waited for any more
        return member, [Work(heard)] if from_parent else []
    if kind == "ready" and name in member.children and member.phase is Phase.PREPARED and name not in member.ready:
        member = replace(member, ready={**member.ready, name: frozenset(message.ready.held)})
        return member, _if_ready(member)
    if kind == "restore" and from_parent and member.phase is Phase.PREPARED:
        return _restore(member, message.restore)
    if kind == "restored" and name in member.children and member.restoring:
        return _if_restored(replace(member, restored=member.restored | {name}))
    if kind in _MEMBERSHIP or member.phase is not Phase.RUNNING:
        return member, []
    return member, [Work(heard)]


_MEMBERSHIP = ("hello", "welcome", "refused", "complete", "lost", "prepare", "ready", "restore", "restored", None)


def _settled(member: Member, actions: list[Action], session: str) -> Step:
    """Tell the parent what has changed; at the root, begin an epoch when all are there."""
    if not member.all_there and member.phase is not Phase.WAITING:
        member = replace(member, phase=Phase.WAITING, restoring=False)
    if member.root:
        if member.all_there and member.phase is Phase.WAITING:
            epoch = max([member.epoch, *member.complete.values()]) + 1
            member, more = _prepared(replace(member, epoch=epoch), session)
            actions = [*actions, *more]
        return member, actions
    parent, missing = member.uplinks[0], tuple(member.missing)
    if member.all_there and not member.told:
        member = replace(member, told=True, said=())
        seen = max([member.epoch, *member.complete.values()])
        actions = [*actions, Send(parent, wire.Message(complete=wire.Complete(seen=seen)))]
    elif not member.all_there and parent in member.connected and (member.told or missing != member.said):
        member = replace(member, told=False, said=missing)
        actions = [*actions, Send(parent, wire.Message(lost=wire.Lost(names=missing)))]
    return member, actions


def _prepared(member: Member, session: str) -> Step:
    member = replace(member, phase=Phase.PREPARED, ready={}, restoring=False, loaded=False, restored=frozenset())
    message = wire.Message(epoch=member.epoch, prepare=wire.Prepare(session=session))
    return member, [*(Send(child, message) for child in member.children), Prepare(session)]


def _if_ready(member: Member) -> list[Action]:
    if not member.ready.keys() >= {*member.children, _SELF}:
        return []
    held = frozenset.intersection(*member.ready.values())
    if member.root:
        return [Choose(held)]
    return [Send(member.uplinks[0], wire.Message(epoch=member.epoch, ready=wire.Ready(held=sorted(held))))]


def _restore(member: Member, restore: wire.Restore) -> Step:
    if member.restoring or not member.ready.keys() >= {*member.children, _SELF}:
        return member, []
    message = wire.Message(epoch=member.epoch, restore=restore)
    below: list[Action] = [Send(child, message) for child in member.children]
    return replace(member, restoring=True), [*below, Load(restore)]


def _if_restored(member: Member) -> Step:
    done = member.restoring and member.loaded and member.restored >= set(member.children)
    if not done or member.phase is not Phase.PREPARED:
        return member, []
    member = replace(member, phase=Phase.RUNNING, restoring=False)
    if member.root:
        return member, [Run()]
    return member, [Send(member.uplinks[0], wire.Message(epoch=member.epoch, restored=wire.Restored()))]


def _without(known: Mapping[str, T], name: str) -> dict[str, T]:
    return {child: value for child, value in known.items() if child != name}
