"""Runs handed on to TensorBoard, Weights & Biases and MLflow: the numbers of the run folder, by the round."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

import hsfl
from hsfl.errors import MissingExtraError
from hsfl.runs.loggers import LOGGERS
from tests.runs.conftest import FIXED, write_tiny

SHORT = FIXED | {"stopping.rounds": 4, "execution.evaluate_every": 2, "execution.checkpoint_every": 2}
NAMES = {"cut/device", "interval/edge", "bytes/device.up", "drift/device/measured"}


def expected(folder: Path, key: str) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: line[key] for line in lines if key in line}


def in_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}


def in_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("hsfl").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["training.batch_size"] == "2"
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: {metric.step: metric.value for metric in of} for name, of in history.items()}


@pytest.mark.parametrize(
    ("name", "package", "read"),
    [("tensorboard", "tensorboard", in_tensorboard), ("mlflow", "mlflow", in_mlflow)],
)
def test_loggers_have_the_numbers_of_the_run_folder(command, tmp_path, monkeypatch, name, package, read) -> None:
    pytest.importorskip(package, reason=f"pip install 'hsfl[{name}]' to test it")
    for variable in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    file = write_tiny(tmp_path, SHORT)
    assert command("train", file, "--out", "run", "--log", name).code == 0
    assert command("train", "--resume", "run", "--rounds", 6, "--log", name).code == 0
    found = read(tmp_path / "run")
    for key in ("loss", "accuracy", "time_s"):
        wanted = expected(tmp_path / "run", key)
        assert {step: found[key][step] for step in wanted} == pytest.approx(wanted), key
    assert set(found) >= NAMES
    # An error before anything was begun is still that error.
    assert "no such strategy" in command("train", file, "--strategy", "x", "--log", name).err


def test_wandb_has_them_in_files_that_can_be_uploaded(command, tmp_path, monkeypatch) -> None:
    """Its files hold names and values as text; another process writes them, which is a little later."""
    pytest.importorskip("wandb", reason="pip install 'hsfl[wandb]' to test it")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    file = write_tiny(tmp_path, SHORT)
    assert command("train", file, "--out", "run", "--log", "wandb").code == 0
    assert command("train", "--resume", "run", "--rounds", 6, "--log", "wandb").code == 0
    losses = expected(tmp_path / "run", "loss").values()
    wanted = [b"loss\x82\x01" + bytes([len(text)]) + text for text in (repr(loss).encode() for loss in losses)]
    deadline, written = time.monotonic() + 60, b""
    while time.monotonic() < deadline and not all(text in written for text in wanted):
        written = b"".join(path.read_bytes() for path in tmp_path.glob("run/wandb/offline-run-*/*.wandb"))
        time.sleep(0.05)
    assert [text for text in wanted if text not in written] == []
    assert all(name.encode() in written for name in NAMES)


def test_a_logger_that_is_not_known_or_not_installed_is_one_sentence(command, tmp_path, monkeypatch) -> None:
    file = write_tiny(tmp_path, SHORT)
    ended = command("train", file, "--out", "run", "--log", "wandbb")
    assert ended.code == 2 and "--log wandbb: no such logger (did you mean wandb?); there are tensorboard" in ended.err
    for name, module in (("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        ended = command("train", file, "--out", "run", "--log", name)
        assert ended.code == 2 and f"pip install 'hsfl[{name}]'" in ended.err and not (tmp_path / "run").exists()
        with pytest.raises(MissingExtraError):
            LOGGERS[name]()
    assert isinstance(hsfl.load_scenario(file), hsfl.Scenario)
