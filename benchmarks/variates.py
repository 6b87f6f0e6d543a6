"""What corrected averages gain by keeping of a machine's difference what lasts, and what plain averages lose.

    python benchmarks/variates.py [--data DIR] [--seeds N ...] [--rounds N]

LeNet-5 on CIFAR-10 (momentum 0.9, step 0.01, 20 devices, 5 edge servers, cuts (1, 3)) at fixed intervals. "all" takes
the whole difference for a variate, "lasting" is the rule as it is. Accuracies are of a tenth of the training samples,
which is not trained on: the mean of the last five evaluations.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from pathlib import Path

import torch

import hsfl
from hsfl.engine.averaging import CorrectedRule
from hsfl.errors import DivergedError

PLACES = [
    ("iid", (1, 1)),
    ("iid", (8, 8)),
    ("iid", (16, 16)),
    ("shards", (1, 1)),
    ("shards", (3, 6)),
    ("shards", (4, 4)),
]
RULES = {"plain": "plain", "all": "corrected", "lasting": "corrected"}
LASTING = CorrectedRule._lasting
Job = tuple[str, tuple[int, int], str, int, int, Path | None]


def all_of_it(rule: CorrectedRule, products: torch.Tensor, moved: torch.Tensor | int, reach: float) -> torch.Tensor:
    """k = 1."""
    return torch.ones((), device=products.device)


def accuracy(job: Job) -> float:
    """The final accuracy in percent; that of chance where training diverges."""
    partition, intervals, rule, seed, rounds, data = job
    torch.set_num_threads(1)
    CorrectedRule._lasting = all_of_it if rule == "all" else LASTING  # type: ignore[method-assign]
    scenario = dict(hsfl.load_scenario("paper").raw) | {
        "model": {"name": "lenet5", "input_shape": [3, 32, 32]},
        "convergence": {"rounds": 1000, "slack": 3},
    }
    changes = {
        "data.partition": partition,
        "data.validation": 0.1,
        "training.optimizer": "momentum",
        "training.learning_rate": 0.01,
        "training.seed": seed,
        "training.averaging": RULES[rule],
        "strategy.name": "fixed",
        "strategy.cuts": [1, 3],
        "strategy.intervals": [*intervals, 1],
        "stopping.rounds": rounds,
        "execution.evaluate_every": 50,
        "execution.checkpoint_every": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = hsfl.train(hsfl.load_scenario(scenario, changes), out=Path(folder) / "run", data=data)
        except DivergedError:
            return 10.0
    return 100 * statistics.mean(line.accuracy or 0.0 for line in run.evaluations()[-5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[51, 52, 53], metavar="N")
    parser.add_argument("--rounds", type=int, default=1200)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    print(f"| partition | intervals | {' | '.join(RULES)} |\n|---|---|{'---|' * len(RULES)}")
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for partition, intervals in PLACES:
            cells = []
            for rule in RULES if intervals != (1, 1) else ("plain",):
                jobs = [(partition, intervals, rule, seed, given.rounds, given.data) for seed in given.seeds]
                found = pool.map(accuracy, jobs)
                cells.append(f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
            print(f"| {partition} | {intervals} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
