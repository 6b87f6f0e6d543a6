"""Measure rounds whose clients are spread over processes, against one process with as many threads.

    torchrun --nproc-per-node 2 benchmarks/processes.py [--blocks N] [--out FILE]

On the CPU, a thread for every process. The variants take turns in short blocks, each block gives one ratio, and the
median over blocks is quoted. Absolute times are for orientation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from round import Data, Setting, machine
from torch import distributed

from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes
from hsfl.engine.stacked import StackedBackend

#: Model, clients, edges, cuts and batch.
SETTINGS = [
    ("lenet5", 20, 5, (1, 3), 16),
    ("lenet5", 100, 25, (1, 3), 16),
    ("lenet5", 20, 5, (1, 3), 64),
]


def seconds(work: Callable[[], object], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    return (time.perf_counter() - start) / rounds


def with_threads(threads: int, work: Callable[[], object], rounds: int) -> float:
    torch.set_num_threads(threads)
    found = seconds(work, rounds)
    torch.set_num_threads(1)
    return found


def compared(processes: Processes, blocks: int, setting: tuple) -> tuple[str, ...] | None:
    """A row of the table, in the first process; the others follow."""
    name, clients, edges, cuts, batch = setting
    torch.manual_seed(0)
    made = Setting("cpu", model=name, clients=clients, edges=edges, batch=batch)
    arguments = made.layers, made.hosts, cuts, made.rule
    sharded = ShardedBackend(*arguments, data=Data(made), processes=processes)
    if processes.rank:
        sharded.follow()
        return None
    one = StackedBackend(*arguments, data=Data(made))
    rounds = max(2, int(0.3 / seconds(one.train_round, 2)))
    times: dict[str, list[float]] = {"one": [], "threads": [], "processes": []}
    sharded.train_round()
    for _ in range(blocks):
        times["one"].append(seconds(one.train_round, rounds))
        times["threads"].append(with_threads(processes.size, one.train_round, rounds))
        times["processes"].append(seconds(sharded.train_round, rounds))
    processes.told((None, None))
    ratios = [
        statistics.median(a / b for a, b in zip(times[kind], times["processes"], strict=True))
        for kind in ("one", "threads")
    ]
    sent = sharded._sum._sum.numel() * 4
    middle = [f"{1e3 * statistics.median(found):.1f} ms" for found in times.values()]
    about = f"{name}, {clients} clients, {edges} edges, batch {batch}, cuts {cuts}"
    return (about, *(f"**{ratio:.2f}**" for ratio in ratios), *middle, f"{sent / 1e6:.2f} MB")


def alone(processes: Processes, blocks: int) -> str:
    """What a round costs beside its work: a command, and a sum of so many numbers."""
    command = seconds(lambda: processes.told(("train_round", (), {})), 50 * blocks)
    sums = []
    for numbers in (10**3, 10**5, 10**6, 10**7):
        tensor = torch.zeros(numbers)
        sums.append((numbers, seconds(lambda tensor=tensor: processes.sum_into(tensor), 3 * blocks)))
    rows = "".join(f"| a sum of {4 * n / 1e6:g} MB | {1e3 * s:.2f} ms |\n" for n, s in sums)
    return f"| what | time |\n| --- | --- |\n| a command | {1e3 * command:.2f} ms |\n{rows}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun --nproc-per-node 2")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    processes = Processes.of(distributed.group.WORLD)
    rows = [compared(processes, arguments.blocks, setting) for setting in SETTINGS]
    beside = alone(processes, arguments.blocks)
    if not processes.rank:
        size = processes.size
        head = ("what", f"1 process / {size}", f"1 process, {size} threads / {size} processes")
        head += ("1 process", f"{size} threads", f"{size} processes", "summed per round")
        lines = [head, ("---",) * len(head), *(row for row in rows if row is not None)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        load = os.getloadavg()[1]
        text = f"{machine('cpu')}, torch {torch.__version__}, load {load:.1f}.\n\n{table}\n\n{beside}"
        print(text)
        if arguments.out:
            arguments.out.write_text(text)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
