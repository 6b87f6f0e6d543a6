"""A measurement of the constants on entities, wherever those are: the part of each, and that of who sums them up.

`engine.probe` says what is measured. Here nobody has more than the layers of one entity, or mean gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hsfl.engine.averaging import Tensors
from hsfl.engine.entities import mean, weighted
from hsfl.engine.entity import Entity
from hsfl.engine.virtual_model import squares_by_layer
from hsfl.problem.topology import Topology


class Spread(NamedTuple):
    """Squares of mean gradients, by layer, in float64."""

    of_entities: torch.Tensor
    """(tiers, layers): of the entities of some tiers, the mean over clients."""
    overall: torch.Tensor
    """(layers,): of all clients'; where nobody knows it, nothing."""


class EntityProbe:
    """One entity's part. It holds the virtual average of its layers, and trains nothing."""

    def __init__(self, entity: Entity, topology: Topology, tier: int, batches: int) -> None:
        """`entity` is the probe's own; the mini-batches of a client are so many."""
        self.entity, self._topology, self._tier, self._batches = entity, topology, tier, batches
        numbers = [n for n, layer in enumerate(entity.layers) for p in layer.module.parameters() if p.requires_grad]
        self._layer_of = torch.tensor(numbers, dtype=torch.int64, device=entity.device)
        self._means = {client: self._zeros() for client in entity.clients}
        self._moments = {client: self._squares([]) for client in entity.clients}
        self._kept: dict[int, Tensors] = {}

    def add(self, client: int) -> None:
        """Count in the gradients of a client's mini-batch."""
        gradients = self.entity.take_gradients(client)
        self._moments[client] += self._squares(gradients) / self._batches
        if gradients:
            torch._foreach_add_(self._means[client], gradients, alpha=1 / self._batches)

    def keep(self, client: int) -> None:
        """Keep gradients, to compare others with."""
        self._kept[client] = self.entity.take_gradients(client)

    def apart(self, client: int) -> float:
        """The squared distance of gradients from those that were kept."""
        gradients = self.entity.take_gradients(client)
        if gradients:
            torch._foreach_sub_(gradients, self._kept[client])
        return float(self._squares(gradients).sum())

    def moments(self) -> torch.Tensor:
        """(clients, layers): the mean squares of mini-batch gradients."""
        return torch.stack([self._moments[client] for client in self.entity.clients])

    def squares(self) -> torch.Tensor:
        """(clients, layers): the squares of mean gradients."""
        return torch.stack([self._squares(self._means[client]) for client in self.entity.clients])

    def of_entities(self) -> torch.Tensor:
        """(tiers up to its own, layers): this entity's part of the squares of the entities' mean gradients."""
        found = []
        for hosts, shares in zip(self._topology.hosts[: self._tier + 1], self._topology.shares, strict=False):
            numbers = dict.fromkeys(int(hosts[client]) for client in self.entity.clients)
            groups = [[n for n in self.entity.clients if hosts[n] == number] for number in numbers]
            squares = (float(shares[j]) * self._squares(self._mean(g)) for j, g in zip(numbers, groups, strict=True))
            found.append(sum(squares, self._squares([])))
        return torch.stack(found)

    def gradient(self) -> Tensors:
        """The mean over its clients."""
        return self._mean(self.entity.clients)

    def forget(self) -> None:
        """What was counted in is needed no longer."""
        self._means = {}

    @torch.no_grad()
    def step(self, gradient: Tensors, step: float) -> None:
        """Move its weights so far against a gradient."""
        if gradient:
            torch._foreach_add_(list[torch.Tensor](self.entity.trained()), gradient, alpha=-step)

    def _mean(self, clients: Sequence[int]) -> Tensors:
        total = self._zeros()
        weights = self._topology.client_weights[list(clients)]
        for client, part in zip(clients, weights / weights.sum(), strict=True) if total else ():
            torch._foreach_add_(total, self._means[client], alpha=float(part))
        return total

    def _zeros(self) -> Tensors:
        return [torch.zeros_like(weight) for weight in self.entity.trained()]

    def _squares(self, tensors: Tensors) -> torch.Tensor:
        return squares_by_layer(tensors, self._layer_of[: len(tensors)], len(self.entity.layers))


def summed(
    topology: Topology, tier: int, gradients: Sequence[Tensors], layer_of: torch.Tensor, num_layers: int
) -> tuple[Spread, Tensors]:
    """The tiers above a tier, and the mean gradient, from those of the tier's entities, in their order.

    `layer_of` says which of the tier's layers each of their tensors belongs to.
    """
    above = []
    for other in range(tier + 1, topology.num_tiers):
        shares, parts = topology.shares[other], topology.part(other, tier)
        total = torch.zeros(num_layers, dtype=torch.float64)
        for share, part in zip(shares, parts, strict=True):
            own = [(float(weight), tensors) for weight, tensors in zip(part, gradients, strict=True) if weight]
            middle = [weighted([(w, t[k]) for w, t in own]) for k in range(len(layer_of))]
            total += float(share) * squares_by_layer(middle, layer_of, num_layers)
        above.append(total)
    overall = mean([float(share) for share in topology.shares[tier]], gradients)
    of_entities = torch.stack(above) if above else torch.zeros(0, num_layers, dtype=torch.float64)
    return Spread(of_entities, squares_by_layer(overall, layer_of, num_layers)), overall
