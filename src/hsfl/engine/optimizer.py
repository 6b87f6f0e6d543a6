"""The update rules: one model and one optimiser state per entity, stepped with the mean gradient of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    def from_settings(cls, settings: Mapping[str, Any]) -> Optimizer:
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

    def update(
        self,
        weights: list[torch.Tensor],
        gradients: list[torch.Tensor],
        slots: Sequence[list[torch.Tensor]],
        *,
        divisor: torch.Tensor | None,
        lr: float | torch.Tensor,
        time: torch.Tensor,
    ) -> None:
        """One update in place, of all tensors in one go; the formulas are those of torch.optim.

        Gradients must lie in memory as their weights do; they are divided by `divisor` first, where there is one.
        `slots` are the tensors of state in the order of `self.slots`. `time` counts updates from 1; like `divisor` it
        is a float32 scalar on the device, so that a captured update moves on.
        """
        rule: dict[str, Any] = {"weight_decay": self.weight_decay, "lr": lr, "maximize": False, "grad_scale": divisor}
        if self.name == "sgd":
            momentum = slots[0] if self.momentum else []
            rule |= {"momentum": self.momentum, "dampening": 0.0, "nesterov": False, "is_first_step": False}
            torch._fused_sgd_(weights, gradients, momentum, **rule)
            return
        rule |= {"beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps, "amsgrad": False}
        adam = torch._fused_adam_ if self.name == "adam" else torch._fused_adamw_
        adam(weights, gradients, slots[0], slots[1], [], [time] * len(weights), **rule)
