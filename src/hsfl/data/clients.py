"""The data of every client, as a scenario says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hsfl.data.dataset import Dataset, load_dataset
from hsfl.data.partition import Indices, label_counts, noisy, partition
from hsfl.scenario.scenario import Scenario


class ClientData(NamedTuple):
    """A data set, and the training samples of it that each client has."""

    dataset: Dataset
    parts: Sequence[Indices]

    def label_counts(self) -> npt.NDArray[np.int64] | None:
        """(clients, classes): how often each client has each label; None for data without one label per sample."""
        targets = self.dataset.train[1].numpy()
        if targets.ndim != 1 or targets.dtype.kind != "i":
            return None
        return label_counts(self.parts, targets, self.dataset.num_classes)


def load_client_data(scenario: Scenario, data_folder: Path | None) -> ClientData:
    """Read the data of a scenario and spread them over its clients."""
    section, folder, clients = scenario.data, scenario.folder, scenario.spec.tiers[0].entities
    found = load_dataset(
        section,
        input_shape=scenario.input_shape,
        scenario_folder=folder,
        data_folder=data_folder,
        given=scenario.objects.get("data"),
    )
    seed = scenario.training_seed
    parts = partition(section, found.train[1].numpy(), clients, seed, folder, found.users)
    if section.feature_noise:
        found = replace(found, train=(noisy(found.train[0], parts, section.feature_noise, seed), found.train[1]))
    return ClientData(found, parts)
