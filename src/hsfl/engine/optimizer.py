"""The update rules: one model and one optimiser state per entity, stepped with the mean gradient of its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hsfl.errors import ScenarioError

NAMES = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Optimizer:
    """`name` with its settings: momentum is SGD's, betas and eps are Adam's, weight_decay is decoupled in AdamW."""

    name: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Optimizer:
        """From a dictionary such as {"name": "sgd", "lr": 0.01, "momentum": 0.9}; ScenarioError says what is wrong."""
        fields = cls.__dataclass_fields__
        if unknown := [key for key in settings if key not in fields]:
            raise ScenarioError(f"optimizer: unknown setting {unknown[0]!r}; known are {', '.join(fields)}")
        if missing := [key for key in ("name", "lr") if key not in settings]:
            raise ScenarioError(f"optimizer: {missing[0]!r} is missing; give a name and lr")
        optimizer = cls(**settings)
        if optimizer.name not in NAMES:
            raise ScenarioError(
                f"optimizer: name {optimizer.name!r} is not known; it must be one of {', '.join(NAMES)}"
            )
        if not optimizer.lr > 0:
            raise ScenarioError(f"optimizer: lr = {optimizer.lr} must be positive")
        if not (0 <= optimizer.momentum < 1 and optimizer.weight_decay >= 0):
            raise ScenarioError("optimizer: momentum must lie in [0, 1) and weight_decay be at least 0")
        if optimizer.momentum and optimizer.name != "sgd":
            raise ScenarioError(f"optimizer: momentum is sgd's; {optimizer.name} has betas")
        return optimizer

    @property
    def slots(self) -> tuple[str, ...]:
        """The tensors of state kept beside each parameter."""
        if self.name == "sgd":
            return ("momentum",) if self.momentum else ()
        return ("mean", "square")

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], time: int) -> None:
        """One update in place; `time` counts updates from 1. The formulas are those of torch.optim."""
        if self.name == "adamw":
            weights.mul_(1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        if self.name == "sgd":
            if self.momentum:
                gradient = state["momentum"].mul_(self.momentum).add_(gradient)
            weights.add_(gradient, alpha=-self.lr)
            return
        first, second = self.betas
        mean = state["mean"].lerp_(gradient, 1 - first)
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = (square / (1 - second**time)).sqrt_().add_(self.eps)
        weights.addcdiv_(mean, scale, value=-self.lr / (1 - first**time))
