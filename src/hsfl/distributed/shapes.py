"""What may cross a cut: the shapes and types that the model itself gives, worked out once."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hsfl.engine.entities import EntityBackend
from hsfl.engine.per_client import own_chance, seed_dropout
from hsfl.engine.precision import casts
from hsfl.engine.probe import SMOOTHNESS_BATCHES
from hsfl.engine.running import run_layer


class Crossing:
    """Tensors without memory, like those that cross cuts and like a mini-batch's targets."""

    def __init__(self, parts: EntityBackend) -> None:
        """Runs a mini-batch of zeros through a copy of the model."""
        inputs, targets = parts._data().blank(parts.drawn().shape[1])
        self.targets = targets.to("meta")
        self._activations: list[torch.Tensor] = []
        values: Any = parts._inputs(inputs)
        with torch.no_grad(), casts(parts.device, parts.precision):
            for number, layer in enumerate(copy.deepcopy(parts._layers)):
                seed_dropout(layer.modules(), [0], parts.seed, 0)
                with own_chance(parts.seed, 0, 0, number, parts.device):
                    values = run_layer(number, layer, values, several=number == len(parts._layers) - 1)
                if isinstance(values, torch.Tensor):  # several, from the last layer, cross no cut
                    self._activations.append(values.to("meta"))

    def activations(self, cut: int) -> torch.Tensor:
        """The activations that cross a link below which `cut` layers are."""
        return self._activations[cut - 1]

    def largest(self) -> int:
        """The bytes of the largest message of a round or a measurement, as it is in memory."""
        largest = max(one.numel() * one.element_size() for one in self._activations)
        return SMOOTHNESS_BATCHES * (largest + self.targets.numel() * self.targets.element_size())
