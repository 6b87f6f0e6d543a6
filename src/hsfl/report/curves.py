"""Accuracy and losses of runs as curves against time, rounds and bytes; of several seeds, their mean and range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.problem.profile import FloatArray
from hsfl.records import RoundRecord
from hsfl.report.colours import RUNS
from hsfl.report.groups import band, groups
from hsfl.report.measured import kind_of_time
from hsfl.report.plots import new_figure, plain, tick_step
from hsfl.report.words import percent
from hsfl.runs.reading import Run, common_target, total_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))  # 5 and 7 have no common divisor: 35 kinds of lines
_DURATIONS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (2 * 60, 60, "minutes"), (0, 1, "seconds"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0, "bytes"))


def draw_accuracy(runs: Sequence[Run], figure: Figure | None = None, *, log_time: bool = False) -> Figure:
    """Test accuracy against simulated time, rounds and bytes."""
    figure = figure or new_figure(13, 4.6)
    panels = figure.subplots(1, 3, sharey=True)
    lines = [run.evaluations() for run in runs]
    _curves(panels, runs, lines, lambda points: 100 * np.array([line.accuracy for line in points], dtype=float))
    target = common_target(runs)
    if len(runs) > 1 and target is not None:
        for axes in panels:
            axes.axhline(100 * target, color="0.4", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        figure.suptitle(f"Test accuracy; the dotted line, {percent(target, 1)}, is reached by all runs")
    else:
        figure.suptitle("Test accuracy")
    panels[0].set_ylabel("test accuracy, in %")
    _x_labels(panels, runs, log_time)
    legend(figure, panels[0])
    return figure


def draw_loss(runs: Sequence[Run], figure: Figure | None = None, *, log_time: bool = False) -> Figure:
    """Training loss, smoothed, and test loss against simulated time, rounds and bytes."""
    figure = figure or new_figure(13, 8)
    top, bottom = figure.subplots(2, 3, sharex="col", sharey="row")
    training = [[line for line in run.metrics if line.loss is not None] for run in runs]
    test = [[line for line in run.metrics if line.test_loss is not None] for run in runs]
    window = max(1, max(len(lines) for lines in training) // 100)
    _curves(top, runs, training, lambda points: smooth([line.loss or 0.0 for line in points], window), dots=False)
    _curves(bottom, runs, test, lambda points: np.array([line.test_loss for line in points], dtype=float))
    for panels in (top, bottom):
        low, high = panels[0].dataLim.intervaly
        if 0 < 10 * low < high < np.inf:
            log_axis(panels[0])
    smoothed = f" (mean over {window} rounds)" if window > 1 else ""
    figure.suptitle(f"Training loss{smoothed} and test loss")
    top[0].set_ylabel("training loss")
    bottom[0].set_ylabel("test loss")
    _x_labels(bottom, runs, log_time)
    legend(figure, bottom[0])
    return figure


def _curves(
    panels: Sequence[Axes],
    runs: Sequence[Run],
    lines: Sequence[list[RoundRecord]],
    heights: Callable[[list[RoundRecord]], FloatArray],
    dots: bool = True,
) -> None:
    """One curve per run in the panels of time, rounds and bytes; of several seeds, their mean and a band."""
    units = [unit for unit, _ in _x_axes(runs)]
    for i, group in enumerate(groups(runs)):
        found = band([lines[member] for member in group.members], heights)
        style: dict[str, Any] = {
            "color": RUNS[i % 7],
            "linestyle": DASHES[i % 5],
            "linewidth": 1.8 if dots else 1.2,
        }
        if dots:
            style |= {"marker": "osD^v"[i % 5], "markersize": 4, "markevery": max(1, len(found.mean) // 20)}
        for axes, unit, places in zip(panels, units, (found.time, found.round, found.bytes), strict=True):
            if group.several:
                axes.fill_between(places / unit, found.low, found.high, color=RUNS[i % 7], alpha=0.18, linewidth=0)
            axes.plot(places / unit, found.mean, label=plain(group.label), **style)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.margins(x=0.02)


def _x_axes(runs: Sequence[Run]) -> list[tuple[float, str]]:
    """Simulated time, rounds and bytes: their units, which fit the longest run, and their labels."""
    size = max(total_bytes(run.metrics[-1]) for run in runs)
    _, duration, time_unit = _duration(runs)
    factor, size_unit = next((scale or 1, unit) for scale, unit in _SIZES if size >= scale)
    return [(duration, f"{kind_of_time(runs)}, in {time_unit}"), (1, "rounds"), (factor, "sent, in " + size_unit)]


def _duration(runs: Sequence[Run]) -> tuple[float, int, str]:
    """The seconds of the longest run, and the unit that fits them: its seconds and its name."""
    seconds = max(run.metrics[-1].time_s for run in runs)
    return seconds, *next((scale, unit) for least, scale, unit in _DURATIONS if seconds >= least)


def _x_labels(panels: Sequence[Axes], runs: Sequence[Run], log_time: bool) -> None:
    from matplotlib.ticker import MultipleLocator

    for axes, (_, label) in zip(panels, _x_axes(runs), strict=True):
        axes.set_xlabel(label)
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    seconds, unit, _ = _duration(runs)
    if log_time:
        panels[0].set_xscale("log", nonpositive="mask")  # the start, at 0, is not on such an axis
        _plain_ticks(panels[0].xaxis)
    else:
        panels[0].xaxis.set_major_locator(MultipleLocator(tick_step(seconds) / unit))


def log_axis(axes: Axes) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    _plain_ticks(axes.yaxis)


def _plain_ticks(axis: Axis) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def smooth(values: Sequence[float], window: int) -> FloatArray:
    """The mean over a window around each value, narrower at the ends."""
    ones = np.ones(min(window, max(1, len(values))))
    if not values:
        return np.array([])
    sums = np.convolve(np.array(values, dtype=float), ones, mode="same")
    return np.asarray(sums / np.convolve(np.ones(len(values)), ones, mode="same"))


def legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 4 if max(map(len, labels), default=0) < 25 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels) or 1), frameon=False)
