"""An entity behind a wire: the same `engine.entity.Entity`, told what to do and fed by messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.lateness import Lateness
from hsfl.distributed.membership import Send
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.shapes import Crossing
from hsfl.distributed.tensors import Packed, WireError, check_count, pack, pack_by_name, unpacked, unpacked_by_name
from hsfl.distributed.work import Work, pack_average, unpacked_average
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
        self._clients: set[int] = set()
        """Whose gradients are still to come in this round."""
        self._lateness = Lateness()
        self._average: tuple[wire.Average, Tensors] | None = None
        self._arriving: dict[int, dict[int, LayerCopy]] = {}
        """Layers that move here, by layer and the entity that held them."""
        self._came_from: list[int] = []
        """The tiers of the layers before the move."""
        self._compute_s = 0.0

    def drop(self) -> None:
        super().drop()
        self._lateness.drop()

    def take(
        self,
        source: str,
        message: wire.Message,
        tensors: Sequence[Packed] = (),
        at_s: float = 0.0,
        way_s: float = 0.0,
    ) -> list[Send]:
        if message.HasField("late") and source == self.parent:
            return [*self._late(message), *self._ended()]
        if not self._lateness.is_old(source, message):
            return super().take(source, message, tensors, at_s, way_s)
        if not message.HasField("done"):
            return []
        if (command := self._lateness.caught_up(source)) is None:
            return []
        self._awaited.add(source)
        return [Send(source, command)]

    def _receivers(self, command: wire.Message) -> tuple[str, ...]:
        """An average is no matter of the tiers below."""
        concerns_them = not command.HasField("average") or command.average.tier < self.tier
        return self._lateness.begin(command, self.children if concerns_them else ())

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

    def _begin(self, kind: str, command: Any) -> list[Send]:
        if kind == "round":
            return self._round(command)
        if kind == "average":
            return self._contribute(command) if command.tier == self.tier else self._finish()
        if kind == "move":
            return self._move(tuple(command.cuts))
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
        self._fill(unpacked_by_name((held.names, tensors), self.kept()))
        return self._finish()

    # --- rounds ---

    def _round(self, command: wire.Round) -> list[Send]:
        if command.round != self.parts.round:
            raise WireError(f"round {command.round}, and {self.name} is at {self.parts.round}")
        self._clients, self._compute_s = set(self.entity.clients) - set(command.absent), 0.0
        if command.deadline_s and self.parent == COORDINATOR:
            self._lateness.due_s = self._at_s + command.deadline_s
        sent: list[Send] = []
        if not self._clients:
            self._step()
        elif self.tier == 0:
            for client in sorted(self._clients, key=self.entity.clients.index):
                inputs, targets = self.parts._data().batch(self.parts.drawn()[client : client + 1])
                sent += self._forward(client, self.parts._inputs(inputs)[0], pack(targets[0]), wire.Chain())
        return sent

    def _take_activations(self, source: str, given: wire.Activations, tensors: Sequence[Packed]) -> list[Send]:
        if given.client in self._lateness.late:
            return []
        if given.client not in self._clients or source != self.places.host(self.tier - 1, given.client):
            raise WireError(f"activations of client {given.client + 1}")
        check_count(tensors, 2)
        like = self.crossing.activations(self.parts.cuts[self.tier - 1])
        values = unpacked(tensors[0], like, self.parts.links[self.tier - 1].up)
        given.chain.up_s += self._way_s
        sent = self._forward(given.client, values, tensors[1], given.chain)
        return [*sent, *self.overdue()] if self._lateness.overdue else sent

    def _forward(self, client: int, received: torch.Tensor, targets: Packed, chain: wire.Chain) -> list[Send]:
        """Compute with what was given for a client."""
        parts = self.parts
        with self._computing():
            sent = self.entity.forward(client, received.to(parts.device), parts.round)
        if self.places.parent(self.name) != COORDINATOR:
            message = self._message(activations=wire.Activations(client=client, chain=chain))
            packed = pack(sent, parts.links[self.tier].up)
            self._leaves(message.activations.chain)
            return [Send(self.parent, message, [packed, targets])]
        expected = unpacked(targets, self.crossing.targets).to(parts.device)
        with self._computing():
            loss, gradient = self.entity.loss(client, expected, parts.loss)
        self._done.losses[client] = float(loss)
        return self._backward(client, gradient, chain)

    def _take_gradients(self, source: str, given: wire.Gradients, tensors: Sequence[Packed]) -> list[Send]:
        if given.client not in self._clients or source != self.parent:
            raise WireError(f"gradients of client {given.client + 1}")
        check_count(tensors, 1)
        like = self.crossing.activations(self.parts.cuts[self.tier])
        gradient = unpacked(tensors[0], like, self.parts.links[self.tier].down)
        given.chain.down_s += self._way_s
        return self._backward(given.client, gradient.to(self.parts.device), given.chain)

    def _backward(self, client: int, gradient: torch.Tensor, chain: wire.Chain) -> list[Send]:
        with self._computing():
            passed = self.entity.backward(client, gradient)
        self._clients.remove(client)
        sent = []
        if passed is not None:
            message = self._message(gradients=wire.Gradients(client=client, chain=chain))
            packed = pack(passed, self.parts.links[self.tier - 1].down)
            self._leaves(message.gradients.chain)
            sent.append(Send(self.places.host(self.tier - 1, client), message, [packed]))
        if not self._clients:
            self._step()
        if passed is None:  # the end of the chain
            self._leaves(chain)
            self._done.chains[client].CopyFrom(chain)
        return sent

    def _step(self) -> None:
        """All clients that take part have been here, if any."""
        with self._computing():
            self.entity.step()
        self.parts.round += 1
        self._done.compute_s[self.name] = self._compute_s
        self._lateness.due_s = None
        self._finish()

    @property
    def due_s(self) -> float | None:
        return self._lateness.due_s

    def overdue(self) -> list[Send]:
        """At the top: leave out who is not there; if nobody is, as soon as somebody is."""
        self._lateness.due_s, self._lateness.overdue = None, not self._done.losses
        if self._lateness.overdue or not self._clients:
            return []
        self._done.late.extend(sorted(self._clients))
        return [*self._leave_out(set(self._clients)), *self._ended()]

    def _late(self, message: wire.Message) -> list[Send]:
        late = message.late
        if message.number == self._number:
            return self._leave_out(late_here) if (late_here := self._clients & set(late.clients)) else []
        if message.number < self._number or late.round != self.parts.round:
            raise WireError(f"who is late in round {late.round}, and {self.name} is at {self.parts.round}")
        self.parts.round += 1  # a round that it was kept from
        self.entity.pass_by()
        return [Send(child, message) for child in self.children]

    def _leave_out(self, late: set[int]) -> list[Send]:
        self._lateness.late |= late
        self._clients -= late
        for client in late:
            self.entity.forget(client)
        given = set(self.entity.clients) - set(self._lateness.command.round.absent) - self._lateness.late
        message = self._message(late=wire.Late(round=self.parts.round, clients=sorted(late)))
        sent = []
        for child in self.children:
            tier, number = self.places.entities[child]
            theirs = set(self.places.topology.clients[tier][number])
            if theirs & late:
                sent.append(Send(child, message))
                if not theirs & given:
                    self._awaited.discard(child)
                    self._lateness.left_behind(child, self._number)
        if not self._clients:
            self._step()
        return sent

    def waited_for(self) -> list[str]:
        """In a round, those whose activations have not come; when its own part is done, those who are not."""
        if not (self._busy and self._clients and self.children):
            return super().waited_for()
        missing = self._clients - self.entity.computed
        return sorted({self.places.host(self.tier - 1, client) for client in missing})

    def _leaves(self, chain: wire.Chain) -> None:
        """What came is dealt with: from then to now it was here, waiting for its turn or computed with."""
        chain.compute_s += time.monotonic() - self._at_s

    @contextmanager
    def _computing(self) -> Iterator[None]:
        start = time.perf_counter()
        with arithmetic(self.parts.device, self.parts.precision):
            yield
        self._compute_s += time.perf_counter() - start

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
