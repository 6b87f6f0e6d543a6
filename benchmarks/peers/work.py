"""The work every driver does: LeNet-5, the seeded batches, the clock and what a driver prints.

A driver runs `warmup + rounds` rounds of FedAvg (one SGD step per client, then the average) from the weights in the
work file, writes the averaged weights after `CHECK` rounds to a file and prints the seconds of each round after the
warm-up as one line of JSON. Round r of client c takes batch (r modulo the stored rounds, c) of the work file.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.metadata import version

import numpy as np
import torch
from torch import nn

CLIENTS, BATCH, STORED, LEARNING_RATE = 20, 16, 8, 0.1
CHECK = 5  # compare weights after this many rounds

State = Mapping[str, torch.Tensor]


def lenet5() -> nn.Sequential:
    """The same modules as hsfl.models.build("lenet5")."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5, padding=2),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(400, 120),
            fc1_relu=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            fc2_relu=nn.ReLU(),
            fc3=nn.Linear(84, 10),
        )
    )


def write(path: str, seed: int = 0) -> None:
    """The work file: initial weights and batches."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    arrays = {name: value.numpy() for name, value in lenet5().state_dict().items()}
    inputs = rng.standard_normal((STORED, CLIENTS, BATCH, 1, 28, 28), dtype=np.float32)
    np.savez(path, inputs=inputs, targets=rng.integers(0, 10, (STORED, CLIENTS, BATCH)), **arrays)


@functools.cache
def read(path: str) -> tuple[State, torch.Tensor, torch.Tensor]:
    """Initial weights, inputs (rounds, clients, batch, 1, 28, 28) and targets (rounds, clients, batch)."""
    with np.load(path) as file:
        tensors = {name: torch.from_numpy(file[name]) for name in file.files}
    inputs, targets = tensors.pop("inputs"), tensors.pop("targets")
    return tensors, inputs, targets


def arguments(*extra: tuple[str, type, object]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, help="the work file")
    parser.add_argument("--weights", required=True, help="where to write the averaged weights (.npz)")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    for name, kind, default in extra:
        parser.add_argument(name, type=kind, default=default)
    args = parser.parse_args()
    if args.warmup < CHECK:
        parser.error(f"--warmup must be at least {CHECK}")
    torch.set_num_threads(args.threads)
    return args


class Clock:
    """Called after every round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends: list[float] = []

    def round(self, weights: Callable[[], State]) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) == CHECK:
            np.savez(self.args.weights, **{k: v.detach().numpy() for k, v in weights().items()})

    def report(self, *packages: str) -> None:
        seconds = np.diff(self.ends[self.args.warmup - 1 :]).tolist()
        print(json.dumps({"seconds": seconds, "versions": {name: version(name) for name in ("torch", *packages)}}))
