"""An entity behind a wire: the same `engine.entity.Entity`, told what to do and fed by messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.lateness import Lateness
from hsfl.distributed.membership import Heard, Send
from hsfl.distributed.moving import MovingWork
from hsfl.distributed.passes import Pass, Probing, chunk_by_chunk
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.shapes import Crossing
from hsfl.distributed.tensors import Packed, WireError, check_count, pack, pack_by_name, unpacked, unpacked_by_name
from hsfl.distributed.work import PROBE, pack_average, unpacked_average
from hsfl.engine.averaging import Tensors
from hsfl.engine.coded_averages import check_unsent
from hsfl.engine.entities import EntityBackend
from hsfl.engine.precision import arithmetic


class EntityWork(MovingWork):
    """The part of one entity in commands."""

    def __init__(self, parts: EntityBackend, places: Places, name: str, saves: Saves, crossing: Crossing) -> None:
        super().__init__(parts, places, name, saves)
        self.crossing = crossing
        self._pass: Pass | None = None
        """Mini-batches that are under way."""
        self._probing: Probing | None = None
        self._lateness = Lateness()
        self._average: tuple[wire.Average, Tensors] | None = None
        self._compute_s = self._round_s = 0.0

    def drop(self) -> None:
        super().drop()
        self._lateness.drop()
        self._pass = self._probing = None

    def take(self, heard: Heard) -> list[Send]:
        source, message = heard.name, heard.message
        if message.HasField("late") and source == self.parent:
            return [*self._late(message), *self._ended()]
        if not self._lateness.is_old(source, message):
            return super().take(heard)
        if not message.HasField("done"):
            return []
        if (command := self._lateness.caught_up(source)) is None:
            return []
        self._awaited.add(source)
        return [Send(source, command)]

    def _receivers(self, command: wire.Message) -> tuple[str, ...]:
        """The children that a command concerns: averages of a tier do not concern those below."""
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
        if kind in PROBE:
            return self._probe(kind, command)
        self._probing = None
        if kind == "round":
            return self._round(command)
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

    def _round(self, command: wire.Round) -> list[Send]:
        if command.round != self.parts.round:
            raise WireError(f"round {command.round}, and {self.name} is at {self.parts.round}")
        chunks = self.parts.chunks
        self._pass = Pass(self.entity, command.round, set(self.entity.clients) - set(command.absent), chunks=chunks)
        self._compute_s, self._round_s = 0.0, self._at_s
        if command.deadline_s and self.parent == COORDINATOR:
            self._lateness.due_s = self._at_s + command.deadline_s
        if not self._clients:
            self._step()
            return []
        own = sorted(self._clients, key=self.entity.clients.index) if self.tier == 0 else ()
        batches = ((n, *self.parts._data().batch(self.parts.drawn()[n : n + 1])) for n in own)
        self._pass.ahead = chunk_by_chunk(((n, inputs[0], targets[0]) for n, inputs, targets in batches), chunks)
        return self._next()

    def _next(self) -> list[Send]:
        """At a device: compute with the next chunk; what was sent of the one before is on its way meanwhile."""
        chunk = self._pass.ahead.popleft() if self._pass is not None and self._pass.ahead else []
        return [send for client, *batch in chunk for send in self._first(client, *batch)]

    def _first(self, client: int, inputs: torch.Tensor, targets: torch.Tensor) -> list[Send]:
        """Compute with a client's own mini-batch, or a chunk of it."""
        return self._forward(client, self.parts._inputs(inputs), pack(targets), wire.Chain())

    def _take_activations(self, source: str, given: wire.Activations, tensors: Sequence[Packed]) -> list[Send]:
        if given.client in self._lateness.late:
            return []
        under_way = self._under_way(given.client)
        if under_way is None or source != self.places.host(self.tier - 1, given.client):
            raise WireError(f"activations of client {given.client + 1}")
        if not given.chunk == under_way.gone[given.client] < under_way.chunks:
            raise WireError(f"chunk {given.chunk + 1} of client {given.client + 1}")
        check_count(tensors, 2)
        like = under_way.like(self.crossing.activations(self.parts.cuts[self.tier - 1]))
        values = unpacked(tensors[0], like, under_way.codec(self.parts.link_above(self.tier - 1).up))
        given.chain.up_s += self._way_s
        sent = self._forward(given.client, values, tensors[1], given.chain)
        return [*sent, *self.overdue()] if self._lateness.overdue else sent

    @property
    def _clients(self) -> set[int]:
        """The clients whose gradients are still to come."""
        return set() if self._pass is None else self._pass.clients

    def _under_way(self, client: int) -> Pass | None:
        """The mini-batches that are under way, if the client's is one of them."""
        return self._pass if client in self._clients else None

    def _forward(self, client: int, received: torch.Tensor, targets: Packed, chain: wire.Chain) -> list[Send]:
        """Compute with what was given for a client."""
        parts, under_way = self.parts, self._pass
        assert under_way is not None
        chunk = under_way.gone[client]
        under_way.gone[client] += 1
        with self._computing():
            sent = under_way.entity.forward(
                client, received.to(parts.device), under_way.round, under_way.cuts.get(client), chunk
            )
        if self.places.parent(self.name) != COORDINATOR:
            message = self._message(activations=wire.Activations(client=client, chain=chain, chunk=chunk))
            packed = pack(sent, under_way.codec(parts.link_above(self.tier).up))
            self._leaves(message.activations.chain)
            return [Send(self.parent, message, [packed, targets])]
        expected = unpacked(targets, under_way.like(self.crossing.targets)).to(parts.device)
        with self._computing():
            loss, gradients = under_way.entity.loss(client, expected, parts.loss, chunk)
        self._done.losses[client] = under_way.add_loss(client, loss)
        return self._backward(client, gradients, chain)

    def _take_gradients(self, source: str, given: wire.Gradients, tensors: Sequence[Packed]) -> list[Send]:
        under_way = self._under_way(given.client)
        if under_way is None or source != self.parent:
            raise WireError(f"gradients of client {given.client + 1}")
        if not given.chunk == under_way.back[given.client] < under_way.gone[given.client]:
            raise WireError(f"gradients of chunk {given.chunk + 1} of client {given.client + 1}")
        check_count(tensors, 1)
        like = under_way.like(self.crossing.activations(self.parts.cuts[self.tier]))
        gradient = unpacked(tensors[0], like, under_way.codec(self.parts.link_above(self.tier).down))
        given.chain.down_s += self._way_s
        return self._backward(given.client, [gradient.to(self.parts.device)], given.chain)

    def _backward(self, client: int, gradients: Tensors, chain: wire.Chain) -> list[Send]:
        under_way = self._pass
        assert under_way is not None
        chunk = under_way.back[client]
        under_way.back[client] += 1
        with self._computing():
            passed = under_way.entity.backward(client, gradients, chunk, more=chunk > 0)
        if last := under_way.back[client] == under_way.chunks:
            under_way.clients.remove(client)
        if self._probing is not None:
            self._probing.take(client, self._done.found[self.name])
        sent = []
        if passed is not None:
            message = self._message(gradients=wire.Gradients(client=client, chain=chain, chunk=chunk))
            packed = pack(passed, under_way.codec(self.parts.link_above(self.tier - 1).down))
            self._leaves(message.gradients.chain)
            sent.append(Send(self.places.host(self.tier - 1, client), message, [packed]))
        if not under_way.clients:
            if self._probing is None:
                self._step()
            else:
                self._pass = None
                self._finish()
        if passed is None and last:  # the end of the chain
            self._leaves(chain)
            self._done.chains[client].CopyFrom(chain)
        return sent

    def _step(self) -> None:
        """Step once all clients that take part have been here, if any do."""
        self._pass = None
        with self._computing():
            self.entity.step(self.parts.chunks)
        self.parts.round += 1
        self._done.compute_s[self.name] = self._compute_s
        self._lateness.due_s = None
        self._finish()

    @property
    def due_s(self) -> float | None:
        return 0.0 if self._pass is not None and self._pass.ahead else self._lateness.due_s

    def overdue(self) -> list[Send]:
        """At a device: compute with the next chunk. At the top: leave out who is not there; if nobody is, as soon as
        somebody is."""
        if self._pass is not None and self._pass.ahead:
            self._at_s = self._round_s
            return self._next()
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
        left = self._clients
        left -= late
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
        if not left:
            self._step()
        return sent

    def waited_for(self) -> list[str]:
        """In a round, those whose activations have not come; when its own part is done, those who are not."""
        if not (self._busy and self._pass and self._clients and self.children):
            return super().waited_for()
        missing = self._clients - self._pass.entity.computed
        return sorted({self.places.host(self.tier - 1, client) for client in missing})

    def _leaves(self, chain: wire.Chain) -> None:
        """Count the time since a message came: it waited here for its turn, or was computed with."""
        chain.compute_s += time.monotonic() - self._at_s

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
