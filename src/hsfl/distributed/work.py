"""What a machine does when commanded, apart from sockets: messages in, messages out.

A command goes down the tree. Each machine does its part and says Done once all below it have: then the next may come.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Heard, Send
from hsfl.distributed.places import Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.tensors import Packed, WireError, check_count, pack, unpacked
from hsfl.engine.averaging import Tensors
from hsfl.engine.entities import EntityBackend
from hsfl.engine.links import Codec
from hsfl.errors import HsflError

#: Seconds of waiting for machines before it is said, and said again.
PATIENCE_S = 5.0
#: Commands that belong to a measurement.
PROBE = ("probe", "probe_pass", "probe_means")
COMMANDS = ("round", "average", "move", "recode", "save", "collect", "install", *PROBE)


class Work(ABC):
    """A machine's part in commands."""

    def __init__(self, parts: EntityBackend, places: Places, name: str, saves: Saves) -> None:
        """`parts` says what entities are made of; it is this machine's own, and follows cuts, round and seed."""
        self.bps: Callable[[], Mapping[str, float]] = dict
        """How fast peers are heard: whoever has streams knows."""
        self.parts, self.places, self.name, self.saves = parts, places, name, saves
        self.children, self.parent = places.children(name), places.parent(name)
        self._epoch = self._number = 0
        """The epoch and the number of the last command."""
        self._busy = self._told = True
        """Whether its own part of it is still to be done, and whether the parent was told that all is done."""
        self._awaited: set[str] = set()
        """Children that are not done."""
        self._done = wire.Done()
        self._began_s = 0.0
        self._waits: dict[str, tuple[str, ...]] = {}
        """Whom children are waiting for, as far as they said so."""
        self._said: list[str] = []
        """Whom the parent was told that this machine is waiting for."""
        self._early: list[Heard] = []
        """What came by another stream before the command that it belongs to."""
        self._at_s = self._way_s = 0.0
        """When the message came that is being taken, and how long it was on its way."""

    def drop(self) -> None:
        """Forget the command under way."""
        self._number, self._told, self._awaited, self._early = 0, True, set(), []

    def load(self, restore: wire.Restore) -> None:
        """Go on from a position; OSError or ValueError if what was saved cannot be read."""
        self.drop()
        self.parts.cuts, self.parts.seed = tuple(restore.cuts), restore.seed
        self.parts._resume(restore.round, restore.seed)
        self._use(restore.codes)
        self._make()
        if restore.position:
            self._fill(self.saves.read(restore.position))

    @torch.no_grad()
    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        own = self.kept()
        if tensors.keys() != own.keys() or any(tensors[key].shape != value.shape for key, value in own.items()):
            raise ValueError("not of this machine")
        for key, value in own.items():
            value.copy_(tensors[key])

    @abstractmethod
    def _make(self) -> None:
        """Make what this machine holds anew, as it is in the beginning."""

    @abstractmethod
    def kept(self) -> dict[str, torch.Tensor]:
        """All that the machine holds, by the keys of files of backends: tensors that can be written to."""

    def take(self, heard: Heard) -> list[Send]:
        """What to send in answer to a message of a command; WireError if that peer may not send it."""
        source, message = heard.name, heard.message
        kind = message.WhichOneof("body")
        self._at_s, self._way_s = heard.at_s or time.monotonic(), heard.way_s
        if kind in COMMANDS and source == self.parent:
            return self._command(kind, message)
        if kind == "failed" and source in self.children:
            return [Send(self.parent, message)]
        if message.number > self._number and len(self._early) < 2 * len(self.places.entities):
            self._early.append(heard)
            return []
        if message.number != self._number:
            raise WireError(f"{kind} of another command")
        if kind == "waiting" and source in self.children:
            self._waits[source] = tuple(message.waiting.names)
            return []
        if kind == "done" and source in self._awaited:
            self._awaited.remove(source)
            self._done.MergeFrom(message.done)
            return self._ended()
        handler: Callable[[str, Any, Sequence[Packed]], list[Send]] | None = getattr(self, f"_take_{kind}", None)
        if handler is None:
            raise WireError(f"{kind}, which {self.name} does not expect from it")
        return [*handler(source, getattr(message, str(kind)), heard.tensors), *self._ended()]

    def _command(self, kind: str, message: wire.Message) -> list[Send]:
        self._epoch, self._number = message.epoch, message.number
        below = self._receivers(message)
        self._busy, self._told, self._awaited, self._done = True, False, set(below), wire.Done()
        self._began_s, self._waits, self._said = time.monotonic(), {}, []
        sent = [Send(child, message) for child in below]
        sent += [*self._begin(kind, getattr(message, kind)), *self._ended()]
        early, self._early = self._early, []
        for one in early:
            sent += self.take(one)
        return sent

    def _receivers(self, command: wire.Message) -> tuple[str, ...]:
        """The children that a command is passed on to now."""
        return self.children

    def waited_for(self) -> list[str]:
        """The machines that this one waits for."""
        return sorted(self._awaited)

    def impatience(self) -> list[Send]:
        """What to tell the parent of whom this machine has been waiting for."""
        if self._told or time.monotonic() - self._began_s < PATIENCE_S / 2:  # before the coordinator says it
            return []
        names = [name for child in self.waited_for() for name in self._waits.get(child) or (child,)]
        if not names or names == self._said:
            return []
        self._said = names
        return [Send(self.parent, self._message(waiting=wire.Waiting(names=names)))]

    @property
    def due_s(self) -> float | None:
        """When `overdue` is to be called, by the clock of this machine; 0 where there is more to do at once."""
        return None

    def overdue(self) -> list[Send]:
        """What to send now that this moment has come."""
        return []

    @abstractmethod
    def _begin(self, kind: str, command: Any) -> list[Send]:
        """Begin this machine's own part of a command."""

    def _use(self, codes: Sequence[wire.Codes]) -> None:
        """Write what crosses links in these codes from now on; WireError where there is no such code."""
        try:
            pairs = zip(self.parts.links, codes, strict=True)
            self.parts.links = [link.using(one.up, one.down, one.average) for link, one in pairs]
        except (KeyError, ValueError):
            raise WireError("codes of links that there are not") from None

    def _save(self, position: int) -> list[Send]:
        self.saves.write(position, self.kept())
        return self._finish()

    def _finish(self) -> list[Send]:
        """Note that this machine's own part is done."""
        self._busy = False
        return []

    def _ended(self) -> list[Send]:
        if self._busy or self._awaited or self._told:
            return []
        self._told = True
        for peer, bps in self.bps().items():
            self._done.bps[f"{peer}>{self.name}"] = bps
        return [Send(self.parent, self._message(done=self._done))]

    def failed(self, error: HsflError) -> Send:
        """What the parent is told of an error of the command under way."""
        failed = wire.Failed(name=self.name, error=type(error).__name__, text=str(error))
        return Send(self.parent, self._message(failed=failed))

    def _message(self, **body: Any) -> wire.Message:
        return wire.Message(epoch=self._epoch, number=self._number, **body)


