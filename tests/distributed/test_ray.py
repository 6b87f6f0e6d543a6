"""hsfl run --ray: every machine an actor; Ray starts again what dies, and the weights are those of the reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import hsfl
from hsfl.errors import MissingExtraError
from hsfl.experiments.recipe import Recipe
from hsfl.experiments.reproduce import reproduce
from hsfl.experiments.store import Store
from tests.distributed.killing import same_files
from tests.distributed.rays import Faults, cluster, small
from tests.distributed.test_running import one_thread as one_thread
from tests.experiments.test_store import SETTINGS, result_of_nothing, short

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_ray_cluster(tmp_path: Path) -> None:
    """All that needs one, for it takes long to start."""
    with cluster(1, 1) as nodes:
        tasks_train_what_is_trained_here(tmp_path)
        a_killed_actor_and_a_lost_node_change_nothing(nodes, tmp_path)


def a_killed_actor_and_a_lost_node_change_nothing(nodes: Any, folder: Path) -> None:
    """What the node's machines had saved is gone with it: all go back to the checkpoint."""
    scenario = small(folder, **{"stopping.rounds": 30, "execution.checkpoint_every": 12})
    hsfl.train(scenario, out=folder / "simulated")
    faults = Faults(nodes, {5: "device-1", 20: "node"})
    run = hsfl.run(scenario, cluster="ray", out=folder / "machines", callbacks=[faults])
    assert faults.happened == ["device-1", "node"]
    assert [record.round for record in run.metrics] == list(range(31))
    for name in ("model.safetensors", "checkpoints/round-000000030.safetensors"):
        same_files(folder / "machines" / name, folder / "simulated" / name)


def tasks_train_what_is_trained_here(folder: Path) -> None:
    from hsfl.distributed.ray_tasks import ray_tasks

    recipe = Recipe("a", "", result_of_nothing, lambda settings: {("one",): short("RMA+RMS")})
    here, there = Store(folder / "here"), Store(folder / "there")
    list(reproduce([recipe], SETTINGS, here))
    with ray_tasks("ray", on_gpu=False) as pool:
        list(reproduce([recipe], SETTINGS, there, pool=pool))
        with pytest.raises(ZeroDivisionError, match=r"by zero$"):
            pool.submit(divmod, 1, 0).result()
    assert len(there.trained) == 1
    (one,), (other,) = (sorted(store.folder.iterdir()) for store in (here, there))
    assert one.name == other.name
    for name in ("metrics.jsonl", "plans.jsonl", "scenario.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "mnist-mini", "--ray", "--local"), "say where to run: --local"),
        (("run", "--ray", "auto"), "name a scenario to run"),
        (("run", "mnist-mini", "--local", "--state", "x"), "--state x: it is for --ray"),
        (("run", "mnist-mini", "--ray", "--listen", "here"), "listen here: write HOST:PORT"),
        (("run", "mnist-mini", "--ray", "no.such.invalid:6379"), "there is no host called no.such.invalid"),
        (("run", "mnist-mini", "--ray", "--set", "tiers.sensor.place.cpu=1"), "tiers.sensor.place.cpu (did you mean"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str, command: Any) -> None:
    ended = command(*arguments)
    assert ended.code == 2
    assert sentence in ended.err


def test_without_ray_the_way_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hsfl.distributed.ray_cluster", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'hsfl\[ray\]'"):
        hsfl.run("mnist-mini", cluster="ray")
