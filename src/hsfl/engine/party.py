"""Who takes part in a round of the stacked backend: their samples in an order in which every entity's are a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from hsfl.engine.averaging import Tensors
from hsfl.engine.outputs import joined
from hsfl.engine.stacked_passes import EntityStep
from hsfl.problem.topology import Clients, IntArray, Topology

T = TypeVar("T")


@dataclass(eq=False)
class Party:
    """Some of the clients, or all that this process has."""

    clients: torch.Tensor
    """In the order of their samples."""
    entities: tuple[IntArray, ...]
    """The entities of every tier that have clients here."""
    sections: list[list[slice]]
    """Their samples, in clients."""
    children: list[list[list[int]]]
    """For each of them those below it; of the lowest tier, its part of the batch."""
    returned: list[list[int]]
    """Where the last tier is the lowest once more: for each entity of the top its own there, in order."""
    in_order: list[int]
    """The entities of the last tier in the order of their samples."""
    keys: torch.Tensor
    """Room for the keys of dropout, of every site and client."""
    order: torch.Tensor | None
    """Where each client is among those that are given; None: as they come."""
    back: torch.Tensor | None
    """Where each that is given is among the clients; None: as they come."""
    ordered: list[int]
    """The clients as numbers."""
    steps: list[list[EntityStep]] = field(default_factory=list)
    rounds: int = 0
    """How many it has trained so far."""

    def sent_to(self, tier: int, entity: int, sent: Sequence[torch.Tensor]) -> torch.Tensor:
        """What an entity gets of what those below it send: all, or its own clients' part."""
        below = self.children[tier][entity]
        if not (self.returned and tier == len(self.sections) - 1):
            found: torch.Tensor = joined([sent[i] for i in below])
            return found
        return part(sent[below[0]], self.sections[-2][below[0]], self.sections[-1][entity])

    def sent_down(
        self, tier: int, received: Sequence[torch.Tensor | None], done: Sequence[T]
    ) -> tuple[dict[int, list[Tensors]], list[list[T]]]:
        """The gradients of what a tier's entities received, for those below, each in pieces; and whose they are."""
        found: dict[int, list[Tensors]] = {}
        of: list[list[T]] = [[] for _ in self.sections[tier - 1]]
        if self.returned and tier == len(self.sections) - 1:
            for i, own in enumerate(self.returned):
                found[i] = [[piece for j in own if (piece := received[j]) is not None]]
                of[i] = [done[j] for j in own]
            return found, of
        for j, (section, gradient) in enumerate(zip(self.sections[tier], received, strict=True)):
            assert gradient is not None
            for i in self.children[tier][j]:
                found[i], of[i] = [[part(gradient, section, self.sections[tier - 1][i])]], [done[j]]
        return found, of

    @classmethod
    def of(cls, topology: Topology, given: Clients, ordered: Clients, sites: int, device: torch.device) -> Party:
        """A party of `ordered`: all the clients that are given, or some of them, in the order of the tree.

        With room for keys of so many sites of dropout.
        """
        entities, local = topology.of(ordered)
        sections = [[slice(c[0], c[0] + len(c)) for c in tier] for tier in local.clients]
        children = [[[j] for j in range(len(sections[0]))]] + [
            [[j for j, s in enumerate(below) if a.start <= s.start < a.stop] for a in above]
            for below, above in pairwise(sections)
        ]
        in_order = sorted(range(len(sections[-1])), key=lambda j: sections[-1][j].start)
        returned: list[list[int]] = [[] for _ in sections[-2]] if local.returns else []
        for j in in_order if local.returns else ():
            above = int(local.hosts[-2][sections[-1][j].start])
            returned[above].append(j)
            children[-1][j] = [above]

        def tensor(numbers: Sequence[int] | IntArray) -> torch.Tensor:
            return torch.as_tensor(np.asarray(numbers, dtype=np.int64), device=device)

        as_they_come = ordered == given
        places = np.searchsorted(given, ordered)
        return cls(
            tensor(ordered),
            entities,
            sections,
            children,
            returned,
            in_order,
            torch.zeros((sites, len(ordered)), dtype=torch.int64, device=device),
            None if as_they_come else tensor(places),
            None if as_they_come else tensor(np.argsort(places)),
            list(ordered),
        )


def part(samples: torch.Tensor, section: slice, wanted: slice) -> torch.Tensor:
    """Of the samples of a section of clients those of some of them."""
    by_client = samples.unflatten(0, (section.stop - section.start, -1))
    return by_client[wanted.start - section.start : wanted.stop - section.start].flatten(0, 1)
