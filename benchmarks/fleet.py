"""Measure rounds of the built-in fleet, 100,000 devices with a cohort of 100, against the cohort as the whole fleet.

    python benchmarks/fleet.py [--blocks N] [--rounds N] [--backend NAME]

Both train the same 100 clients below as many edge servers. They take turns in blocks of rounds, in CPU time of this
process; each block gives one ratio, and the median over blocks is quoted. A block has whole intervals, so that drawing
a cohort, taking it in and its averages are in it. Peak memory is that of a process of its own for each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import time
from pathlib import Path

import numpy as np

import hsfl
from hsfl.engine.algorithm import Algorithm
from hsfl.runs.preparing import prepare

INTERVAL = 5


def fleet(backend: str) -> Algorithm:
    prepared = prepare(hsfl.load_scenario("fleet", {"execution.backend": backend, "execution.device": "cpu"}))
    return Algorithm(prepared.backend, prepared.task)


def whole(backend: str) -> Algorithm:
    """The fleet's first cohort, and nobody else."""
    scenario = hsfl.load_scenario("fleet")
    generator = np.random.default_rng(0)
    clients = np.sort(generator.choice(scenario.system.num_clients, 100, replace=False))
    edges, parents = np.unique(scenario.system.hosts[1][clients], return_inverse=True)
    overrides = {
        "tiers.phone.entities": len(clients),
        "tiers.phone.parents": parents.tolist(),
        "tiers.edge.entities": len(edges),
        "participation.cohort": len(clients),
        "execution.backend": backend,
        "execution.device": "cpu",
    }
    prepared = prepare(hsfl.load_scenario("fleet", overrides))
    return Algorithm(prepared.backend, prepared.task)


MADE = {"fleet": fleet, "whole": whole}


def run(algorithm: Algorithm, rounds: int) -> float:
    """CPU seconds of so many rounds."""
    start = time.process_time()
    for _ in algorithm.advance(rounds):
        pass
    return time.process_time() - start


def memory() -> float:
    """MB of memory at most, so far; where there is /proc, of this process alone, and not of the one that started it."""
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        kilobyte = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte / 1e6


def peak(name: str, backend: str, rounds: int) -> tuple[float, float]:
    """MB of memory at most, before anything is trained and then."""
    algorithm = MADE[name](backend)
    before = memory()
    run(algorithm, rounds)
    return before, memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2 * INTERVAL, help="of a block; whole intervals")
    parser.add_argument("--backend", default="stacked", choices=["stacked", "reference"])
    given = parser.parse_args()
    both = {name: make(given.backend) for name, make in MADE.items()}
    for algorithm in both.values():
        run(algorithm, 2 * INTERVAL)
    seconds = [{name: run(algorithm, given.rounds) for name, algorithm in both.items()} for _ in range(given.blocks)]
    ratios = [block["fleet"] / block["whole"] for block in seconds]
    print(f"{platform.machine()}, {os.cpu_count()} cores, {os.environ.get('OMP_NUM_THREADS', 'all')} threads")
    print(f"ratio  {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
    for name in both:
        each = statistics.median(block[name] for block in seconds) / given.rounds
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            before, after = pool.apply(peak, (name, given.backend, 2 * INTERVAL))
        print(
            f"{name:6} {1e3 * each:7.1f} ms of CPU a round; {before:6.0f} MB before, {after:6.0f} MB at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
