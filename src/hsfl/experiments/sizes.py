"""How large the experiments are: the networks and their machines, and how much of everything is trained.

Full size is the paper's system and VGG-16, for a GPU. Small is the scenario mnist-mini with LeNet-5 on the same data,
as long or, where full size trains longest, a third or half as long, in hours on two cores. Quick is mnist-mini for a
few rounds, in minutes: it shows that all of it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Pair = tuple[int, int]
#: The planner's target: what full synchronisation would reach in so many rounds, made easier by so much of itself.
HORIZON, SLACK = 3000.0, 3.0
_AS_LONG_AS_PAPER: dict[str, Any] = {
    "training.optimizer": "momentum",
    "training.weight_decay": 5e-4,
    "execution.evaluate_every": 50,
    "strategy.replan_every": 250,
    "convergence.rounds": HORIZON,
    "convergence.slack": SLACK,
}


class Data(NamedTuple):
    """A data set as it is trained on: the built-in scenario, rounds, training samples, the steps that were tried, of
    which the first is taken, and what else is particular."""

    scenario: str
    rounds: int
    samples: int
    steps: tuple[float, ...]
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """What depends on how large the experiments are."""

    name: str
    title: str
    about: str
    """What to know of its results, for their page."""
    network: str
    """The built-in model that is trained."""
    data: Mapping[str, Data]
    training: Mapping[str, Any]
    """What is trained alike on all data."""
    cuts: Pair
    """The cuts of the ablation of intervals; at full size the paper's."""
    some_cuts: tuple[Pair, ...]
    """The cuts that the ablation of cuts compares, from shallow to deep."""
    rare: Pair
    """The long intervals of the ablation of cuts: the paper's, shortened with the training when quick."""
    some_intervals: tuple[Pair, ...]
    """The intervals that show the trade between accuracy and traffic."""
    scales: tuple[float, ...]
    """The factors by which compute and communication rates are scaled."""
    grid: Mapping[Pair, tuple[Pair, ...]]
    """Fixed plans that planning is compared with in hindsight, intervals by cuts; the first is full synchronisation at
    its best cuts."""
    converges_in: int | None
    """For how many rounds the headline strategies are trained at most until they converge; None: as long as others."""
    step: Mapping[str, Any]
    """What the paper's own step is trained with."""
    random: Pair
    """The longest of the random intervals."""


_GRID: tuple[Pair, ...] = ((1, 1), (2, 2), (4, 4), (8, 8), (1, 4), (2, 8))
_FEW_INTERVALS: tuple[Pair, ...] = ((1, 1), (5, 5), (50, 5), (5, 50), (50, 50))
_NETWORKS = "hsfl.experiments.networks"
_STEP = {
    "training.learning_rate": 5e-4,
    "stopping.rounds": 10_000,
    "execution.evaluate_every": 250,
    "strategy.replan_every": 1000,
}

FULL = Size(
    name="full",
    title="full size",
    about="The paper's system.",
    network="vgg16",
    data={
        "cifar10": Data("paper", 2000, 50_000, (0.01, 0.005, 0.02, 0.04), {"data.augment": ["flip"]}),
        "mnist": Data("paper-mnist", 800, 60_000, (0.005, 0.0025, 0.01, 0.02), {"execution.evaluate_every": 25}),
    },
    training=_AS_LONG_AS_PAPER,
    cuts=(3, 8),
    some_cuts=((3, 8), (5, 10), (7, 12), (9, 14)),
    rare=(140, 20),
    some_intervals=_FEW_INTERVALS,
    scales=(0.25, 1.0, 4.0),
    grid={(2, 4): _GRID, (4, 7): _GRID},
    converges_in=8000,
    step=_STEP | {"model.factory": f"{_NETWORKS}:vgg16_batch_norm", "model.input_shape": [3, 32, 32]},
    random=(25, 25),
)
SMALL = Size(
    name="small",
    title="the small setting",
    about="LeNet-5 and slower machines instead of VGG-16 and the paper's, on the same data.",
    network="lenet5",
    data={
        "cifar10": Data(
            "mnist-mini",
            2000,
            50_000,
            (0.02, 0.005, 0.01, 0.04),
            {"model.input_shape": [3, 32, 32], "data.augment": ["flip"]},
        ),
        "mnist": Data("mnist-mini", 800, 60_000, (0.02, 0.005, 0.01, 0.04), {"execution.evaluate_every": 25}),
    },
    training=_AS_LONG_AS_PAPER,
    cuts=(1, 3),
    some_cuts=((1, 2), (2, 3), (3, 4)),
    rare=(140, 20),
    some_intervals=_FEW_INTERVALS,
    scales=(0.25, 1.0, 4.0),
    grid={(1, 2): _GRID, (2, 3): _GRID},
    converges_in=4000,
    step=_STEP
    | {
        "model.factory": f"{_NETWORKS}:rgb_lenet5_batch_norm",
        "model.input_shape": [3, 32, 32],
        "stopping.rounds": 3000,
    },
    random=(25, 25),
)
QUICK = Size(
    name="quick",
    title="the quick setting",
    about="A small model on small data: this shows that all of it runs, and says little about the paper.",
    network="lenet5",
    data={"mnist-mini": Data("mnist-mini", 120, 10_000, (0.01,), {})},
    training={
        "training.optimizer": "momentum",
        "execution.evaluate_every": 10,
        "strategy.replan_every": 30,
        "strategy.probe_batches": 2,
    },
    cuts=(1, 3),
    some_cuts=((1, 2), (2, 3), (3, 4)),
    rare=(30, 6),
    some_intervals=((1, 1), (20, 4), (4, 20), (20, 20)),
    scales=(0.25, 1.0),
    grid={(1, 2): ((1, 1), (4, 4)), (1, 3): ((1, 1), (20, 20))},
    converges_in=None,
    step={
        "model.factory": f"{_NETWORKS}:lenet5_batch_norm",
        "model.input_shape": [1, 28, 28],
        "training.learning_rate": 0.005,
        "stopping.rounds": 60,
        "execution.evaluate_every": 10,
        "strategy.replan_every": 30,
    },
    random=(20, 20),
)
SIZES = {size.name: size for size in (FULL, SMALL, QUICK)}