def pack_average(values: Sequence[torch.Tensor], codec: Codec | None, sizes: Sequence[int]) -> list[Packed]:
    """What is averaged, as it is sent; coded, each layer's weights one after another. `sizes`: weights of layers."""
    rest, packed = list(values), []
    for size in sizes if codec is not None else ():
        layer, rest = rest[:size], rest[size:]
        if layer:
            packed.append(pack(torch.cat([weight.flatten() for weight in layer])[None], codec))
    return [*packed, *(pack(value) for value in rest)]


def unpacked_average(
    tensors: Sequence[Packed], like: Sequence[torch.Tensor], codec: Codec | None, sizes: Sequence[int]
) -> Tensors:
    """What `pack_average` packed; `like` are tensors of the right shapes and types."""
    given, like = list(tensors), list(like)
    found: Tensors = []
    for size in sizes if codec is not None else ():
        layer, like = like[:size], like[size:]
        if layer:
            if not given:
                raise WireError("fewer tensors than layers")
            counts = [weight.numel() for weight in layer]
            row = torch.empty((1, sum(counts)), dtype=layer[0].dtype, device="meta")
            parts = unpacked(given.pop(0), row, codec)[0].split(counts)
            found += [part.view(weight.shape) for part, weight in zip(parts, layer, strict=True)]
    check_count(given, len(like))
    return [*found, *(unpacked(value, one) for value, one in zip(given, like, strict=True))]
