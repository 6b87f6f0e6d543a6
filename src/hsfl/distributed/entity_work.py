"""An entity behind a wire: the same `engine.entity.Entity`, told what to do and fed by messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Send
from hsfl.distributed.passes import Pass, Probing
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.shapes import Crossing
from hsfl.distributed.tensors import Packed, WireError, check_count, pack, pack_by_name, unpacked, unpacked_by_name
from hsfl.distributed.work import PROBE, Work, pack_average, unpacked_average
from hsfl.engine.averaging import Tensors
from hsfl.engine.coded_averages import check_unsent
from hsfl.engine.entities import EntityBackend
from hsfl.engine.entity import Entity, LayerCopy
from hsfl.engine.precision import arithmetic
from hsfl.problem.topology import tier_of


class EntityWork(Work):
    """The part of one entity in commands."""

    entity: Entity

    def __init__(self, parts: EntityBackend, places: Places, name: str, saves: Saves, crossing: Crossing) -> None:
        super().__init__(parts, places, name, saves)
        self.tier, self.number = places.entities[name]
        self.crossing = crossing
        self._pass: Pass | None = None
        """Mini-batches that are under way."""
        self._probing: Probing | None = None
        self._average: tuple[wire.Average, Tensors] | None = None
        self._arriving: dict[int, dict[int, LayerCopy]] = {}
        """Layers that move here, by layer and the entity that held them."""
        self._came_from: list[int] = []
        """The tiers of the layers before the move."""
        self._compute_s = 0.0

    def drop(self) -> None:
        super().drop()
        self._pass = self._probing = None

    def _make(self) -> None:
        self.entity = self.parts.new_entity(self.tier, self.number)

    def kept(self) -> dict[str, torch.Tensor]:
        state, slots = self.entity.state()
        of = f"{self.tier}.{self.number}"
        found = {f"state.{of}.{key}": value for key, value in state.items()}
        found |= {f"slot.{of}.{key}": value for key, value in slots.items()}
        for layer in self.entity.layers:
            found |= {f"last.{self.tier}.{key}": value for key, value in layer.named_last().items()}
        return found

    def _concerns_children(self, kind: str, command: Any) -> bool:
        """An average is no matter of the tiers below."""
        return kind != "average" or command.tier < self.tier

    def _begin(self, kind: str, command: Any) -> list[Send]:
        if kind in PROBE:
            return self._probe(kind, command)
        self._probing = None
        if kind == "round":
            return self._round(command.round)
        if kind == "average":
            return self._contribute(command) if command.tier == self.tier else self._finish()
        if kind == "move":
            return self._move(tuple(command.cuts))
        if kind == "recode":
            self._use(command.codes)
            self.entity.codec = self.parts.links[self.tier].average if self.parts.coded[self.tier] else None
            return self._finish()
        if kind == "save":
            return self._save(command.position)
        if kind == "install":
            return [Send(FED, self._message(wanted=wire.Wanted()))]
        names, tensors = pack_by_name(self.kept() if command.all else self.entity.state()[0])
        held = wire.Held(name=self.name, names=names)
        return [Send(FED, self._message(held=held), tensors), *self._finish()]

    def _take_held(self, source: str, held: wire.Held, tensors: Sequence[Packed]) -> list[Send]:
        if source != FED or held.name != self.name:
            raise WireError(f"the state of {held.name[:60]}")
        if self._probing is None:
            self._fill(unpacked_by_name((held.names, tensors), self.kept()))
        elif self._probing.awaits:
            self._probing.fill((held.names, tensors))
        else:
            raise WireError("a state that nobody asked for")
        return self._finish()

    # --- rounds ---

    def _round(self, round_: int) -> list[Send]:
        if round_ != self.parts.round:
            raise WireError(f"round {round_}, and {self.name} is at {self.parts.round}")
        self._pass, self._compute_s = Pass(self.entity, round_, set(self.entity.clients)), 0.0
        sent = []
        if self.tier == 0:
            for client in self.entity.clients:
                inputs, targets = self.parts._data().batch(self.parts.drawn()[client : client + 1])
                sent += self._first(client, inputs[0], targets[0])
        return sent

    def _first(self, client: int, inputs: torch.Tensor, targets: torch.Tensor) -> list[Send]:
        """Compute with a client's own mini-batch."""
        return self._forward(client, self.parts._inputs(inputs), pack(targets))

    def _take_activations(self, source: str, given: wire.Activations, tensors: Sequence[Packed]) -> list[Send]:
        under_way = self._under_way(given.client)
        if under_way is None or source != self.places.host(self.tier - 1, given.client):
            raise WireError(f"activations of client {given.client + 1}")
        check_count(tensors, 2)
        like = under_way.like(self.crossing.activations(self.parts.cuts[self.tier - 1]))
        values = unpacked(tensors[0], like, under_way.codec(self.parts.links[self.tier - 1].up))
        return self._forward(given.client, values, tensors[1])

    def _under_way(self, client: int) -> Pass | None:
        """The mini-batches that are under way, if the client's is one of them."""
        return self._pass if self._pass is not None and client in self._pass.clients else None

    def _forward(self, client: int, received: torch.Tensor, targets: Packed) -> list[Send]:
        """Compute with what was given for a client."""
        parts, under_way = self.parts, self._pass
        assert under_way is not None
        with self._computing():
            sent = under_way.entity.forward(
                client, received.to(parts.device), under_way.round, under_way.cuts.get(client)
            )
        if self.places.parent(self.name) != COORDINATOR:
            message = self._message(activations=wire.Activations(client=client))
            return [Send(self.parent, message, [pack(sent, under_way.codec(parts.links[self.tier].up)), targets])]
        expected = unpacked(targets, under_way.like(self.crossing.targets)).to(parts.device)
        with self._computing():
            loss, gradient = under_way.entity.loss(client, expected, parts.loss)
        self._done.losses[client] = float(loss)
        return self._backward(client, gradient)

    def _take_gradients(self, source: str, given: wire.Gradients, tensors: Sequence[Packed]) -> list[Send]:
        under_way = self._under_way(given.client)
        if under_way is None or source != self.parent:
            raise WireError(f"gradients of client {given.client + 1}")
        check_count(tensors, 1)
        like = under_way.like(self.crossing.activations(self.parts.cuts[self.tier]))
        gradient = unpacked(tensors[0], like, under_way.codec(self.parts.links[self.tier].down))
        return self._backward(given.client, gradient.to(self.parts.device))

    def _backward(self, client: int, gradient: torch.Tensor) -> list[Send]:
        under_way = self._pass
        assert under_way is not None
        with self._computing():
            passed = under_way.entity.backward(client, gradient)
        under_way.clients.remove(client)
        if self._probing is not None:
            self._probing.take(client, self._done.found[self.name])
        sent = []
        if passed is not None:
            message = self._message(gradients=wire.Gradients(client=client))
            packed = pack(passed, under_way.codec(self.parts.links[self.tier - 1].down))
            sent.append(Send(self.places.host(self.tier - 1, client), message, [packed]))
        if not under_way.clients:
            self._pass = None
            if self._probing is None:
                self._step()
            self._finish()
        return sent

    def _step(self) -> None:
        with self._computing():
            self.entity.step()
        self.parts.round += 1
        self._done.compute_s[self.name] = self._compute_s

    @contextmanager
    def _computing(self) -> Iterator[None]:
        start = time.perf_counter()
        with arithmetic(self.parts.device, self.parts.precision):
            yield
        self._compute_s += time.perf_counter() - start

    # --- measurements ---

    def _probe(self, kind: str, command: Any) -> list[Send]:
        if kind == "probe":
            self._probing = Probing(self.parts, self.tier, self.number, command.batches)
            names, tensors = pack_by_name(self.entity.state()[0])
            return [Send(FED, self._message(held=wire.Held(name=self.name, names=names)), tensors)]
        probing = self._probing
        if probing is None:
            raise WireError("a part of a measurement that has not begun")
        if kind == "probe_pass":
            self._pass = probing.begin(command)
            if not self._pass.clients:
                return self._finish()
            own = sorted(self._pass.clients) if self.tier == 0 else []
            return [send for client in own for send in self._first(client, *probing.batch(client))]
        probing.tell(self._done.found[self.name])
        message = self._message(contribution=wire.Contribution(tier=self.tier, layers=self._numbers()))
        gradient = [pack(tensor) for tensor in probing.part.gradient()]
        probing.part.forget()
        probing.awaits = command.back
        return [Send(FED, message, gradient), *([] if command.back else self._finish())]

    def _numbers(self) -> list[int]:
        return [layer.number for layer in self.entity.layers]

    # --- averages ---

    def _contribute(self, average: wire.Average) -> list[Send]:
        contributed = self.entity.contribute(average.layers)
        codec = self.entity.codec
        if codec is not None:
            check_unsent([self.entity.state()[1]], [self.entity.clients], codec.code)
        self._average = average, contributed
        message = self._message(contribution=wire.Contribution(tier=self.tier, layers=average.layers))
        return [Send(FED, message, pack_average(contributed, codec, self._sizes(average)))]

    def _take_mean(self, source: str, mean: wire.Mean, tensors: Sequence[Packed]) -> list[Send]:
        if source == FED and self._probing is not None and self._probing.awaits:
            like = self._probing.part.entity.trained()
            gradient = unpacked_average(tensors, like, None, ())
            self._probing.gradient, self._probing.awaits = [one.to(self.parts.device) for one in gradient], False
            return self._finish()
        if source != FED or self._average is None:
            raise WireError("an average that nobody asked for")
        average, contributed = self._average
        values = unpacked_average(tensors, contributed, self.entity.codec, self._sizes(average))
        self._average = None
        device = self.parts.device
        self.entity.adopt(average.layers, [value.to(device) for value in values], average.rounds)
        return self._finish()

    def _sizes(self, average: wire.Average) -> list[int]:
        return [len(list(layer.module.parameters())) for layer in self.entity.layers if layer.number in average.layers]

    # --- moves ---

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
        """Once all layers are here that come here."""
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
        part = self.places.topology.part(self.tier, tier)[self.number]
        return {j: float(share) for j, share in enumerate(part) if share}

    def _towards(self, tier: int) -> tuple[str, ...]:
        return (self.parent,) if tier > self.tier else self.children


def _whole(layer: LayerCopy) -> dict[str, torch.Tensor]:
    """Everything that goes with a layer."""
    found = {f"state.{key}": value for key, value in layer.state().items()}
    found |= {f"slot.{key}": value for key, value in layer.named_slots().items()}
    return found | {f"last.{key}": value for key, value in layer.named_last().items()}
