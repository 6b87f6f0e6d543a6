"""make soak: actors and nodes of a Ray cluster, and the driver, are killed over and over; the weights stay the same."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import hsfl
from tests.distributed.killing import same_files
from tests.distributed.rays import Faults, cluster, small
from tests.distributed.test_running import one_thread as one_thread
from tests.runs.conftest import rounds_of
from tests.runs.conftest import spawn as spawn

KILLS, EVERY = 24, 7
pytestmark = pytest.mark.filterwarnings("ignore")


class Soak(Faults):
    """A node that was lost is replaced."""

    def on_round(self, record: Any) -> None:
        super().on_round(record)
        while len(self.cluster.worker_nodes) < 2:
            self.cluster.add_node(num_cpus=1)


def test_killed_actors_and_nodes_change_nothing(tmp_path: Path) -> None:
    rounds = (KILLS + 1) * EVERY
    scenario = small(tmp_path, **{"stopping.rounds": rounds, "execution.checkpoint_every": 25})
    hsfl.train(scenario, out=tmp_path / "simulated")
    chance = random.Random(1)
    kinds = ("device-1", "device-2", "cloud-1", "fed", "node of device-1", "node of fed")
    plan = {(n + 1) * EVERY: kinds[n] if n < len(kinds) else chance.choice(kinds) for n in range(KILLS)}
    with cluster(0, 1, 1) as nodes:
        faults, start = Soak(nodes, plan), time.perf_counter()
        hsfl.run(scenario, cluster="ray", out=tmp_path / "machines", state=tmp_path / "shared", callbacks=[faults])
        took = time.perf_counter() - start
    assert len(faults.happened) == KILLS
    same_files(tmp_path / "machines" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
    assert not list((tmp_path / "shared").iterdir())
    who = {name: faults.happened.count(name) for name in kinds}
    print(f"\n{KILLS} kills in {took:.0f} s over {rounds} rounds, weights equal to the bit; {who}")


def test_a_driver_that_is_killed_goes_on_where_it_was(spawn: Any, tmp_path: Path) -> None:
    scenario = small(tmp_path, **{"stopping.rounds": 300, "execution.checkpoint_every": 50})
    hsfl.train(scenario, out=tmp_path / "simulated")
    with cluster(1) as nodes:
        process = spawn("run", scenario, "--ray", nodes.address, "--out", tmp_path / "run")
        process.wait_for(lambda: rounds_of(tmp_path / "run") >= 70, 300)
        process.process.kill()
        process.process.join()
        process = spawn("run", "--ray", nodes.address, "--resume", tmp_path / "run")
        assert process.wait(600) == 0, process.err
    same_files(tmp_path / "run" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
