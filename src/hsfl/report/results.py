"""Results of experiments as pictures, files, tables for the terminal and a Markdown page."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from hsfl.errors import HsflError
from hsfl.experiments.result import EXCEEDS, FAILS, HOLDS, IN_PART, OPEN, PAST, Panel, Result, Series
from hsfl.files import write_whole
from hsfl.problem.profile import FloatArray
from hsfl.report.grid import Grid
from hsfl.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Of a long table, so many rows are on the page.
ROWS_SHOWN = 40
#: Why we think that a claim does or does not hold, by the names of the result and of the claim.
Reasons = Mapping[str, Mapping[str, str]]
_CLAIM = {"what": "claim", "paper": "the paper", "measured": "measured", "verdict": "verdict"}
_VERDICTS = {HOLDS: "green", EXCEEDS: "green", IN_PART: "yellow", FAILS: "red", OPEN: "cyan", PAST: "blue"}


class Style(NamedTuple):
    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str
    hatch: str


#: Okabe and Ito's colours, which the colour-blind can tell apart, with a grey for their yellow.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#7A7A7A", "#56B4E9", "#CC79A7", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", (0, (7, 2)), (0, (5, 1, 1, 1, 1, 1)))
_HATCHES = ("", "//", "..", "\\\\", "xx")
_STYLES = [Style(_COLOURS[i % 8], _DASHES[i % 5], "osD^v<>p"[(i + i // 8) % 8], _HATCHES[i // 8]) for i in range(40)]
_STRATEGIES = ("HSFL", "RMA+MS", "MA+RMS", "RMA+RMS", "DAMA+RMS", "RMA+AMS", "full sync", "PSL")
#: The same in every picture, so their order must stay.
_FIXED = dict(zip((*_STRATEGIES, "3-tier", "client-edge", "client-cloud"), _STYLES, strict=False))


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """How labels are drawn: those known as in every picture, each other one in the next free way, HSFL's last."""
    labels = list(dict.fromkeys(labels))
    used = [_FIXED[label] for label in labels if label in _FIXED]
    colours = {style.colour for style in used}
    rank = {style: (style.colour in colours, style == _FIXED["HSFL"]) for style in _STYLES if style not in used}
    free = cycle(sorted(rank, key=lambda style: rank[style]))
    return {label: _FIXED.get(label) or next(free) for label in labels}


