"""What the entities of the stacked backend hold on to from their forward pass to their update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hsfl.engine.averaging import Held, Tensors
from hsfl.engine.outputs import tensors
from hsfl.engine.per_client import PerClientBatchNorm, SeededDropout
from hsfl.problem.topology import FloatArray


@dataclass(frozen=True)
class EntityStep:
    """What an entity's passes and its update need."""

    modules: list[nn.Module]
    """Its layers."""
    trained: Held
    divisor: torch.Tensor | None
    """The number of its clients that take part, if not 1; None where they have parts."""
    parts: torch.Tensor | None
    """The part of each of its clients here in its mean; None where all count the same."""
    corrected: bool
    """Whether the averaging rule corrects its gradients."""
    summed: Tensors
    """Where its gradients go to be summed, if it has clients in other processes too."""

    def tell(self, clients: int, keys: torch.Tensor, site: Mapping[int, int]) -> None:
        """Its modules whose clients these are: how many, and the keys of dropout by the places of its sites."""
        for module in (module for layer in self.modules for module in layer.modules()):
            if isinstance(module, PerClientBatchNorm):
                module.clients, module.parts = clients, self.parts
            elif isinstance(module, SeededDropout):
                module.keys = keys[site[module.site]]


class Accumulated:
    """The gradients of the mini-batches of a round, entity by entity."""

    def __init__(self, count: int) -> None:
        self._count, self.seen = count, 0
        self._sums: dict[int, Tensors] = {}

    def added(self, entity: EntityStep, found: Tensors) -> Tensors:
        """What an entity steps with, once it has its gradients of the last mini-batch: the mean; until then nothing."""
        if self._count == 1 or not found:
            return found
        before = self._sums.get(id(entity))
        found = found if before is None else list(torch._foreach_add(before, found))
        if self.seen < self._count - 1:
            self._sums[id(entity)] = found
            return []
        return list(torch._foreach_div(found, self._count))


@dataclass(frozen=True)
class Pass:
    """What an entity received, as its links made it, and sent up in a forward pass, detached from what is below."""

    received: torch.Tensor
    sent: Any
    """At the top: what the loss is of, which may be several tensors."""


def backward(one: Pass, given: Tensors, entity: EntityStep, *, wanted: bool) -> tuple[Tensors, torch.Tensor | None]:
    """From the gradients of what an entity sent those of its weights, none where there is nothing to train.

    And, where wanted, that of what it received: each client's own, whatever its part in the others.
    """
    if one.sent is one.received:  # it hosts no layer
        return [], given[0] if wanted else None
    pairs = zip((x for x in tensors(one.sent) if x.is_floating_point()), given, strict=True)
    sent = [(x, by_client(gradient, entity.parts)) for x, gradient in pairs if x.requires_grad]
    if not sent:  # nothing to train, here or below
        return [], torch.zeros_like(one.received) if wanted else None
    wanted, weights = wanted and one.received.requires_grad, entity.trained.weights
    leaves = [*weights, one.received] if wanted else weights
    found = list(torch.autograd.grad([x for x, _ in sent], leaves, [g for _, g in sent], allow_unused=True))
    passed = by_client(laid_out(found.pop(), one.received), entity.parts, undone=True) if wanted else None
    return [laid_out(g, w) for g, w in zip(found, weights, strict=True)], passed


def weighing(
    weight: float, parts: FloatArray | None, like: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The divisor and the parts of an entity whose clients count so much together, and have these parts of it."""
    if parts is not None:
        return None, torch.from_numpy(parts).to(like)
    return (torch.tensor(weight, dtype=torch.float32, device=like.device) if weight > 1 else None), None


def by_client(gradient: torch.Tensor, parts: torch.Tensor | None, *, undone: bool = False) -> torch.Tensor:
    """The gradient of every client's samples, times its part where it has one; `undone`: divided by it."""
    if parts is None:
        return gradient
    apart = gradient.unflatten(0, (len(parts), -1))
    factors = (1 / parts if undone else parts).to(gradient.dtype).view(-1, *[1] * (apart.dim() - 1))
    return (apart * factors).flatten(0, 1)


def laid_out(gradient: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    """The gradient, in memory as its weight is: what an update of many tensors at once takes for granted."""
    if gradient is None:
        return torch.zeros_like(weight)
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
