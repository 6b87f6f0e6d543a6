"""Times of runs on machines: measured, beside what the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.report.plots import new_figure
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        "time": f"Times of runs on machines are measured, those of the others simulated: {simulated}.",
    }[kind_of_time(runs)]


def draw_times(run: Run) -> Figure:
    """Seconds since the start and seconds of each round, measured and planned."""
    figure = new_figure(13, 4.6)
    left, right = figure.subplots(1, 2)
    lines = [line for line in run.metrics if line.planned_s is not None]
    rounds = np.array([line.round for line in lines])
    both = {"measured": [line.time_s for line in lines], "planned": [line.planned_s or 0.0 for line in lines]}
    for (label, seconds), style in zip(both.items(), ("-", "--"), strict=True):
        left.plot(rounds, seconds, style, label=label)
        right.plot(rounds[1:], np.diff(seconds), style, label=label, linewidth=1)
    left.set_ylabel("seconds since the start")
    right.set_ylabel("seconds of the round, with its averages")
    for axes in (left, right):
        axes.set_xlabel("rounds")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"Measured and planned times of {run.name}")
    return figure
