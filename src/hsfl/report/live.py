"""What a person sees while training runs: one line that stays up to date, or a line per evaluation in a log."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hsfl.problem.units import format_seconds
from hsfl.records import PlanRecord, RoundRecord, Summary
from hsfl.report.pace import Pace
from hsfl.report.words import each_round, forecast_text, left_out, numbers, planned_codes, reached, some
from hsfl.runs.callback import Callback
from hsfl.runs.stopping import round_limit
from hsfl.scenario.scenario import Scenario

#: Rounds per second are those of about the last so many seconds.
_WINDOW_S = 10.0
#: Corrected averages are proposed where plans would be so many times as fast.
_PAYS = 1.2


class LiveLine(Callback):
    """A callback of training: round, simulated time, loss, what was evaluated, rounds per second, time left, plan.

    In a terminal one line that stays up to date; elsewhere, as in a notebook, a line for every evaluation.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.record: RoundRecord | None = None
        """The last round's."""
        self.reached: dict[str, str] = {}
        """What the last evaluation found, by name."""
        self.forecast, self.due = "", float("inf")
        """The last evaluation's, and the round by which it ends training."""
        self.plan = ""
        self.kept = False
        """Whether the last plan was kept for want of a better one."""
        self.gain = 0.0
        """How many times as fast a plan would be with corrected averages: the most of all plans."""
        self.pace = Pace(_WINDOW_S)
        self.live = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, get_renderable=self._text)

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        stopping = scenario.spec.stopping
        self.rounds, self.time_limit, self.folder = round_limit(stopping), stopping.time_limit, folder
        start = f"Resumed after round {round_}" if round_ else "Training"
        self._print(f"{start}: {scenario.name}, strategy {scenario.spec.strategy.name}, into {folder}")
        if self.live:
            self.live.start()

    def on_plan(self, record: PlanRecord) -> None:
        plan, kept = f"cuts {numbers(record.cuts)}; intervals {numbers(record.intervals)}", record.kept is not None
        plan += each_round(record.micro_batches)
        plan += "" if record.codes is None else f"; links {planned_codes(record.codes)}"
        news = plan != self.plan or (kept and not self.kept)  # a plan made again each time would fill the screen
        self.plan, self.kept, self.gain = plan, kept, max(self.gain, record.corrected_gain or 0.0)
        if news:
            why = f" (kept: {record.kept})" if kept else ""
            self._print(f"  plan after round {record.round}: {plan}{why}")

    def on_round(self, record: RoundRecord) -> None:
        self.pace.add(time.perf_counter(), record.round, record.time_s)
        self.record = record
        evaluated = bool(reached(record)) or record.losses is not None  # without test data, the latter alone
        self.reached = reached(record) or self.reached
        if evaluated:
            said = record.forecast
            self.forecast = "" if said is None else forecast_text(said)
            self.due = float("inf") if said is None or said.rounds is None else record.round + said.rounds
        if not self.live and evaluated:
            self._print(self._line())

    def on_end(self, summary: Summary) -> None:
        self._stop()
        found = dict(self.reached)
        if summary.accuracy is not None:
            found["accuracy"] = f"{summary.accuracy:.2%}, best {summary.best_accuracy:.2%}"
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        why = f" ({summary.why})" if summary.why else ""
        self._print(
            f"Ended by {summary.ended}{why} after {summary.rounds:,} rounds and "
            f"{_time(summary.time_s, self.record.planned_s if self.record else None)} "
            f"({format_seconds(summary.wall_s or 0.0)} here){f': {said}' if said else ''}"
        )
        if self.gain >= _PAYS:
            self._print(f"Try  --averaging corrected: by the bound, plans would be up to {self.gain:.2g} times as fast")
        if summary.late:
            self._print(f"Left out of rounds for being late: {left_out(summary.late)}")
        self._print(f"Look at it with  hsfl report {self.folder}")

    def on_stop(self) -> None:
        """However training ended."""
        self._stop()

    def _text(self) -> Text:
        return Text(self._line(), no_wrap=True, overflow="ellipsis")

    def _line(self) -> str:
        record = self.record
        if record is None:
            return ""
        parts = [f"round {record.round:,}", _time(record.time_s, record.planned_s)]
        if missing := (*record.late, *record.failed):
            parts.append(f"without {some(missing)}")
        if record.loss is not None:
            parts.append(f"loss {record.loss:.3f}")
        parts += [f"{name} {value}" for name, value in self.reached.items()]
        if self.pace.rate is not None:
            parts.append(f"{self.pace.rate:.3g} rounds/s")
        left = self.pace.left_s(min(self.rounds, self.due), self.time_limit)
        if left is not None:
            parts.append(f"{format_seconds(left)} left")
        return "  ".join(part for part in (*parts, self.forecast, self.plan) if part)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)  # a log has one line each, however long

    def _stop(self) -> None:
        if self.live:
            self.live.stop()


def _time(seconds: float, planned_s: float | None) -> str:
    """The time of the simulation, or as machines took it."""
    shown = format_seconds(seconds)
    return f"{shown} simulated" if planned_s is None else f"{shown} measured, {format_seconds(planned_s)} planned"
