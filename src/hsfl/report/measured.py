"""Times of runs on machines: measured, beside what the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.problem.units import format_seconds
from hsfl.report.grid import Grid
from hsfl.report.plots import new_figure, plain
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Parts of a round's time, in the order in which they are shown, and what they are.
PARTS = {
    "compute": "compute, at machines",
    "up": "up, activations on their way",
    "down": "down, gradients on their way",
    "average": "average",
    "move": "move of layers",
    "plan": "measuring for a plan",
    "rest": "the rest: commands, saves, losses",
}


def is_measured(run: Run) -> bool:
    return any(line.planned_s is not None for line in run.metrics)


def kind_of_time(runs: Sequence[Run]) -> str:
    """What the times of runs are called."""
    kinds = {is_measured(run) for run in runs}
    return "time" if len(kinds) > 1 else "measured time" if kinds == {True} else "simulated time"


def what_times_are(runs: Sequence[Run]) -> str:
    """A sentence on what the times of runs mean."""
    simulated = "what the machines and links of the scenario take, not the computer that trained"
    measured = "what the machines that it ran on took"
    return {
        "simulated time": f"Times are simulated: {simulated}.",
        "measured time": f"Times are measured: {measured}.",
        "time": f"Times of two kinds are compared here, seconds that passed with seconds that were computed: those of "
        f"runs on machines are measured ({measured}), those of the others simulated ({simulated}).",
    }[kind_of_time(runs)]


def time_of(run: Run, seconds: float, runs: Sequence[Run]) -> str:
    """A time of a run, with its kind where the runs it is shown with have both."""
    kind = "" if kind_of_time(runs) != "time" else " measured" if is_measured(run) else " simulated"
    return format_seconds(seconds) + kind


def parts_of_a_round(run: Run) -> tuple[list[str], list[list[str]]] | None:
    """A table of where a mean round's seconds went, planned and measured; None where nobody measured."""
    lines = [line.parts for line in run.metrics if line.parts]
    if not lines:
        return None
    known = [name for name in PARTS if any(name in parts for parts in lines)]
    rows, total = [], np.zeros(2)
    for name in known:
        found = [parts[name] for parts in lines if name in parts]
        mean = np.array([[one.planned, one.measured] for one in found]).sum(0) / len(lines)
        rows.append([PARTS[name], *_beside(*mean)])
        total += mean
    rows.append(["all of it", *_beside(*total)])
    return [f"of a round (mean of {len(lines):,})", "planned", "measured", "ratio"], rows


def parts_tables(runs: Sequence[Run]) -> list[Grid]:
    """Where the time of each run on machines went, for the terminal."""
    found = [(run.name, parts) for run in runs if (parts := parts_of_a_round(run)) is not None]
    right = [False, True, True, True]
    return [Grid([f"{name}, {top[0]}", *top[1:]], rows, right, total=True) for name, (top, rows) in found]


def _beside(planned: float, measured: float) -> list[str]:
    ratio = f"{measured / planned:.3g}" if planned > 0 else "–"
    return [format_seconds(planned), format_seconds(max(0.0, measured)), ratio]


def draw_times(run: Run, others: Sequence[Run] = ()) -> Figure:
    """Seconds since the start and seconds of each round, measured and planned; and simulated, where such runs are."""
    figure = new_figure(13, 4.6)
    left, right = figure.subplots(1, 2)
    lines = [line for line in run.metrics if line.planned_s is not None]
    rounds = [line.round for line in lines]
    curves = [("measured", rounds, [line.time_s for line in lines])]
    curves.append(("planned", rounds, [line.planned_s or 0.0 for line in lines]))
    for other in others:
        if not is_measured(other):
            seconds = [line.time_s for line in other.metrics]
            curves.append((f"simulated: {plain(other.name)}", [line.round for line in other.metrics], seconds))
    for i, (label, at, seconds) in enumerate(curves):
        style = ("-", "--", ":", "-.")[min(i, 3)]
        left.plot(at, seconds, style, label=label)
        right.plot(at[1:], np.diff(seconds) / np.diff(at), style, label=label, linewidth=1)
    left.set_ylabel("seconds since the start")
    right.set_ylabel("seconds of the round, with its averages")
    for axes in (left, right):
        axes.set_xlabel("rounds")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"Measured and planned times of {plain(run.name)}")
    return figure
