"""The slow backend that reads like the paper: a tree of entities, loops, and a message for everything that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hsfl.engine.averaging import Tensors
from hsfl.engine.entities import EntityBackend, drift, mean
from hsfl.engine.entity import LayerCopy, State
from hsfl.engine.precision import arithmetic
from hsfl.problem.codes import LinkCodes


class ReferenceBackend(EntityBackend):
    """Algorithm 1, line by line. `entities[m][j]` is a machine of tier m."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.entities = [
            [self.new_entity(tier, number) for number in range(count)]
            for tier, count in enumerate(self.topology.entities)
        ]
        self.server = self.server_state(self.cuts)

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        present = [[[n for n in entity.clients if n in clients] for entity in tier] for tier in self.entities]
        sent = dict(enumerate(self._inputs(inputs)))
        targets = targets.to(self.device)
        with arithmetic(self.device, self.precision):
            for m, tier in enumerate(self.entities):
                for entity, own in zip(tier, present[m], strict=True):
                    for n in own:
                        sent[n] = entity.forward(n, sent[n], self.round)
                        if m < self.num_tiers - 1:
                            sent[n] = self.links[m].up.passed(sent[n])
            losses = [torch.full((), float("nan"), dtype=self.dtype, device=self.device)] * self.num_clients
            gradients: dict[int, Tensors] = {}
            for entity, own in zip(self.entities[-1], present[-1], strict=True):
                for n in own:
                    losses[n], gradients[n] = entity.loss(n, targets[n], self.loss)
            for m in range(self.num_tiers - 1, -1, -1):
                for entity, own in zip(self.entities[m], present[m], strict=True):
                    for n in own:
                        passed = entity.backward(n, gradients[n])
                        if passed is not None:
                            gradients[n] = [self.links[m - 1].down.passed(passed)]
        for entity in (e for tier in self.entities for e in tier):
            entity.step()
        return torch.stack(losses)

    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        """The fed server's part: every entity contributes, all adopt what it makes of the mean weighted by clients."""
        entities, shares = self.entities[tier], [float(share) for share in self.topology.shares[tier]]
        contributed = mean(shares, [entity.contribute(layers) for entity in entities])
        average = self.answer(tier, layers, contributed, rounds, self.server)
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
        self.server = self.server_state(self.cuts, self.server)

    def _moved(self, layer: int, old: int, new: int, entity: int, held: list[list[dict[int, LayerCopy]]]) -> LayerCopy:
        part = self.topology.part(new, old)[entity]
        return self.moved(layer, new, [(float(share), held[old][j][layer]) for j, share in enumerate(part) if share])

    def _last(self, tier: int) -> list[State]:
        if not self._keeps_last(tier):
            return []
        return [
            State(item for layer in entity.layers for item in layer.named_last().items())
            for entity in self.entities[tier]
        ]

    def _of_server(self, tier: int, slot: str) -> list[State]:
        if slot not in self._server_slots(tier):
            return []
        named = [(n, name) for n in self._tier_layers()[tier] for name, _ in self._layers[n].named_parameters()]
        kept = [tensor for n in self._tier_layers()[tier] for tensor in self.server[slot][n]]
        return [State((f"{n}.{name}", tensor) for (n, name), tensor in zip(named, kept, strict=True))]

    def drift(self, tier: int) -> torch.Tensor:
        copies = [
            [p.detach() for layer in entity.layers for p in layer.module.parameters()] for entity in self.entities[tier]
        ]
        return drift([float(share) for share in self.topology.shares[tier]], copies, self.device)

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        return self.entities[tier][entity].state()

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        for entity in (e for tier in self.entities for e in tier):
            entity.seed = seed
            for layer in entity.layers:
                layer.resume(round_)
