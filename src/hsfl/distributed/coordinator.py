"""The coordinator: commands all machines, and after every loss brings them back to where they were.

Whatever is lost, the run goes on from the last position that all machines have saved: the commands since then are
given again. They have the same effect each time, because what a client draws follows from seed, client and round.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from hsfl import errors
from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import (
    Action,
    Begin,
    Choose,
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
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.tensors import Named, Packed
from hsfl.distributed.work import PATIENCE_S
from hsfl.engine.sharding import LostProcessError
from hsfl.errors import HsflError

T = TypeVar("T")
Answer = tuple[wire.Done, dict[str, Named]]
"""The answer to a command once all machines were done, and the states that came with it, by name."""


class Transport(Protocol):
    """Streams to the coordinator's children."""

    def send(self, name: str, message: wire.Message, tensors: Sequence[Packed] = ()) -> None: ...
    def receive(self, timeout_s: float) -> Event | None: ...
    def refuse(self, name: str, reason: str) -> None:
        """End the stream of a child that sent what it may not."""


class Mark(NamedTuple):
    """Where the run stands at a position."""

    round: int
    cuts: tuple[int, ...]
    seed: int
    codes: tuple[tuple[str, str, str], ...]
    """The codes of every tier's links: up, down and average."""

    def restore(self, position: int) -> wire.Restore:
        codes = [wire.Codes(up=up, down=down, average=average) for up, down, average in self.codes]
        return wire.Restore(position=position, round=self.round, cuts=self.cuts, seed=self.seed, codes=codes)


class _LostSomeoneError(Exception):
    """The command cannot be finished in this epoch."""


