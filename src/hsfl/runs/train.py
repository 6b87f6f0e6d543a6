"""Train a scenario: rounds, evaluations, checkpoints, and a folder that holds it all."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from hsfl.engine.algorithm import Algorithm, DivergedError, Strategy
from hsfl.engine.checkpoint import Checkpoints
from hsfl.errors import HsflError
from hsfl.files import write_whole
from hsfl.problem.scenario import Scenario
from hsfl.problem.template import scenario_text
from hsfl.runs.callback import Callback
from hsfl.runs.folder import METRICS, PLANS, RunFolder
from hsfl.runs.run import Run
from hsfl.runs.stopping import ended, round_limit
from hsfl.runs.task import Prepared, prepare

#: The most rounds between two looks at the device, so that what is shown is never old.
_ROUNDS_AT_ONCE = 50
_TEST_BATCH = 1000


class InterruptedRun(KeyboardInterrupt):
    """Training was asked to stop; the folder holds a checkpoint to resume from."""

    def __init__(self, folder: Path, round_: int) -> None:
        super().__init__(f"stopped after round {round_}; continue with hsfl train --resume {folder}")
        self.folder, self.round = folder, round_


def start(
    scenario: Scenario,
    out: Path | None,
    *,
    strategy: Strategy | None = None,
    callbacks: Sequence[Callback] = (),
    data_folder: Path | None = None,
) -> Run:
    """Train from the beginning into a new folder."""
    out = out or _free_folder(scenario, strategy)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HsflError(f"{out}: exists already; choose another --out, or continue that run with --resume {out}")
    prepared = prepare(scenario, strategy, data_folder)
    about = _environment(prepared, scenario, data_folder)
    folder = RunFolder.create(out, scenario_text(scenario.raw), about, prepared.labels)
    return _Session(scenario, prepared, folder, callbacks).run(resumed=False)


def resume(
    folder: Path,
    scenario: Scenario,
    *,
    strategy: Strategy | None = None,
    callbacks: Sequence[Callback] = (),
    data_folder: Path | None = None,
) -> Run:
    """Go on with a run from its last checkpoint; `scenario` is the folder's, its stopping rules perhaps changed."""
    writing = RunFolder(folder)
    writing.lock()
    prepared = prepare(scenario, strategy, data_folder)
    write_whole(folder / "scenario.toml", scenario_text(scenario.raw).encode(), replace=True)
    return _Session(scenario, prepared, writing, callbacks).run(resumed=True)


