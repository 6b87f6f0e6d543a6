"""What the figures of the motivation count."""

from __future__ import annotations

from hsfl.experiments.motivation import TREES, _epochs, on_tree
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import QUICK
from hsfl.planner.baselines import full_sync_cuts
from hsfl.records import RoundRecord
from hsfl.scenario.scenario import Scenario
from hsfl.theory.latency import aggregation_latency, split_latency


class Smaller(Settings):
    """Ten clients with mini-batches of 8 instead of twenty with 16."""

    def scenario(self, dataset: str, partition: str, seed: int, overrides=None) -> Scenario:
        changes = {"tiers.sensor.entities": 10, "training.batch_size": 8}
        return super().scenario(dataset, partition, seed, {**changes, **(overrides or {})})


def test_an_epoch_is_a_pass_of_the_clients_there_are() -> None:
    line = RoundRecord(round=125, time_s=0.0)
    assert _epochs(Settings(QUICK), line) == 125 * 20 * 16 / 10_000
    assert _epochs(Smaller(QUICK), line) == 125 * 10 * 8 / 10_000


def test_one_edge_server_has_shorter_rounds_than_three_tiers_and_averaged_ones_longer() -> None:
    """Full synchronisation, with the best cuts of every system."""
    settings, seconds = Settings(), {}
    for tree in TREES:
        problem = on_tree(tree, settings.scenario("cifar10", "shards", 0)).training_problem
        cuts = full_sync_cuts(problem)
        seconds[tree] = float(split_latency(problem, cuts)) + float(aggregation_latency(problem, cuts).sum())
    assert seconds["client-edge"] < seconds["3-tier"] < seconds["client-cloud"] < seconds["client-edge, averaged"]
