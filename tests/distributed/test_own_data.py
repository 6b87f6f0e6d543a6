"""Data that only devices have: every machine joins by a command, and the coordinator sees none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hsfl
from hsfl.distributed.describing import describe
from hsfl.distributed.machines import Machines
from hsfl.errors import HsflError, ScenarioError
from hsfl.report.runs import write_report
from hsfl.runs.preparing import Brought, prepare
from tests.distributed.killing import same_files
from tests.distributed.test_running import free_ports
from tests.runs.conftest import TASK, TINY, rounds_of, write_tiny
from tests.runs.conftest import spawn as spawn

pytestmark = pytest.mark.filterwarnings("ignore:waiting for")
TIERS = [{**tier, "entities": count} for tier, count in zip(TINY["tiers"][::2], (2, 1), strict=True)]
#: Who has which samples of the task's data; the two have differently many.
PARTS = (range(0, 70), range(70, 120))


def data() -> tuple[torch.Tensor, ...]:
    namespace: dict[str, Any] = {}
    exec(TASK, namespace)
    return namespace["data"]()


def write_own(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """The scenario of two devices with data of their own, one in a file and one by a function; and of a test set."""
    inputs, targets, test_inputs, test_targets = data()
    mine, others = PARTS
    np.savez(folder / "mine.npz", inputs=inputs[mine].double().numpy(), targets=targets[mine].int().numpy())
    save_file({"inputs": test_inputs, "targets": test_targets}, folder / "test.safetensors")
    text = f"from task import data\n\n\ndef load():\n    inputs, targets, *_ = data()\n    part = {others!r}\n"
    (folder / "others.py").write_text(text + "    return inputs[part], targets[part]\n")
    own = {"tiers": TIERS, "data": {"name": "own", "test": "test.safetensors"}}
    return write_tiny(folder, own | (changes or {}), "own.toml")


def write_central(folder: Path, changes: dict[str, Any]) -> Path:
    """The same with all data in one place."""
    rows = [f"{sample},{client}" for client, part in enumerate(PARTS) for sample in part]
    (folder / "clients.csv").write_text("\n".join(["sample,client", *rows]))
    together = {"tiers": TIERS, "data.partition": "csv", "data.assignments": "clients.csv"}
    return write_tiny(folder, together | changes, "central.toml")


def test_devices_train_on_what_only_they_have(spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made by what the devices measure; a device is lost; the weights are those of a simulation of it all."""
    changes = {"execution.backend": "reference", "stopping.rounds": 12, "strategy.replan_every": 6}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HSFL_TRUST", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    theirs = hsfl.train(write_central(tmp_path, changes), out=tmp_path / "simulated")
    torch.set_num_threads(threads)
    scenario = write_own(tmp_path, changes)
    run, node = machines(spawn, scenario, tmp_path)
    node("device-2", "others:load")
    first = node("device-1", "mine.npz")
    run.wait_for(lambda: rounds_of(tmp_path / "run") >= 3)
    first.process.kill()
    node("device-1", "mine.npz")
    run.process.join(120)
    assert run.process.exitcode == 0, run.err
    same_files(tmp_path / "run" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
    ours = hsfl.Run.load(tmp_path / "run")
    assert [plan.cuts for plan in ours.plans] == [plan.cuts for plan in theirs.plans]
    assert ours.metrics[-1].accuracy == theirs.metrics[-1].accuracy
    assert ours.labels is None


def machines(spawn: Any, scenario: Path, folder: Path) -> tuple[Any, Any]:
    """The coordinator and all machines but the devices, as processes; and what starts a device."""
    (folder / "token").write_text("0123456789abcdef\n")
    coordinator, fed, cloud = (f"127.0.0.1:{port}" for port in free_ports(3))

    def node(name: str, *options: str) -> Any:
        return spawn("node", scenario, "--name", name, "--state", folder / name, *options, "--token", "token")

    run = spawn("run", scenario, "--listen", coordinator, "--out", folder / "run", "--token", "token")
    node("fed", "--parent", coordinator, "--listen", fed)
    node("cloud-1", "--parent", coordinator, "--fed", fed, "--listen", cloud)
    return run, lambda name, where: node(name, "--parent", cloud, "--fed", fed, "--data", where)


def test_without_test_data_there_is_the_training_loss(
    spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = {"strategy.name": "fixed", "strategy.cuts": [2], "strategy.intervals": [2, 1], "stopping.rounds": 4}
    scenario = write_own(tmp_path, {"data": {"name": "own"}, **fixed})
    monkeypatch.chdir(tmp_path)
    run, node = machines(spawn, scenario, tmp_path)
    for name in ("device-1", "device-2"):
        node(name, "mine.npz")
    run.process.join(120)
    assert run.process.exitcode == 0, run.err
    assert "loss " in run.out
    assert "accuracy" not in run.out
    found = hsfl.Run.load(tmp_path / "run")
    assert not found.evaluations()
    assert found.metrics[-1].losses is not None
    assert {path.name for path in write_report([found], tmp_path / "report")} >= {"loss.png", "report.html"}


def test_only_a_device_has_training_data(tmp_path: Path) -> None:
    """The coordinator has the test data, and others have nothing but shapes."""
    scenario = hsfl.load_scenario(write_own(tmp_path))
    coordinator = prepare(scenario, backend=Machines)
    assert coordinator.evaluates
    assert len(coordinator.backend.data.train[0]) == 0
    assert len(coordinator.backend.data.test[0]) == 30
    edge = describe(scenario, None).parts.data
    assert len(edge.train[0]) == len(edge.test[0]) == 0
    device = describe(scenario, None, Brought(1, str(tmp_path / "mine.npz"))).parts
    assert [len(device.data.train[0]), len(device.data.test[0])] == [70, 0]
    inputs, _ = device.data.batch(device.drawn()[1:2])
    have = data()[0][list(PARTS[0])]
    assert all(any(torch.equal(one, other) for other in have) for one in inputs[0])


def test_accuracy_cannot_end_what_is_not_evaluated(tmp_path: Path) -> None:
    scenario = hsfl.load_scenario(write_own(tmp_path, {"data": {"name": "own"}, "stopping.until_accuracy": 0.9}))
    with pytest.raises(ScenarioError, match=r"stopping\.until_accuracy: there is nothing to evaluate on; give data"):
        prepare(scenario, backend=Machines)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"inputs": np.zeros((3, 7)), "targets": np.zeros(3, int)}, r"a sample is 7, unlike model.input_shape = \[8\]"),
        ({"inputs": np.zeros((3, 8), int), "targets": np.zeros(3, int)}, "inputs are int64, unlike data.inputs"),
        ({"inputs": np.zeros((3, 8)), "targets": np.full(3, 3)}, "a target is 3, but the model tells 3 classes apart"),
        ({"inputs": np.zeros((3, 8)), "targets": np.zeros((3, 2), int)}, "targets are 2 per sample, and the model's"),
        ({"inputs": np.zeros((3, 8)), "targets": np.zeros(2, int)}, "3 training inputs and 2 training targets"),
        ({"inputs": np.full((3, 8), np.nan), "targets": np.zeros(3, int)}, "training inputs hold nan"),
        ({"inputs": np.zeros((3, 8)), "labels": np.zeros(3, int)}, "it has no array called targets"),
    ],
)
def test_data_that_do_not_fit_are_named(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    scenario, place = hsfl.load_scenario(write_own(tmp_path)), tmp_path / "odd.npz"
    np.savez(place, **arrays)
    with pytest.raises(ScenarioError, match=sentence) as caught:
        describe(scenario, None, Brought(0, str(place)))
    assert f"--data {place}" in str(caught.value)


def test_what_is_no_data_is_one_sentence(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = write_own(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"PK no archive")
    (tmp_path / "task.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HSFL_TRUST", "1")
    Path("t").write_text("0123456789abcdef\n")
    tree = ("--parent", "a:1", "--fed", "a:2", "--token", "t")
    for options, sentence in (
        ((), "--data is missing: device-1 has its own data; give a .npz or .safetensors file"),
        (("--data", "absent.npz"), "--data absent.npz: cannot be read (No such file or directory); give a file"),
        (("--data", "broken.npz"), "--data broken.npz: cannot be read ("),
        (("--data", "task.txt"), "--data task.txt: give a .npz or .safetensors file, or package.module:function"),
        (("--data", "task:model"), "--data task:model: the items of its Sequential cannot be stacked"),
    ):
        result = command("node", scenario, "--name", "device-1", *tree, *options)
        assert (result.code, sentence in result.err) == (2, True), result.err
    result = command("node", scenario, "--name", "cloud-1", *tree, "--listen", "a:3", "--data", "mine.npz")
    assert "--data mine.npz: cloud-1 is no device and needs no data; leave it away" in result.err
    result = command("node", "mnist-mini", "--name", "sensor-1", *tree, "--data", "mine.npz")
    assert 'only with data.name = "own" in the scenario a device has its own data' in result.err
    for words in (("train", scenario), ("estimate", scenario), ("run", scenario, "--local")):
        result = command(*words)
        assert result.code == 2
        assert 'data.name = "own": every device has its own' in result.err


def test_own_data_cannot_be_spread(tmp_path: Path) -> None:
    scenario = hsfl.load_scenario(write_own(tmp_path, {"data.partition": "shards"}))
    with pytest.raises(HsflError, match=r'data.partition: with data.name = "own" every device has its own data'):
        describe(scenario, None)
