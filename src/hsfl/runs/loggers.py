"""A run in TensorBoard, Weights & Biases or MLflow, beside its own files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError, MissingExtraError, nearest
from hsfl.records import PlanRecord, RoundRecord
from hsfl.runs.callback import Callback
from hsfl.runs.resuming import run_id
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.toml_format import dotted, toml_value


class Logger(Callback):
    """Hands on the numbers of a run: losses, accuracy, metrics, simulated time, bytes, drift and plans, by names."""

    begun = False
    """Whether there is something to close: nothing was written if training never began."""

    def begin(self, folder: Path, scenario: Scenario, round_: int) -> None:
        """Before the first numbers after a round."""

    def write(self, numbers: Mapping[str, float], round_: int) -> None:
        """Some numbers of a round."""

    def close(self) -> None:
        """After the last ones."""

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        self.names = scenario.tier_names
        self.begin(folder, scenario, round_)
        self.begun = True

    def on_plan(self, record: PlanRecord) -> None:
        cuts = {f"cut/{name}": cut for name, cut in zip(self.names, record.cuts, strict=False)}
        intervals = {f"interval/{name}": i for name, i in zip(self.names, record.intervals, strict=True)}
        count = {} if record.micro_batches is None else {"micro_batches": record.micro_batches}
        self.write(cuts | intervals | count, record.round)

    def on_round(self, record: RoundRecord) -> None:
        numbers: dict[str, float | None] = {
            key: getattr(record, key) for key in ("loss", "accuracy", "test_loss", "time_s", "learning_rate")
        }
        numbers |= {f"metrics/{name}": value for name, value in record.metrics.items()}
        for model, spreads in record.clients.items():
            for name, spread in spreads.items():
                for key in ("mean", "lowest_tenth", "highest_tenth"):
                    numbers[f"clients/{model}/{name}/{key}"] = getattr(spread, key)
        numbers |= {f"bytes/{link}": count for link, count in record.bytes.items()}
        numbers |= {f"drift/{tier}/{key}": value for tier, drift in record.drift.items() for key, value in drift}
        self.write({name: value for name, value in numbers.items() if value is not None}, record.round)

    def on_stop(self) -> None:
        if self.begun:
            self.close()


class TensorBoard(Logger):
    """Writes RUN/tensorboard."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise MissingExtraError("Writing TensorBoard files", "tensorboard") from None
        self._make = SummaryWriter

    def begin(self, folder: Path, scenario: Scenario, round_: int) -> None:
        self.writer = self._make(folder / "tensorboard", purge_step=round_ + 1 if round_ else None)

    def write(self, numbers: Mapping[str, float], round_: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round_)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(Logger):
    """Writes RUN/wandb, which `wandb sync` uploads; with WANDB_MODE=online it is uploaded while training.

    The project is WANDB_PROJECT, or "hsfl".
    """

    def __init__(self) -> None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise MissingExtraError("Logging to Weights & Biases", "wandb") from None
        self._wandb: Any = wandb

    def begin(self, folder: Path, scenario: Scenario, round_: int) -> None:
        try:
            self.run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "hsfl"),
                name=folder.resolve().name,
                id=run_id(folder),
                resume="allow" if round_ else None,
                dir=str(folder),
                config=dotted(scenario.raw),
                mode=os.environ.get("WANDB_MODE", "offline"),
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except self._wandb.errors.Error as error:
            raise HsflError(f"wandb: {error}; log in with wandb login, or set WANDB_MODE=offline") from None

    def write(self, numbers: Mapping[str, float], round_: int) -> None:
        self.run.log(dict(numbers), step=round_)

    def close(self) -> None:
        self.run.finish()


class MLflow(Logger):
    """Logs to the server of MLFLOW_TRACKING_URI, or into RUN/mlruns.

    The experiment is MLFLOW_EXPERIMENT_NAME, or "hsfl".
    """

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder of files needs no database
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        except ModuleNotFoundError:
            raise MissingExtraError("Logging to MLflow", "mlflow") from None
        self._client: Any = MlflowClient
        self._metric: Any = Metric
        self._error = MlflowException

    def begin(self, folder: Path, scenario: Scenario, round_: int) -> None:
        place = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").resolve().as_uri()
        try:
            self.client = self._client(tracking_uri=place)
            name, run = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hsfl"), run_id(folder)
            known = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if known is None else known.experiment_id
            before = self.client.search_runs([experiment], f"tags.hsfl_run = '{run}'") if round_ else []
            if before:
                self.run = before[0].info.run_id
                self.client.update_run(self.run, status="RUNNING")
                return
            tags = {"hsfl_run": run, "hsfl_folder": str(folder.resolve())}
            self.run = self.client.create_run(experiment, run_name=folder.resolve().name, tags=tags).info.run_id
            for field, value in dotted(scenario.raw).items():
                self.client.log_param(self.run, field, value if isinstance(value, str) else toml_value(value))
        except self._error as error:
            raise HsflError(f"mlflow, {place}: {error}; set MLFLOW_TRACKING_URI to a place that can be had") from None

    def write(self, numbers: Mapping[str, float], round_: int) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, [self._metric(name, value, now, round_) for name, value in numbers.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run)


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def loggers(names: list[str]) -> list[Logger]:
    """Loggers by name, each once; HsflError where one is not known or not installed."""
    for name in names:
        if name not in LOGGERS:
            raise HsflError(f"--log {name}: no such logger{nearest(name, LOGGERS)}; there are {', '.join(LOGGERS)}")
    return [LOGGERS[name]() for name in dict.fromkeys(names)]
