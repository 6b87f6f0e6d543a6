"""The setting of all experiments, one for every strategy: what is trained, for how long, and on which machines.

The paper's own (SGD, step 5e-4, VGG-16 without normalisation) learns very slowly; the recipe `setting` shows what was
tried instead. Full size is the paper's system and VGG-16 on CIFAR-10 and MNIST, for a GPU; quick is the scenario
mnist-mini with LeNet-5, which shows the same things small, in minutes on two cores.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsfl import api
from hsfl.scenario.scenario import Scenario, scenario_from_dict

#: For every data set at full size: the built-in scenario, rounds, and what else is particular.
_FULL: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cifar10": ("paper", 2000, {"data.augment": ["flip"]}),
    "mnist": ("paper-mnist", 800, {"execution.evaluate_every": 25, "training.learning_rate": 0.005}),
}
_FULL_TRAINING: dict[str, Any] = {
    "training.optimizer": "momentum",
    "training.learning_rate": 0.01,
    "training.weight_decay": 5e-4,
    "execution.evaluate_every": 50,
    "strategy.replan_every": 250,
}
_QUICK_TRAINING: dict[str, Any] = {
    "training.optimizer": "momentum",
    "training.learning_rate": 0.01,
    "execution.evaluate_every": 10,
    "strategy.replan_every": 30,
    "strategy.probe_batches": 2,
}
#: The planner's target: what full synchronisation would reach in so many rounds, made easier by so much of itself.
HORIZON, SLACK = 3000.0, 3.0
DEVICE_TO_CLOUD = "15 Mbps"
#: The codes where links are coded: activations, gradients and averages of both tiers below the top.
LINKS = {"up": "int4", "down": "int4", "average": "int8"}
CODED: dict[str, Any] = {"tiers.1.code": LINKS, "tiers.2.code": LINKS}
#: How plans are made: as in the paper, by its bound, for plain averages and 32 bits, or with all that hsfl has.
AS_PAPER: dict[str, Any] = {"strategy.drift": "paper", "convergence.drift": "paper"}
AS_HSFL: dict[str, Any] = {"strategy.drift": "energy", "training.averaging": "corrected", **CODED}


@dataclass(frozen=True)
class Settings:
    """What `hsfl reproduce` was asked for."""

    quick: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "auto"
    precision: str = "fp32"

    @property
    def datasets(self) -> tuple[str, ...]:
        return ("mnist-mini",) if self.quick else tuple(_FULL)

    @property
    def dataset(self) -> str:
        """The data set of the experiments that need only one."""
        return self.datasets[0]

    @property
    def samples(self) -> int:
        """How many training samples the data set of the experiments on one has."""
        return 10_000 if self.quick else 50_000

    @property
    def cuts(self) -> tuple[int, int]:
        """The cuts of the ablation of intervals, which are the paper's."""
        return (1, 3) if self.quick else (3, 8)

    @property
    def some_cuts(self) -> tuple[tuple[int, int], ...]:
        """The cuts that the ablation of cuts compares, from shallow to deep."""
        return ((1, 2), (2, 3), (3, 4)) if self.quick else ((3, 8), (5, 10), (7, 12), (9, 14))

    @property
    def rare(self) -> tuple[int, int]:
        """The long intervals of the ablation of cuts: the paper's, shortened with the training when quick."""
        return (30, 6) if self.quick else (140, 20)

    @property
    def some_intervals(self) -> tuple[tuple[int, int], ...]:
        """The intervals that show the trade between accuracy and traffic."""
        return ((1, 1), (20, 4), (4, 20), (20, 20)) if self.quick else ((1, 1), (5, 5), (50, 5), (5, 50), (50, 50))

    @property
    def scales(self) -> tuple[float, ...]:
        """The factors by which compute and communication rates are scaled."""
        return (0.25, 1.0) if self.quick else (0.25, 1.0, 4.0)

    @property
    def some_seeds(self) -> tuple[int, ...]:
        """The seeds of what is no headline."""
        return self.seeds[:3]

    def rounds(self, dataset: str) -> int:
        """For how many rounds a data set is trained."""
        return 120 if self.quick else _FULL[dataset][1]

    def scenario(self, dataset: str, partition: str, seed: int, overrides: Mapping[str, Any] | None = None) -> Scenario:
        """The setting with one data set, partition and seed; the machines are the same for all seeds."""
        name, _, particular = ("mnist-mini", 0, {}) if self.quick else _FULL[dataset]
        changes = {
            **(_QUICK_TRAINING if self.quick else _FULL_TRAINING),
            **particular,
            "name": dataset,
            "stopping.rounds": self.rounds(dataset),
            "training.seed": seed,
            "execution.device": self.device,
            "execution.precision": self.precision,
            "execution.checkpoint_every": 0,
            "data.partition": partition,
            "convergence.drift": "refined",
            "strategy.drift": "refined",
        }
        if not self.quick:
            changes |= {"convergence.rounds": HORIZON, "convergence.slack": SLACK}
        return api.load_scenario(name, changes | dict(overrides or {}))


def fixed(cuts: tuple[int, ...], intervals: tuple[int, ...]) -> dict[str, Any]:
    """One plan throughout, for three tiers with one machine at the top."""
    return {"strategy.name": "fixed", "strategy.cuts": list(cuts), "strategy.intervals": [*intervals, 1]}


def client_edge(scenario: Scenario) -> Scenario:
    """A scenario without its top tier: edge servers hold the rest of the model, and the fed server averages them."""
    raw = copy.deepcopy(dict(scenario.raw))
    raw["tiers"] = raw["tiers"][:-1]
    for link in ("uplink", "downlink"):
        raw["tiers"][-1].pop(link)
    return _changed(scenario, raw)


def one_edge_server(scenario: Scenario) -> Scenario:
    """A scenario without its top tier and with one edge server for all devices, which holds the rest of the model."""
    raw = copy.deepcopy(dict(client_edge(scenario).raw))
    top = raw["tiers"][-1] = {key: value for key, value in raw["tiers"][-1].items() if not key.startswith("fed_")}
    top |= {"entities": 1, "compute": float(scenario.system.tiers[1].compute_flops[0])}
    top.pop("parents", None)
    raw["tiers"][0].pop("parents", None)
    return _changed(scenario, raw)


def client_cloud(scenario: Scenario) -> Scenario:
    """A scenario without the tiers between devices and the cloud, which have a slow link."""
    raw = copy.deepcopy(dict(scenario.raw))
    raw["tiers"] = [raw["tiers"][0], raw["tiers"][-1]]
    rate = DEVICE_TO_CLOUD if scenario.spec.model.name == "vgg16" else "1 Mbps"
    raw["tiers"][0] |= {"uplink": rate, "downlink": rate}
    return _changed(scenario, raw)


def scaled(scenario: Scenario, compute: float, communication: float) -> Scenario:
    """The same machines, all faster or slower by a factor, and all their links by another."""
    raw = copy.deepcopy(dict(scenario.raw))
    for tier, drawn in zip(raw["tiers"], scenario.system.tree, strict=True):
        tier["compute"] = (drawn.compute_flops * compute).tolist()
        for link in ("uplink", "downlink", "fed_uplink", "fed_downlink"):
            if link in tier:
                tier[link] = (getattr(drawn, f"{link}_bps") * communication).tolist()
    return _changed(scenario, raw)


def _changed(scenario: Scenario, raw: dict[str, Any]) -> Scenario:
    convergence = raw.get("convergence", {})
    convergence.pop("gradient_dissimilarity", None)  # one list per tier; it is measured while training
    return scenario_from_dict(raw, scenario.source, scenario.folder, scenario.profiler)
