"""What waits is bounded, and a machine's memory stays within what the plan says, and messages on their way."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import hsfl
from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.connections import Arrived, Stream
from hsfl.distributed.places import Places
from hsfl.distributed.streams import Inbox
from hsfl.theory.latency import client_memory
from tests.runs.conftest import write_tiny

pytestmark = pytest.mark.filterwarnings("ignore:waiting for")

WIDE, BATCH, CLIENTS = 40_960, 128, 3
#: A layer that makes 21 MB of activations of each mini-batch, and one that takes them.
TASK = f"""\
import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(8, {WIDE}), nn.Linear({WIDE}, 3))


def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn({CLIENTS * BATCH + 30}, 8, generator=generator)
    targets = (inputs @ torch.randn(8, 3, generator=generator)).argmax(-1)
    return inputs[30:], targets[30:], inputs[:30], targets[:30]
"""
#: What Python, torch and its libraries may take beside tensors that are needed, in bytes.
BESIDE = 80 * 10**6


class FromNowhere:
    """A stream that was never dropped."""

    peer, dropped = "device-1", False


def test_who_brings_more_than_may_wait_waits() -> None:
    inbox, brought = Inbox(100, limit=1000), []

    def bring() -> None:
        for size in (600, 300, 300, 5000, 10):
            message = wire.Message(number=len(brought))
            inbox.hear(cast(Stream, FromNowhere()), Arrived(message, (), size, 0.0, 0.0))
            brought.append(size)

    thread = threading.Thread(target=bring, daemon=True)
    thread.start()
    most = 0
    for number in range(5):
        thread.join(0.05)
        most = max(most, len(brought) - number)
        event = inbox.get(20)
        assert event is not None and event.message.number == number  # type: ignore[union-attr]
    thread.join(20)
    assert brought == [600, 300, 300, 5000, 10]
    assert most == 2  # never three of them, and the large one alone


class Peaks(hsfl.Callback):
    """How far the memory of machines goes above what it is before the first round."""

    def __init__(self, place: Path, last: int) -> None:
        self.place, self.last, self.start, self.peak = place, last, {}, {}  # type: ignore[var-annotated]

    def on_start(self, folder: Path, scenario: hsfl.Scenario, round_: int) -> None:
        for name, status in self._machines():
            (status.parent / "clear_refs").write_text("5")  # the peak is counted from here
            self.start[name] = _bytes(status, "VmHWM")

    def on_round(self, record: Any) -> None:
        if record.round == self.last:
            self.peak = {name: _bytes(status, "VmHWM") - self.start[name] for name, status in self._machines()}

    def _machines(self) -> list[tuple[str, Path]]:
        files = self.place.glob("hsfl-machines-*/*/pid")
        return [(file.parent.name, Path("/proc", file.read_text(), "status")) for file in files]


def _bytes(status: Path, field: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was used")
def test_memory_stays_within_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With activations of 21 MB: one more of them for every client and round would be seen at once.

    Beside what the plan says: for each client one message on its way up, one down, and one whose memory is free again
    but not given back.
    """
    tiers = [
        {"name": "device", "entities": CLIENTS, "compute": "1 GFLOPS", "uplink": "1 Gbps", "downlink": "1 Gbps"},
        {"name": "cloud", "entities": 1, "compute": "1 GFLOPS"},
    ]
    tiers[0] |= {"fed_uplink": "1 Gbps", "fed_downlink": "1 Gbps"}
    changes = {"tiers": tiers, "training.batch_size": BATCH, "stopping.rounds": 8, "data.partition": "iid"}
    changes |= {"strategy.name": "fixed", "strategy.cuts": [1], "strategy.intervals": [4, 1]}
    path = write_tiny(tmp_path, {**changes, "execution.evaluate_every": 100, "execution.checkpoint_every": 0})
    (tmp_path / "task.py").write_text(TASK)
    scenario = hsfl.load_scenario(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    peaks = Peaks(tmp_path, last=6)
    hsfl.run(scenario, out=tmp_path / "run", callbacks=[peaks])
    problem = scenario.training_problem
    places = Places(problem.system.topology, [tier.name for tier in problem.system.tiers])
    planned = client_memory(problem, [1]) / 8
    message = 4 * BATCH * WIDE
    for name, (tier, number) in places.entities.items():
        clients = int(problem.system.clients_per_entity[tier][number])
        allowed = clients * (float(planned[tier]) + 3 * message) + BESIDE
        print(f"{name}: {peaks.peak[name] / 1e6:.0f} MB, planned {clients * planned[tier] / 1e6:.0f} MB")
        assert message < peaks.peak[name] < allowed, name
    assert message > 20e6
