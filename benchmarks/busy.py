"""Training on cores that something else uses, too, by how long torch's threads look for work before they sleep.

    python benchmarks/busy.py [--rounds N] [--turns N] [--limit SECONDS]

`hsfl train mnist-mini` alone, and beside as many computing processes as there are cores. GOMP_SPINCOUNT is 300,000
where nobody sets it, and 3,000 where the command hsfl does.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = {
    "GOMP_SPINCOUNT=300000": {"GOMP_SPINCOUNT": "300000"},
    "GOMP_SPINCOUNT=3000": {"GOMP_SPINCOUNT": "3000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}


def seconds(setting: dict[str, str], rounds: int, limit: float) -> float:
    """How long training takes; the limit where it takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "mnist-mini", "--rounds", str(rounds), "--out", str(Path(folder) / "run")]
        begun = time.perf_counter()
        try:
            subprocess.run(
                [sys.executable, "-m", "hsfl", *words],
                env=os.environ | setting,
                timeout=limit,
                capture_output=True,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return limit
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=100.0)
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"{platform.processor() or platform.machine()}, {cores} cores; s for {given.rounds} rounds, the median of")
    print(f"{given.turns} (least to most; {given.limit:g}: stopped there)\n")
    print("| cores | " + " | ".join(SETTINGS) + " |\n|---" + "|---" * len(SETTINGS) + "|")
    for place, others in (("idle", 0), ("busy", cores)):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            took: dict[str, list[float]] = {name: [] for name in SETTINGS}
            for _ in range(given.turns):
                for name, setting in SETTINGS.items():
                    took[name].append(seconds(setting, given.rounds, given.limit))
        finally:
            for process in busy:
                process.kill()
        cells = (f"{statistics.median(t):.1f} ({min(t):.1f} to {max(t):.1f})" for t in took.values())
        print(f"| {place} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
