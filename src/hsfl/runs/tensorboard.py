"""A run in TensorBoard, beside its own files."""

from __future__ import annotations

from pathlib import Path

from hsfl.errors import MissingExtraError
from hsfl.records import PlanRecord, RoundRecord
from hsfl.runs.callback import Callback
from hsfl.scenario.scenario import Scenario


class TensorBoard(Callback):
    """Writes losses, accuracy, simulated time, bytes, drift and plans to RUN/tensorboard."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise MissingExtraError("Writing TensorBoard files", "tensorboard") from None
        self._make = SummaryWriter

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        self.names = [tier.name for tier in scenario.spec.tiers]
        self.writer = self._make(folder / "tensorboard", purge_step=round_ + 1 if round_ else None)

    def on_plan(self, record: PlanRecord) -> None:
        for name, cut in zip(self.names, record.cuts, strict=False):
            self.writer.add_scalar(f"cut/{name}", cut, record.round)
        for name, interval in zip(self.names, record.intervals, strict=True):
            self.writer.add_scalar(f"interval/{name}", interval, record.round)

    def on_round(self, record: RoundRecord) -> None:
        step = record.round
        for key in ("loss", "accuracy", "test_loss", "time_s", "learning_rate"):
            if (value := getattr(record, key)) is not None:
                self.writer.add_scalar(key, value, step)
        for name, value in record.metrics.items():
            self.writer.add_scalar(f"metrics/{name}", value, step)
        for model, spreads in record.clients.items():
            for name, spread in spreads.items():
                for key in ("mean", "lowest_tenth", "highest_tenth"):
                    self.writer.add_scalar(f"clients/{model}/{name}/{key}", getattr(spread, key), step)
        for link, count in record.bytes.items():
            self.writer.add_scalar(f"bytes/{link}", count, step)
        for tier, drift in record.drift.items():
            for key, value in drift:
                if value is not None:
                    self.writer.add_scalar(f"drift/{tier}/{key}", value, step)

    def on_stop(self) -> None:
        if hasattr(self, "writer"):  # nothing was written if training never began
            self.writer.close()
