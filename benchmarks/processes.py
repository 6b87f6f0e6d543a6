"""Measure rounds whose clients are spread over processes, against one process.

    torchrun --nproc-per-node 2 benchmarks/processes.py [--blocks N] [--rounds N] [--out FILE]

On the CPU, one thread in each process. Both take turns in short blocks. The time that a process computes in a round
(its CPU time) does not depend on what else the machine does; the time that a round takes (by the clock) does, and is
worth something only where every process has a core of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from round import Data, Setting, machine
from torch import distributed

from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes
from hsfl.engine.stacked import StackedBackend

#: Model, clients, edges, cuts and batch.
SETTINGS = [("lenet5", 20, 5, (1, 3), 16), ("lenet5", 40, 10, (1, 3), 16), ("lenet5", 20, 5, (1, 3), 64)]
Times = tuple[float, float]


def seconds(work: Callable[[], object], rounds: int) -> Times:
    """Of this process and by the clock, each time."""
    start = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        work()
    return (time.process_time() - start[0]) / rounds, (time.perf_counter() - start[1]) / rounds


def compared(processes: Processes, blocks: int, rounds: int, setting: tuple) -> tuple[str, ...]:
    """A row of the table, in the first process; the others follow."""
    name, clients, edges, cuts, batch = setting
    torch.manual_seed(0)
    made = Setting("cpu", model=name, clients=clients, edges=edges, batch=batch)
    arguments = made.layers, made.hosts, cuts, made.rule
    sharded = ShardedBackend(*arguments, data=Data(made), processes=processes)
    alone: list[Times] = []
    spread: list[Times] = []
    if processes.rank:
        total = seconds(sharded.follow, 1)[0]
        processes.max(torch.tensor(total))
        return ()
    one = StackedBackend(*arguments, data=Data(made))
    one.train_round()
    first = seconds(sharded.train_round, 1)[0]
    for _ in range(blocks):
        alone.append(seconds(one.train_round, rounds))
        spread.append(seconds(sharded.train_round, rounds))
    processes.told((None, None))
    own = first + rounds * sum(cpu for cpu, _ in spread)
    busiest = float(processes.max(torch.tensor(own))) / (1 + rounds * blocks)
    by_clock = statistics.median(a / b for (_, a), (_, b) in zip(alone, spread, strict=True))
    cpu, wall = (statistics.median(times) for times in zip(*alone, strict=True))
    sent = sharded._sum._sum.numel() * 4
    about = f"{name}, {clients} clients, {edges} edges, batch {batch}, cuts {cuts}"
    computing = f"{1e3 * cpu:.1f} ms", f"{1e3 * busiest:.1f} ms", f"**{cpu / busiest:.2f}**"
    taking = f"{1e3 * wall:.1f} ms", f"{1e3 * statistics.median(w for _, w in spread):.1f} ms", f"{by_clock:.2f}"
    return (about, *computing, *taking, f"{sent / 1e6:.2f} MB")


def beside(processes: Processes, rounds: int) -> str:
    """What a round costs beside its work, in the first process: a command, and a sum of so many numbers."""
    rows = [("a command", seconds(lambda: processes.told(("train_round", (), {})), 10 * rounds))]
    for numbers in (10**3, 10**5, 10**6):
        tensor = torch.zeros(numbers)
        rows.append((f"a sum of {4 * numbers / 1e6:g} MB", seconds(partial(processes.sum_into, tensor), 3 * rounds)))
    lines = "".join(f"| {what} | {1e3 * cpu:.2f} ms | {1e3 * wall:.2f} ms |\n" for what, (cpu, wall) in rows)
    return f"| what | computing | by the clock |\n| --- | --- | --- |\n{lines}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=10, help="of a block")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun --nproc-per-node 2")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    processes = Processes.of(distributed.group.WORLD)
    rows = [compared(processes, arguments.blocks, arguments.rounds, setting) for setting in SETTINGS]
    rest = beside(processes, arguments.rounds)
    if not processes.rank:
        size = processes.size
        head = ("what", "1 process computes", f"the busiest of {size}", "ratio", "a round in 1 process", f"in {size}")
        lines = [(*head, "ratio", "summed per round"), ("---",) * 8, *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        text = f"{machine('cpu')}, torch {torch.__version__}, load {os.getloadavg()[1]:.1f}.\n\n{table}\n\n{rest}"
        print(text)
        if arguments.out:
            arguments.out.write_text(text)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
