"""Runs as pictures, as a table for the terminal, and as a report that holds both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.errors import HsflError
from hsfl.files import write_whole
from hsfl.problem.plan import NEVER
from hsfl.problem.profile import FloatArray
from hsfl.records import Labels
from hsfl.report.colours import RUNS, tier_colour
from hsfl.report.counted import draw_clients, draw_metrics, has_clients, metric_names
from hsfl.report.curves import DASHES, draw_accuracy, draw_loss, legend, log_axis
from hsfl.report.forecasts import draw_forecasts, forecasts
from hsfl.report.grid import Grid
from hsfl.report.groups import classifies, groups, run_labels
from hsfl.report.labels import draw_labels
from hsfl.report.measured import draw_times, is_measured, kind_of_time
from hsfl.report.page import Picture, check, render, summary_rows
from hsfl.report.plots import new_figure, plain, png
from hsfl.report.traffic import draw_traffic, traffic_rows
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "//", "..", "\\\\", "xx", "--")
#: Beyond so many, runs are in the common pictures only.
GROUPS_SHOWN = 16


def runs_table(runs: Sequence[Run]) -> Grid:
    """The runs for the terminal: a few side by side, which is narrow, and many below each other."""
    check(runs)
    header, rows = summary_rows(runs)
    lines = [header, *rows]
    if len(rows) <= 5:
        lines = [list(line) for line in zip(*lines, strict=True)]
    return Grid(lines[0], lines[1:], [i > 0 for i in range(len(lines[0]))])


def traffic_table(runs: Sequence[Run]) -> Grid:
    """What every link carried, for the terminal."""
    header, rows = traffic_rows(runs)
    return Grid(header, rows, [i > 0 for i in range(len(header))])


def write_report(runs: Sequence[Run], out: Path, *, log_time: bool = False) -> list[Path]:
    """Write the pictures and report.html into a folder, which is made if need be; their paths.

    `log_time`: time on a logarithmic axis.
    """
    check(runs)
    pictures = draw_all(runs, log_time=log_time)
    page = render(runs, pictures)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise HsflError(f"{out}: the folder cannot be made ({error}); choose another place") from None
    files = [(picture.name, picture.png) for picture in pictures]
    files.append(("report.html", page.encode(errors="replace")))
    for name, data in files:
        write_whole(out / name, data, replace=True)
    return [out / name for name, _ in files]


def draw_all(runs: Sequence[Run], *, log_time: bool = False) -> list[Picture]:
    """Every picture that the runs have something for; of runs that differ in their seeds only, those of the first."""
    found = groups(runs)
    drawn = {group.members[0] for group in found[:GROUPS_SHOWN]}
    three = f"against {kind_of_time(runs)}, rounds and bytes sent over all links."
    if any(group.several for group in found):
        three += " Of several seeds: their mean and range, at the rounds that all have."
    losses = png(draw_loss(runs, log_time=log_time))
    pictures = [Picture("loss.png", f"Training loss (top) and test loss (bottom) {three}", losses)]
    if classifies(runs):
        what = f"Test accuracy of the averaged model {three}"
        pictures.insert(0, Picture("accuracy.png", what, png(draw_accuracy(runs, log_time=log_time))))
    if metric_names(runs):
        what = "Metrics of the averaged model on the test data."
        pictures.append(Picture("metrics.png", what, png(draw_metrics(runs, run_labels(runs)))))
    if any(run.metrics[-1].bytes for run in runs):
        what = "Bytes that each link of each tier carried: activations up, gradients down, and averages."
        pictures.append(Picture("traffic.png", what, png(draw_traffic(runs))))
    labels = labels_of(runs[0])
    together = labels is not None and all(run.labels == labels for run in runs)
    caption = "The training samples of every label that each client holds."
    if labels is not None and together:
        pictures.append(Picture("labels.png", caption, png(draw_labels(labels))))
    for i, (run, suffix) in enumerate(zip(runs, _suffixes(runs), strict=True)):
        if i not in drawn:
            continue
        if run.plans:
            what = "Layers held by each tier (top) and rounds between averages (bottom), as the plan changed."
            pictures.append(Picture(f"plans{suffix}.png", what, png(draw_plans(run)), run))
        if is_measured(run):
            what = "Seconds as machines took them, as the scenario's machines would, and of simulated runs."
            pictures.append(Picture(f"times{suffix}.png", what, png(draw_times(run, runs)), run))
        if not together and (labels := labels_of(run)) is not None:
            pictures.append(Picture(f"labels{suffix}.png", caption, png(draw_labels(labels)), run))
        if has_clients(run):
            what = "How the averaged model, and where evaluated each client's own, does on what the client held out."
            pictures.append(Picture(f"clients{suffix}.png", what, png(draw_clients(run)), run))
        if has_drift(run):
            what = "How far the copies of a tier had drifted apart just before each average, measured and predicted."
            pictures.append(Picture(f"drift{suffix}.png", what, png(draw_drift(run)), run))
        if forecasts(run):
            what = "When the loss that ends training was to be reached, by each evaluation, and when it was."
            pictures.append(Picture(f"forecast{suffix}.png", what, png(draw_forecasts(run)), run))
    return pictures


def draw_plans(run: Run, figure: Figure | None = None) -> Figure:
    """Which layers each tier holds, and how often it is averaged, over the rounds."""
    figure = figure or new_figure(10, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    end = max(run.metrics[-1].round if run.metrics else 0, run.plans[-1].round + 1)
    rounds = np.array([*(plan.round for plan in run.plans), end])
    layers = run.plans[-1].layers
    edges = np.array([[0, *plan.cuts, layers] for plan in (*run.plans, run.plans[-1])]) + 0.5
    names = run.tier_names
    for m, name in enumerate(names):
        style: dict[str, Any] = {"facecolor": tier_colour(m), "hatch": _HATCHES[m % 6], "edgecolor": "white"}
        top.fill_between(rounds, edges[:, m], edges[:, m + 1], step="post", linewidth=0, label=name, **style)
    for edge in edges.T[1:-1]:
        top.step(rounds, edge, where="post", color="black", linewidth=1)
    top.set_ylim(layers + 0.5, 0.5)
    top.locator_params(axis="y", integer=True)
    top.set_ylabel("layer")
    top.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="held by", frameon=False)
    _intervals(bottom, run, rounds, names)
    bottom.set_xlim(rounds[0], rounds[-1])
    bottom.set_xlabel("rounds")
    bottom.locator_params(axis="x", integer=True)
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    chosen = ((tuple(p.cuts), tuple(p.intervals), repr(p.codes), p.micro_batches) for p in run.plans)
    count = len(set(chosen))
    kinds = "one plan throughout" if count == 1 else f"{count} different plans"
    figure.suptitle(f"{plain(run.name)}: where the model is cut and how often tiers are averaged ({kinds})")
    return figure


def _intervals(axes: Axes, run: Run, rounds: FloatArray, names: Sequence[str]) -> None:
    """One step line per tier of several machines; a tier that is never averaged has none."""
    top, several = 1.0, [tier.get("entities", 2) > 1 for tier in run.scenario["tiers"]]
    for m, name in enumerate(names):
        if not several[m % len(several)]:
            continue
        values = [float(plan.intervals[m]) for plan in (*run.plans, run.plans[-1])]
        shown = np.array([np.nan if value >= NEVER else value for value in values])
        label = f"{name} (never)" if np.isnan(shown).all() else name
        axes.step(
            rounds, shown, where="post", color=tier_colour(m), linestyle=DASHES[m % 5], linewidth=2.5, label=label
        )
        top = max(top, *shown[np.isfinite(shown)], 1.0)
    if top > 20:
        log_axis(axes)
    else:
        axes.locator_params(axis="y", integer=True)
        axes.set_ylim(0, top + 1)
    axes.set_ylabel("rounds between averages")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="averaged", frameon=False)


def labels_of(run: Run) -> Labels | None:
    """What there is to draw of the clients' labels."""
    return run.labels if run.labels is not None and run.labels.counts else None


