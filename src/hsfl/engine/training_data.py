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
        """Inputs and targets, (N, b, ...) each, of one round's draws.

        Where rounds are captured this is captured with them: it does nothing but torch operations on device tensors.
        """
        ...

    def probe_draws(self, round_: int, batches: int) -> torch.Tensor:
        """(N, batches, b) int64 on the device: samples to measure gradients on."""
        ...

    def samples(self, indices: torch.Tensor) -> Batch:
        """Inputs and targets of training samples as they are."""
        ...

    def test_batches(self) -> Iterable[Batch]:
        """The test data once."""
        ...
