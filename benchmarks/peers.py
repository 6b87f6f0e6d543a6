"""Measure the same FedAvg rounds in hsfl and in other public frameworks, side by side.

    python benchmarks/peers.py [--env DIR] [--blocks N] [--threads 1|2] [--out FILE]

The work: LeNet-5 on random 1x28x28 images, 20 clients that all take part in every round, batch 16, one SGD step per
client and round, then the average. The drivers are in benchmarks/peers/. pfl and Flower get a virtual environment each
under DIR, made when absent; hsfl and the plain PyTorch loop run in the interpreter that runs this script. Everything
runs on the same two cores. A block runs hsfl before each peer; a figure is the median over blocks of the ratio of the
two neighbours' median rounds. Every driver starts from the same weights and batches, and its averaged weights after a
few rounds are compared with the plain loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).resolve().parent
DRIVERS = HERE / "peers"
TORCH = ("torch==2.13.0", "numpy==2.4.6")
PACKAGES = {"pfl": (*TORCH, "pfl[pytorch]==0.6.0"), "flower": (*TORCH, "flwr[simulation]==1.41.0", "ray==2.55.1")}
TOLERANCE = 1e-6  # of weights around 0.1 after a few float32 rounds


@dataclass
class Side:
    """One way to do the work; `threads` None: to be chosen."""

    name: str
    driver: str
    threads: int | None = 1
    options: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    warmup: int = 6
    rounds: int = 20
    seconds: list[float] = field(default_factory=list)  # median round of each block
    ratios: list[float] = field(default_factory=list)  # to hsfl's just before
    difference: float = 0.0  # largest, of weights
    versions: dict[str, str] = field(default_factory=dict)


HSFL = Side("hsfl `stacked`", "hsfl", None)
PEERS = [
    Side("plain PyTorch loop", "plain", None),
    Side("pfl, 1 process", "pfl", None),
    Side("pfl, 2 processes", "pfl", 1, launcher=("-m", "torch.distributed.run", "--nproc-per-node", "2")),
    Side("Flower simulation, 2 actors", "flower", warmup=6, rounds=12),
    Side("Flower simulation, sleeping replaced by events", "flower", 1, ("--events", "1"), warmup=6, rounds=12),
]


def python(folder: Path, driver: str) -> Path:
    """The interpreter of a driver; makes its virtual environment when absent."""
    if driver not in PACKAGES:
        return Path(sys.executable)
    home = folder / driver
    interpreter, done = home / "bin" / "python", home / "complete"
    if not done.exists():
        print(f"installing {', '.join(PACKAGES[driver])} into {home}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *PACKAGES[driver]], check=True)
        done.touch()
    return interpreter


class Bench:
    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.work = scratch / "work.npz"
        subprocess.run([sys.executable, "-c", f"import work; work.write({str(self.work)!r})"], cwd=DRIVERS, check=True)

    def run(
        self, side: Side, threads: int | None = None, warmup: int | None = None, rounds: int | None = None
    ) -> float:
        """The median round of a fresh process, in seconds."""
        threads = threads or side.threads or 1
        out = self.scratch / "weights.npz"
        command = [
            python(self.folder, side.driver),
            *side.launcher,
            DRIVERS / f"with_{side.driver}.py",
            *("--work", self.work, "--weights", out, "--threads", str(threads)),
            *("--warmup", str(warmup or side.warmup), "--rounds", str(rounds or side.rounds)),
            *side.options,
        ]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if side.driver == "hsfl":
            environment["PYTHONPATH"] = str(HERE.parent / "src")
        done = subprocess.run(command, cwd=self.scratch, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{side.name} failed:\n{done.stderr[-3000:]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        side.versions = told["versions"]
        side.difference = max(side.difference, self.compare(out))
        out.unlink()
        return median(told["seconds"])

    def compare(self, path: Path) -> float:
        """The largest difference to the plain loop's weights; the first weights to come are the plain loop's."""
        with np.load(path) as file:
            weights = {name: file[name] for name in file.files}
        if not hasattr(self, "expected"):
            self.expected = weights
            with np.load(self.work) as file:
                self.moved = max(float(abs(weights[name] - file[name]).max()) for name in weights)
        if weights.keys() != self.expected.keys():
            raise SystemExit(f"other weights: {sorted(weights)} instead of {sorted(self.expected)}")
        return max(float(abs(weights[name] - self.expected[name]).max()) for name in weights)

    def choose_threads(self, side: Side) -> None:
        """The faster of 1 and 2 threads by the median of three tries in turns."""
        tried = {1: [], 2: []}
        for _ in range(3):
            for threads, seconds in tried.items():
                seconds.append(self.run(side, threads, 5, 10))
        side.threads = min(tried, key=lambda threads: median(tried[threads]))


def table(bench: Bench) -> str:
    rows = [
        "| | threads | ms per round: median (lowest to highest block) | time / hsfl's: median (lowest to highest) | "
        "largest difference of weights |",
        "|---|---|---|---|---|",
    ]
    for side in (HSFL, *PEERS):
        ms = [1000 * s for s in side.seconds]
        ratio = "1"
        if side.ratios:
            ratio = f"**{median(side.ratios):.2f}** ({min(side.ratios):.2f} to {max(side.ratios):.2f})"
        rows.append(
            f"| {side.name} | {side.threads} | {median(ms):.1f} ({min(ms):.1f} to {max(ms):.1f}) | {ratio} | "
            f"{side.difference:.1e} |"
        )
    return "\n".join(rows)


def document(bench: Bench, blocks: int, command: str, threads: int | None) -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.split(":", 1)[1].strip() for line in cpuinfo.open() if line.startswith("model name")), model)
    found: dict[str, str] = {}
    for side in (HSFL, *PEERS):
        found |= side.versions
    versions = ", ".join(f"{name} {number}" for name, number in found.items())
    how = f"{threads} as asked for" if threads else "1 or 2, whichever was faster here"
    load = f"{os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return f"""# FedAvg in hsfl and in other frameworks

