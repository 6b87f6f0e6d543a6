"""What evaluations count, drawn: metrics of one's own, and how clients fare on what they held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hsfl.report.colours import RUNS
from hsfl.report.plots import new_figure, plain
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a model is called in pictures.
_MODELS = {"global": "the averaged model", "own": "each client's own model"}


def metric_names(runs: Sequence[Run]) -> list[str]:
    """All metrics but accuracy that evaluations of some runs have counted, and that were finite numbers."""
    found = (item for run in runs for line in run.evaluations() for item in line.metrics.items())
    return list(dict.fromkeys(name for name, value in found if value is not None))


def draw_metrics(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Every metric against rounds."""
    names = metric_names(runs)
    figure = new_figure(13, 1.2 + 2.8 * len(names))
    for axes, name in zip(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0], names, strict=True):
        for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
            lines = [line for line in run.evaluations() if line.metrics.get(name) is not None]
            places = [line.round for line in lines], [line.metrics[name] for line in lines]
            axes.plot(*places, color=RUNS[i % len(RUNS)], marker="o", markersize=3, label=plain(label))
        axes.set_ylabel(plain(name))
        axes.set_xlabel("rounds")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def has_clients(run: Run) -> bool:
    return any(line.clients for line in run.evaluations())


def draw_clients(run: Run) -> Figure:
    """Accuracy, or the loss where there is none, over clients: its spread as training goes on, and at the end."""
    lines = [line for line in run.evaluations() if line.clients]
    name = "accuracy" if "accuracy" in lines[-1].clients["global"] else "loss"
    scale, unit = (100, ", in %") if name == "accuracy" else (1, "")
    figure = new_figure(13, 4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    for i, model in enumerate(lines[-1].clients):
        style = {"color": RUNS[i], "linestyle": "--" if i else "-", "label": _MODELS.get(model, plain(model))}
        spreads = [(line.round, line.clients[model][name]) for line in lines if name in line.clients.get(model, {})]
        rounds = [round_ for round_, _ in spreads]
        low, mean, high = (
            np.array([scale * getattr(spread, key) for _, spread in spreads])
            for key in ("lowest_tenth", "mean", "highest_tenth")
        )
        left.plot(rounds, mean, marker="o", markersize=3, **style)
        left.fill_between(rounds, low, high, color=RUNS[i], alpha=0.18, linewidth=0)
        each = sorted(scale * value for value in spreads[-1][1].each if value is not None)
        right.plot(range(1, len(each) + 1), each, marker=".", **style)
    left.set(
        xlabel="rounds", ylabel=f"{name} on held-out samples{unit}", title="Mean, lowest and highest tenth of clients"
    )
    right.set(xlabel="clients, from the least to the most", title=f"Every client after round {lines[-1].round:,}")
    for axes in (left, right):
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    return figure
