"""Mini-batches on their way up the tree and back: those of a round, or of a measurement, which steps nothing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.tensors import Named, WireError, unpacked_by_name
from hsfl.engine.entities import EntityBackend
from hsfl.engine.entity import Entity
from hsfl.engine.entity_probe import EntityProbe
from hsfl.engine.links import CODECS, Codec, CodedCut
from hsfl.engine.training_data import Batch

#: A client of a device, and inputs and targets.
Own = tuple[int, torch.Tensor, torch.Tensor]


def chunk_by_chunk(batches: Iterable[Own], chunks: int) -> deque[Sequence[Own]]:
    """The first chunk of each of some mini-batches, then the second of each, and so on."""
    apart = [
        [(client, *chunk) for chunk in zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True)]
        for client, inputs, targets in batches
    ]
    return deque(zip(*apart, strict=True))


@dataclass
class Pass:
    """One mini-batch of some clients, and what an entity does with it."""

    entity: Entity
    round: int
    """The round that decides what is drawn by chance, such as dropout."""
    clients: set[int]
    """The clients whose gradients are still to come."""
    batches: int = 1
    """The number of mini-batches that are taken as one."""
    plain: bool = False
    """Whether links carry everything uncoded."""
    cuts: Mapping[int, CodedCut] = field(default_factory=dict)
    """Cuts by client at which it is computed as if there were a link."""
    chunks: int = 1
    """In how many parts every mini-batch comes, one after the other."""
    ahead: deque[Sequence[Own]] = field(default_factory=deque)
    """At devices: what is still to be computed with, chunk by chunk."""
    losses: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """At the top: of every client's chunks."""
    gone: Counter[int] = field(default_factory=Counter)
    """How many chunks of every client went up,"""
    back: Counter[int] = field(default_factory=Counter)
    """and of how many gradients came back."""

    def codec(self, codec: Codec) -> Codec | None:
        """The codec that a link writes with."""
        return None if self.plain else codec

    def like(self, one: torch.Tensor) -> torch.Tensor:
        """A tensor like the given one of one mini-batch, for all mini-batches of this pass, or for a chunk of one."""
        if self.chunks > 1:
            return one.chunk(self.chunks)[0]
        return one if self.batches == 1 else torch.empty_like(one).repeat(self.batches, *[1] * (one.dim() - 1))

    def add_loss(self, client: int, loss: torch.Tensor) -> float:
        """The loss of a client after another chunk: the mean over those that there are."""
        own = self.losses.setdefault(client, [])
        own.append(loss)
        return float(own[0] if len(own) == 1 else torch.stack(own).mean(0))


class Probing:
    """A measurement under way at an entity."""

    def __init__(self, parts: EntityBackend, tier: int, number: int, batches: int) -> None:
        """A measurement on so many mini-batches of every client, drawn where the client is."""
        self._parts = parts
        entity = parts.new_entity(tier, number)
        self.part = EntityProbe(entity, parts.topology, tier, batches)
        self._drawn = parts._data().probe_draws(parts.round, batches) if tier == 0 else None
        self.gradient: list[torch.Tensor] = []
        """The mean of all clients', once it has come."""
        self.awaits = True
        """Whether the fed server is to send something: the virtual average first."""
        self._use = wire.ProbePass.ADD

    @torch.no_grad()
    def fill(self, given: Named) -> None:
        """Take the virtual average of the entity's layers."""
        own = self.part.entity.state()[0]
        found = unpacked_by_name(given, own)
        for key, value in own.items():
            value.copy_(found[key])
        self.awaits = False

    def begin(self, given: wire.ProbePass) -> Pass:
        """Begin to take gradients; the pass of mini-batches through this entity."""
        if given.step:
            self.part.step(self.gradient, given.step)
        self._use = given.use
        self._samples = slice(given.first, given.first + given.count)
        own = [trial for trial in given.trials if trial.client in self.part.entity.clients]
        clients = {trial.client for trial in own}
        return Pass(self.part.entity, given.first, clients, given.count, plain=True, cuts=dict(_coded(own)))

    def batch(self, client: int) -> Batch:
        """The mini-batches that a client of this machine takes."""
        assert self._drawn is not None
        return self._parts._data().samples(self._drawn[client, self._samples].flatten())

    def take(self, client: int, into: wire.Found) -> None:
        """Take the gradients of a client."""
        if self._use == wire.ProbePass.ADD:
            self.part.add(client)
        elif self._use == wire.ProbePass.KEEP:
            self.part.keep(client)
        else:
            into.apart[client] = self.part.apart(client)

    def tell(self, into: wire.Found) -> None:
        """Tell what was found in all gradients that were taken."""
        into.moments.extend(self.part.moments().flatten().tolist())
        into.squares.extend(self.part.squares().flatten().tolist())
        into.of_entities.extend(self.part.of_entities().flatten().tolist())


def _coded(trials: Iterable[wire.Trial]) -> Iterable[tuple[int, CodedCut]]:
    for trial in trials:
        if trial.cut:
            if not {trial.up, trial.down} <= CODECS.keys():
                raise WireError(f"codes {trial.up[:20]} and {trial.down[:20]}, which nobody knows")
            yield trial.client, CodedCut(trial.cut, CODECS[trial.up], CODECS[trial.down])
