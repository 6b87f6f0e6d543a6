"""The slow backend that reads like the paper: a tree of entities, loops, and a message for everything that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hsfl.engine.averaging import Tensors
from hsfl.engine.backend import Backend
from hsfl.engine.coded_averages import send
from hsfl.engine.entity import Entity, LayerCopy, State
from hsfl.engine.precision import arithmetic
from hsfl.problem.codes import LinkCodes


class ReferenceBackend(Backend):
    """Algorithm 1, line by line. `entities[m][j]` is a machine of tier m."""

    together = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.entities = [
            [
                Entity(
                    clients,
                    [self._new_copy(layer, tier) for layer in layers],
                    self.averaging if self.topology.averaged[tier] else None,
                    self.links[tier].average if self.coded[tier] else None,
                    lowest=tier == 0,
                    seed=self.seed,
                    device=self.device,
                    dtype=self.dtype,
                    precision=self.precision,
                )
                for clients in self.topology.clients[tier]
            ]
            for tier, layers in enumerate(self._tier_layers())
        ]
        self.unsent: dict[int, Tensors] = {}
        """What the fed server has left unsent of layers whose averages are coded."""
        self._keep_unsent()

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sent = dict(enumerate(self._inputs(inputs)))
        targets = targets.to(self.device)
        with arithmetic(self.device, self.precision):
            for m, tier in enumerate(self.entities):
                for entity in tier:
                    for n in entity.clients:
                        sent[n] = entity.forward(n, sent[n], self.round)
                        if m < self.num_tiers - 1:
                            sent[n] = self.links[m].up.passed(sent[n])
            losses: dict[int, torch.Tensor] = {}
            gradients: dict[int, torch.Tensor] = {}
            for entity in self.entities[-1]:
                for n in entity.clients:
                    losses[n], gradients[n] = entity.loss(n, targets[n], self.loss)
            for m in range(self.num_tiers - 1, -1, -1):
                for entity in self.entities[m]:
                    for n in entity.clients:
                        passed = entity.backward(n, gradients[n])
                        if passed is not None:
                            gradients[n] = self.links[m - 1].down.passed(passed)
        for entity in (e for tier in self.entities for e in tier):
            entity.step()
        return torch.stack([losses[n] for n in range(self.num_clients)])

    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        """The fed server's part: every entity contributes, all adopt the mean weighted by clients."""
        entities, shares = self.entities[tier], [float(share) for share in self.topology.shares[tier]]
        contributed = [entity.contribute(layers) for entity in entities]
        average = [_weighted(list(zip(shares, same, strict=True))) for same in zip(*contributed, strict=True)]
        if self.coded[tier]:
            average = send(self.links[tier].average, average, [self.unsent[layer] for layer in layers])
        for entity in entities:
            entity.adopt(layers, average, rounds)

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        changed = super().recode(codes)
        for link, coded, tier in zip(self.links, self.coded, self.entities, strict=True):
            for entity in tier:
                entity.codec = link.average if coded else None
        return changed

    @torch.no_grad()
    def _move(self, before: Sequence[int]) -> None:
        held = [[{copy.number: copy for copy in entity.layers} for entity in tier] for tier in self.entities]
        after = self._tier_by_layer()
        for new, tier in enumerate(self.entities):
            for j, entity in enumerate(tier):
                entity.layers = [
                    held[new][j][layer] if before[layer] == new else self._moved(layer, before[layer], new, j, held)
                    for layer in range(len(after))
                    if after[layer] == new
                ]
        self._keep_unsent()

    def _keep_unsent(self) -> None:
        """What the fed server has left unsent goes with its layer where averages are coded there too."""
        self.unsent = {
            layer: self.unsent.get(layer, [torch.zeros_like(p) for p in self._layers[layer].parameters()])
            for layer, tier in enumerate(self._tier_by_layer())
            if self.coded[tier]
        }

    def _moved(self, layer: int, old: int, new: int, entity: int, held: list[list[dict[int, LayerCopy]]]) -> LayerCopy:
        """A layer for its new host: the mean over the host's clients of their copies, slots alike.

        What the hosts last had in common is the same in all copies; that of one entity is what it has.
        """
        part = self.topology.part(new, old)[entity]
        sources = [(float(share), held[old][j][layer]) for j, share in enumerate(part) if share]
        found = self._new_copy(layer, new)
        for read in (LayerCopy.state, LayerCopy.named_slots):
            for key, tensor in read(found).items():
                copies = [(share, values[key]) for share, values in ((s, read(c)) for s, c in sources) if key in values]
                if copies:
                    tensor.copy_(_weighted(copies) if tensor.is_floating_point() else copies[0][1])
        source = sources[0][1]
        for last, value in zip(found.last, source.last or source.module.parameters(), strict=False):
            last.copy_(value)
        return found

    def _last(self, tier: int) -> list[State]:
        if not self._keeps_last(tier):
            return []
        return [
            State(item for layer in entity.layers for item in layer.named_last().items())
            for entity in self.entities[tier]
        ]

    def _unsent(self, tier: int) -> list[State]:
        if not self.coded[tier]:
            return []
        named = [(n, name) for n in self._tier_layers()[tier] for name, _ in self._layers[n].named_parameters()]
        unsent = [tensor for n in self._tier_layers()[tier] for tensor in self.unsent[n]]
        return [State((f"{n}.{name}", tensor) for (n, name), tensor in zip(named, unsent, strict=True))]

    def drift(self, tier: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        shares = [float(share) for share in self.topology.shares[tier]]
        for layer in range(len(self.entities[tier][0].layers)):
            copies = [entity.layers[layer].module.parameters() for entity in self.entities[tier]]
            for same in zip(*copies, strict=True):
                weighted = [(share, p.detach().double()) for share, p in zip(shares, same, strict=True)]
                mean = _weighted(weighted)
                for share, weight in weighted:
                    total += share * (weight - mean).square().sum()
        return total

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        return self.entities[tier][entity].state()

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        for entity in (e for tier in self.entities for e in tier):
            entity.seed = seed
            for layer in entity.layers:
                layer.resume(round_)

    def _new_copy(self, layer: int, tier: int) -> LayerCopy:
        own = [slot for slot in self._slots(tier) if slot not in self.optimizer.slots]
        keeps_last = self._keeps_last(tier)
        return LayerCopy(layer, self._layers[layer], self.optimizer, self.round, own_slots=own, keeps_last=keeps_last)


def _weighted(copies: Sequence[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The weighted mean, summed in order; of one copy alone, the copy to the bit."""
    if len(copies) == 1:
        return copies[0][1]
    return torch.stack([share * tensor for share, tensor in copies]).sum(0)
