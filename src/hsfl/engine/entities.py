"""Backends whose machines are entities, wherever those are: how an entity is made, and a layer that moves to it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

import torch

from hsfl.engine.averaging import UNSENT, Tensors
from hsfl.engine.backend import Backend
from hsfl.engine.coded_averages import send
from hsfl.engine.entity import Entity
from hsfl.engine.layer_copy import LayerCopy
from hsfl.problem.topology import tier_layers, tier_of

#: What the fed server keeps, by name and layer.
ServerState = dict[str, dict[int, Tensors]]


class EntityBackend(Backend, ABC):
    """Makes entities of the layers, the tree and the rules that a backend is given."""

    together = False

    def new_entity(self, tier: int, number: int | None = None) -> Entity:
        """An entity with the initial weights of the layers that the cuts give it; without a number, one for nobody."""
        return Entity(
            () if number is None else self.topology.clients[tier][number],
            [self.new_copy(layer, tier) for layer in self._tier_layers()[tier]],
            self.averaging if self.topology.averaged[tier] else None,
            self.links[tier].average if self.coded[tier] else None,
            weights=self.topology.weights,
            lowest=tier == 0,
            highest=tier == self.num_tiers - 1,
            seed=self.seed,
            device=self.device,
            dtype=self.dtype,
            precision=self.precision,
        )

    def new_copy(self, layer: int, tier: int) -> LayerCopy:
        """A layer with its initial weights, for an entity of the tier."""
        own = [slot for slot in self._slots(tier) if slot not in self.optimizer.slots]
        keeps_last = self._keeps_last(tier)
        return LayerCopy(layer, self._layers[layer], self.optimizer, self.round, own_slots=own, keeps_last=keeps_last)

    def moved(self, layer: int, tier: int, sources: Sequence[tuple[float, LayerCopy]]) -> LayerCopy:
        """A layer for its new host in a tier: the mean over the host's clients of their copies, slots alike.

        `sources` are these copies and their shares of the host's clients, in the order of their entities. What the
        hosts last had in common is the same in all copies; that of one entity is what it has.
        """
        found = self.new_copy(layer, tier)
        for read in (LayerCopy.state, LayerCopy.named_slots):
            for key, tensor in read(found).items():
                copies = [(share, values[key]) for share, values in ((s, read(c)) for s, c in sources) if key in values]
                if copies:
                    tensor.copy_(weighted(copies) if tensor.is_floating_point() else copies[0][1])
        source = sources[0][1]
        for last, value in zip(found.last, source.last or source.module.parameters(), strict=False):
            last.copy_(value)
        return found

    def server_state(self, cuts: Sequence[int], before: ServerState | None = None) -> ServerState:
        """What the fed server keeps of every layer at these cuts: as `before`, or nothing yet."""
        found: ServerState = {}
        for layer in range(len(self._layers)):
            for slot in self._server_slots(tier_of(cuts, layer)):
                nothing = [torch.zeros_like(p) for p in self._layers[layer].parameters()]
                found.setdefault(slot, {})[layer] = (before or {}).get(slot, {}).get(layer, nothing)
        return found

    @torch.no_grad()
    def answer(self, tier: int, layers: Sequence[int], mean: Tensors, rounds: int, server: ServerState) -> Tensors:
        """What the fed server sends back to a tier: what the rule makes of the mean, coded where averages are."""
        kept = {slot: [t for layer in layers for t in server[slot][layer]] for slot in self._server_slots(tier)}
        count = sum(len(list(self._layers[layer].parameters())) for layer in layers)
        average = [*self.averaging.served(mean[:count], kept, rounds), *mean[count:]]
        if self.coded[tier]:
            average = send(self.links[tier].average, average, [server[UNSENT][layer] for layer in layers])
        return average

    def layers_of(self, tier: int, cuts: Sequence[int]) -> range:
        """The layers that cuts give a tier."""
        return tier_layers(cuts, len(self._layers))[tier]


def weighted(copies: Sequence[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The weighted mean, summed in order; of one copy alone, the copy to the bit."""
    if len(copies) == 1:
        return copies[0][1]
    return torch.stack([share * tensor for share, tensor in copies]).sum(0)


def mean(shares: Sequence[float], contributed: Sequence[Tensors]) -> Tensors:
    """The fed server's average of what the entities of a tier contribute."""
    return [weighted(list(zip(shares, same, strict=True))) for same in zip(*contributed, strict=True)]


def drift(shares: Sequence[float], copies: Sequence[Tensors], device: torch.device) -> torch.Tensor:
    """How far the weights of a tier's entities are apart, in float64: see `Backend.drift`."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for same in zip(*copies, strict=True):
        held = [(share, weight.double()) for share, weight in zip(shares, same, strict=True)]
        middle = weighted(held)
        for share, weight in held:
            total += share * (weight - middle).square().sum()
    return total
