"""What the figures of the motivation count."""

from __future__ import annotations

from hsfl.experiments.motivation import _epochs
from hsfl.experiments.settings import Settings
from hsfl.records import RoundRecord
from hsfl.scenario.scenario import Scenario


class Smaller(Settings):
    """Ten clients with mini-batches of 8 instead of twenty with 16."""

    def scenario(self, dataset: str, partition: str, seed: int, overrides=None) -> Scenario:
        changes = {"tiers.sensor.entities": 10, "training.batch_size": 8}
        return super().scenario(dataset, partition, seed, {**changes, **(overrides or {})})


def test_an_epoch_is_a_pass_of_the_clients_there_are() -> None:
    line = RoundRecord(round=125, time_s=0.0)
    assert _epochs(Settings(quick=True), line) == 125 * 20 * 16 / 10_000
    assert _epochs(Smaller(quick=True), line) == 125 * 10 * 8 / 10_000
