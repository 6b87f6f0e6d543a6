"""A round of the stacked backend: passes and updates of all entities that take part, recorded on CUDA."""

from __future__ import annotations

import warnings
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hsfl.engine.averaging import Tensors
from hsfl.engine.backend import Backend
from hsfl.engine.capture import CapturedRound, CaptureError, Lanes
from hsfl.engine.flat_tiers import FlatTier
from hsfl.engine.losses import by_sample
from hsfl.engine.outputs import gradients, joined, leaves
from hsfl.engine.party import Party
from hsfl.engine.per_client import PerClientBatchNorm, SeededDropout, client_keys, moment
from hsfl.engine.precision import arithmetic, casts
from hsfl.engine.running import run_layer
from hsfl.engine.seats import Seats
from hsfl.engine.sharding import RoundSum
from hsfl.engine.stacked_passes import Accumulated, EntityStep, Pass, backward, weighing
from hsfl.problem.topology import Clients

#: Recorded rounds kept: one for every way to get a batch, and every shape of one, that takes turns.
_KEPT = 4
#: Rounds that some clients have to take part in, the same ones, before a round of theirs is recorded: it takes as long.
_STEADY = 4


class StackedRounds(Backend, ABC):
    """The part of the backend that trains."""

    together = True

    _tiers: list[FlatTier]
    _seats: list[Seats]
    """For every tier the rows of its entities."""
    _stepped: list[list[EntityStep]]
    """For every row what its update needs."""
    _sum: RoundSum | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # What changes from round to round is on the device, so that a recorded round moves on by itself.
        self._clock, self._seed = (torch.tensor(v, device=self.device) for v in (0, self.seed))
        self._lr: float | torch.Tensor = self.optimizer.lr
        if self.device.type == "cuda" and self.dtype == torch.float32:
            self._lr = torch.tensor(self.optimizer.lr, dtype=torch.float32, device=self.device)
        sites = [m.site for layer in self._layers for m in layer.modules() if isinstance(m, SeededDropout)]
        self._sites = torch.tensor(sites, dtype=torch.int64, device=self.device)
        modules = (module for layer in self._layers for module in layer.modules())
        self._per_client = any(isinstance(module, PerClientBatchNorm | SeededDropout) for module in modules)
        self._channels_last = True
        on_device = isinstance(self._lr, torch.Tensor) or self.optimizer.schedule is None
        self._capturing = self.device.type == "cuda" and self.capture is not False and on_device
        self._recorded: OrderedDict[tuple[Any, ...], CapturedRound] = OrderedDict()
        self._party: tuple[Clients, Party] | None = None
        """Who took part in the last round."""
        self._everybody: Party | None = None

    def _forget_parties(self) -> None:
        self._recorded.clear()  # their memory is taken again by the next one
        self._party = None
        self._everybody = None

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: Clients) -> torch.Tensor:
        return self._run(self._work_given, clients, inputs, targets)

    def _round_from(self, draw: torch.Tensor, clients: Clients) -> torch.Tensor:
        return self._run(self._work_from, clients, draw)

    def _work_given(self, party: Party, inputs: torch.Tensor, targets: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        return self._work(party, _own(party, inputs), _own(party, targets), lanes)

    def _work_from(self, party: Party, draw: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        return self._work(party, *self._data().batch(_own(party, draw)), lanes)

    def _run(self, work: Callable[..., torch.Tensor], clients: Clients, *given: torch.Tensor) -> torch.Tensor:
        """One round, recorded where that is wanted and possible, and pays."""
        if not clients:
            self._clock.add_(1)
            return torch.empty(0, dtype=self.dtype, device=self.device)
        self._set_rate()
        party = self._gather(clients)
        with arithmetic(self.device, self.precision):
            key = (work, party, self.micro_batches, *((tensor.shape, tensor.dtype) for tensor in given))
            capturing = self._capturing and (len(clients) == self.num_clients or party.rounds >= _STEADY)
            if capturing and key not in self._recorded:
                self._record(key, lambda *g: work(party, *g, Lanes(self.device, streams=True)), given)
            if capturing and self._capturing:
                self._recorded.move_to_end(key)
                losses = self._recorded[key](*given)
            else:
                losses = work(party, *(tensor.to(self.device) for tensor in given), Lanes(self.device))
        party.rounds += 1
        return losses

    def _set_rate(self) -> None:
        """The learning rate of the round, where a recorded one reads it; without waiting for the device."""
        if self.optimizer.schedule is not None:
            (rate,) = self.optimizer.rates(self.round)
            self._lr = self._lr.fill_(rate) if isinstance(self._lr, torch.Tensor) else rate

    def _gather(self, clients: Clients) -> Party:
        """Those who take part now, with the entities' modules told of them."""
        if self._party is not None and (clients is self._party[0] or clients == self._party[0]):
            return self._party[1]
        whole = len(clients) == self.num_clients
        if whole and self._everybody is not None:
            party = self._everybody
        else:
            ordered = self.shard.clients if whole else self.topology.ordered(clients)
            party = Party.of(self.topology, clients, ordered, len(self._sites), self.device)
            party.steps = [self._steps(m, party, whole=whole) for m in range(self.num_tiers)]
        site = {int(s): i for i, s in enumerate(self._sites)}
        for steps, sections in zip(party.steps, party.sections, strict=True):
            for step, section in zip(steps, sections, strict=True) if self._per_client else ():
                step.tell(section.stop - section.start, party.keys[:, section], site)
        self._party = clients, party
        self._everybody = party if whole else self._everybody
        return party

    def _steps(self, tier: int, party: Party, *, whole: bool) -> list[EntityStep]:
        """What the entities of a party need, with the mean over those of their clients that take part."""
        entities, weights = party.entities[tier].tolist(), self.topology.weights
        if whole:
            means = list(zip(self.shard.weights(tier).tolist(), self.shard.client_parts(tier), strict=True))
        elif weights is None:
            means = [(float(section.stop - section.start), None) for section in party.sections[tier]]
        else:
            own = weights[party.ordered]
            means = [(1.0, own[section] / own[section].sum()) for section in party.sections[tier]]
        steps = (self._stepped[tier][self._seats[tier][j]] for j in entities)
        weighed = (weighing(*one, like=self._tiers[tier].weights) for one in means)
        return [replace(s, divisor=divisor, parts=parts) for s, (divisor, parts) in zip(steps, weighed, strict=True)]

    def _record(self, key: tuple[Any, ...], work: Callable[..., torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        while len(self._recorded) >= _KEPT:
            self._recorded.popitem(last=False)
        state = [self._clock, key[1].keys, *(tensor for tier in self._tiers for tensor in tier.state())]
        try:
            self._recorded[key] = CapturedRound(work, given, state, self.device)
        except CaptureError as error:
            self._capturing = False
            warnings.warn(
                f"rounds cannot be captured as a CUDA graph ({error}); they run slower, one operation at a time",
                stacklevel=4,
            )

    def _work(self, party: Party, inputs: torch.Tensor, targets: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        """The round itself, with nothing in it that waits for the device or depends on the host's counters."""
        round_ = self._clock.clone() if len(self._sites) else self._clock
        self._clock.add_(1)
        inputs, targets, count = self._inputs(inputs), targets.to(self.device), self.micro_batches
        if self._sum is not None:
            self._sum.begin()
        total, each = Accumulated(count), []
        for i, batch in enumerate(zip(inputs.chunk(count, 1), targets.chunk(count, 1), strict=True)):
            if len(self._sites):
                party.keys.copy_(client_keys(self._seed, moment(round_, i), self._sites, party.clients))
            found, waiting = self._mini_batch(party, *batch, lanes, total)
            each.append(found)
        losses = each[0] if count == 1 else torch.stack(each).mean(0)
        if self._sum is None:
            return losses if party.back is None else losses[party.back]
        with torch.no_grad():
            losses = self._sum.finish(losses)
            for entity in waiting:
                self._update(entity, entity.summed, self._clock.float())
        return losses

    def _mini_batch(
        self, party: Party, inputs: torch.Tensor, targets: torch.Tensor, lanes: Lanes, total: Accumulated
    ) -> tuple[torch.Tensor, list[EntityStep]]:
        """Forward and backward; with the last one entities step, but for those handed back. The losses, first."""
        passes = self._forward(party, inputs, lanes)
        outputs, wanted = leaves(joined([passes[-1][j].sent for j in party.in_order]))
        found = by_sample(self.loss, outputs, targets.flatten(0, 1), self.dtype)
        losses = found.view(len(inputs), -1).mean(1)  # each client's
        waiting = self._backward(party, passes, gradients(losses.sum(), wanted), lanes, total)
        total.seen += 1
        return losses.detach(), waiting

    def _forward(self, party: Party, inputs: torch.Tensor, lanes: Lanes) -> list[list[Pass]]:
        """Tier by tier, every entity on the samples of all its clients."""
        samples = inputs.flatten(0, 1)
        if self._channels_last and samples.dim() == 4:
            samples = samples.contiguous(memory_format=torch.channels_last)
        samples = samples.unflatten(0, inputs.shape[:2])
        sent = [samples[section].flatten(0, 1) for section in party.sections[0]]
        marks = [lanes.mark()] * len(sent)
        passes: list[list[Pass]] = []
        for m, (tier, steps, children) in enumerate(zip(self._tiers, party.steps, party.children, strict=True)):

            def work(j: int, m: int = m, tier=tier, steps=steps, sent=sent) -> Pass:  # type: ignore[no-untyped-def]
                x = party.sent_to(m, j, sent).detach()
                top = m == self.num_tiers - 1
                if m:  # what its children send is coded together: fewer and larger operations give the same numbers
                    x = self.link_above(m - 1).up.passed(x)
                    x.requires_grad_(x.is_floating_point())
                received = x
                with casts(self.device, self.precision):
                    for number, layer in zip(tier.layers, steps[j].modules, strict=True):
                        x = run_layer(number, layer, x, several=top and number == tier.layers[-1])
                return Pass(received, x)

            own, marks = lanes.each(work, [[marks[i] for i in group] for group in children])
            passes.append(own)
            sent = [one.sent for one in own]
        lanes.join()
        return passes

    def _backward(
        self, party: Party, passes: list[list[Pass]], found: Tensors, lanes: Lanes, total: Accumulated
    ) -> list[EntityStep]:
        """Tier by tier from the top; an entity steps as soon as it has all its gradients, while others still work.

        Those that wait for gradients of other processes are handed back.
        """
        time, marks = self._clock.float(), [[lanes.mark()]] * len(passes[-1])
        waiting: list[EntityStep] = []
        whole = [gradient.unflatten(0, (len(party.clients), -1)) for gradient in found]
        sent_down = {j: [[g[section].flatten(0, 1)] for g in whole] for j, section in enumerate(party.sections[-1])}
        alive = [sent_down]  # until all is done, like `passes`: another stream may read what this one would free
        for m in range(self.num_tiers - 1, -1, -1):

            def work(j: int, m: int = m, above: dict[int, list[Tensors]] = sent_down) -> torch.Tensor | None:
                given = [joined(pieces) for pieces in above[j]]
                passed = self._step(passes[m][j], party.steps[m][j], given, time, waiting, total, wanted=m > 0)
                return None if passed is None else self.link_above(m - 1).down.passed(passed)

            received, done = lanes.each(work, marks)
            if not m:
                break
            sent_down, marks = party.sent_down(m, received, done)
            alive.append(sent_down)
        lanes.join()
        return waiting

    def _step(
        self,
        one: Pass,
        entity: EntityStep,
        given: Tensors,
        time: torch.Tensor,
        waiting: list[EntityStep],
        total: Accumulated,
        *,
        wanted: bool,
    ) -> torch.Tensor | None:
        """An entity's update from the gradients of what it sent, of the last mini-batch and those before.

        The gradient of what it received, where wanted.
        """
        found, passed = backward(one, given, entity, wanted=wanted)
        with torch.no_grad():
            found = total.added(entity, found)
            if found and entity.summed:
                torch._foreach_copy_(entity.summed, found)
                waiting.append(entity)
            elif found:
                self._update(entity, found, time)
        return passed

    def _update(self, entity: EntityStep, gradients: list[torch.Tensor], time: torch.Tensor) -> None:
        """The optimiser's step with the mean of the clients' gradients, clipped, as the averaging rule corrects it."""
        divisor, trained = entity.divisor, entity.trained
        if entity.corrected or self.optimizer.clip is not None:
            mean = gradients if divisor is None else [g / divisor.to(g.dtype) for g in gradients]
            gradients, divisor = self.optimizer.clipped(mean), None
        if entity.corrected:
            gradients = self.averaging.corrected(gradients, trained)
        slots = [trained.slots[slot] for slot in self.optimizer.slots]
        self.optimizer.update(trained.weights, gradients, slots, divisor=divisor, lr=self._lr, time=time)


def _own(party: Party, of_clients: torch.Tensor) -> torch.Tensor:
    """What belongs to a party, in its order, of what belongs to those given."""
    return of_clients if party.order is None else of_clients[party.order]
