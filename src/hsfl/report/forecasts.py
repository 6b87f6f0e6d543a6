"""What a run forecast while it trained, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsfl.records import ForecastRecord, RoundRecord
from hsfl.report.plots import new_figure, plain
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forecasts(run: Run) -> list[tuple[RoundRecord, ForecastRecord]]:
    """The forecasts of evaluations, with their rounds, for the last loss that was asked for."""
    found = [(line, line.forecast) for line in run.metrics if line.forecast is not None]
    return [pair for pair in found if pair[1].loss == found[-1][1].loss]


def draw_forecasts(run: Run) -> Figure:
    """The round and the second at which the target was to be reached, by the moment it was said, and the real ones."""
    made = forecasts(run)
    rounds = np.array([line.round for line, _ in made], dtype=float)
    times = np.array([line.time_s for line, _ in made])
    middle, low, high = (
        np.array([getattr(said, end) for _, said in made], dtype=float) for end in ("rounds", "low", "high")
    )
    seconds = np.array([said.seconds for _, said in made], dtype=float)  # None is NaN
    pace = seconds / np.where(middle > 0, middle, np.nan)
    last, reached = run.metrics[-1], run.summary is not None and run.summary.ended == "loss"
    figure = new_figure(11, 4.6)
    for axes, unit, at, scale, end in zip(
        figure.subplots(1, 2),
        ("rounds", "simulated s"),
        (rounds, times),
        (1.0, pace),
        (last.round, last.time_s),
        strict=True,
    ):
        top = 2 * end
        far = np.where(np.isfinite(high * scale), at + high * scale, np.where(np.isfinite(low * scale), top, np.nan))
        axes.fill_between(at, at + low * scale, far, color="#0072B2", alpha=0.2, linewidth=0, label="four in five")
        axes.plot(at, at + middle * scale, "o-", color="#0072B2", markersize=4, label="forecast")
        axes.plot([0, end], [0, end], color="0.6", linewidth=1, linestyle=":", label="now")
        if reached:
            axes.axhline(end, color="#D55E00", linestyle="--", label="reached")
        axes.set_xlim(0, end)
        axes.set_ylim(0, top)
        axes.set_xlabel(f"{unit} when it was said")
        axes.set_ylabel(f"{unit} when it is reached")
        axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    figure.suptitle(f"{plain(run.name)}: when the training loss is {made[-1][1].loss:g}, as forecast and as it came")
    return figure