def draw_result(result: Result) -> Figure:
    """All panels in one picture, with one legend if they have the same labels."""
    if not result.panels:
        raise HsflError(f"{result.name}: has no panels, so there is nothing to draw")
    columns, width = {1: (1, 6.4), 2: (2, 9.6), 4: (2, 9.6)}.get(len(result.panels), (3, 12.0))
    rows = -(-len(result.panels) // columns)
    labels = [list(dict.fromkeys(series.label for series in panel.series)) for panel in result.panels]
    shared = len(set(map(frozenset, labels))) == 1
    lines = 0 if shared else max(-(-len(names) // _columns(names, width / columns)) for names in labels)
    figure = new_figure(width, (4.4 if rows == 1 else 3.9 * rows) + rows * 0.22 * max(0, lines - 2))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    looks = styles(name for names in labels for name in names)
    for i, panel in enumerate(result.panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        _draw_panel(axes, panel, looks, width / columns)
        if panel.title != result.title:
            axes.set_title(textwrap.fill(panel.title, int(11 * width / columns)), fontsize=10.5)
    figure.suptitle(textwrap.fill(result.title, int(9.5 * width)), fontsize=12)
    if shared:
        _legend(figure, figure.axes[0], width, loc="outside lower center")
        return figure
    from matplotlib.transforms import ScaledTranslation

    figure.draw_without_rendering()  # places the labels below which the legends go
    for axes in figure.axes:
        depth = (axes.xaxis.label.get_window_extent().y0 - axes.bbox.y0) / figure.dpi - 0.08
        below = axes.transAxes + ScaledTranslation(0, depth, figure.dpi_scale_trans)
        place: dict[str, Any] = {"bbox_to_anchor": (0.5, 0), "bbox_transform": below, "borderaxespad": 0}
        _legend(axes, axes, width / columns, loc="upper center", **place)
    return figure


def _legend(home: Figure | Axes, axes: Axes, width: float, **place: Any) -> None:
    found, labels = axes.get_legend_handles_labels()
    handles = dict(zip(labels, found, strict=True))
    if handles:
        columns = _columns(handles, width)
        look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "handlelength": 2.8, "columnspacing": 1.5}
        home.legend([*handles.values()], [*handles], ncols=columns, **look, **place)


def _columns(labels: Collection[str], width: float) -> int:
    """The number of columns of a legend: as few rows as the width in inches allows."""
    fits = max(1, int((width - 0.2) / (0.7 + 0.075 * max(map(len, labels), default=0))))
    return max(1, math.ceil(len(labels) / max(1, math.ceil(len(labels) / fits))))


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, Style], width: float) -> None:
    known = [x for series in panel.series for x in series.x]
    names = panel.kind == "bar" or any(isinstance(x, str) for x in known)
    places = {name: i for i, name in enumerate(dict.fromkeys(map(_cell, known)))}
    axes.set(xscale="log" if panel.log_x and not names else "linear", yscale="log" if panel.log_y else "linear")
    for series in panel.series:
        x = _numbers([places[_cell(x)] for x in series.x] if names else series.x, panel.log_x and not names)
        given = (values if len(values) else [None] * len(x) for values in (series.y, series.low, series.high))
        values = np.array([_numbers(values, panel.log_y and panel.kind != "bar") for values in given])
        _draw_series(axes, panel, series, looks[series.label], x, values)
    if panel.level is not None:
        axes.axhline(panel.level, color="0.3", linewidth=0.9, linestyle=(0, (4, 3)), zorder=2.5)
        at: dict[str, Any] = {
            "xy": (0.01, panel.level),
            "xycoords": axes.get_yaxis_transform(),
            "textcoords": "offset points",
        }
        axes.annotate(_tick(panel.level), xytext=(0, 2), fontsize=8, color="0.3", **at)
    if panel.diagonal:
        axes.axline((1, 1), (2, 2), color="0.3", linewidth=0.9, linestyle=(0, (4, 3)), zorder=2.5)
    if panel.kind == "bar" and panel.log_y and np.isfinite(axes.dataLim.minposy):  # or the least bar has no height
        low, high = axes.dataLim.minposy, axes.dataLim.y1
        axes.set_ylim(low / max(1.5, (high / low) ** 0.15), None)
    _ticks(axes.yaxis, panel.log_y, axes.get_ylim())
    if names:
        room = max(1, int((width - 1.0) / max(1, len(places)) / 0.078))  # in letters
        lines = [textwrap.wrap(name, room, break_long_words=False, break_on_hyphens=False) for name in places]
        fits = all(len(part) <= room for line in lines for part in line)
        slant: dict[str, Any] = {} if fits else {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(places)), ["\n".join(line) for line in lines] if fits else list(places), **slant)
        axes.set_xlim(-0.6, len(places) - 0.4)
    else:
        _ticks(axes.xaxis, panel.log_x, axes.get_xlim(), whole=all(isinstance(x, int | np.integer) for x in known))
        if panel.log_x and len(set(known)) <= 5:
            axes.set_xticks(sorted(set(known)))
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3, axis="y" if panel.kind == "bar" else "both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _draw_series(axes: Axes, panel: Panel, series: Series, style: Style, x: FloatArray, values: FloatArray) -> None:
    """A line with a band, bars or points; `values` are the values, the least and the most. HSFL stands out."""
    labels = list(dict.fromkeys(series.label for series in panel.series))
    (y, low, high), order, first = values, labels.index(series.label), series.label == "HSFL"
    spread = bool(np.isfinite(low + high).any())
    errors = np.maximum([y - low, high - y], 0) if spread else None
    look: dict[str, Any] = {"label": series.label, "color": style.colour, "zorder": 5 if first else 4 - 0.01 * order}
    marks = {"marker": style.marker, "markeredgecolor": "white", "markeredgewidth": 0.5}
    if panel.kind == "line":
        every = max(1, len(x) // 8) if len(x) > 16 else 1
        look |= marks | {"markersize": 6.5 if first else 5.5, "markevery": (every * order // len(labels), every)}
        axes.plot(x, y, linestyle=style.dash, linewidth=2.8 if first else 1.6, **look)
        if spread:
            axes.fill_between(x, low, high, color=style.colour, alpha=0.2 if first else 0.12, linewidth=0, zorder=2)
    elif panel.kind == "points":
        look |= marks | {"markersize": 7.5 if first else 6.5, "elinewidth": 1.1, "capsize": 2.5}
        axes.errorbar(x, y, errors, linestyle="", **look)
    elif panel.kind == "bar":
        size = 0.84 / len(labels)
        x = x + (order - (len(labels) - 1) / 2) * size
        look |= {"hatch": style.hatch, "edgecolor": "black" if first else "white", "linewidth": 0.7, "zorder": 2}
        shade = "0.55" if style.colour == "#000000" else "0.15"
        whiskers = {"ecolor": shade, "elinewidth": 1, "capsize": 2, "zorder": 3}
        axes.bar(x, y, size, yerr=errors, error_kw=whiskers, **look)
        words: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 7.5, "color": "0.25"}
        for place, value, word in zip(x, y, series.missing or ["never"] * len(x), strict=True):
            if np.isnan(value):
                axes.text(place, 0.015, word, transform=axes.get_xaxis_transform(), **words)
    else:
        raise ValueError(f"{panel.kind!r} is no kind of panel")


def _ticks(axis: Axis, log: bool, limits: tuple[float, float], whole: bool = False) -> None:
    """Few and round numbers, also on a logarithmic axis, however little or much it spans."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    span = limits[1] / limits[0] if log else 0
    axis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    if span > 10:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,)))
    if log:
        axis.set_minor_locator(LogLocator(subs=range(2, 10)) if span >= 300 else NullLocator())
        axis.set_minor_formatter(lambda value, _: "")
    axis.set_major_formatter(lambda value, _: _tick(value))


def _tick(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.6g}".replace("-", "−")
    factor, power = f"{value:.2e}".split("e")
    return ("" if float(factor) == 1 else f"{float(factor):g} × ") + f"$10^{{{int(power)}}}$"


def _numbers(values: Sequence[Any], log: bool) -> FloatArray:
    """Values as floats; NaN stands for what is missing and for what the axis cannot show."""
    found = np.array([np.nan if value is None else value for value in values], dtype=float)
    found[~np.isfinite(found) | (log & (found <= 0))] = np.nan
    return found


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write the picture, the table and all of it as JSON into a folder, which is made if need be; their paths."""
    files: dict[str, bytes] = {}
    if result.panels:
        picture = io.BytesIO()
        draw_result(result).savefig(picture, format="png", dpi=150)
        files["png"] = picture.getvalue()
    table, content = io.StringIO(), plain(result.to_dict())
    rows = [[json.dumps(value) if isinstance(value, list) else value for value in row] for row in content["rows"]]
    csv.writer(table, lineterminator="\n").writerows([content["columns"], *rows])
    files["csv"] = table.getvalue().encode()
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    flat = re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n\s*", "", found[0]), text)  # plain lists in one line each
    files["json"] = f"{flat}\n".encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise HsflError(f"{folder}: the folder cannot be made ({error}); choose another place") from None
    for kind, data in files.items():
        write_whole(folder / f"{result.name}.{kind}", data, replace=True)
    return [folder / f"{result.name}.{kind}" for kind in files]


def plain(value: Any) -> Any:
    """What JSON can hold, floats with six digits; infinity and not a number are null."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _cell(value: Any) -> str:
    """For people: four digits of a float, all of an integer, a dash for nothing."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        short = f"{value:.4g}"
        return f"{float(short):,.10g}" if value == 0 or 1e-4 <= abs(value) < 1e7 else short
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _right(rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Which columns hold numbers only, and so belong to the right."""
    return [all(isinstance(v, int | float | np.number | None) for v in column) for column in zip(*rows, strict=True)]


def result_tables(result: Result) -> list[RenderableType]:
    """For the terminal: the title, the rows, the verdict per claim and the notes."""
    claims = [(c.what, c.paper, c.measured, Text(c.verdict, _VERDICTS.get(c.verdict, ""))) for c in result.claims]
    shown: list[RenderableType] = [Text(f"{result.name}: {result.title}", style="bold")]
    if result.rows:
        shown.append(_table(result.columns, result.rows))
    if claims:
        shown.append(_table(list(_CLAIM.values()), claims, leading=1))
    return [*shown, *(Text(f"– {note}") for note in result.notes)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], leading: int = 0) -> Grid:
    cells = [[cell if isinstance(cell, Text) else _cell(cell) for cell in row] for row in rows]
    return Grid(columns, cells, _right(rows), leading)


def results_markdown(
    results: Sequence[Mapping[str, Any]], *, pictures: str, reasons: Reasons | None = None, about: str = ""
) -> str:
    """A page of results as loaded from their JSON, with their pictures in the folder or at the address `pictures`."""
    parts = [about.strip()]
    for result in results:
        name, title, why = result["name"], result["title"], (reasons or {}).get(result["name"], {})
        parts.append(f"## {name}: {title}")
        if result["panels"]:
            parts.append(f"![{title}]({pictures.rstrip('/') or '.'}/{name}.png)")
        header = [*_CLAIM.values(), "why, we think"]
        claims = [[*(claim[key] for key in _CLAIM), why.get(claim["what"], "")] for claim in result["claims"]]
        if not any(claim[-1] for claim in claims):
            header, claims = header[:-1], [claim[:-1] for claim in claims]
        rows = result["rows"]
        parts += [_markdown(header, claims), _markdown(result["columns"], rows[:ROWS_SHOWN])]
        if len(rows) > ROWS_SHOWN:
            parts.append(f"The other {len(rows) - ROWS_SHOWN:,} rows are in {name}.csv.")
        notes = [*result["notes"], *_cost(result.get("cost") or {})]
        parts.append("\n".join(f"- {' '.join(note.split())}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _cost(cost: Mapping[str, Any]) -> list[str]:
    """How it came about, where that is known."""
    said = [cost["made"]] if cost.get("made") else []
    if cost.get("seeds"):
        said.append(f"Seeds run: {', '.join(map(str, cost['seeds']))}.")
    if cost.get("runs"):
        count = "1 run" if cost["runs"] == 1 else f"{cost['runs']} runs"
        where = " and ".join(cost["devices"])
        versions = " and ".join(cost.get("versions", ()))
        said.append(
            f"{count} that no figure before needed, {cost['training_s'] / 60:.1f} minutes of training on {where}"
            f"{f' ({versions})' if versions else ''}."
        )
    return said


def _markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    texts = [[" ".join(_cell(v).split()) for v in row] for row in (header, *rows)]
    # As they are, | would end a cell and "[1] [2]" would be a link.
    lines = [[text.replace("|", "\\|").replace("] [", "] \\[") for text in row] for row in texts]
    lines.insert(1, ["---:" if right else "---" for right in _right(rows)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
