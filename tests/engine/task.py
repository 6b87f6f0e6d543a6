"""A small training task for tests of the algorithm: four linear layers, clients that see different classes or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

import hsfl
from hsfl.data import Dataset, Feed, Sampler
from hsfl.engine.algorithm import Algorithm, Task
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from tests.zoo import random_problem

CLIENTS, BATCH, FEATURES, CLASSES = 6, 8, 5, 3


@dataclass
class Given:
    """A strategy that proposes the plans it is given, one after the other, and remembers what it was asked."""

    plans: list[Plan]
    replans: bool = True
    name: str = "given"

    @property
    def needs_constants(self) -> bool:
        return self.replans

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, Problem]] = []

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        self.asked.append((round_, problem))
        return self.plans[min(len(self.asked), len(self.plans)) - 1]


def small_problem(learning_rate: float = 0.1, seed: int = 0) -> Problem:
    problem = random_problem(np.random.default_rng(seed), num_tiers=3, num_layers=4, num_clients=CLIENTS)
    return replace(problem, batch_size=BATCH, learning_rate=learning_rate, momentum=0.0)


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    sizes = [FEATURES, 7, 6, 5, CLASSES]
    return [
        *(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes[:-1])),
        nn.Linear(sizes[-2], sizes[-1]),
    ]


def blobs(iid: bool, samples: int = 240) -> tuple[Dataset, list[np.ndarray]]:
    """Three overlapping clouds of points; every client has all classes, or mostly one."""
    rng = np.random.default_rng(1)
    labels = np.arange(samples) % CLASSES
    points = torch.from_numpy(rng.normal(size=(samples, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[labels])
    part = (points, torch.from_numpy(labels))
    order = rng.permutation(samples) if iid else np.argsort(labels, kind="stable")
    return Dataset("blobs", part, part, None, None), np.array_split(order, CLIENTS)


def algorithm(
    strategy: Given,
    *,
    problem: Problem | None = None,
    iid: bool = True,
    backend: str = "stacked",
    codes: Any = None,
    samples: int = 240,
    **task: object,
) -> Algorithm:
    """The algorithm on the small task, in float64."""
    problem = problem or small_problem()
    data, parts = blobs(iid, samples)
    feed = Feed(data, Sampler(parts, BATCH, 0, ()), torch.device("cpu"), torch.float64)
    executor = hsfl.backend(
        backend,
        layers(),
        [h.tolist() for h in problem.system.hosts],
        (1, 2),
        {"name": "sgd", "lr": problem.learning_rate},
        data=feed,
        codes=codes,
        dtype=torch.float64,
    )
    settings: dict = {
        "conditions": lambda round_, time_s: problem.system,
        "with_target": lambda p: replace(p, constants=replace(p.constants, target=1e9)),
        "measure_constants": True,
        "probe_batches": 4,
        "replan_every": 200,
        **task,
    }
    return Algorithm(executor, Task(problem, strategy, **settings))
