"""The fast backend: one copy per entity, one flat tensor per tier.

Tier m has J_m distinct copies of its layers, not N, and each works on all its clients' samples at once, so a round
costs little more than one centralised step on the same samples. An entity's parameters are views of its row of the
tier's flat tensor: averaging is one weighted mean over rows. On CUDA a whole round is one graph, see `capture`.
"""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hsfl.engine.averaging import UNSENT, Tensors
from hsfl.engine.backend import Backend
from hsfl.engine.capture import CapturedRound, CaptureError, Lanes
from hsfl.engine.coded_averages import coded_mean
from hsfl.engine.entity import State
from hsfl.engine.flat_tiers import FlatTier, Sequences
from hsfl.engine.losses import by_sample
from hsfl.engine.outputs import gradients, joined, leaves
from hsfl.engine.per_client import PerClientBatchNorm, SeededDropout, client_keys
from hsfl.engine.precision import arithmetic, casts
from hsfl.engine.running import run_layer
from hsfl.engine.sharding import Processes, RoundSum, Shard
from hsfl.engine.stacked_passes import EntityStep, Pass, backward, weighing
from hsfl.problem.codes import LinkCodes

#: Recorded rounds kept: one for every way to get a batch, and every shape of one, that takes turns.
_KEPT = 4


