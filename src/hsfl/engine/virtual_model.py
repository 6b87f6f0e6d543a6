"""The virtual average as one model, whose gradients are measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import nn

from hsfl.engine.capture import CapturedRound, CaptureError
from hsfl.engine.links import CodedCut
from hsfl.engine.losses import Loss, by_sample
from hsfl.engine.outputs import each
from hsfl.engine.per_client import SeededDropout, own_chance, seed_dropout
from hsfl.engine.precision import arithmetic, casts
from hsfl.engine.running import run_layer

Samples = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class VirtualModel:
    """The virtual average as one model, and its gradients by layer."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        state: Mapping[str, torch.Tensor],
        samples: Samples,
        loss: Loss,
        seed: int,
        device: torch.device,
        precision: str,
        *,
        capture: bool = False,
    ) -> None:
        """Copies of `layers` with the weights of `state`; `samples` gives inputs and targets, `seed` is dropout's.

        `capture`: on CUDA gradients are recorded once and replayed, where nothing in them is left to chance.
        """
        self.samples, self.loss, self.seed, self.device, self.precision = samples, loss, seed, device, precision
        self.layers = nn.ModuleList(copy.deepcopy(list(layers))).train()
        self.layers.load_state_dict(state)
        self.num_layers = len(self.layers)
        self.modules = list(self.layers.modules())
        self.parameters: list[torch.Tensor] = [p for p in self.layers.parameters() if p.requires_grad]
        number = [i for i, layer in enumerate(self.layers) for p in layer.parameters() if p.requires_grad]
        self.layer_of = torch.tensor(number, device=device, dtype=torch.int64)
        self._capturing = capture and device.type == "cuda"
        self._recorded: tuple[torch.Size, CapturedRound] | None = None

    def copy(self) -> VirtualModel:
        """The same model with weights of its own."""
        state = self.layers.state_dict()
        return VirtualModel(list(self.layers), state, self.samples, self.loss, self.seed, self.device, self.precision)

    def gradient(
        self, client: int, indices: torch.Tensor, key: int = 0, coded: CodedCut | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Loss and gradient on some samples of a client; dropout is that of `key`.

        `coded`: a cut as if there were a link.
        """
        if self._capturing and self._recorded is None and coded is None:
            self._record(indices)
        if self._recorded is not None and coded is None and self._recorded[0] == indices.shape:
            loss, *found = self._recorded[1](indices).split([1, *(p.numel() for p in self.parameters)])
            return loss[0], [g.view(p.shape) for g, p in zip(found, self.parameters, strict=True)]
        return self._computed(indices, (client, key), coded)

    def _record(self, indices: torch.Tensor) -> None:
        """Record the gradient on so many samples; not where it depends on the client, nor where that cannot be."""
        self._capturing = False

        def work(indices: torch.Tensor) -> torch.Tensor:
            loss, gradient = self._computed(indices)
            return torch.cat([loss[None], *(g.flatten() for g in gradient)])

        if self._is_left_to_chance(indices):
            return
        seed_dropout(self.modules, [0], self.seed, 0)
        with suppress(CaptureError):  # it is slower then
            recorded = CapturedRound(work, [indices], list(self.layers.buffers()), self.device)
            self._recorded = indices.shape, recorded

    def _is_left_to_chance(self, indices: torch.Tensor) -> bool:
        if any(isinstance(module, SeededDropout) and module.p for module in self.modules):
            return True

        def states() -> list[torch.Tensor]:
            return [torch.get_rng_state(), torch.cuda.get_rng_state(self.device)]

        with torch.no_grad(), torch.random.fork_rng([self.device]):
            before = states()
            self._computed(indices, differentiate=False)
            return not all(map(torch.equal, before, states()))

    def _computed(
        self,
        indices: torch.Tensor,
        chance: tuple[int, int] | None = None,
        coded: CodedCut | None = None,
        *,
        differentiate: bool = True,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Loss and gradient; `chance` is the client and the key that it follows from."""
        inputs, targets = self.samples(indices)
        if chance is not None:
            seed_dropout(self.modules, [chance[0]], self.seed, chance[1])
        with arithmetic(self.device, self.precision):
            with casts(self.device, self.precision):
                x: Any = inputs
                for number, layer in enumerate(self.layers):
                    with nullcontext() if chance is None else self._chance(*chance, number):
                        x = run_layer(number, layer, x, several=number == self.num_layers - 1)
                    if coded is not None and coded.after == number + 1:
                        x = each(coded.passed, x)
            loss = by_sample(self.loss, x, targets, self._dtype).mean()
            if not differentiate:
                return loss, []
            found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.parameters, strict=True)]
        return loss.detach(), gradient

    def _chance(self, client: int, key: int, number: int) -> AbstractContextManager[None]:
        return own_chance(self.seed, key, client, number, self.device)

    @property
    def _dtype(self) -> torch.dtype:
        return self.parameters[0].dtype

    def zeros(self) -> list[torch.Tensor]:
        return [torch.zeros_like(p) for p in self.parameters]

    def squares(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """(L,): the squared norm by layer, in float64."""
        return squares_by_layer(tensors, self.layer_of, self.num_layers)


def squares_by_layer(tensors: list[torch.Tensor], layer_of: torch.Tensor, num_layers: int) -> torch.Tensor:
    """(L,): the squared norm by layer, in float64, of tensors of these layers."""
    found = torch.zeros(num_layers, dtype=torch.float64, device=layer_of.device)
    if not tensors:
        return found
    return found.index_add_(0, layer_of, torch.stack(torch._foreach_norm(tensors)).double().square())
