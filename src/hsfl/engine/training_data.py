"""What a backend trains and evaluates on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch

from hsfl.problem.topology import Clients

Batch = tuple[torch.Tensor, torch.Tensor]


class TrainingData(Protocol):
    """The clients' data where the backend is.

    What a client draws depends on the round and on how many mini-batches it has, and on nothing else.
    """

    def draws(
        self, first_round: int, count: int, clients: Clients | None = None, *, micro_batches: int = 1
    ) -> torch.Tensor:
        """(count, n, k b, K) int64 on the device: what n clients (default: all) draw in some rounds, for every sample.

        `micro_batches`, k, is only given where a round has several.
        """
        ...

    def batch(self, draw: torch.Tensor) -> Batch:
        """Inputs and targets, (n, b, ...) each, of what n clients, some or all and in any order, draw in one round.

        Where rounds are captured this is captured with them: it does nothing but torch operations on device tensors.
        """
        ...

    def probe_draws(self, round_: int, batches: int, clients: Clients | None = None) -> torch.Tensor:
        """(n, batches, b) int64 on the device: samples to measure gradients on."""
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


#: Rounds whose draws are made together, of all clients and of those who are enrolled for a while.
_AT_ONCE, _OF_COHORT = 64, 8


class Draws:
    """What clients draw in a round, made for several rounds at once."""

    def __init__(self, data: TrainingData) -> None:
        self._data, self._block = data, torch.empty(0)
        self._made: tuple[int, Clients | None, int] | None = None

    def of(self, round_: int, cohort: Clients | None, present: Clients, micro_batches: int = 1) -> torch.Tensor:
        """What those present draw, who are some of the cohort, or of all clients where that is None."""
        count = _AT_ONCE if cohort is None else _OF_COHORT
        first = round_ - round_ % count
        if self._made != (first, cohort, micro_batches):
            asked: dict[str, Any] = {} if cohort is None else {"clients": cohort}
            asked |= {} if micro_batches == 1 else {"micro_batches": micro_batches}
            self._block = self._data.draws(first, count, **asked)
            self._made = first, cohort, micro_batches
        block = self._block[round_ - first]
        if len(present) == len(block):
            return block
        places = present if cohort is None else np.searchsorted(cohort, present)
        return block[torch.as_tensor(places, dtype=torch.int64, device=block.device)]
