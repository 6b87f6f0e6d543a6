"""The update rules: one model and one optimiser state per entity, stepped with the mean gradient of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import nn

from hsfl.engine.step_schedule import StepSchedule
from hsfl.errors import ScenarioError, raised

NAMES = ("sgd", "adam", "adamw")
#: What torch.optim calls the state that we call by these names.
TORCH_SLOTS = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}


@dataclass(frozen=True)
class Optimizer:
    """`name` with its settings: momentum is SGD's, betas and eps are Adam's, weight_decay is decoupled in AdamW.

    `clip` is the largest norm of an entity's gradient, over all its layers: a longer one is shortened to it. `schedule`
    gives the part of `lr` that a round takes, counted from 0; all of it without one.
    """

    name: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None
    schedule: StepSchedule | None = None

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
        optimizer._check_numbers()
        if optimizer.momentum and optimizer.name != "sgd":
            raise ScenarioError(f"optimizer: momentum is sgd's; {optimizer.name} has betas")
        if optimizer.schedule is not None and not callable(optimizer.schedule):
            raise ScenarioError(f"optimizer: schedule = {optimizer.schedule!r} must be a function of the round")
        return replace(optimizer, betas=(optimizer.betas[0], optimizer.betas[1]))

    def factor(self, round_: int) -> float:
        """The part of the learning rate that a round takes."""
        if self.schedule is None:
            return 1.0
        try:
            found = self.schedule(round_)
        except Exception as error:
            raise ScenarioError(f"the schedule of the learning rate raised {raised(error)}; correct it") from error
        if not isinstance(found, Real) or not 0 < float(found) < inf:
            raise ScenarioError(
                f"the schedule of the learning rate gives {found!r} for round {round_}, counted from 0; it must give a "
                "positive, finite factor of it"
            )
        return float(found)

    def rates(self, first: int, count: int = 1) -> list[float]:
        """The learning rates of some rounds."""
        return [self.lr * self.factor(round_) for round_ in range(first, first + count)]

    def clipped(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """An entity's gradients, shortened together where they are too long; nothing is waited for."""
        if self.clip is None or not gradients:
            return gradients
        norm = nn.utils.get_total_norm(gradients)
        return list(torch._foreach_mul(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0)))  # as torch clips

    def _check_numbers(self) -> None:
        """ScenarioError for a setting outside its range, which torch.optim would refuse or take for granted."""
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise ScenarioError(f"optimizer: betas = {self.betas!r} must be two numbers in [0, 1)")
        ranges = {
            "lr": ([self.lr], lambda v: 0 < v < inf, "positive and finite"),
            "momentum": ([self.momentum], lambda v: 0 <= v < 1, "in [0, 1)"),
            "weight_decay": ([self.weight_decay], lambda v: 0 <= v < inf, "at least 0"),
            "betas": (list(self.betas), lambda v: 0 <= v < 1, "two numbers in [0, 1)"),
            "eps": ([self.eps], lambda v: 0 <= v < inf, "at least 0"),
            "clip": ([] if self.clip is None else [self.clip], lambda v: 0 < v < inf, "positive and finite"),
        }
        for field, (values, fits, wanted) in ranges.items():
            if not all(isinstance(v, Real) and not isinstance(v, bool) and fits(float(v)) for v in values):
                raise ScenarioError(f"optimizer: {field} = {getattr(self, field)!r} must be {wanted}")

    def for_torch(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The same rule as torch.optim has it."""
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

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
