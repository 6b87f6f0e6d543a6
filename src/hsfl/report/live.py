"""What a person sees while training runs: one line that stays up to date, or a line per evaluation in a log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hsfl.problem.scenario import Scenario
from hsfl.problem.units import format_seconds
from hsfl.runs.callback import Callback
from hsfl.runs.stopping import round_limit

#: Rounds per second are those of about the last so many seconds.
_WINDOW_S = 10.0


class LiveLine(Callback):
    """A callback of training: round, simulated time, loss, accuracy, rounds per second, time left, last plan."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self.accuracy: float | None = None
        self.plan = ""
        self.seen: list[tuple[float, int, float]] = []
        """Wall seconds, round and simulated seconds of the last rounds."""

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        training = scenario.spec.training
        self.rounds, self.time_limit, self.folder = round_limit(training), training.time_limit, folder
        start = f"Resumed after round {round_}" if round_ else "Training"
        self.console.print(f"{start}: {scenario.name}, strategy {training.strategy}, into {folder}", markup=False)
        self.seen = [(time.perf_counter(), round_, 0.0)]
        if self.live:
            self.live.start()

    def on_plan(self, record: dict[str, Any]) -> None:
        cuts, intervals = (", ".join(map(str, record[key])) for key in ("cuts", "intervals"))
        self.plan = f"cuts {cuts}; intervals {intervals}"
        why = f" (kept: {record['kept']})" if record.get("kept") else ""
        self._print(f"  plan after round {record['round']}: {self.plan}{why}")

    def on_round(self, record: dict[str, Any]) -> None:
        now = time.perf_counter()
        self.seen = [s for s in self.seen if now - s[0] <= _WINDOW_S or s is self.seen[-1]]
        self.seen.append((now, record["round"], record["time_s"]))
        self.accuracy = record.get("accuracy", self.accuracy)
        if self.live:
            self.live.update(Text(self._line(record)))
        elif "accuracy" in record:
            self._print(self._line(record))

    def on_end(self, summary: dict[str, Any]) -> None:
        self._stop()
        self._print(
            f"Ended by {summary['ended']} after {summary['rounds']:,} rounds and {format_seconds(summary['time_s'])} "
            f"simulated ({format_seconds(summary['wall_s'])} here): accuracy {summary['accuracy']:.2%}, best "
            f"{summary['best_accuracy']:.2%}"
        )
        self._print(f"Look at it with  hsfl report {self.folder}")

    def on_stop(self) -> None:
        """However training ended."""
        self._stop()

    def _line(self, record: dict[str, Any]) -> str:
        parts = [f"round {record['round']:,}", f"{format_seconds(record['time_s'])} simulated"]
        if "loss" in record:
            parts.append(f"loss {record['loss']:.3f}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.2%}")
        (first, first_round, first_time), (now, round_, simulated) = self.seen[0], self.seen[-1]
        if now > first and round_ > first_round:
            rate = (round_ - first_round) / (now - first)
            parts.append(f"{rate:.3g} rounds/s")
            left = (self.rounds - round_) / rate
            if self.time_limit is not None and simulated > first_time:
                left = min(left, (self.time_limit - simulated) * (now - first) / (simulated - first_time))
            if left < float("inf"):
                parts.append(f"{format_seconds(max(0.0, left))} left")
        return "  ".join([*parts, self.plan])

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)

    def _stop(self) -> None:
        if self.live:
            self.live.stop()
