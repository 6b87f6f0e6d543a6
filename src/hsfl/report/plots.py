"""Plots, drawn with matplotlib into files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsfl.errors import HsflError, MissingExtraError
from hsfl.files import write_whole
from hsfl.planner.result import PlanResult
from hsfl.problem.problem import Problem
from hsfl.problem.topology import with_tail
from hsfl.problem.units import format_seconds
from hsfl.report.colours import tier_colour
from hsfl.report.landscape import Landscape, over_cuts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_DECIMAL = (1.0, 2.0, 5.0)
_CLOCK = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0)
#: Durations in which people count, in seconds: from a nanosecond to a million years.
_DURATIONS = (
    *(10.0**power * count for power in range(-9, 0) for count in _DECIMAL),
    *_CLOCK,
    *(60 * count for count in _CLOCK),
    *(3600 * count for count in (1.0, 2.0, 6.0, 12.0)),
    *(86400.0 * 10**power * count for power in range(3) for count in _DECIMAL if 10**power * count < 365),
    *(365 * 86400.0 * 10**power * count for power in range(7) for count in _DECIMAL),
)


def draw_objective(
    problem: Problem, result: PlanResult, *, allow_empty_tiers: bool = False, figure: Figure | None = None
) -> Figure:
    """The objective over the cuts, each with its best intervals, and the plan marked.

    Three tiers: a heat map over the two cuts. Otherwise: for every cut, the best objective with that cut fixed.
    """
    landscape = over_cuts(problem, result.evaluation, allow_empty_tiers=allow_empty_tiers)
    figure = figure or new_figure(6.4, 5.2)
    axes = figure.subplots()
    names = [t.name for t in problem.system.tiers]
    if problem.system.num_tiers == 3:
        _heat_map(axes, landscape, problem.num_layers, result)
        axes.set_xlabel(f"last layer on {names[0]} (cut 1)")
        axes.set_ylabel(f"last layer on {names[1]} (cut 2)")
    else:
        for m in range(landscape.cuts.shape[1]):
            colour = tier_colour(m)
            axes.plot(*landscape.best_by_cut(m), ".-", color=colour, label=f"cut {m + 1}: {names[m]} | {names[m + 1]}")
            axes.plot(result.cuts[m], result.objective_s, "*", markersize=16, color=colour, mec="black")
        axes.set_xlabel("the cut lies after layer")
        axes.set_ylabel("time to target (other cuts at their best)")
        _time_axis(axes)
        axes.legend()
    time = format_seconds(result.total_latency_s)
    axes.set_title(f"{plain(result.scenario)}: time to target by cuts; best {time} at {list(result.cuts)}")
    return figure


def _heat_map(axes: Axes, landscape: Landscape, num_layers: int, result: PlanResult) -> None:
    from matplotlib.colors import LogNorm

    cuts, seconds = landscape.cuts, landscape.seconds
    grid = np.full((num_layers + 1, num_layers + 1), np.nan)
    grid[cuts[:, 1], cuts[:, 0]] = seconds
    image = axes.imshow(grid, origin="lower", norm=LogNorm(), cmap="viridis_r", aspect="equal")
    bar = axes.figure.colorbar(image, ax=axes, label="time to target with the best intervals")
    _log_times(bar.ax.yaxis, float(seconds.min()), float(seconds.max()))
    axes.plot(*result.cuts, "*", markersize=18, color="red", mec="white")
    low, high = 0.5, num_layers + 0.5
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def draw_sweep(
    field: str, points: Sequence[tuple[str, PlanResult]], names: Sequence[str], figure: Figure | None = None
) -> Figure:
    """Time to target, cuts and intervals against the values of a field; `names` are those of the tiers."""
    if not points:
        raise HsflError("no value of the sweep has a plan, so there is nothing to draw; try other values")
    figure = figure or new_figure(7.0, 7.0)
    time_axes, cut_axes, interval_axes = figure.subplots(3, 1, sharex=True)
    x = np.arange(len(points))
    results = [result for _, result in points]
    time_axes.plot(x, [r.objective_s for r in results], "o-", color="black")
    time_axes.set_ylabel("time to target")
    _time_axis(time_axes)
    time_axes.set_title(plain(f"{results[0].scenario}: the plan as {field} moves"))
    tiers, names = max(len(r.intervals) for r in results), with_tail(names)
    for m in range(tiers - 1):
        values = [r.cuts[m] if m < len(r.cuts) else np.nan for r in results]  # without a tail there is none to draw
        cut_axes.plot(x, values, "s-", color=tier_colour(m), label=f"{names[m]} | {names[m + 1]}")
    for m in range(tiers):
        values = [r.intervals[m] if m < len(r.intervals) else np.nan for r in results]
        if np.nanmax(values) > 1:
            interval_axes.plot(x, values, "^-", color=tier_colour(m), label=names[m])
    cut_axes.set_ylabel("cuts, in layers")
    interval_axes.set_ylabel("interval, in rounds")
    interval_axes.set_xticks(x, [plain(value) for value, _ in points], rotation=30, ha="right")
    interval_axes.set_xlabel(plain(field))
    for axes in (cut_axes, interval_axes):
        axes.yaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            axes.legend()
    return figure


def _time_axis(axes: Axes) -> None:
    """Logarithmic over a wide range; else from zero, so that small changes look small and no two labels are alike."""
    from matplotlib.ticker import MultipleLocator

    low, high = axes.dataLim.intervaly
    if high > 3 * low:
        axes.set_yscale("log")
        _log_times(axes.yaxis, low, high)
    else:
        axes.set_ylim(0, 1.1 * high)
        axes.yaxis.set_major_locator(MultipleLocator(tick_step(1.1 * high)))
        axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value))


def _log_times(axis: Axis, low: float, high: float) -> None:
    """Ticks at durations that people use, on a logarithmic axis; where that has less than two, as on any other."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ticks = [tick for tick in _DURATIONS if low <= tick <= high]
    if len(ticks) < 2 and high > low:
        step = tick_step(high - low)
        ticks = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    axis.set_major_locator(FixedLocator(ticks or [low]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: format_seconds(value))


def tick_step(span: float) -> float:
    """The least duration in which people count that goes at most six times into a span; both in seconds."""
    return next((duration for duration in _DURATIONS if 6 * duration >= span), span / 6)


def plain(text: str) -> str:
    """A name as it is, for matplotlib takes what stands between two dollar signs for a formula."""
    return text.replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("Drawing a plot", "plot") from None
    return Figure(figsize=(width, height), layout="constrained")


def pyplot_figure(width: float, height: float) -> Figure:
    """A figure that notebooks show by themselves."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise MissingExtraError("Drawing a plot", "plot") from None
    return pyplot.figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all."""
    known = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in known:
        raise HsflError(f"{path}: not a kind of picture that can be drawn; end the name in {', '.join(sorted(known))}")
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=150, bbox_inches="tight")
    write_whole(path, picture.getvalue(), replace=True)


def png(figure: Figure) -> bytes:
    """A figure as a file's contents."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()
