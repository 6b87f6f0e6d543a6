"""What it costs MA+RMS that the drift it corrects by was learnt at other cuts; writes benchmarks/correction.md.

    python benchmarks/correction.py [--seeds N ...]

How much of the predicted drift is seen is learnt tier by tier, at the cuts in force. Strategies with random cuts plan
intervals for cuts that were never in force, with that correction. Here it is forgotten in every tier whose layers
change, on the scenario mnist-mini with drift weighed against the loss.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import hsfl
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import QUICK
from hsfl.experiments.statistics import finals, target_of, times_to
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.topology import tier_layers
from hsfl.runs.reading import Run
from hsfl.strategies.named import CHOICES, Named

OUT = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Forgetting(Named):
    """MA+RMS that plans for new cuts as if nothing had been learnt of the drift of tiers whose layers change."""

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        correction = problem.constants.drift_correction
        if current is None or correction is None:
            return super().propose(problem, current, round_)
        cuts = super().propose(problem, current, round_).cuts
        before, after = (tier_layers(c, problem.num_layers) for c in (current.cuts, cuts))
        kept = np.where([a == b for a, b in zip(before, after, strict=True)], correction, 1.0)
        constants = replace(problem.constants, drift_correction=kept)
        return super().propose(replace(problem, constants=constants), current, round_)


def trained(settings: Settings, partition: str, label: str, folder: Path) -> list[Run]:
    runs = []
    for seed in settings.seeds:
        energy = {"strategy.drift": "energy", "strategy.name": "MA+RMS"}
        scenario = settings.scenario(settings.dataset, partition, seed, energy)
        intervals, cuts = CHOICES["MA+RMS"]
        assert intervals is not None and cuts is not None
        strategy: str | Named = "MA+RMS"
        if label != "kept":
            strategy = Forgetting("MA+RMS", intervals, cuts, seed)
        runs.append(hsfl.train(scenario, strategy=strategy, out=folder / f"{partition}-{label}-{seed}"))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102], help="seeds that no result uses")
    settings = Settings(QUICK, seeds=tuple(parser.parse_args().seeds))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for partition in ("iid", "shards"):
            of = {label: trained(settings, partition, label, Path(folder)) for label in ("kept", "forgotten")}
            target = target_of(of["kept"])
            for label, runs in of.items():
                intervals = "; ".join(str(plan.intervals) for plan in runs[0].plans)
                numbers = times_to(runs, target).text(1), finals(runs).text(1)
                rows.append(f"| {partition} | {label} | {target:.0%} | {' | '.join(numbers)} | {intervals} |")
    seeds = ", ".join(map(str, settings.seeds))
    text = "\n".join(
        [
            "# Corrections learnt at other cuts",
            "",
            f"Written by `python benchmarks/correction.py` (seeds {seeds}; {platform.processor() or 'CPU'}, Python "
            f"{platform.python_version()}): MA+RMS on mnist-mini, 120 rounds. Simulated seconds to the target, which "
            "allows 1.25 times the final error of the first row, final accuracy, and the intervals planned with the "
            "first seed.",
            "",
            "| partition | correction | target | s to it | final accuracy (%) | intervals |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    print(text)
    OUT.write_text(text)


if __name__ == "__main__":
    main()