Written by `{command}` on 2 cores of {model}, {platform.system()}; Python {platform.python_version()}, {versions}. \
Load of the machine over the last five minutes, this benchmark included: {load}.

LeNet-5 on random 1x28x28 images, 20 clients, batch 16, one SGD step per client and round, then the average. \
{blocks} blocks; in each, hsfl runs before every peer, and a ratio is of these two neighbours' median rounds after the \
warm-up. Above 1, hsfl is faster.

{table(bench)}

- The last column is against the plain loop, after 5 rounds from the same weights with the same batches; the weights \
themselves move by up to {bench.moved:.1e} in them.
- hsfl, the plain loop and pfl in one process run with as many torch threads as the table says \
({how}). pfl in 2 processes (torchrun) and Flower's 2 actors (`num_cpus` 1) have one thread each.
- Flower's simulation sleeps 0.1 s between looks, both where it delivers messages and where it collects replies. A \
round is short here, so this weighs more than it would with longer local training. In the last row a changed Flower \
waits for events in both places: what its messages and actors cost without the sleeping.
- One local step of a small model is where a framework's overhead shows most. These ratios say nothing about long \
local training, large models or other hardware.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--env", type=Path, default=cache / "hsfl-peers", help="where the virtual environments are")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, choices=(1, 2), help="torch threads; by default the faster, side by side"
    )
    parser.add_argument("--out", type=Path, help="write the table to this file")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # children inherit it
    folder = args.env.resolve()
    for driver in PACKAGES:
        python(folder, driver)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(folder, Path(scratch))
        bench.run(PEERS[0])  # the weights to compare with
        for side in (HSFL, *PEERS):
            if side.threads is None and args.threads:
                side.threads = args.threads
            elif side.threads is None:
                bench.choose_threads(side)
                print(f"{side.name}: {side.threads} thread(s)", file=sys.stderr)
        for block in range(args.blocks):
            for side in PEERS:
                ours, theirs = bench.run(HSFL), bench.run(side)
                HSFL.seconds.append(ours)
                side.seconds.append(theirs)
                side.ratios.append(theirs / ours)
                print(f"block {block + 1}: hsfl {ours:.4f} s, {side.name} {theirs:.4f} s", file=sys.stderr)
    given = f" --threads {args.threads}" if args.threads else ""
    text = document(bench, args.blocks, f"python benchmarks/peers.py --blocks {args.blocks}{given}", args.threads)
    print(text)
    if args.out:
        args.out.write_text(text)
    wrong = [side.name for side in (HSFL, *PEERS) if side.difference > TOLERANCE]
    if wrong:
        raise SystemExit(f"not the same work: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