@dataclass
class _Session:
    """One process training one run."""

    scenario: Scenario
    prepared: Prepared
    folder: RunFolder
    callbacks: Sequence[Callback]
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Per client, summed since the last evaluation."""
    since_evaluation: int = 0
    waiting: dict[str, Any] | None = None
    """The last round's record: it is written once it is known whether an evaluation belongs to it."""
    interrupted: bool = False
    wall_s: float = 0.0
    """Of earlier sessions."""

    def __post_init__(self) -> None:
        self.training = self.scenario.spec.training
        self.algorithm = Algorithm(self.prepared.backend, self.prepared.task)
        self.checkpoints = Checkpoints(self.folder.path / "checkpoints", self.training.keep_checkpoints)
        self.losses = [0.0] * self.prepared.backend.num_clients

    def run(self, resumed: bool) -> Run:
        started = time.perf_counter()
        try:
            if not (resumed and self._load()):
                self.folder.rewind(-1)
                self.waiting = {"round": 0, "time_s": 0.0, "bytes": self.algorithm.clock.bytes}
                self._evaluate()
            for callback in self.callbacks:
                callback.on_start(self.folder.path, self.scenario, self.algorithm.round)
            with _stops_politely(self._interrupt):
                try:
                    why = self._train(started)
                except DivergedError:
                    self._write_waiting()
                    raise
            if why is None:
                raise InterruptedRun(self.folder.path, self.algorithm.round)
            self._finish(why, self.wall_s + time.perf_counter() - started)
        finally:
            self.folder.close()
            for callback in self.callbacks:
                callback.on_stop()
        return Run.load(self.folder.path)

    def _train(self, started: float) -> str | None:
        """Until something ends training: why, or None if it was interrupted."""
        training, algorithm = self.training, self.algorithm
        limit = float("inf") if training.time_limit is None else training.time_limit
        while True:
            why = ended(training, algorithm.round, algorithm.clock.time_s, self._accuracies())
            if why or self.interrupted:
                break
            marks = [_next(algorithm.round, every) for every in (training.evaluate_every, training.checkpoint_every)]
            stop = int(min(*marks, algorithm.round + _ROUNDS_AT_ONCE, round_limit(training)))
            for record in algorithm.advance(stop - algorithm.round, limit, lambda: self.interrupted):
                self._record(record)
            if algorithm.round % training.evaluate_every == 0:
                self._evaluate()
            if algorithm.round % training.checkpoint_every == 0:
                self._checkpoint(started)
            self.folder.flush()
        if why and self.waiting is not None and "accuracy" not in self.waiting:
            self._evaluate()
        self._checkpoint(started)
        return why

    def _record(self, record: dict[str, Any]) -> None:
        kind = record.pop("kind")
        if kind == "plan":
            self.folder.append(PLANS, record)
            for callback in self.callbacks:
                callback.on_plan(record)
            return
        self._write_waiting()
        self.losses = [total + new for total, new in zip(self.losses, record.pop("losses"), strict=True)]
        self.since_evaluation += 1
        if not record["drift"]:
            del record["drift"]
        self.waiting = {k: record[k] for k in ("round", "time_s", "loss", "bytes", "drift") if k in record}

    def _evaluate(self) -> None:
        """Add an evaluation to the last round."""
        if self.waiting is None or "accuracy" in self.waiting:
            return
        found = self.prepared.backend.evaluate(self.prepared.feed.test_batches(_TEST_BATCH))
        self.waiting |= {"accuracy": found["accuracy"], "test_loss": found["loss"]}
        self.evaluations.append(self.waiting)
        if self.since_evaluation:
            self.waiting["losses"] = (np.array(self.losses) / self.since_evaluation).tolist()
            self.losses, self.since_evaluation = [0.0] * len(self.losses), 0
        self._write_waiting()

    def _write_waiting(self) -> None:
        if self.waiting is not None:
            self.folder.append(METRICS, self.waiting)
            for callback in self.callbacks:
                callback.on_round(self.waiting)
            self.waiting = None

    def _checkpoint(self, started: float) -> None:
        self._write_waiting()
        self.folder.flush()
        state = self.algorithm.state() | {
            "losses": self.losses,
            "since_evaluation": self.since_evaluation,
            "wall_s": self.wall_s + time.perf_counter() - started,
        }
        self.checkpoints.write(self.algorithm.round, self.prepared.backend.save, state)

    def _load(self) -> bool:
        """Take over the last checkpoint; False where there is none, so that training starts over."""
        found = self.checkpoints.latest(lambda text: warnings.warn(text, stacklevel=1))
        if found is None:
            return False
        tensors, state = found
        self.prepared.backend.load(tensors)
        self.algorithm.restore(state)
        self.losses, self.since_evaluation = state["losses"], state["since_evaluation"]
        self.wall_s = state["wall_s"]
        metrics = self.folder.rewind(self.algorithm.round)
        self.evaluations = [line for line in metrics if "accuracy" in line]
        return True

    def _finish(self, why: str, wall_s: float) -> None:
        backend, clock = self.prepared.backend, self.algorithm.clock
        state = {k: v.contiguous().cpu() for k, v in backend.global_state().items()}
        temporary = self.folder.path / ".model.safetensors"
        try:
            save_file(state, temporary)
            os.replace(temporary, self.folder.path / "model.safetensors")
        except Exception as error:
            temporary.unlink(missing_ok=True)
            raise HsflError(f"{self.folder.path}: model.safetensors cannot be written ({error}); make room") from None
        accuracies = self._accuracies()
        summary = {
            "rounds": self.algorithm.round,
            "time_s": clock.time_s,
            "accuracy": accuracies[-1],
            "best_accuracy": max(accuracies),
            "test_loss": self.evaluations[-1]["test_loss"],
            "bytes": clock.bytes,
            "ended": why,
            "wall_s": wall_s,
            "strategy": self.prepared.task.strategy.name,
            "seed": backend.seed,
        }
        self.folder.write("summary.json", summary)
        for callback in self.callbacks:
            callback.on_end(summary)

    def _accuracies(self) -> list[float]:
        return [line["accuracy"] for line in self.evaluations]

    def _interrupt(self) -> None:
        self.interrupted = True


def _next(round_: int, every: int) -> int:
    return (round_ // every + 1) * every


@contextmanager
def _stops_politely(interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM finish the round; a second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        interrupt()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_folder(scenario: Scenario, strategy: Strategy | None) -> Path:
    """runs/SCENARIO-STRATEGY-N with the first N that is free."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in scenario.name)
    stem = f"{name}-{strategy.name if strategy else scenario.spec.training.strategy}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


def _environment(prepared: Prepared, scenario: Scenario, data_folder: Path | None) -> dict[str, Any]:
    import hsfl

    device = prepared.device
    return {
        "hsfl": hsfl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "scenario_folder": None if scenario.folder is None else str(scenario.folder.resolve()),
        "data_folder": None if data_folder is None else str(data_folder.resolve()),
    }
