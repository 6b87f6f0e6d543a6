"""What the entities of the stacked backend hold on to from their forward pass to their update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hsfl.engine.averaging import Held, Tensors


@dataclass(frozen=True)
class EntityStep:
    """What an entity's update needs."""

    trained: Held
    divisor: torch.Tensor | None
    """Its number of clients if not 1."""
    corrected: bool
    """Whether the averaging rule corrects its gradients."""
    summed: Tensors
    """Where its gradients go to be summed, if it has clients in other processes too."""


@dataclass(frozen=True)
class Pass:
    """What an entity received and sent up in a forward pass, detached from what is below and above."""

    received: torch.Tensor
    sent: torch.Tensor
    arrives: torch.Tensor
    """What the link above makes of what was sent."""


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def laid_out(gradient: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    """The gradient, in memory as its weight is: what an update of many tensors at once takes for granted."""
    if gradient is None:
        return torch.zeros_like(weight)
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
