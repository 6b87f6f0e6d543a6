"""What a person sees while recipes run: a bar of runs and one of the rounds of this run; in a log, a line per run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from hsfl.experiments.side_by_side import RunCounts
from hsfl.problem.units import format_seconds
from hsfl.records import RoundRecord, Summary
from hsfl.report.words import reached
from hsfl.runs.callback import Callback
from hsfl.runs.stopping import round_limit
from hsfl.scenario.scenario import Scenario


class RunsProgress(Callback):
    """A callback of every training, and of `reproduce`; use it as a context."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.seen = RunCounts()
        self.told = False
        """Whether the log has the line of the run that is not yet counted as done."""
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
            transient=True,
            disable=not self.console.is_terminal,
            speed_estimate_period=math.inf,  # a run may take hours
        )
        self.runs = self.bars.add_task("runs", total=None)
        self.rounds = self.bars.add_task("rounds", visible=False)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, counts: RunCounts) -> None:
        if counts.done > self.seen.done:
            if not self.told:  # it was stored already, or trained in a process of its own
                self._log(counts.done, counts)
            self.told = False
        self.seen = RunCounts(**vars(counts))
        self.bars.update(
            self.runs, total=counts.total, completed=counts.done, description=f"runs: {counts.current}", refresh=True
        )
        self.bars.update(self.rounds, visible=False)

    def print(self, *renderables: Any) -> None:
        self.console.print(*renderables, sep="\n")

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        self.run_started = time.perf_counter()
        limit = round_limit(scenario.spec.stopping)
        total = limit if math.isfinite(limit) else None
        self.bars.reset(self.rounds, total=total, completed=round_, visible=True, description="rounds")

    def on_round(self, record: RoundRecord) -> None:
        self.bars.update(self.rounds, completed=record.round)
        if found := reached(record):
            said = ", ".join(f"{name} {value}" for name, value in found.items())
            self.bars.update(self.rounds, description=f"rounds: {said} at round {record.round:,}")

    def on_end(self, summary: Summary) -> None:
        took = time.perf_counter() - self.run_started
        accuracy = "" if summary.accuracy is None else f"{summary.accuracy:.2%} "
        reached = f"{accuracy}after {format_seconds(summary.time_s)} simulated"
        self._log(self.seen.done + 1, self.seen, f": {reached}, {format_seconds(took)} here")
        self.told = True

    def _log(self, done: int, counts: RunCounts, more: str = "") -> None:
        """A line where nobody watches the bars."""
        if not self.console.is_terminal:
            self.console.print(f"[{done}/{counts.total}] {counts.current}{more}", markup=False, soft_wrap=True)
