"""make soak: 200 kills of machines of one run, which ends with the weights of one that nobody disturbed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hsfl
from tests.distributed.killing import Killer, Moving, same_files
from tests.runs.conftest import write_tiny

KILLS = 200


class EnoughError(Exception):
    """All kills are done."""


class Soak(Killer):
    def on_round(self, record: Any) -> None:
        self.round = record.round
        if not self.thread.is_alive():
            raise EnoughError


@pytest.mark.filterwarnings("ignore")
def test_200_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    changes = {"execution.backend": "reference", "training.averaging": "corrected", "tiers.0.code": "int8"}
    scenario = write_tiny(tmp_path, {**changes, "stopping.rounds": 10**6, "execution.checkpoint_every": 500})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killer, start = Soak(tmp_path, KILLS, last=10**6), time.perf_counter()
    with pytest.raises(EnoughError):
        hsfl.run(scenario, strategy=Moving(), out=tmp_path / "machines", callbacks=[killer])
    took = time.perf_counter() - start
    (saved,) = sorted((tmp_path / "machines" / "checkpoints").glob("*.safetensors"))[-1:]
    rounds = int(saved.stem.removeprefix("round-"))
    changed = hsfl.load_scenario(scenario, {"stopping.rounds": rounds})
    hsfl.train(changed, strategy=Moving(), out=tmp_path / "simulated")
    same_files(saved, tmp_path / "simulated" / "checkpoints" / saved.name)
    who = {name: killer.killed.count(name) for name in sorted(set(killer.killed))}
    print(f"\n{len(killer.killed)} kills in {took:.0f} s over {rounds} rounds, weights equal to the bit; {who}")
