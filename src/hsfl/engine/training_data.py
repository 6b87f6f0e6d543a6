"""What a backend trains and evaluates on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


class TrainingData(Protocol):
    """The clients' data where the backend is. What a client draws depends on the round and on nothing else."""

    def draws(self, first_round: int, count: int) -> torch.Tensor:
        """(count, N, b, K) int64 on the device: what every client draws in some rounds, for every sample."""
        ...

    def batch(self, draw: torch.Tensor) -> Batch:
        """Inputs and targets, (n, b, ...) each, of what n clients, some or all and in any order, draw in one round.

        Where rounds are captured this is captured with them: it does nothing but torch operations on device tensors.
        """
        ...

    def probe_draws(self, round_: int, batches: int) -> torch.Tensor:
        """(N, batches, b) int64 on the device: samples to measure gradients on."""
        ...

    def samples(self, indices: torch.Tensor) -> Batch:
        """Inputs and targets of training samples as they are."""
        ...

    def blank(self, count: int) -> Batch:
        """So many inputs and targets of zeros, of the shapes and types of all others; only machines ask for it."""
        ...

    def test_batches(self) -> Iterable[Batch]:
        """The test data once."""
        ...


#: Rounds whose draws are made together.
_AT_ONCE = 64


class Draws:
    """What every client draws in a round, made for many rounds at once."""

    def __init__(self, data: TrainingData) -> None:
        self._data, self._first, self._block = data, -1, torch.empty(0)

    def of(self, round_: int) -> torch.Tensor:
        first = round_ - round_ % _AT_ONCE
        if first != self._first:
            self._first, self._block = first, self._data.draws(first, _AT_ONCE)
        return self._block[round_ - first]
