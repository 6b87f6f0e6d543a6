"""hsfl run --ray: every machine an actor; Ray starts again what dies, and the weights are those of the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

import hsfl
from tests.distributed.killing import same_files
from tests.distributed.rays import Faults, cluster, small
from tests.distributed.test_running import one_thread as one_thread

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_killed_actor_and_a_lost_node_change_nothing(tmp_path: Path) -> None:
    """What the node's machines had saved is gone with it: all go back to the checkpoint."""
    scenario = small(tmp_path, **{"stopping.rounds": 30, "execution.checkpoint_every": 12})
    hsfl.train(scenario, out=tmp_path / "simulated")
    with cluster(nodes=2) as nodes:
        faults = Faults(nodes, {5: "device-1", 20: "node of fed"})
        run = hsfl.run(scenario, cluster="ray", out=tmp_path / "machines", callbacks=[faults])
    assert faults.happened == ["device-1", "node of fed"]
    assert [record.round for record in run.metrics] == list(range(31))
    for name in ("model.safetensors", "checkpoints/round-000000030.safetensors"):
        same_files(tmp_path / "machines" / name, tmp_path / "simulated" / name)
