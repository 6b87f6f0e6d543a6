"""The setting of all experiments, one for every strategy: what is trained, for how long, and on which machines.

The paper's own (SGD, step 5e-4, VGG-16 without normalisation) learns very slowly; the recipe `setting` shows what was
tried instead.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsfl import api
from hsfl.experiments.sizes import FULL, QUICK, Size
from hsfl.scenario.scenario import Scenario, scenario_from_dict

#: Between devices and the cloud without edge servers, by what is trained; for VGG-16 the paper's.
DEVICE_TO_CLOUD = {"vgg16": "15 Mbps", "lenet5": "1 Mbps"}
#: The codes where links are coded: activations, gradients and averages of both tiers below the top.
LINKS = {"up": "int4", "down": "int4", "average": "int8"}
CODED: dict[str, Any] = {"tiers.1.code": LINKS, "tiers.2.code": LINKS}
#: How plans are made: as in the paper, by its bound, for plain averages and 32 bits, or with all that hsfl has.
AS_PAPER: dict[str, Any] = {"strategy.drift": "paper", "convergence.drift": "paper"}
AS_HSFL: dict[str, Any] = {"strategy.drift": "energy", "training.averaging": "corrected", **CODED}


@dataclass(frozen=True)
class Settings:
    """What `hsfl reproduce` was asked for."""

    size: Size = FULL
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "auto"
    precision: str = "fp32"

    @property
    def quick(self) -> bool:
        return self.size.name == QUICK.name

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(self.size.data)

    @property
    def dataset(self) -> str:
        """The data set of the experiments that need only one."""
        return self.datasets[0]

    @property
    def some_seeds(self) -> tuple[int, ...]:
        """The seeds of what is no headline."""
        return self.seeds[:3]

    def rounds(self, dataset: str) -> int:
        """For how many rounds a data set is trained."""
        return self.size.data[dataset].rounds

    def scenario(self, dataset: str, partition: str, seed: int, overrides: Mapping[str, Any] | None = None) -> Scenario:
        """The setting with one data set, partition and seed; the machines are the same for all seeds."""
        data = self.size.data[dataset]
        changes = {
            **self.size.training,
            **data.overrides,
            "training.learning_rate": data.steps[0],
            "name": dataset,
            "data.name": dataset,
            "stopping.rounds": self.rounds(dataset),
            "training.seed": seed,
            "execution.device": self.device,
            "execution.precision": self.precision,
            "execution.checkpoint_every": 0,
            "data.partition": partition,
            "convergence.drift": "refined",
            "strategy.drift": "refined",
        }
        return api.load_scenario(data.scenario, changes | dict(overrides or {}))


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
    rate = DEVICE_TO_CLOUD[scenario.spec.model.name or ""]
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
