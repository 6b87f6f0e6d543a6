"""Train a scenario: rounds, evaluations, checkpoints, and a folder that holds it all."""

from __future__ import annotations

import secrets
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hsfl.engine import saving
from hsfl.engine.algorithm import Algorithm
from hsfl.engine.checkpoint import Checkpoints
from hsfl.engine.sharding import LostProcessError
from hsfl.errors import HsflError
from hsfl.files import remedy, unfinished
from hsfl.records import ForecastRecord, PlanRecord, RoundRecord, Summary
from hsfl.runs import processes
from hsfl.runs.callback import Callback, StopTraining, checked_callbacks
from hsfl.runs.environment import environment
from hsfl.runs.evaluating import check_weights, evaluation
from hsfl.runs.executor import Executor
from hsfl.runs.forecasting import forecast
from hsfl.runs.given import given_sources
from hsfl.runs.interrupting import InterruptedRun, stops_politely
from hsfl.runs.learning import AS_NAMED, Given
from hsfl.runs.mean_losses import MeanLosses
from hsfl.runs.preparing import Prepared, prepare
from hsfl.runs.reading import Run
from hsfl.runs.restoring import go_on
from hsfl.runs.resuming import check_objective, check_strategy, origin, run_id
from hsfl.runs.state import SessionRecord
from hsfl.runs.stopping import ended, round_limit
from hsfl.runs.writing import CHECKPOINTS, METRICS, PLANS, SCENARIO, RunFolder, check_free
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.template import scenario_text
from hsfl.theory.latency import round_latency

#: The most rounds between two looks at the device, so that what is shown is never old.
_ROUNDS_AT_ONCE = 50


def start(
    scenario: Scenario,
    out: Path | None,
    *,
    callbacks: Sequence[Callback] = (),
    data_folder: Path | None = None,
    executor: Executor | None = None,
    given: Given = AS_NAMED,
) -> Run:
    """Train from the beginning into a new folder, by default the next free runs/SCENARIO-STRATEGY-N."""

    def train(prepare: Callable[[], Prepared]) -> Run:
        if out is not None:
            check_free(out)
        prepared = prepare()
        run = secrets.token_hex(8)
        session = _Session(scenario, prepared, callbacks, run, executor)
        records = session.begin()
        contents = {
            SCENARIO: scenario_text(scenario.raw).encode(),
            "environment.json": environment(prepared, scenario, data_folder, run, executor).to_file(),
            **given_sources({**scenario.objects, "loss": given.loss, "metrics": given.metrics}),
        }
        if prepared.labels is not None:
            contents["labels.json"] = prepared.labels.to_file()
        stem = f"{scenario.name}-{prepared.task.strategy.name.lower()}"
        with closing(RunFolder.create(out, stem, contents)) as folder:
            return session.run(folder, records)

    prepares = partial(prepare, scenario, None, data_folder, given=given)
    return processes.together(train, prepares, scenario, executor)


def resume(
    path: Path,
    scenario: Scenario,
    *,
    callbacks: Sequence[Callback] = (),
    data_folder: Path | None = None,
    executor: Executor | None = None,
    given: Given = AS_NAMED,
) -> Run:
    """Go on with a run from its last checkpoint; `scenario` is the folder's, its stopping rules perhaps changed."""

    def go_on_training(prepare: Callable[[], Prepared]) -> Run:
        with closing(RunFolder(path)) as folder:
            folder.lock()
            prepared = prepare()
            check_strategy(path, prepared.task.strategy.name)
            check_objective(path, prepared)
            session = _Session(scenario, prepared, callbacks, run_id(path), executor)
            records: Iterable[RoundRecord | PlanRecord] = ()
            if not session.load(folder):  # it never came to a checkpoint
                records = session.begin()
                folder.rewind(None)
                if prepared.labels is not None:
                    folder.write("labels.json", prepared.labels)
            folder.write_scenario(scenario_text(scenario.raw))
            return session.run(folder, records)

    prepares = partial(prepare, scenario, None, data_folder, given=given)
    return processes.together(go_on_training, prepares, scenario, executor)


