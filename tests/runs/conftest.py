"""A scenario that trains in a second, and the hsfl command as processes that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsfl.data import official_files
from tests.scenario.scenarios import changed, to_toml

TASK = """\
import torch
from torch import nn


def model():
    return nn.Sequential(
        nn.Linear(8, 24), nn.Sequential(nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 16)), nn.ReLU(), nn.Linear(16, 4),
        nn.Linear(4, 3),
    )


def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 8, generator=generator)
    targets = (inputs @ torch.randn(8, 3, generator=generator)).argmax(-1)
    return inputs[:120], targets[:120], inputs[120:], targets[120:]
"""
#: Every three rounds the links change so much that the layers move.
TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 7,
    "model": {"factory": "task:model", "input_shape": [8]},
    "training": {
        "batch_size": 2,
        "learning_rate": 0.05,
        "optimizer": "momentum",
        "momentum": 0.5,
    },
    "stopping": {"rounds": 30},
    "strategy": {"replan_every": 3, "probe_batches": 2},
    "execution": {"evaluate_every": 4, "checkpoint_every": 3, "device": "cpu"},
    "tiers": [
        {
            "name": "device",
            "entities": 4,
            "compute": "20 kFLOPS",
            "uplink": {"lognormal": ["100 kbps", 1.5]},
            "downlink": {"lognormal": ["100 kbps", 1.5]},
            "fed_uplink": "500 kbps",
            "fed_downlink": "500 kbps",
        },
        {
            "name": "edge",
            "entities": 2,
            "compute": "60 kFLOPS",
            "uplink": {"lognormal": ["200 kbps", 1.5]},
            "downlink": {"lognormal": ["200 kbps", 1.5]},
            "fed_uplink": "500 kbps",
            "fed_downlink": "500 kbps",
        },
        {"name": "cloud", "entities": 1, "compute": "1 MFLOPS"},
    ],
    "convergence": {"rounds": 3000, "slack": 0.05},
    "data": {"factory": "task:data", "partition": "dirichlet"},
    "dynamics": {"redraw_every": 3},
}
FIXED = {"strategy.name": "fixed", "strategy.cuts": [1, 3], "strategy.intervals": [2, 4, 1]}

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def only_built_in_data(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.delenv("HSFL_DATA", raising=False)
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(official_files, "cache_folder", lambda: cache)


def write_tiny(folder: Path, changes: Mapping[str, Any] | None = None, name: str = "tiny.toml") -> Path:
    """The scenario with changes, and the module with its model and data beside it."""
    (folder / "task.py").write_text(TASK)
    path = folder / name
    path.write_text(to_toml(changed(changes or {}, TINY)))
    return path


def signals_as_in_a_terminal() -> None:
    """Whoever runs the tests in the background or under nohup has them ignored, and hsfl respects that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signals_as_in_a_terminal()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tiny(tmp_path: Path) -> Write:
    return lambda changes=None, name="tiny.toml": write_tiny(tmp_path, changes, name)


@dataclass
class Process:
    """`hsfl ARGUMENTS`, running; what it prints goes to files."""

    process: Any
    out_path: Path
    err_path: Path

    def send(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def wait(self, seconds: float = 60) -> int:
        """The exit code; that of a signal is negative."""
        self.process.join(seconds)
        assert not self.process.is_alive(), "the process does not end"
        return self.process.exitcode

    def wait_for(self, seen: Callable[[], bool], seconds: float = 60) -> None:
        """Until something is seen, while it runs."""
        end = time.monotonic() + seconds
        while not seen():
            assert self.process.is_alive() and time.monotonic() < end, (self.out, self.err)
            time.sleep(0.002)

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()


_FORKS = multiprocessing.get_context("forkserver")
#: What takes seconds to import is imported once and not in every process.
_FORKS.set_forkserver_preload([__name__, "hsfl.cli", "hsfl.runs.training", "torch._dynamo"])


@pytest.fixture
def spawn(tmp_path: Path):
    """Start `hsfl ARGUMENTS` as a process of its own, in the folder of the test."""
    started: list[Process] = []

    def start(*args: object, setup: str = "") -> Process:
        out, err = (tmp_path / f"{kind}-{len(started)}.txt" for kind in ("out", "err"))
        process = _FORKS.Process(target=_run, args=(list(map(str, args)), str(tmp_path), str(out), str(err), setup))
        process.start()
        started.append(Process(process, out, err))
        return started[-1]

    yield start
    for running in started:
        if running.process.is_alive():
            running.process.kill()
        running.process.join()


def _run(args: list[str], folder: str, out: str, err: str, setup: str) -> None:
    """In the new process: `setup` is code that runs before the command."""
    signals_as_in_a_terminal()
    os.chdir(folder)
    for number, path in ((1, out), (2, err)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["hsfl", *args]
    import torch

    import hsfl.cli

    torch.set_num_threads(1)
    exec(setup, {})
    hsfl.cli.main()


def results(folder: Path) -> dict[str, bytes]:
    """What two equal runs have in common, byte for byte."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "plans.jsonl", "model.safetensors")}


def rounds_of(folder: Path) -> int:
    """How many rounds are on the disk already."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return 0
