"""By what part of the loss random drift may raise it: planned training with several values of `RISE`.

    python benchmarks/rise.py [--size full] [--data DIR] [--values V ...] [--partition shards] [--averaging corrected]
                              [--seeds N ...] [--constant NAME=VALUE ...] [PLAN ...]

Beside full synchronisation at its best cuts, on the data and machines of the experiments; accuracies are of a tenth of
the training samples, which is not trained on. The value inf leaves out that drift raises the loss. A PLAN is fixed cuts
and intervals, such as 2,3:4,4, trained as well. Small is LeNet-5 on the machines of mnist-mini, four minutes a run on a
core; full is VGG-16 on those of the paper.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
import tried

import hsfl
from hsfl.experiments.settings import Settings, fixed
from hsfl.experiments.sizes import SIZES
from hsfl.experiments.statistics import final_accuracy, target_of, time_to
from hsfl.planner.baselines import full_sync_cuts
from hsfl.runs.reading import Run
from hsfl.theory import convergence

PLANNED = {"strategy.name": "HSFL", "strategy.drift": "energy"}
Job = tuple[Settings, str, int, Path | None, dict[str, Any], float | None]


def train(job: Job) -> Run:
    settings, partition, seed, data, overrides, rise = job
    torch.set_num_threads(1 if settings.size.name == "small" else os.cpu_count() or 1)
    if rise is not None:
        convergence.RISE = rise
    scenario = settings.scenario(settings.dataset, partition, seed, overrides | {"data.validation": 0.1})
    with tempfile.TemporaryDirectory() as folder:
        return hsfl.train(scenario, out=Path(folder) / "run", data=data)


def plan(text: str) -> dict[str, Any]:
    cuts, intervals = (tuple(int(number) for number in part.split(",")) for part in text.split(":"))
    return fixed(cuts, intervals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", metavar="PLAN")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--averaging", default="plain")
    parser.add_argument("--values", nargs="*", type=float, default=[0.05, 0.1, float("inf")], metavar="V")
    parser.add_argument("--seeds", nargs="+", type=int, default=[90, 91], metavar="N")
    parser.add_argument("--data", type=Path)
    tried.add_option(parser)
    parser.add_argument("--jobs", type=int)
    given = parser.parse_args()
    settings = Settings(SIZES[given.size], precision="fp32" if given.size == "small" else "bf16")
    sync = fixed(full_sync_cuts(settings.scenario(settings.dataset, "iid", 0).training_problem), (1, 1))
    wanted: dict[str, tuple[dict[str, Any], float | None]] = {"full sync": (sync, None)}
    wanted |= {f"fixed {text}": (plan(text), None) for text in given.plans}
    planned = PLANNED | {"training.averaging": given.averaging}
    wanted |= {f"planned, {value:g}": (planned, value) for value in given.values}
    jobs: list[Job] = [
        (settings, given.partition, seed, given.data, *what) for what, seed in product(wanted.values(), given.seeds)
    ]
    with multiprocessing.get_context("spawn").Pool(
        given.jobs or (2 if given.size == "small" else 1), tried.use, [given.constant]
    ) as pool:
        found = dict(zip(product(wanted, given.seeds), pool.map(train, jobs, chunksize=1), strict=True))
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {given.partition}\n")
    print("| plans | times as fast as full sync | points above it | last plan |\n|---|---|---|---|")
    for label in wanted:
        faster, above = [], []
        for seed in given.seeds:
            run, whole = found[label, seed], found["full sync", seed]
            target = target_of([whole])
            faster.append(time_to(whole, target) / time_to(run, target))
            above.append(100 * (final_accuracy(run) - final_accuracy(whole)))
        last = found[label, given.seeds[0]].plans[-1]
        shown = " ".join(f"{value:.2f}" for value in faster), " ".join(f"{value:+.1f}" for value in above)
        print(f"| {label} | {statistics.mean(faster):.2f} ({shown[0]}) | {statistics.mean(above):+.1f} ({shown[1]}) | "
              f"cuts {last.cuts}, I {last.intervals} |")  # fmt: skip


if __name__ == "__main__":
    main()
