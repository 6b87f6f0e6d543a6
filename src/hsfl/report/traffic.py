"""What crossed the links of every tier: activations up, gradients down, averages to the fed server and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsfl.problem.units import format_bits
from hsfl.report.colours import tier_colour
from hsfl.report.groups import Group, groups
from hsfl.report.plots import new_figure, plain
from hsfl.report.verdicts import spread
from hsfl.runs.reading import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Links by their names in records, what they are called, and how they are hatched.
_LINKS = {
    "up": ("up", ""),
    "down": ("down", "//"),
    "fed_up": ("averages up", ".."),
    "fed_down": ("averages down", "xx"),
}


def traffic_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The header and one row per run, or per group of seeds: what each link of each tier carried, and all of them."""
    found, links = groups(runs), _links(runs)
    rows = []
    for group in found:
        sent = [_sent(run, links) for run in group.runs]
        columns = [*np.array(sent, dtype=float).T, np.sum(sent, axis=1)]
        rows.append([group.label, *(spread([8.0 * size for size in column], format_bits) for column in columns)])
    return ["sent", *(_name(link) for link in links), "all links"], rows


def draw_traffic(runs: Sequence[Run]) -> Figure:
    """A bar per run, or per group of seeds: what each link of each tier carried, in the colour of the tier."""
    found, links = groups(runs), _links(runs)
    tiers = list(dict.fromkeys(name for run in runs for name in run.tier_names))
    figure = new_figure(10, min(16.0, 2.2 + 0.42 * len(found)))
    axes = figure.subplots()
    means = np.array([_mean(group, links) for group in found]).reshape(len(found), len(links)) / 1e6
    left = np.zeros(len(found))
    for link, sizes in zip(links, means.T, strict=True):
        tier, _, kind = link.rpartition(".")
        look: dict[str, Any] = {
            "color": tier_colour(tiers.index(tier)) if tier in tiers else "0.6",
            "edgecolor": "white",
        }
        axes.barh(
            range(len(found)), sizes, left=left, hatch=_LINKS.get(kind, ("", ""))[1], label=plain(_name(link)), **look
        )
        left = left + sizes
    axes.set_yticks(range(len(found)), [plain(group.label) for group in found])
    axes.invert_yaxis()
    axes.set_xlabel("sent in all, in MB")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(axis="x", alpha=0.3)
    figure.suptitle("Traffic by tier and link")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _links(runs: Sequence[Run]) -> list[str]:
    """The links that any run has, from the devices up."""
    return list(dict.fromkeys(link for run in runs for link in run.metrics[-1].bytes))


def _sent(run: Run, links: Sequence[str]) -> list[int]:
    return [run.metrics[-1].bytes.get(link, 0) for link in links]


def _mean(group: Group, links: Sequence[str]) -> list[float]:
    return [float(size) for size in np.mean([_sent(run, links) for run in group.runs], axis=0)]


def _name(link: str) -> str:
    tier, _, kind = link.rpartition(".")
    return f"{tier} {_LINKS.get(kind, (kind, ''))[0]}"