class Coordinator:
    """Gives commands one after the other. A position counts those that changed weights or codes."""

    def __init__(self, transport: Transport, places: Places, notify: Callable[[str], None]) -> None:
        """`notify` hears who is waited for."""
        self.places = places
        self._transport, self._notify = transport, notify
        self._member = Member(places.children(COORDINATOR), ())
        self._work: list[Heard] = []
        self._number = 0
        self.leaving = False
        """Whether nobody who is not there is waited for any more."""
        self._longest_s: dict[str, float] = {}
        """How long commands took at most, by kind."""

    def start(self, mark: Mark, states: Mapping[str, Named]) -> None:
        """Begin a session: all that follows counts from the initial weights or, where given, from these states."""
        self._session = secrets.token_hex(8)
        self._at = self._base = 0
        self._keep(mark, states)
        self._given = False
        self._member = replace(self._member, phase=Phase.WAITING)  # a new epoch, in which all begin there
        self._see(Saved(frozenset()))

    def keep(self, mark: Mark, states: Mapping[str, Named]) -> None:
        """Keep the states of all machines as they are now: all go on from here if one has lost what it saved itself."""
        self._base = self._at
        self._keep(mark, states)

    def _keep(self, mark: Mark, states: Mapping[str, Named]) -> None:
        self._states, self._given = states, True
        """The states at the base position, and whether machines have them in this epoch."""
        self._journal: list[dict[str, Any]] = []
        """The commands that changed weights or codes since."""
        self._marks = {self._base: mark}
        """The base position, and later ones that machines were told to save."""

    @property
    def _position(self) -> int:
        """The position after all commands; `_at` is where the machines are."""
        return self._base + len(self._journal)

    def change(self, settled: Callable[[wire.Done], dict[str, Any]] | None = None, **body: Any) -> Answer:
        """Give a command that changes weights or codes; `settled` makes one of it that says what machines decided."""
        found = self.do(**body)
        self._journal.append(body if settled is None else settled(found[0]))
        self._at = self._position
        return found

    def save(self, mark: Mark) -> None:
        """Let all machines save their own state; they keep that of the last two times."""
        position = self._position
        self.do(save=wire.Save(position=position))
        if position > self._base:
            recent = [*sorted(self._marks)[1:], position][-2:]
            marks = {**self._marks, position: mark}
            self._marks = {at: marks[at] for at in (self._base, *recent)}

    def do(self, **body: Any) -> Answer:
        """Give a command, again after every loss, until all machines are done."""
        return self.together(lambda ask: ask(**body))

    def together(self, commands: Callable[[Callable[..., Answer]], T]) -> T:
        """Give commands that change no weights and belong together: after a loss all are given again."""
        while True:
            try:
                self._gather()
                return commands(self._ask)
            except _LostSomeoneError:
                continue

    def stop(self) -> None:
        """Tell all machines that the run is over."""
        for child in self._member.children:
            self._transport.send(child, wire.Message(epoch=self._member.epoch, stop=wire.Stop()))

    def waited_for(self) -> list[str]:
        """Machines that are not there, as far as is known."""
        return sorted(self._member.missing)

    def _gather(self) -> None:
        """Wait until all machines are there, at the last position."""
        since = time.monotonic()
        while self._member.phase is not Phase.RUNNING:
            self._pump()
            self._leave(self.waited_for())
            if time.monotonic() - since > PATIENCE_S:
                since = time.monotonic()
                self._notify(f"waiting for {', '.join(self.waited_for()[:8]) or 'machines to get ready'}")
        if self._at == self._base and self._states and not self._given:
            self._ask(also=self._states, install=wire.Install())
            self._given = True
        while self._at < self._position:
            self._ask(**self._journal[self._at - self._base])
            self._at += 1

    def _ask(self, also: Mapping[str, Named] | None = None, **body: Any) -> Answer:
        """Give a command in this epoch; `also` are states that are sent to the fed server."""
        self._number += 1
        epoch, awaited = self._member.epoch, set(self._member.children)
        for child in awaited:
            self._transport.send(child, wire.Message(epoch=epoch, number=self._number, **body))
        for name, (names, tensors) in (also or {}).items():
            held = wire.Held(name=name, names=names)
            self._transport.send(FED, wire.Message(epoch=epoch, number=self._number, held=held), tensors)
        done = wire.Done()
        states: dict[str, Named] = {}
        waits: dict[str, Sequence[str]] = {}
        kind, began_s = next(iter(body)), time.monotonic()
        patience_s = max(PATIENCE_S, 2 * self._longest_s.get(kind, 0.0))
        while awaited:
            self._pump()
            if (waited_s := time.monotonic() - began_s) > patience_s:
                patience_s = waited_s + PATIENCE_S
                names = list(dict.fromkeys(name for child in sorted(awaited) for name in waits.get(child) or (child,)))
                self._leave(names)
                which = f"round {body[kind].round + 1}" if kind == "round" else f"a command ({kind})"
                self._notify(f"waiting for {', '.join(names[:8])} to do {which}")
            if self._member.epoch != epoch or self._member.phase is not Phase.RUNNING:
                raise _LostSomeoneError
            work, self._work = self._work, []
            for name, message, tensors in ((one.name, one.message, one.tensors) for one in work):
                if message.HasField("failed"):
                    raise _error(message.failed)
                if message.number != self._number:
                    continue
                if message.HasField("waiting"):
                    waits[name] = message.waiting.names
                elif message.HasField("done"):
                    awaited.discard(name)
                    done.MergeFrom(message.done)
                elif message.HasField("held") and name == FED:
                    states[message.held.name] = message.held.names, tensors
                else:
                    self._transport.refuse(name, f"{message.WhichOneof('body')}, which nobody asked for")
                    self._see(Gone(name))
        self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), time.monotonic() - began_s)
        return done, states

    def _leave(self, waited_for: Sequence[str]) -> None:
        if self.leaving:
            raise LostProcessError(f"stopped while waiting for {', '.join(waited_for[:8]) or 'machines to get ready'}")

    def _pump(self) -> None:
        """Wait a moment for something to happen."""
        if (event := self._transport.receive(1.0)) is not None:
            self._see(event)

    def _see(self, event: Event) -> None:
        self._member, actions = after(self._member, event, self._session)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Send(name, message, tensors):
                self._transport.send(name, message, tensors)
            case Prepare():
                self._work = []
                self._see(Saved(frozenset(self._marks)))
            case Choose(held):
                self._at, self._given = max(held, default=self._base), False
                own = self._at > self._base
                self._see(Begin(self._marks[self._at].restore(self._at if own else 0)))
            case Load():
                self._see(Loaded())
            case Work(heard):
                self._work.append(heard)
            case Run():
                pass


def _error(failed: wire.Failed) -> HsflError:
    """What went wrong at a machine, as it would have been raised here."""
    kind = getattr(errors, failed.error, HsflError)
    if not (isinstance(kind, type) and issubclass(kind, HsflError)) or kind is errors.MissingExtraError:
        kind = HsflError
    return kind(f"{failed.name}: {failed.text}")
