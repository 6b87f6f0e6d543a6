"""Which samples the clients have: how many, and of which labels, or how their targets are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType

from hsfl.records import Labels
from hsfl.report.grid import Grid
from hsfl.report.plots import new_figure, plain
from hsfl.runs.samples import Targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of more clients only the first are drawn or printed.
CLIENTS_SHOWN = 100
_LABELS_PRINTED = 12


def draw_samples(found: Labels | Targets, figure: Figure | None = None) -> Figure:
    """What every client has, one beside the other."""
    return draw_labels(found, figure) if isinstance(found, Labels) else draw_targets(found, figure)


def draw_labels(labels: Labels, figure: Figure | None = None) -> Figure:
    """How many samples of each label every client holds, and above how many in all."""
    counts = np.array(labels.counts, dtype=float)
    names, clients = labels.labels, len(counts)
    shown = counts[:CLIENTS_SHOWN]
    width, height = min(12, max(5.5, 2.5 + 0.45 * len(shown))), min(11, max(4, 2.6 + 0.32 * len(names)))
    figure = figure or new_figure(width, height)
    figure.set_size_inches(width, height)
    places = figure.add_gridspec(2, 1, height_ratios=[1, height - 2])
    axes = figure.add_subplot(places[1])
    above = figure.add_subplot(places[0], sharex=axes)
    above.tick_params(labelbottom=False)
    image = axes.imshow(np.where(shown > 0, shown, np.nan).T, cmap="viridis_r", aspect="auto", vmin=0)
    figure.colorbar(image, ax=axes, label="samples (white: none)")
    if shown.size <= 250 and len(shown) <= 25:
        for client, label in np.argwhere(shown > 0):
            colour = "white" if shown[client, label] > 0.55 * shown.max() else "black"
            text = f"{shown[client, label]:.0f}"
            axes.text(client, label, text, ha="center", va="center", color=colour, fontsize=7)
    above.bar(np.arange(len(shown)), shown.sum(axis=1), color="0.5")
    above.set_ylabel("samples")
    x, y = (np.arange(0, size, -(-size // 25)) for size in (len(shown), len(names)))
    axes.set_xticks(x, [str(i + 1) for i in x])
    axes.set_yticks(y, [plain(names[i] if len(names[i]) <= 16 else names[i][:15] + "…") for i in y])
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    figure.suptitle(f"Training samples by label: {_which(clients)}")
    return figure


def draw_targets(targets: Targets, figure: Figure | None = None) -> Figure:
    """How many samples every client holds and, where targets are numbers, their mean, deviation and range."""
    sizes, numbers = targets.samples[:CLIENTS_SHOWN], targets.mean is not None
    figure = figure or new_figure(min(12, max(5.5, 2.5 + 0.3 * len(sizes))), 5 if numbers else 3)
    above = figure.add_subplot(2 if numbers else 1, 1, 1)
    above.bar(np.arange(1, len(sizes) + 1), sizes, color="0.5")
    above.set_ylabel("samples")
    if numbers:
        axes = figure.add_subplot(2, 1, 2, sharex=above)
        columns = (targets.mean, targets.deviation, targets.least, targets.greatest)
        rows = [
            (n, *row) for n, row in enumerate(zip(*(c or [] for c in columns), strict=True), 1) if row[0] is not None
        ]
        clients, mean, deviation, least, greatest = np.array(rows[:CLIENTS_SHOWN], dtype=float).T
        axes.vlines(clients, least, greatest, color="0.7", label="range")
        axes.errorbar(clients, mean, deviation, fmt="o", capsize=3, markersize=4, label="mean and deviation")
        axes.set_ylabel("target")
        axes.legend()
    figure.axes[-1].set_xlabel("client")
    figure.suptitle(f"Training samples: {_which(len(targets.samples))}")
    return figure


def _which(clients: int) -> str:
    return f"the first {CLIENTS_SHOWN} of {clients:,} clients" if clients > CLIENTS_SHOWN else f"{clients} clients"


def samples_table(found: Labels | Targets) -> RenderableType:
    """A row for every client: its samples, and their labels or how their targets are spread."""
    return _labels_table(found) if isinstance(found, Labels) else _targets_table(found)


def _targets_table(targets: Targets) -> RenderableType:
    columns = {
        "mean target": targets.mean,
        "deviation": targets.deviation,
        "least": targets.least,
        "greatest": targets.greatest,
    }
    shown = {name: column for name, column in columns.items() if column is not None}
    rows = [
        (str(n + 1), f"{size:,}", *("" if column[n] is None else f"{column[n]:.4g}" for column in shown.values()))
        for n, size in enumerate(targets.samples[:CLIENTS_SHOWN])
    ]
    return Grid(("client", "samples", *shown), rows, (True,) * (2 + len(shown)))


def _labels_table(labels: Labels) -> RenderableType:
    """How many labels a client's samples have and, where there are few, how many of each."""
    names = labels.labels if len(labels.labels) <= _LABELS_PRINTED else []
    rows = [
        (str(n), f"{sum(counts):,}", str(sum(count > 0 for count in counts)), *(f"{c:,}" for c in counts[: len(names)]))
        for n, counts in enumerate(labels.counts[:CLIENTS_SHOWN], start=1)
    ]
    return Grid(("client", "samples", "labels", *names), rows, (True,) * (3 + len(names)))


def summary(found: Labels | Targets) -> str:
    """One line: how many clients and samples there are, and how even they are."""
    sizes = [sum(counts) for counts in found.counts] if isinstance(found, Labels) else found.samples
    if isinstance(found, Labels):
        held = [sum(count > 0 for count in counts) for counts in found.counts]
        what = f", and {min(held)} to {max(held)} of {len(found.labels)} labels"
    elif found.mean is not None:
        means = [mean for mean in found.mean if mean is not None]
        what = f", with targets that are {min(means):.4g} to {max(means):.4g} in the mean"
    else:
        what = ", with several labels per sample"
    more = f"; the first {CLIENTS_SHOWN} are shown" if len(sizes) > CLIENTS_SHOWN else ""
    return f"{len(sizes):,} clients with {sum(sizes):,} samples, {min(sizes):,} to {max(sizes):,} each{what}{more}"
