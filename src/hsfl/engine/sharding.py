"""The clients of a simulation spread over processes: which part of the tree each computes, and what they sum up.

Clients are dealt out in the order in which those of every entity are neighbours, so that few entities have clients in
several processes. A process has a row for every entity that one of its clients needs; rows of the same entity in
several processes are the same to the bit, because all step with the same sums. Alone, a process has the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from hsfl.engine.flat_tiers import FlatTier
from hsfl.errors import HsflError
from hsfl.problem.topology import Clients, FloatArray, IntArray, Topology

_CPU = torch.device("cpu")


class LostProcessError(HsflError):
    """Another process that trains with this one has ended."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together, the first of which has rank 0; alone, it has nobody to talk to."""

    rank: int = 0
    size: int = 1
    group: distributed.ProcessGroup | None = None

    @classmethod
    def of(cls, group: distributed.ProcessGroup) -> Processes:
        return cls(distributed.get_rank(group), distributed.get_world_size(group), group)

    def sum(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Each tensor, of one type, summed over the processes; in one message."""
        if self.size == 1 or not tensors:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.sum_into(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def sum_into(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its sum over the processes."""
        self._reduce(tensor, distributed.ReduceOp.SUM)

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """The largest over the processes, element by element."""
        if self.size > 1:
            self._reduce(tensor := tensor.clone(), distributed.ReduceOp.MAX)
        return tensor

    def _reduce(self, tensor: torch.Tensor, how: Any) -> None:
        if self.size > 1:
            with self._there():
                distributed.all_reduce(tensor, how, group=self.group)

    def told(self, what: Any = None) -> Any:
        """What the first process says to all."""
        found = [what]
        if self.size > 1:
            with self._there():
                distributed.broadcast_object_list(found, group=self.group, group_src=0, device=_CPU)
        return found[0]

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """The first process's tensor, on the CPU, in all; in the others `tensor` has its shape and type."""
        found = _on_cpu(tensor)
        with self._there():
            distributed.broadcast(found, group=self.group, group_src=0)
        return found

    def fetched(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """In the first process, the tensor of another one, on the CPU; for the two of them."""
        found = _on_cpu(tensor)
        with self._there():
            if self.rank == source:
                distributed.send(found, group=self.group, group_dst=0)
            else:
                distributed.recv(found, group=self.group, group_src=source)
        return found

    @contextmanager
    def _there(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostProcessError(
                f"another of the {self.size} processes that train together has ended, or cannot be reached any more"
            ) from error


@dataclass(frozen=True, eq=False)
class Shard:
    """The part of a tree that one process computes: some clients, and every entity that hosts one of them.

    Entities have the numbers of the tree. Their rows are in the order of these.
    """

    topology: Topology
    processes: Processes = field(default_factory=Processes)

    @cached_property
    def _rank_of(self) -> IntArray:
        """The process of every client; as many clients for each, give or take one."""
        found = np.empty(self.topology.num_clients, dtype=np.int64)
        for rank, part in enumerate(np.array_split(np.array(self.topology.order), self.processes.size)):
            found[part] = rank
        return found

    @cached_property
    def clients(self) -> Clients:
        """Its clients, those of every entity of every tier next to each other."""
        return tuple(n for n in self.topology.order if self._rank_of[n] == self.processes.rank)

    @cached_property
    def _part(self) -> tuple[tuple[IntArray, ...], Topology]:
        return self.topology.of(self.clients)

    @property
    def entities(self) -> tuple[IntArray, ...]:
        """The entities of every tier that it has rows of."""
        return self._part[0]

    @property
    def local(self) -> Topology:
        """Its part as a tree of its own, clients and entities numbered anew in their order."""
        return self._part[1]

    @cached_property
    def _holders(self) -> tuple[tuple[IntArray, IntArray], ...]:
        """For every tier the first and the last process that has a row of each entity."""
        found = []
        for row, count in zip(self.topology.hosts, self.topology.entities, strict=True):
            first, last = np.full(count, self.processes.size), np.zeros(count, dtype=np.int64)
            np.minimum.at(first, row, self._rank_of)
            np.maximum.at(last, row, self._rank_of)
            found.append((first, last))
        return tuple(found)

    def owner(self, tier: int, entity: int) -> int:
        """The process that an entity counts in, where several have rows of it."""
        return int(self._holders[tier][0][entity])

    def shared(self, tier: int) -> list[int]:
        """The entities, here or elsewhere, with clients in several processes."""
        first, last = self._holders[tier]
        return np.flatnonzero(first != last).tolist()

    def row(self, tier: int, entity: int) -> int | None:
        """Where the entity is among the rows here; None if none of its clients is here."""
        found = int(np.searchsorted(self.entities[tier], entity))
        return found if found < len(self.entities[tier]) and self.entities[tier][found] == entity else None

    def shares(self, tier: int) -> npt.NDArray[np.float64]:
        """The weights of the rows in the tier's average: 0 for an entity that counts in another process."""
        rows = self.entities[tier]
        counted = self._holders[tier][0][rows] == self.processes.rank
        return np.asarray(np.where(counted, self.topology.shares[tier][rows], 0.0))

    def weights(self, tier: int) -> FloatArray:
        """What the clients of every row's entity count, here and elsewhere; their number, where all count the same."""
        return self.topology.entity_weights[tier][self.entities[tier]]

    @cached_property
    def client_weights(self) -> FloatArray:
        """What its clients count, in their order."""
        return self.topology.client_weights[list(self.clients)]

    def client_parts(self, tier: int) -> list[FloatArray | None]:
        """For every row the parts of its entity's clients here in the entity's mean; None where all count the same."""
        if self.topology.weights is None:
            return [None] * len(self.entities[tier])
        hosts = self.local.hosts[tier]
        return [self.client_weights[hosts == row] / weight for row, weight in enumerate(self.weights(tier))]

    def part(self, new: int, old: int) -> npt.NDArray[np.float64]:
        """`Topology.part` for the rows here, as far as clients here count; `completed` adds the others."""
        pairs = np.zeros((len(self.entities[new]), len(self.entities[old])))
        np.add.at(pairs, (self.local.hosts[new], self.local.hosts[old]), self.client_weights)
        return np.asarray(pairs / self.weights(new)[:, None])

    def completed(self, tier: int, rows: torch.Tensor) -> torch.Tensor:
        """Rows of a tier's entities, each summed over the processes that have one of it."""
        if not (shared := self.shared(tier)):
            return rows
        places = [self.row(tier, entity) for entity in shared]
        given = [torch.zeros_like(rows[0]) if place is None else rows[place] for place in places]
        for place, total in zip(places, self.processes.sum(given), strict=True):
            if place is not None:
                rows[place] = total
        return rows


class RoundSum:
    """What processes tell each other in a round, summed in one message.

    For every entity with clients in several processes, its gradients and how its buffers changed; and all losses.
    """

    def __init__(self, shard: Shard, tiers: Sequence[FlatTier]) -> None:
        self.shard = shard
        self.gradients: list[dict[int, list[torch.Tensor]]] = [{} for _ in tiers]
        """For every tier, by row, where the gradients of the trained weights of a shared entity go."""
        widths = [(tier.weights.shape[1], tier.statistics.shape[1]) for tier in tiers]
        sizes = [size for m, pair in enumerate(widths) for _ in shard.shared(m) for size in pair]
        self._sum = tiers[0].weights.new_zeros(sum(sizes) + shard.topology.num_clients)
        parts = iter(self._sum.split([*sizes, shard.topology.num_clients]))
        self._buffers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]] = []
        """What is now, what was before the round, where the change goes, and the part of the clients that is here."""
        for m, tier in enumerate(tiers):
            for entity in shard.shared(m):
                gradients, change = next(parts), next(parts)
                if (row := shard.row(m, entity)) is not None:
                    self.gradients[m][row] = tier.trained_in(row, gradients)
                    now, here = tier.statistics[row], shard.client_weights[shard.local.hosts[m] == row].sum()
                    self._buffers.append((now, now.clone(), change, float(here / shard.weights(m)[row])))
        self._losses = next(parts)
        self._clients = torch.tensor(shard.clients, device=self._sum.device)

    def begin(self) -> None:
        self._sum.zero_()
        for now, before, _, _ in self._buffers:
            before.copy_(now)

    def finish(self, losses: torch.Tensor) -> torch.Tensor:
        """All losses, by client; gradients are then sums, and buffers those of all clients of their entity."""
        for now, before, change, part in self._buffers:
            change.copy_((now - before).mul_(part))
        self._losses[self._clients] = losses
        self.shard.processes.sum_into(self._sum)
        for now, before, change, _ in self._buffers:
            torch.add(before, change, out=now)
        return self._losses.clone()


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
