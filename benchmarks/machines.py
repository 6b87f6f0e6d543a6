"""Measure what machines cost over entities in one process: `python benchmarks/machines.py` prints a table.

LeNet-5 on built-in MNIST images, mini-batches of 16, float32, one thread; medians of single rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import hsfl
from hsfl.records import RoundRecord

TREE = {
    "tiers.sensor.entities": 4,
    "tiers.gateway.entities": 2,
    "strategy.name": "fixed",
    "strategy.cuts": [2, 3],
    "execution.evaluate_every": 10**6,
    "execution.checkpoint_every": 0,
    "execution.device": "cpu",
}


class Rounds(hsfl.Callback):
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, record: RoundRecord) -> None:
        self.ends.append(time.perf_counter())

    def median_ms(self) -> float:
        """Without the first rounds, in which everything is made ready."""
        steps = [b - a for a, b in zip(self.ends[10:], self.ends[11:], strict=False)]
        return 1000 * statistics.median(steps)


def median_ms(how: str, rounds: int, intervals: list[int]) -> float:
    scenario = hsfl.load_scenario("mnist-mini", {**TREE, "strategy.intervals": intervals, "stopping.rounds": rounds})
    heard = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if how == "machines":
            hsfl.run(scenario, callbacks=[heard], out=out)
        else:
            hsfl.train(scenario.with_overrides({"execution.backend": how}), callbacks=[heard], out=out)
    return heard.median_ms()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("| ms per round | never averaged | both tiers averaged after every round |\n|---|---|---|")
    for how in ("stacked", "reference", "machines"):
        found = [median_ms(how, rounds, [interval, interval, 1]) for interval in (10**6, 1)]
        print(f"| {how} | {found[0]:.1f} | {found[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
