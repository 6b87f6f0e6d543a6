"""What a person sees while recipes run: runs done, running and left; in a log, a line per run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hsfl.experiments.reproduce import Progress
from hsfl.problem.units import format_seconds
from hsfl.records import RoundRecord, Summary
from hsfl.runs.callback import Callback
from hsfl.runs.stopping import round_limit
from hsfl.scenario.scenario import Scenario


class RunsProgress(Callback):
    """A callback of every training, and of `reproduce`; use it as a context."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.seen = Progress()
        self.round, self.rounds, self.accuracy = 0, 0.0, 0.0
        self.training_s, self.started = 0.0, time.perf_counter()
        self.done = 0
        self.live = Live(console=self.console, refresh_per_second=4, get_renderable=self._text)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def update(self, progress: Progress) -> None:
        if not self.console.is_terminal and progress.done > self.done and not self.training_s:  # trained side by side
            self.console.print(f"[{progress.done}/{progress.total}] {progress.current}", markup=False, soft_wrap=True)
        self.seen, self.round, self.done = progress, 0, progress.done

    def print(self, *renderables: Any) -> None:
        self.console.print(*renderables, sep="\n")

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        self.round, self.rounds = round_, round_limit(scenario.spec.stopping)
        self.run_started = time.perf_counter()

    def on_round(self, record: RoundRecord) -> None:
        self.round, self.accuracy = record.round, self.accuracy if record.accuracy is None else record.accuracy

    def on_end(self, summary: Summary) -> None:
        took = time.perf_counter() - self.run_started
        self.training_s += took
        if not self.console.is_terminal:
            self.console.print(
                f"[{self.seen.done + 1}/{self.seen.total}] {self.seen.current}: {summary.accuracy:.2%} after "
                f"{format_seconds(summary.time_s)} simulated, {format_seconds(took)} here",
                markup=False,
                soft_wrap=True,
            )

    def _text(self) -> Text:
        seen = self.seen
        parts = [f"{seen.done} runs done, {seen.running} running, {seen.left} left", seen.current]
        if self.round:
            parts.append(f"round {self.round:,} of {self.rounds:,.0f}, accuracy {self.accuracy:.1%}")
        if seen.trained and seen.running:
            took = (time.perf_counter() - self.started) / max(1, seen.done)
            parts.append(f"about {format_seconds(took * (seen.total - seen.done))} at most")
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
