"""The part of an entity in moves: layers travel along the tree to the machines that hold them from then on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Send
from hsfl.distributed.places import Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.tensors import Packed, WireError, pack_by_name, unpacked_by_name
from hsfl.distributed.work import Work
from hsfl.engine.entities import EntityBackend
from hsfl.engine.entity import Entity
from hsfl.engine.layer_copy import LayerCopy
from hsfl.problem.topology import tier_of


class MovingWork(Work):
    """Holds an entity, whose layers come and go."""

    entity: Entity

    def __init__(self, parts: EntityBackend, places: Places, name: str, saves: Saves) -> None:
        super().__init__(parts, places, name, saves)
        self.tier, self.number = places.entities[name]
        self._arriving: dict[int, dict[int, LayerCopy]] = {}
        """Layers that move here, by layer and the entity that held them."""
        self._came_from: list[int] = []
        """The tiers of the layers before the move."""

    def _move(self, cuts: tuple[int, ...]) -> list[Send]:
        before, self.parts.cuts = self.parts.cuts, cuts
        layers = range(len(self.parts._layers))
        self._came_from = [tier_of(before, layer) for layer in layers]
        self._arriving = {layer: {} for layer in layers if tier_of(cuts, layer) == self.tier != self._came_from[layer]}
        sent: list[Send] = []
        for layer in self.entity.layers:
            if (to := tier_of(cuts, layer.number)) != self.tier:
                names, tensors = pack_by_name(_whole(layer))
                moved = wire.MovedLayer(layer=layer.number, entity=self.number, names=names)
                sent += [Send(name, self._message(moved_layer=moved), tensors) for name in self._towards(to)]
        return [*sent, *self._if_moved()]

    def _take_moved_layer(self, source: str, moved: wire.MovedLayer, tensors: Sequence[Packed]) -> list[Send]:
        if moved.layer >= len(self._came_from) or source not in (self.parent, *self.children):
            raise WireError(f"layer {moved.layer + 1}, which does not move")
        old, new = self._came_from[moved.layer], tier_of(self.parts.cuts, moved.layer)
        if new != self.tier:
            return [Send(name, self._message(moved_layer=moved), tensors) for name in self._towards(new)]
        if moved.entity not in self._sources(old):
            raise WireError(f"layer {moved.layer + 1} of a machine that does not send it here")
        copy = self.parts.new_copy(moved.layer, old)
        own = _whole(copy)
        found = unpacked_by_name((moved.names, tensors), own)
        with torch.no_grad():
            for key, value in own.items():
                value.copy_(found[key])
        self._arriving[moved.layer][moved.entity] = copy
        return self._if_moved()

    @torch.no_grad()
    def _if_moved(self) -> list[Send]:
        """Finish the move once all layers that come here are here."""
        if any(set(copies) != self._sources(self._came_from[layer]).keys() for layer, copies in self._arriving.items()):
            return []
        kept = {layer.number: layer for layer in self.entity.layers}
        for layer, copies in self._arriving.items():
            shares = self._sources(self._came_from[layer])
            kept[layer] = self.parts.moved(layer, self.tier, [(shares[j], copies[j]) for j in sorted(copies)])
        self.entity.layers = [kept[layer] for layer in self.parts.layers_of(self.tier, self.parts.cuts)]
        self._arriving = {}
        return self._finish()

    def _sources(self, tier: int) -> dict[int, float]:
        """The entities of a tier that serve clients of this one, with their shares of these."""
        part = self.parts.topology.part(self.tier, tier)[self.number]
        return {j: float(share) for j, share in enumerate(part) if share}

    def _towards(self, tier: int) -> tuple[str, ...]:
        return (self.parent,) if tier > self.tier else self.children


def _whole(layer: LayerCopy) -> dict[str, torch.Tensor]:
    """Everything that goes with a layer."""
    found = {f"state.{key}": value for key, value in layer.state().items()}
    found |= {f"slot.{key}": value for key, value in layer.named_slots().items()}
    return found | {f"last.{key}": value for key, value in layer.named_last().items()}