def has_drift(run: Run) -> bool:
    return any(line.drift for line in run.metrics)


def draw_drift(run: Run, figure: Figure | None = None) -> Figure:
    """The drift measured before each average against both predictions, one panel per tier."""
    lines = [line for line in run.metrics if line.drift]
    tiers = list(dict.fromkeys(tier for line in lines for tier in line.drift))
    figure = figure or new_figure(max(6.5, 5.5 * len(tiers)), 4.8)
    panels = figure.subplots(1, len(tiers), squeeze=False)[0]
    styles: list[tuple[str, str, dict[str, Any]]] = [
        (
            "measured",
            "measured",
            {"marker": "o", "linestyle": "", "markersize": 3.5, "color": RUNS[0], "alpha": 0.7},
        ),
        ("refined", "predicted, refined model", {"linestyle": "-", "color": RUNS[1], "linewidth": 2}),
        ("paper", "predicted, paper's model", {"linestyle": "--", "color": "black", "linewidth": 2}),
    ]
    for axes, tier in zip(panels, tiers, strict=True):
        found = [(line.round, line.drift[tier]) for line in lines if tier in line.drift]
        positive = False
        for field, label, style in styles:
            values = np.array([getattr(drift, field) for _, drift in found], dtype=float)  # None is NaN
            values[~(values > 0)] = np.nan  # nothing below 0 exists, and a logarithm has no 0
            positive |= bool(np.isfinite(values).any())
            axes.plot([round for round, _ in found], values, label=label, **style)
        if positive:
            axes.set_yscale("log")
        axes.set_title(plain(tier))
        axes.set_xlabel("rounds")
        axes.locator_params(axis="x", integer=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean squared distance to the mean")
    figure.suptitle(f"{plain(run.name)}: drift just before each average, measured and predicted")
    legend(figure, panels[0])
    return figure


def _suffixes(runs: Sequence[Run]) -> list[str]:
    """What the names of the files of each run end in; nothing where there is one run."""
    if len(runs) == 1:
        return [""]
    names = ["-" + re.sub(r"[^\w.-]+", "-", label).strip("-") for label in run_labels(runs)]
    alike = len({name.casefold() for name in names}) < len(names)
    return [f"-{i}{name}" for i, name in enumerate(names, 1)] if alike else names
