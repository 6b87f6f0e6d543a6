"""Who takes part in a round of the stacked backend: their samples in an order in which every entity's are a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from hsfl.engine.stacked_passes import EntityStep
from hsfl.problem.topology import Clients, IntArray, Topology


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

        def tensor(numbers: Sequence[int] | IntArray) -> torch.Tensor:
            return torch.as_tensor(np.asarray(numbers, dtype=np.int64), device=device)

        as_they_come = ordered == given
        places = np.searchsorted(given, ordered)
        return cls(
            tensor(ordered),
            entities,
            sections,
            children,
            torch.zeros((sites, len(ordered)), dtype=torch.int64, device=device),
            None if as_they_come else tensor(places),
            None if as_they_come else tensor(np.argsort(places)),
            list(ordered),
        )