class StackedBackend(Backend):
    """See the module's text. Gives the numbers of the reference backend."""

    together = True

    def __init__(self, *args: Any, processes: Processes | None = None, **options: Any) -> None:
        """`processes`: those that train together, where there are several; each has a part of the clients."""
        super().__init__(*args, **options)
        self.shard = Shard(self.topology, processes or Processes())
        # In this order of clients the batch of every entity of every tier is a slice of the whole.
        order = list(self.shard.clients)
        self._sections = [[slice(c[0], c[0] + len(c)) for c in tier] for tier in self.shard.local.clients]
        self._order = self._permutation(order)
        self._back = self._permutation(sorted(range(len(order)), key=order.__getitem__))
        # The lowest tier's "children" are the parts of the batch, one for each entity.
        self._children = [[[j] for j in range(len(self._sections[0]))]] + [
            [[j for j, s in enumerate(below) if a.start <= s.start < a.stop] for a in above]
            for below, above in itertools.pairwise(self._sections)
        ]
        tiers = range(self.num_tiers)
        self._shares = [torch.tensor(self.shard.shares(m), dtype=self.dtype, device=self.device) for m in tiers]
        # What changes from round to round is on the device, so that a recorded round moves on by itself.
        self._clock, self._seed = (torch.tensor(v, device=self.device) for v in (0, self.seed))
        self._lr: float | torch.Tensor = self.optimizer.lr
        if self.device.type == "cuda" and self.dtype == torch.float32:
            self._lr = torch.tensor(self.optimizer.lr, dtype=torch.float32, device=self.device)
        sites = [m.site for layer in self._layers for m in layer.modules() if isinstance(m, SeededDropout)]
        self._sites, self._clients = (torch.tensor(v, dtype=torch.int64, device=self.device) for v in (sites, order))
        self._keys = self._sites.new_zeros(len(sites), len(order))
        self._channels_last = True
        on_device = isinstance(self._lr, torch.Tensor) or self.optimizer.schedule is None
        self._capturing = self.device.type == "cuda" and self.capture is not False and on_device
        self._recorded: OrderedDict[tuple[Any, ...], CapturedRound] = OrderedDict()
        self._build()

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        return self._run(self._work_given, inputs, targets)

    def _round_from(self, draw: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        return self._run(self._work_from, draw)

    def _work_given(self, inputs: torch.Tensor, targets: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        return self._work(self._own(inputs), self._own(targets), lanes)

    def _work_from(self, draw: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        return self._work(*self._data().batch(self._own(draw)), lanes)

    def _own(self, of_clients: torch.Tensor) -> torch.Tensor:
        """What belongs to the clients of this process, in their order."""
        return of_clients if self._order is None else of_clients[self._order]

    def _run(self, work: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """One round, recorded where that is wanted and possible."""
        self._set_rate()
        with arithmetic(self.device, self.precision):
            key = (work, *((tensor.shape, tensor.dtype) for tensor in given))
            if self._capturing and key not in self._recorded:
                self._record(key, lambda *g: work(*g, Lanes(self.device, streams=True)), given)
            if self._capturing:
                self._recorded.move_to_end(key)
                losses = self._recorded[key](*given)
            else:
                losses = work(*(tensor.to(self.device) for tensor in given), Lanes(self.device))
        return losses

    def _set_rate(self) -> None:
        """The learning rate of the round, where a recorded one reads it; without waiting for the device."""
        if self.optimizer.schedule is not None:
            (rate,) = self.optimizer.rates(self.round)
            self._lr = self._lr.fill_(rate) if isinstance(self._lr, torch.Tensor) else rate

    def _record(self, key: tuple[Any, ...], work: Callable[..., torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        while len(self._recorded) >= _KEPT:
            self._recorded.popitem(last=False)
        state = [self._clock, self._keys, *(tensor for tier in self._tiers for tensor in tier.state())]
        try:
            self._recorded[key] = CapturedRound(work, given, state, self.device)
        except CaptureError as error:
            self._capturing = False
            warnings.warn(
                f"rounds cannot be captured as a CUDA graph ({error}); they run slower, one operation at a time",
                stacklevel=4,
            )

    def _work(self, inputs: torch.Tensor, targets: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        """The round itself, with nothing in it that waits for the device or depends on the host's counters."""
        if len(self._sites):
            self._keys.copy_(client_keys(self._seed, self._clock, self._sites, self._clients))
        self._clock.add_(1)
        inputs, targets = self._inputs(inputs), targets.to(self.device)
        if self._sum is not None:
            self._sum.begin()
        passes = self._forward(inputs, lanes)
        outputs, wanted = leaves(joined([one.sent for one in passes[-1]]))
        found = by_sample(self.loss, outputs, targets.flatten(0, 1), self.dtype)
        losses = found.view(len(inputs), -1).mean(1)  # each client's
        waiting = self._backward(passes, gradients(losses.sum(), wanted), lanes)
        losses = losses.detach()
        if self._sum is None:
            return losses if self._back is None else losses[self._back]
        with torch.no_grad():
            losses = self._sum.finish(losses)
            for entity in waiting:
                self._update(entity, entity.summed, self._clock.float())
        return losses

    def _forward(self, inputs: torch.Tensor, lanes: Lanes) -> list[list[Pass]]:
        """Tier by tier, every entity on the samples of all its clients."""
        samples = inputs.flatten(0, 1)
        if self._channels_last and samples.dim() == 4:
            samples = samples.contiguous(memory_format=torch.channels_last)
        samples = samples.unflatten(0, inputs.shape[:2])
        sent = [samples[section].flatten(0, 1) for section in self._sections[0]]
        marks = [lanes.mark()] * len(sent)
        passes: list[list[Pass]] = []
        for m, (tier, children) in enumerate(zip(self._tiers, self._children, strict=True)):

            def work(j: int, m: int = m, tier: FlatTier = tier, children=children, sent=sent) -> Pass:  # type: ignore[no-untyped-def]
                x = received = joined([sent[i] for i in children[j]]).detach()
                top = m == self.num_tiers - 1
                if m:
                    received.requires_grad_(received.is_floating_point())
                with casts(self.device, self.precision):
                    for number, layer in zip(tier.layers, tier.entities[j], strict=True):
                        x = run_layer(number, layer, x, several=top and number == tier.layers[-1])
                arrives = x if top else self.links[m].up.passed(x)
                return Pass(received, x, arrives)

            own, marks = lanes.each(work, [[marks[i] for i in group] for group in children])
            passes.append(own)
            sent = [one.arrives for one in own]
        lanes.join()
        return passes

    def _backward(self, passes: list[list[Pass]], found: Tensors, lanes: Lanes) -> list[EntityStep]:
        """Tier by tier from the top; an entity steps as soon as it has its gradients, while others still work.

        Those that wait for gradients of other processes are handed back.
        """
        time, marks = self._clock.float(), [lanes.mark()] * len(passes[-1])
        waiting: list[EntityStep] = []
        whole = [gradient.unflatten(0, (len(self.shard.clients), -1)) for gradient in found]
        sent_down = {j: [g[section].flatten(0, 1) for g in whole] for j, section in enumerate(self._sections[-1])}
        alive = [sent_down]  # until all is done, like `passes`: another stream may read what this one would free
        for m in range(self.num_tiers - 1, -1, -1):

            def work(j: int, m: int = m, above: dict[int, Tensors] = sent_down) -> torch.Tensor | None:
                passed = self._step(passes[m][j], self._stepped[m][j], above[j], time, waiting, wanted=m > 0)
                return None if passed is None else self.links[m - 1].down.passed(passed)

            received, done = lanes.each(work, [[mark] for mark in marks])
            if not m:
                break
            sent_down, marks = {}, [None] * len(passes[m - 1])
            for j, (section, of_entity) in enumerate(zip(self._sections[m], received, strict=True)):
                assert of_entity is not None
                parts = of_entity.unflatten(0, (section.stop - section.start, -1))
                for i in self._children[m][j]:
                    part = self._sections[m - 1][i]
                    sent_down[i] = [parts[part.start - section.start : part.stop - section.start].flatten(0, 1)]
                    marks[i] = done[j]
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
        *,
        wanted: bool,
    ) -> torch.Tensor | None:
        """An entity's update from the gradients of what it sent; the gradient of what it received, where wanted."""
        found, passed = backward(one, given, entity, wanted=wanted)
        with torch.no_grad():
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

    @torch.no_grad()
    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        rows, mean = self._tiers[tier], partial(self._mean, tier)
        held = replace(rows.held(layers), round=self.round)
        with arithmetic(self.device):  # in full precision, whatever that of rounds
            contributed, server = self.averaging.contribute(held), rows.server_slots(layers)
            served = partial(self.averaging.served, server=server, rounds=rounds)
            if self.coded[tier]:
                codec, sequences = self.links[tier].average, Sequences(rows.parameters, layers)
                unsent = held.slots[UNSENT], server[UNSENT]
                average = coded_mean(codec, mean, served, contributed, *unsent, sequences)
            else:
                average = mean(contributed)
                average = [*served(average[: len(held.weights)]), *average[len(held.weights) :]]
            self.averaging.adopt(held, average, rounds)
        rows.keep_last(layers)

    def _mean(self, tier: int, rows: Tensors) -> Tensors:
        """The mean over a tier's entities, weighted by clients."""
        return self.shard.processes.sum([self._shares[tier] @ one for one in rows])

    @torch.no_grad()
    def drift(self, tier: int) -> torch.Tensor:
        weights = self._tiers[tier].weights
        with arithmetic(self.device):
            apart = weights - self._mean(tier, [weights])[0]
        own = self._shares[tier].double() @ apart.square_().sum(1, dtype=torch.float64)
        return self.shard.processes.sum([own])[0]

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        if changed := super().recode(codes):
            self._recorded.clear()
        return changed

    @torch.no_grad()
    def _move(self, before: Sequence[int]) -> None:
        old_tiers = self._tiers
        self._build()
        for layer, (old, new) in enumerate(zip(before, self._tier_by_layer(), strict=True)):
            share = torch.tensor(self.shard.part(new, old), dtype=self.dtype, device=self.device)

            def mean(rows: torch.Tensor, old: int = old, new: int = new, share: torch.Tensor = share) -> torch.Tensor:
                return rows if old == new else self.shard.completed(new, share @ rows)

            with arithmetic(self.device):
                self._tiers[new].take(layer, old_tiers[old], mean)

    @torch.no_grad()
    def global_state(self) -> State:
        state = self.client_state(min(self.shard.clients))
        for m, tier in enumerate(self._tiers):
            with arithmetic(self.device):
                means = self._mean(m, [tier.weights, tier.statistics])
            for mean, places in zip(means, (tier.parameters, tier.buffers), strict=True):
                for place in places:
                    for name in (place.name, *place.aliases):
                        if (key := f"{place.layer}.{name}") in state:
                            state[key] = place.view(mean)
        return state

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        row = self.shard.row(tier, entity)
        return (State(), State()) if row is None else self._tiers[tier].named(row)

    def _last(self, tier: int) -> list[State]:
        return self._tiers[tier].named_rows(self._tiers[tier].last)

    def _of_server(self, tier: int, slot: str) -> list[State]:
        return self._tiers[tier].named_rows(self._tiers[tier].server.get(slot))

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        self._clock.fill_(round_)
        self._seed.fill_(seed)

    @torch.no_grad()
    def _build(self) -> None:
        """Tiers for the current cuts, all entities as the model came."""
        self._recorded.clear()  # their memory is taken again by the next one
        self._tiers = [
            FlatTier(
                [self._layers[i] for i in layers],
                layers,
                self._slots(tier),
                share,
                keeps_last=self._keeps_last(tier),
                server=self._server_slots(tier),
                channels_last=self._channels_last,
            )
            for tier, (layers, share) in enumerate(zip(self._tier_layers(), self._shares, strict=True))
        ]
        self._sum = RoundSum(self.shard, self._tiers) if self.shard.processes.size > 1 else None
        self._stepped: list[list[EntityStep]] = []
        site = {int(s): i for i, s in enumerate(self._sites)}
        for m, (tier, sections) in enumerate(zip(self._tiers, self._sections, strict=True)):
            corrected = self.averaging.corrects and bool(self.topology.averaged[m])
            summed = {} if self._sum is None else self._sum.gradients[m]
            means = enumerate(zip(self.shard.weights(m).tolist(), self.shard.client_parts(m), strict=True))
            weighed = [(tier.trained(j), *weighing(*one, like=self._shares[m])) for j, one in means]
            self._stepped.append([EntityStep(*one, corrected, summed.get(j, [])) for j, one in enumerate(weighed)])
            for j, section in enumerate(sections):
                for module in (m for layer in tier.entities[j] for m in layer.modules()):
                    if isinstance(module, PerClientBatchNorm):
                        module.clients, module.parts = section.stop - section.start, self._stepped[m][j].parts
                    elif isinstance(module, SeededDropout):
                        module.keys = self._keys[site[module.site], section]

    def _permutation(self, order: list[int]) -> torch.Tensor | None:
        return None if order == list(range(self.num_clients)) else torch.tensor(order, device=self.device)
