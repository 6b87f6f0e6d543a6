"""Machines that are killed while they train, and whether what they trained is the same."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import hsfl


def same_files(one: Path, other: Path) -> None:
    assert one.read_bytes() == other.read_bytes() or load_file(one).keys() == load_file(other).keys()
    for key, value in load_file(one).items():
        assert torch.equal(value, load_file(other)[key]), key


class Moving:
    """A strategy whose layers move every few rounds."""

    name, replans, needs_constants = "Moving", True, False

    def propose(self, problem: hsfl.Problem, current: hsfl.Plan | None, round_: int) -> hsfl.Plan:
        return hsfl.Plan([(1, 3), (2, 3), (1, 2), (3, 4)][round_ // 3 % 4], (2, 3, 1))


class Killer(hsfl.Callback):
    """Kills machines at random moments, two at once now and then; the last rounds wait until all kills are done."""

    def __init__(self, place: Path, kills: int, last: int, seed: int = 0) -> None:
        self.place, self.kills, self.last, self.chance = place, kills, last, random.Random(seed)
        self.killed: list[str] = []
        self.round = 0

    def on_start(self, folder: Path, scenario: hsfl.Scenario, round_: int) -> None:
        self.thread = threading.Thread(target=self._kill)
        self.thread.start()

    def on_round(self, record: Any) -> None:
        self.round = record.round
        if record.round >= self.last:
            self.thread.join(120)

    def on_stop(self) -> None:
        self.thread.join(120)

    def _kill(self) -> None:
        while len(self.killed) < self.kills:
            before, patience = self.round, time.monotonic() + self.chance.choice((0.1, 5, 5, 5))
            while self.round == before and time.monotonic() < patience:  # mostly after the last was got over
                time.sleep(0.01)
            time.sleep(self.chance.uniform(0.0, 0.3))
            files = sorted(self.place.glob("hsfl-machines-*/*/pid"))
            for file in self.chance.sample(files, self.chance.choice((1, 1, 2))):
                with suppress(ProcessLookupError, ValueError, OSError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
                    self.killed.append(file.parent.name)
