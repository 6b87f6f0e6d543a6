"""Which samples the clients have: how many, and of which labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType

from hsfl.records import Labels
from hsfl.report.grid import Grid
from hsfl.report.plots import new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of more clients only the first are drawn or printed.
CLIENTS_SHOWN = 100
_LABELS_PRINTED = 12


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
    which = f"the first {CLIENTS_SHOWN} of {clients:,} clients" if clients > CLIENTS_SHOWN else f"{clients} clients"
    figure.suptitle(f"Training samples by label: {which}")
    return figure


def labels_table(labels: Labels) -> RenderableType:
    """A row for every client: its samples, how many labels they have and, where there are few, how many of each."""
    names = labels.labels if len(labels.labels) <= _LABELS_PRINTED else []
    rows = [
        (str(n), f"{sum(counts):,}", str(sum(count > 0 for count in counts)), *(f"{c:,}" for c in counts[: len(names)]))
        for n, counts in enumerate(labels.counts[:CLIENTS_SHOWN], start=1)
    ]
    return Grid(("client", "samples", "labels", *names), rows, (True,) * (3 + len(names)))


def summary(labels: Labels) -> str:
    """One line: how many clients and samples there are, and how even they are."""
    sizes = [sum(counts) for counts in labels.counts]
    held = [sum(count > 0 for count in counts) for counts in labels.counts]
    more = f"; the first {CLIENTS_SHOWN} are shown" if len(sizes) > CLIENTS_SHOWN else ""
    return (
        f"{len(sizes):,} clients with {sum(sizes):,} samples, {min(sizes):,} to {max(sizes):,} each, and "
        f"{min(held)} to {max(held)} of {len(labels.labels)} labels{more}"
    )
