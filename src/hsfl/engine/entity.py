"""One machine: the layers it holds, what it does with what it is sent, and its part in an average.

An entity processes the mini-batches of its clients one by one, or chunk by chunk, as they arrive, and steps once with
the mean of their gradients, of several of each client as of one. It knows nothing of the machines around it: what it
returns is what it would send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hsfl.engine.averaging import UNSENT, AveragingRule, Tensors, joined
from hsfl.engine.coded_averages import send
from hsfl.engine.layer_copy import LayerCopy, State
from hsfl.engine.links import Codec, CodedCut
from hsfl.engine.losses import Loss, by_sample
from hsfl.engine.outputs import each, gradients, leaves, tensors
from hsfl.engine.per_client import moment, own_chance, seed_dropout
from hsfl.engine.precision import casts
from hsfl.engine.running import run_layer
from hsfl.problem.topology import FloatArray


class Entity:
    """A machine of a tier, with the clients it serves.

    The lowest tier's passes no gradients on. The highest one's sends nothing: the loss is of what it computes, which
    may be several tensors.
    """

    def __init__(
        self,
        clients: Sequence[int],
        layers: Sequence[LayerCopy],
        averaging: AveragingRule | None,
        codec: Codec | None,
        *,
        weights: FloatArray | None,
        lowest: bool,
        highest: bool,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        precision: str,
    ) -> None:
        """`averaging` is None for the only entity of a tier, `codec` where averages are sent as they are.

        `weights` is what every client of the tree counts; None: all the same.
        """
        self._weights = weights
        self.clients, self.layers, self.averaging = tuple(clients), list(layers), averaging
        self.codec, self.lowest, self.highest, self.seed = codec, lowest, highest, seed
        self.device, self.dtype, self.precision = device, dtype, precision
        self._passes: dict[tuple[int, int], tuple[torch.Tensor, Any]] = {}
        """What was received and computed, by client and chunk."""
        self._gradients: dict[int, Tensors] = {}
        self._buffers: dict[int, Tensors] = {}

    def forward(
        self, client: int, received: torch.Tensor, round_: int, coded: CodedCut | None = None, chunk: int = 0
    ) -> Any:
        """What the entity sends up for a client's mini-batch, or a chunk of it, which it received; both count from 0.

        Every client starts from the buffers as they were before its mini-batch. `coded`: a cut as if there were a link.
        """
        received = received.detach()
        received.requires_grad_(not self.lowest and received.is_floating_point())
        owners = self._buffer_owners()
        before = self._all_buffers()
        for (owner, name), buffer in zip(owners, before, strict=True):
            owner._buffers[name] = buffer.clone()  # not in place: the backward pass may need what was there
        activations: Any = received
        with casts(self.device, self.precision):
            for layer in self.layers:
                seed_dropout(layer.module.modules(), [client], self.seed, round_, chunk)
                with own_chance(self.seed, moment(round_, 0, chunk), client, layer.number, self.device):
                    last = self.highest and layer is self.layers[-1]
                    activations = run_layer(layer.number, layer.module, activations, several=last)
                if coded is not None and coded.after == layer.number + 1:
                    activations = each(coded.passed, activations)
        self._buffers[client] = self._all_buffers()
        for (owner, name), buffer in zip(owners, before, strict=True):
            owner._buffers[name] = buffer
        self._passes[client, chunk] = received, activations
        return each(torch.Tensor.detach, activations)

    def loss(self, client: int, targets: torch.Tensor, loss: Loss, chunk: int = 0) -> tuple[torch.Tensor, Tensors]:
        """At the top: the mean loss of what was computed for a client's samples, and its gradients."""
        outputs, wanted = leaves(self._passes[client, chunk][1])
        found = by_sample(loss, outputs, targets, self.dtype).mean()
        return found.detach(), gradients(found, wanted)

    def backward(self, client: int, given: Tensors, chunk: int = 0, *, more: bool = False) -> torch.Tensor | None:
        """Keep the gradients of the layers for the step; the gradient of what was received, to be sent down.

        `given` are those of what was computed: of what was sent up, one. `more`: they are added to those that are kept.
        """
        received, computed = self._passes.pop((client, chunk))
        weights = self.trained()
        if computed is received:  # no layer is here
            self._keep(client, [], more)
            return None if self.lowest else given[0]
        pairs = zip((x for x in tensors(computed) if x.is_floating_point()), given, strict=True)
        sent = [(x, gradient.to(x.dtype)) for x, gradient in pairs if x.requires_grad]
        if not sent:  # nothing to train, here or below
            self._keep(client, [torch.zeros_like(w) for w in weights], more)
            return None if self.lowest else torch.zeros_like(received)
        wanted = received.requires_grad
        own = [*weights, received] if wanted else weights
        found = list(torch.autograd.grad([x for x, _ in sent], own, [g for _, g in sent], allow_unused=True))
        filled = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, own, strict=True)]
        passed = filled.pop() if wanted else None
        self._keep(client, filled, more)
        return passed

    def _keep(self, client: int, found: Tensors, more: bool) -> None:
        pairs = zip(self._gradients[client], found, strict=True) if more else ()
        self._gradients[client] = [a + b for a, b in pairs] if more else found

    @property
    def computed(self) -> set[int]:
        """The clients whose gradients it waits for."""
        return {client for client, _ in self._passes}

    def forget(self, client: int) -> None:
        """A client that was computed for takes no part in the round after all."""
        self._passes = {key: kept for key, kept in self._passes.items() if key[0] != client}
        self._buffers.pop(client, None)

    def pass_by(self) -> None:
        """A round without it: nothing but the time of its optimisers goes on."""
        for layer in self.layers:
            layer.slots()  # torch would make them at the first step, and count from there
            layer.resume(layer.steps + 1)

    def take_gradients(self, client: int) -> Tensors:
        """The gradients of the trained weights for a client's mini-batch, which no step is made with."""
        del self._buffers[client]
        return self._gradients.pop(client)

    def step(self, count: int = 1) -> None:
        """After so many mini-batches, or chunks, of all clients that take part, if any: one step with the mean."""
        present = [n for n in self.clients if n in self._gradients]
        if not present:
            self.pass_by()
            return
        per_client, parts = [self._gradients[n] for n in present], self._parts(present)
        mean = [_mean(same, parts) for same in zip(*per_client, strict=True)]
        mean = mean if count == 1 else [total / count for total in mean]
        mean = self.layers[0].update.clipped(mean) if self.layers else mean
        if mean and self.averaging is not None and self.averaging.corrects:
            mean = self.averaging.corrected(mean, joined(layer.held(trained=True) for layer in self.layers))
        for parameter, gradient in zip(self.trained(), mean, strict=True):
            parameter.grad = gradient
        for layer in self.layers:
            layer.step()
        self.settle()
        self._gradients = {}

    @torch.no_grad()
    def settle(self) -> None:
        """After a mini-batch of all clients that take part: float buffers become the mean of what each made of them."""
        present = [n for n in self.clients if n in self._buffers]
        if present:
            parts, after = self._parts(present), zip(*(self._buffers[n] for n in present), strict=True)
            for buffer, same in zip(self._all_buffers(), after, strict=True):
                buffer.copy_(_mean(same, parts) if buffer.is_floating_point() else same[0])
        self._buffers = {}

    def _parts(self, present: list[int]) -> FloatArray | None:
        """The parts of clients in a mean; None: all the same."""
        return None if self._weights is None else self._weights[present] / self._weights[present].sum()

    @torch.no_grad()
    def contribute(self, layers: Sequence[int]) -> Tensors:
        """What the entity sends to the fed server of some of its layers; coded, it keeps what was left out."""
        assert self.averaging is not None
        chosen = [layer for layer in self.layers if layer.number in layers]
        contributed = [t.clone() for t in self.averaging.contribute(joined(layer.held() for layer in chosen))]
        if self.codec is None:
            return contributed
        return send(self.codec, contributed, [layer.own[UNSENT] for layer in chosen])

    @torch.no_grad()
    def adopt(self, layers: Sequence[int], average: Sequence[torch.Tensor], rounds: int) -> None:
        """Take over the fed server's average of these layers, so many rounds after the one before."""
        assert self.averaging is not None
        chosen = [layer for layer in self.layers if layer.number in layers]
        self.averaging.adopt(joined(layer.held() for layer in chosen), average, rounds)
        for layer in chosen:
            layer.keep_last()

    @torch.no_grad()
    def count_as(self, other: Entity, layers: Sequence[int]) -> None:
        """Take over buffers of some layers that are whole numbers, such as counters, which averages leave alone."""
        theirs = other.state()[0]
        for layer in self.layers:
            for key, value in layer.state().items() if layer.number in layers else ():
                if not value.is_floating_point():
                    value.copy_(theirs[key])

    def state(self) -> tuple[State, State]:
        """Everything it holds: parameters and buffers by "LAYER.NAME", and slots by "SLOT.LAYER.NAME"."""
        state, slots = State(), State()
        for layer in self.layers:
            state |= layer.state()
            slots |= layer.named_slots()
        return state, slots

    def trained(self) -> list[nn.Parameter]:
        """The weights that have gradients."""
        return [p for layer in self.layers for p in layer.module.parameters() if p.requires_grad]

    def _all_buffers(self) -> Tensors:
        return [owner._buffers[name] for owner, name in self._buffer_owners()]  # type: ignore[misc]

    def _buffer_owners(self) -> list[tuple[nn.Module, str]]:
        """The module that each buffer belongs to, and its name there."""
        return [owner for layer in self.layers for owner in layer.buffer_owners()]


def add_share(total: State, state: State, share: float) -> None:
    """Count the state of an entity in, where a mean is summed up; of whole numbers the first ones stay."""
    for key, value in state.items():
        if value.is_floating_point():
            total[key] = total[key] + share * value if key in total else share * value
        else:
            total.setdefault(key, value)


def _mean(tensors: Sequence[torch.Tensor], parts: FloatArray | None) -> torch.Tensor:
    """The mean, each with its part of the whole; None: equal parts."""
    stacked = torch.stack(list(tensors))
    if parts is None:
        return stacked.mean(0)
    return torch.einsum("n,n...->...", torch.as_tensor(parts).to(stacked), stacked)