class _Session:
    """One process training one run."""

    folder: RunFolder
    checkpoints: Checkpoints

    def __init__(
        self,
        scenario: Scenario,
        prepared: Prepared,
        callbacks: Sequence[Callback],
        run: str,
        executor: Executor | None,
    ) -> None:
        self.scenario, self.prepared, self.callbacks = scenario, prepared, checked_callbacks(callbacks)
        self.stopping, self.execution = scenario.spec.stopping, scenario.spec.execution
        self.origin = origin(scenario, run)
        self.backend, self.command = prepared.backend, processes.command() if executor is None else executor.command
        self.executor = executor
        self.algorithm = Algorithm(self.backend, prepared.task, None if executor is None else executor.begin(prepared))
        self.accuracies: list[float] = []
        """The accuracies of the evaluations that are due every so many rounds."""
        self.past: list[float] = []
        """The mean loss of every round."""
        self.losses = MeanLosses(self.backend.num_clients)
        self.waiting: RoundRecord | None = None
        """The last round's record: it is written once it is known whether an evaluation belongs to it."""
        self.saved = 0
        """The round of the last checkpoint."""
        self.interrupted = False
        self.failed: BaseException | None = None
        """What a callback raised."""
        self.stopped: str | None = None
        """Why a callback has ended training."""
        self.earlier_s, self.started = 0.0, time.perf_counter()
        """Seconds of earlier sessions, and when this one began."""

    def begin(self) -> Iterator[RoundRecord | PlanRecord]:
        """Evaluate the initial model and make the first plan: what can be wrong shows before anything is written.

        The records of the plan and of the first round, which is not trained yet.
        """
        clock = self.algorithm.clock
        self.waiting = RoundRecord(round=0, time_s=0.0, planned_s=clock.planned_s, bytes=clock.bytes)
        self._evaluate()
        records = self.algorithm.advance(1)
        return chain([next(records)], records)

    def load(self, folder: RunFolder) -> bool:
        """Take over the last checkpoint that is whole; False where none was ever written."""

        def warn(text: str) -> None:
            warnings.warn(text, stacklevel=4)

        last = go_on(self._checkpoints(folder), folder, self.algorithm, self.origin, round_limit(self.stopping), warn)
        if last is None:
            return False
        state, metrics = last
        self.waiting = state.waiting
        self.losses.restore(state)
        self.earlier_s, self.saved = state.wall_s, self.algorithm.round
        self.accuracies = [line.accuracy for line in metrics if line.accuracy is not None]
        written = metrics if self.waiting is None else [*metrics, self.waiting]
        self.past = [line.loss for line in written if line.loss is not None]
        return True

    def run(self, folder: RunFolder, records: Iterable[RoundRecord | PlanRecord]) -> Run:
        """Train until something ends it; `records` are those of rounds already under way."""
        self.folder, self.checkpoints = folder, self._checkpoints(folder)
        try:
            with stops_politely(self._interrupt):
                self._tell("on_start", folder.path, self.scenario, self.algorithm.round)
                if (why := self._train(records)) is not None:
                    self._finish(why)
        except torch.OutOfMemoryError:
            raise HsflError(
                f"{folder.path}: the device has not enough memory; lower training.batch_size or the clients, or train "
                "on a larger one"
            ) from None
        except LostProcessError as error:
            again = f"continue with {self.command} --resume {shlex.quote(str(folder.path))}"
            raise LostProcessError(f"{folder.path}: {error}; {again}") from None
        finally:
            self._write_waiting()
            self._tell("on_stop")
        if self.failed is not None:
            raise self.failed
        if why is None:
            raise InterruptedRun(folder.path, self.algorithm.round, self.command)
        return Run.load(folder.path)

    def _train(self, records: Iterable[RoundRecord | PlanRecord]) -> str | None:
        """Until something ends training: why, or None if it was interrupted."""
        stopping, execution, algorithm = self.stopping, self.execution, self.algorithm
        limit = float("inf") if stopping.time_limit is None else stopping.time_limit
        if not self.saved:
            self._write_waiting()  # round 0
        while True:
            for record in records:
                self._record(record)
            round_ = algorithm.round
            if round_ % execution.evaluate_every == 0 and self.waiting is not None:
                self._evaluate()
                self._write_waiting()
            evaluated = self.past if round_ % execution.evaluate_every == 0 else ()
            why = ended(stopping, round_, algorithm.clock.time_s, self.accuracies, evaluated)
            why = why if self.stopped is None else "callback"
            over = why is not None or self.interrupted
            due = execution.checkpoint_every and (over or round_ % execution.checkpoint_every == 0)
            if (due or self.interrupted) and round_ != self.saved:
                self._checkpoint()
            if why is not None and self.waiting is not None:
                # Not in the checkpoint: a run that goes on from here is one that never stopped here.
                self._evaluate()
            if over:
                self._write_waiting()
                self.folder.flush()
                return why
            self.folder.flush()
            self.folder.remove("summary.json")  # of a run that had ended and now goes on
            marks = [_next(round_, every) for every in (execution.evaluate_every, execution.checkpoint_every) if every]
            stop = int(min(*marks, round_ + _ROUNDS_AT_ONCE, round_limit(stopping)))
            records = algorithm.advance(stop - round_, limit, lambda: self.interrupted or self.stopped is not None)

    def _record(self, record: RoundRecord | PlanRecord) -> None:
        if isinstance(record, PlanRecord):
            record = record.model_copy(update={"forecast": self._forecast()})
            self.folder.append(PLANS, record)
            self._tell("on_plan", record)
            return
        self._write_waiting()
        assert record.losses is not None
        if record.loss is not None:  # else nobody took part
            self.past.append(record.loss)
        self.losses.add(record.losses, record.losses_of)
        self.waiting = record.model_copy(update={"losses": None, "losses_of": None})

    def _evaluate(self) -> None:
        """Add an evaluation to the last round."""
        assert self.waiting is not None
        update = evaluation(self.prepared, self.algorithm.round) | {"forecast": self._forecast()}
        self.accuracies += [] if update.get("accuracy") is None else [update["accuracy"]]
        if self.losses.sums:
            update["losses"], update["losses_of"] = self.losses.taken()
        self.waiting = self.waiting.model_copy(update=update)

    def _forecast(self) -> ForecastRecord | None:
        """How long it takes to the loss that ends training, at the pace of the plan in force."""
        target, algorithm, task = self.stopping.until_loss, self.algorithm, self.prepared.task
        if target is None or (plan := algorithm.schedule.plan) is None:
            return None
        machines = task.conditions(algorithm.round, algorithm.clock.time_s)
        round_s = float(round_latency(replace(task.problem, system=machines), plan.cuts, plan.intervals))
        return forecast(self.past, target, round_s)

    def _write_waiting(self) -> None:
        if self.waiting is not None:
            record, self.waiting = self.waiting, None
            self.folder.append(METRICS, record)
            self._tell("on_round", record)
            if record.test_loss is not None or record.losses is not None:
                self._tell("on_evaluation", record, self.backend.model)

    def _checkpoint(self) -> None:
        check_weights(self.backend, self.algorithm.round)
        self.folder.flush(sync=True)
        state = SessionRecord(
            origin=self.origin,
            algorithm=self.algorithm.state(),
            waiting=self.waiting,
            clients=list(self.losses.sums),
            losses=list(self.losses.sums.values()),
            counts=list(self.losses.counts.values()),
            wall_s=self._wall_s(),
            files=self.folder.marks(),
        )
        self.checkpoints.write(self.algorithm.round, self.backend.save, state.model_dump(mode="json"))
        self.saved = self.algorithm.round

    def _checkpoints(self, folder: RunFolder) -> Checkpoints:
        return Checkpoints(folder.path / CHECKPOINTS, self.execution.keep_checkpoints)

    def _finish(self, why: str) -> None:
        clock, folder = self.algorithm.clock, self.folder.path
        model = folder / "model.safetensors"
        try:
            with unfinished(model) as place:
                saving.save(place, self.backend.global_state())
        except OSError as error:
            raise HsflError(
                f"{model}: cannot be written ({error.strerror or error}); {remedy(error, 'correct that')}, then resume "
                "the run"
            ) from None
        run = Run.load(folder)
        evaluations = run.evaluations()
        summary = Summary(
            ended=why,
            why=self.stopped if why == "callback" else None,
            rounds=self.algorithm.round,
            time_s=clock.time_s,
            wall_s=self._wall_s(),
            accuracy=evaluations[-1].accuracy if evaluations else None,
            best_accuracy=max((line.accuracy for line in evaluations if line.accuracy is not None), default=None),
            test_loss=evaluations[-1].test_loss if evaluations else None,
            metrics=evaluations[-1].metrics if evaluations else {},
            bytes=clock.bytes,
            strategy=self.prepared.task.strategy.name,
            seed=self.backend.seed,
            late=dict(Counter(name for line in run.metrics for name in line.late)),
        )
        self.folder.write("summary.json", summary)
        self._tell("on_end", summary)

    def _tell(self, event: str, *values: Any) -> None:
        """Call the callbacks; if one fails, training stops as if interrupted, so that nothing is lost."""
        for callback in self.callbacks:
            try:
                getattr(callback, event)(*values)
            except StopTraining as error:
                self.stopped = self.stopped or str(error) or type(callback).__name__
            except (Exception, SystemExit) as error:
                self.failed, self.interrupted = self.failed or error, True

    def _wall_s(self) -> float:
        return self.earlier_s + time.perf_counter() - self.started

    def _interrupt(self) -> None:
        self.interrupted = True
        if self.executor is not None:
            self.executor.interrupt()


def _next(round_: int, every: int) -> int:
    return (round_ // every + 1) * every
