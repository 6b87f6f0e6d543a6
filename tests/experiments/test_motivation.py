"""What the figures of the motivation count."""

from __future__ import annotations

from hsfl.experiments.motivation import TREES, _epochs, systems
from hsfl.experiments.result import FAILS, IN_PART
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


def test_one_edge_server_has_shorter_rounds_than_three_tiers_and_averaged_ones_longer() -> None:
    result = systems(Settings(), {})
    times = {row[0]: float(row[-1]) for row in result.rows}
    assert list(times) == list(TREES) and times["3-tier"] == 1
    assert times["client-edge"] < 1 < times["client-cloud"] < times["client-edge, averaged"]
    assert [claim.verdict for claim in result.claims] == [FAILS, IN_PART]
