"""A process that trains together with a test: it makes the backends that the test makes, and follows them."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes
from tests.engine.test_backends import CLASSES, OPTIMIZERS, layers


class SomeData:
    """A few samples that every client draws from."""

    def __init__(self, clients: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.clients = clients
        self.images = torch.randn(40, 2, 6, 6, dtype=torch.float64, generator=generator)
        self.labels = torch.randint(0, CLASSES, (40,), generator=generator)

    def draws(self, first_round: int, count: int) -> torch.Tensor:
        return self._drawn(first_round, (count, self.clients, 4, 1))

    def batch(self, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.samples(draw[..., 0])

    def probe_draws(self, round_: int, batches: int) -> torch.Tensor:
        return self._drawn(1000 + round_, (self.clients, batches, 4))

    def samples(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[indices], self.labels[indices]

    def test_batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.images, self.labels)]

    def _drawn(self, seed: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(seed))


def options(spec: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a backend is made with, from what can be sent to another process."""
    rest = {key: value for key, value in spec.items() if key not in ("model", "hosts", "cuts", "optimizer")}
    arguments = layers(*spec["model"]), spec["hosts"], spec["cuts"], OPTIMIZERS[spec["optimizer"]]
    return arguments, {"dtype": torch.float64, "data": SomeData(len(spec["hosts"][0]))} | rest


def make(spec: dict[str, Any], processes: Processes) -> ShardedBackend:
    arguments, rest = options(spec)
    return ShardedBackend(*arguments, processes=processes, **rest)


def join(store: str | Path, rank: int, size: int) -> Processes:
    """Meet the others at a file, or fail."""
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": size}
    distributed.init_process_group("gloo", timeout=timedelta(seconds=90), **where)
    return Processes.of(distributed.group.WORLD)


def main() -> None:
    store, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    processes = join(store, rank, size)
    while (spec := processes.told()) is not None:
        make(spec, processes).follow()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
