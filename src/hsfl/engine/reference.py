"""The slow backend that reads like the paper: a tree of entities, loops, and a message for everything that is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hsfl.engine.attendance import Sources
from hsfl.engine.averaging import Tensors
from hsfl.engine.entities import EntityBackend, drift, mean
from hsfl.engine.entity import Entity
from hsfl.engine.layer_copy import LayerCopy, State
from hsfl.engine.per_client import moment
from hsfl.engine.precision import arithmetic
from hsfl.problem.codes import LinkCodes
from hsfl.problem.topology import Clients

#: For every tier the entities that serve clients who take part, each with them.
Present = list[list[tuple[Entity, list[int]]]]


class ReferenceBackend(EntityBackend):
    """Algorithm 1, line by line. `entities[m][j]` is a machine of tier m."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rest = [self.new_entity(tier) for tier in range(self.num_tiers)]
        """For every tier, one that never trains: what those have that have no copy of their own."""
        self.entities: list[dict[int, Entity]] = [{} for _ in range(self.num_tiers)]
        self._seat()
        self.server = self.server_state(self.cuts)

    def _seat(self) -> None:
        for tier, (entities, rest) in enumerate(zip(self.entities, self.rest, strict=True)):
            needed = self.attendance.needed(tier)
            for j in entities.keys() - needed:  # it has what all have that are not needed
                rest.layers = entities.pop(j).layers
            for layer in rest.layers:
                layer.clear(self._own_slots())
            self.entities[tier] = {j: entities[j] if j in entities else self._joining(tier, j, rest) for j in needed}

    @torch.no_grad()
    def _joining(self, tier: int, number: int, rest: Entity) -> Entity:
        entity = self.new_entity(tier, number)
        entity.layers = [self.moved(layer.number, tier, [(1.0, layer)]) for layer in rest.layers]
        return entity

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: Clients) -> torch.Tensor:
        present, count = self._by_entity(clients), self.micro_batches * self.chunks
        pairs = zip(self._inputs(inputs).chunk(count, 1), targets.to(self.device).chunk(count, 1), strict=True)
        losses = [self._chunk(i, x, y, clients, present) for i, (x, y) in enumerate(pairs)]
        for entity in self._all_entities():
            entity.step(count)
        return losses[0] if count == 1 else torch.stack(losses).mean(0)

    def _chunk(
        self, number: int, inputs: torch.Tensor, targets: torch.Tensor, clients: Clients, present: Present
    ) -> torch.Tensor:
        """A chunk of the mini-batches of a round: forward, tier by tier, and backward, without a step; the losses."""
        mini_batch, chunk = divmod(number, self.chunks)
        sent = dict(zip(clients, inputs, strict=True))
        wanted = dict(zip(clients, targets, strict=True))
        losses: dict[int, torch.Tensor] = {}
        gradients: dict[int, Tensors] = {}
        with arithmetic(self.device, self.precision):
            for m, tier in enumerate(present):
                for entity, own in tier:
                    for n in own:
                        sent[n] = entity.forward(n, sent[n], moment(self.round, mini_batch), chunk=chunk)
                        if m < self.num_tiers - 1:
                            sent[n] = self.link_above(m).up.passed(sent[n])
            for entity, own in present[-1]:
                for n in own:
                    losses[n], gradients[n] = entity.loss(n, wanted[n], self.loss, chunk)
            for m in range(self.num_tiers - 1, -1, -1):
                for entity, own in present[m]:
                    for n in own:
                        passed = entity.backward(n, gradients[n], chunk, more=number > 0)
                        if passed is not None:
                            gradients[n] = [self.link_above(m - 1).down.passed(passed)]
        if chunk == self.chunks - 1:
            for entity, _ in (pair for tier in present for pair in tier):
                entity.settle()
        none = torch.empty(0, dtype=self.dtype, device=self.device)
        return torch.stack([losses[n] for n in clients]) if clients else none

    def _by_entity(self, clients: Clients) -> Present:
        """For every tier the entities that serve some of these clients, each with them."""
        ordered = self.topology.ordered(clients)
        found = []
        for row, entities in zip(self.topology.hosts, self.entities, strict=True):
            own: dict[int, list[int]] = {}
            for n in ordered:
                own.setdefault(int(row[n]), []).append(n)
            found.append([(entities[j], own[j]) for j in sorted(own)])
        return found

    def _all_entities(self) -> list[Entity]:
        return [*(entity for tier in self.entities for entity in tier.values()), *self.rest]

    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        """The fed server's part: those who took part contribute, all adopt what it makes of their weighted mean."""
        entities, rest, shares = self.entities[tier], self.rest[tier], self._shares_of(tier, layers[0])
        contributed = mean(list(shares.values()), [entities[j].contribute(layers) for j in shares])
        average = self.answer(tier, layers, contributed, rounds, self.server)
        for entity in (*entities.values(), rest):
            entity.adopt(layers, average, rounds)
        rest.count_as(entities[min(shares)], layers)

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        changed = super().recode(codes)
        for link, coded, tier, rest in zip(self.links, self.coded, self.entities, self.rest, strict=True):
            for entity in (*tier.values(), rest):
                entity.codec = link.average if coded else None
        return changed

    @torch.no_grad()
    def _move(self, before: Sequence[int], taken: Mapping[int, Sources]) -> None:
        held = [{j: _by_number(entity) for j, entity in tier.items()} for tier in self.entities]
        rest, after = [_by_number(entity) for entity in self.rest], self._tier_by_layer()

        def copies(layer: int, tier: int, entity: int | None) -> LayerCopy:
            """A layer for an entity of its new tier; None: for those that have no copy of their own."""
            old, found = before[layer], taken[layer]
            if found.complete and entity is not None:
                part = self.topology.part(tier, old)[entity]
                return self.moved(layer, tier, [(float(s), held[old][j][layer]) for j, s in enumerate(part) if s])
            shares = found.others if entity is None else found.of_host.get(entity, found.others)
            sources = [(share, held[old][j][layer]) for j, share in shares.items()]
            return self.moved(layer, tier, sources or [(1.0, rest[old][layer])])

        for tier, entities in enumerate(self.entities):
            layers = [layer for layer, host in enumerate(after) if host == tier]
            moved = [layer for layer in layers if before[layer] != tier]
            new = {layer: copies(layer, tier, None) for layer in moved}
            for copy in new.values():
                copy.clear(self._own_slots())
            self.rest[tier].layers = [new.get(layer) or rest[tier][layer] for layer in layers]
            needed = self.attendance.needed(tier)
            self.entities[tier] = entities = {j: entities[j] for j in needed if j in entities}
            for j in needed:
                if j not in entities:
                    entities[j] = self.new_entity(tier, j)
                    held[tier][j] = {n: self.moved(n, tier, [(1.0, copy)]) for n, copy in rest[tier].items()}
                entities[j].layers = [
                    copies(layer, tier, j) if layer in moved else held[tier][j][layer] for layer in layers
                ]
        self.server = self.server_state(self.cuts, self.server)

    def _last(self, tier: int) -> list[State]:
        if not self._keeps_last(tier):
            return []
        return [
            State(item for layer in entity.layers for item in layer.named_last().items())
            for entity in (*self.entities[tier].values(), *self._standing_in(tier))
        ]

    def _of_server(self, tier: int, slot: str) -> list[State]:
        if slot not in self._server_slots(tier):
            return []
        named = [(n, name) for n in self._tier_layers()[tier] for name, _ in self._layers[n].named_parameters()]
        kept = [tensor for n in self._tier_layers()[tier] for tensor in self.server[slot][n]]
        return [State((f"{n}.{name}", tensor) for (n, name), tensor in zip(named, kept, strict=True))]

    def drift(self, tier: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for group in self._by_age(self._tier_layers()[tier]).values():
            shares = self._shares_of(tier, group[0])
            held = [self.entities[tier].get(j, self.rest[tier]) for j in shares]
            copies = [
                [p.detach() for layer in entity.layers if layer.number in group for p in layer.module.parameters()]
                for entity in held
            ]
            total += drift(list(shares.values()), copies, self.device)
        return total

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        return self.entities[tier].get(entity, self.rest[tier]).state()

    def _rest(self, tier: int) -> list[tuple[State, State]]:
        return [entity.state() for entity in self._standing_in(tier)]

    def _standing_in(self, tier: int) -> list[Entity]:
        """The one that stands for others, where there are any."""
        return [self.rest[tier]] if len(self.entities[tier]) < self.topology.entities[tier] else []

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        for entity in self._all_entities():
            entity.seed = seed
            for layer in entity.layers:
                layer.resume(round_)


def _by_number(entity: Entity) -> dict[int, LayerCopy]:
    return {copy.number: copy for copy in entity.layers}
