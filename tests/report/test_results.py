"""Results of experiments: pictures, files, tables and the page say what the result says."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from hsfl.errors import HsflError, MissingExtraError
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.report.results import draw_result, result_tables, results_markdown, styles, write_result

STRATEGIES = ["HSFL", "RMA+MS", "MA+RMS", "RMA+RMS", "DAMA+RMS", "RMA+AMS"]
KNOWN = [*STRATEGIES, "full sync", "PSL", "3-tier", "client-edge", "client-cloud"]
CLAIMS = [
    Claim("HSFL is first | of all", "2.3 times as fast", "1.9 times [three seeds]", HOLDS),
    Claim("the gap grows", "from 1.5 to 3.1 times", "from 1.5 to 1.6 times", IN_PART),
    Claim("full sync is slowest", "slowest of all", "PSL is slower", FAILS),
]


def line_panel(title: str = "IID", labels=STRATEGIES, **options) -> Panel:
    x = [0.0, 1.0, 2.0, 3.0]
    return Panel(
        title,
        "hours",
        "accuracy, in %",
        [Series(name, x, [10.0, 50.0 + i, 60.0, 70.0]) for i, name in enumerate(labels)],
        **options,
    )


def bar_panel(series, **options) -> Panel:
    return Panel("bars", "data", "minutes", series, kind="bar", **options)


def make(*panels: Panel, **changes) -> Result:
    rows = [["IID", "HSFL", 12.3456789, 12345, None], ["IID", "a | b", 0.5, 7, True]]
    columns = ["data", "strategy", "time, in minutes", "rounds", "proven"]
    result = Result(
        "fig5", "Time to target", panels or (line_panel(),), columns, rows, CLAIMS, ["Three seeds.", "Two\nlines."]
    )
    return replace(result, **changes)


def load(result: Result, folder) -> dict:
    write_result(result, folder)
    return json.loads((folder / f"{result.name}.json").read_text())


def legends(figure) -> list[list[str]]:
    found = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [[text.get_text() for text in legend.get_texts()] for legend in found]


@pytest.mark.parametrize(
    ("count", "rows", "columns", "pixels"),
    [
        (1, 1, 1, (960, 660)),
        (2, 1, 2, (1440, 660)),
        (3, 1, 3, (1800, 660)),
        (4, 2, 2, (1440, 1170)),
        (5, 2, 3, (1800, 1170)),
        (7, 3, 3, (1800, 1755)),
    ],
)
def test_panels_are_laid_out_by_their_number(tmp_path, count, rows, columns, pixels):
    result = make(*(line_panel(f"panel {i}") for i in range(count)))
    axes = draw_result(result).axes
    assert [a.get_title() for a in axes] == [f"panel {i}" for i in range(count)]
    grids = {a.get_subplotspec().get_gridspec().get_geometry() for a in axes}
    assert grids == {(rows, columns)}
    picture = image.imread(write_result(result, tmp_path)[0])
    assert picture.shape[:2] == (pixels[1], pixels[0])
    assert 0.01 < (picture[..., :3].min(axis=2) < 0.5).mean() < 0.2  # lines on white


def test_the_files_of_a_result(tmp_path):
    folder = tmp_path / "deep" / "out"
    paths = write_result(make(), folder)
    assert [path.name for path in paths] == ["fig5.png", "fig5.csv", "fig5.json"]
    assert sorted(folder.iterdir()) == sorted(paths)
    with (folder / "fig5.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert table == [
        ["data", "strategy", "time, in minutes", "rounds", "proven"],
        ["IID", "HSFL", "12.3457", "12345", ""],
        ["IID", "a | b", "0.5", "7", "True"],
    ]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_result(make(), folder)] == first  # replaced, and the same
    write_result(make(title="Another"), folder)
    assert json.loads((folder / "fig5.json").read_text())["title"] == "Another"


def test_json_holds_all_of_a_result(tmp_path):
    result = make(
        line_panel(),
        bar_panel([Series("PSL", ["a]", "[b", "{c"], [1.5, None, 2.0], [1.0, None, 1.5], [2.0, None, 3.0])], level=2.5),
    )
    result = replace(result, rows=[["x", 1.25, [3, 5], None]], columns=["a", "b", "c", "d"])
    assert load(result, tmp_path) == json.loads(json.dumps(result.to_dict()))
    lines = [line.strip() for line in (tmp_path / "fig5.json").read_text().splitlines()]
    assert '"y": [10.0,50.0,60.0,70.0],' in lines  # one line, however long


def test_numbers_of_any_kind_become_json(tmp_path):
    series = Series("PSL", np.array([1, 2, 3]), np.array([1 / 3, np.inf, np.nan]))
    loaded = load(
        make(line_panel(labels=[]), Panel("", "x", "y", [series]), rows=[[np.float64(2e6 / 3), np.int64(7), math.inf]]),
        tmp_path,
    )
    assert loaded["panels"][1]["series"][0] | {"low": 0, "high": 0, "missing": 0} == {
        "label": "PSL",
        "x": [1, 2, 3],
        "y": [0.333333, None, None],
        "low": 0,
        "high": 0,
        "missing": 0,
    }
    assert loaded["rows"] == [[666667.0, 7, None]]


def test_known_labels_look_the_same_in_every_picture():
    alone = {label: styles([label])[label] for label in KNOWN}
    together = styles(["other", *reversed(KNOWN), "another"])
    assert {label: together[label] for label in KNOWN} == alone
    assert len({style[:2] for style in together.values()}) == len(KNOWN) + 2
    assert len({alone[label].colour for label in KNOWN[:8]}) == 8  # all that are drawn side by side
    assert len({alone[label].colour for label in KNOWN[8:]}) == 3
    assert len({(style.colour, style.hatch) for style in alone.values()}) == len(KNOWN)


def test_other_labels_take_what_is_free():
    found = styles(["one", "HSFL", "two", "one"])
    assert list(found) == ["one", "HSFL", "two"]
    assert len({style.colour for style in found.values()}) == 3
    assert all(len({s.colour for s in styles([label, "other"]).values()}) == 2 for label in KNOWN)
    many = styles(f"label {i}" for i in range(39))
    assert len({style[:2] for style in many.values()}) == 39
    assert styles(["HSFL"])["HSFL"] not in many.values()
    assert len(styles(str(i) for i in range(100))) == 100


def test_labels_and_colours_agree_between_panels_and_kinds():
    bars = bar_panel([Series(name, ["IID", "non-IID"], [1.0, 2.0]) for name in reversed(STRATEGIES)])
    points = replace(line_panel("points"), kind="points")
    figure = draw_result(make(line_panel("a"), line_panel("b", labels=STRATEGIES[::-1]), bars, points))
    first, second, third, fourth = figure.axes
    seen = [{line.get_label(): to_hex(line.get_color()).upper() for line in axes.lines} for axes in (first, second)]
    seen.append({c.get_label(): to_hex(c.patches[0].get_facecolor()).upper() for c in third.containers})
    seen.append({c.get_label(): to_hex(c.lines[0].get_color()).upper() for c in fourth.containers})
    assert seen == 4 * [{label: style.colour for label, style in styles(STRATEGIES).items()}]
    dashes = [{line.get_label(): line.get_linestyle() for line in axes.lines} for axes in (first, second)]
    assert dashes[0] == dashes[1] and set(dashes[0].values()) == {"-", "--", "-."}
    assert legends(figure) == [STRATEGIES]


def test_hsfl_stands_out():
    lines = {line.get_label(): line for line in draw_result(make(line_panel(labels=STRATEGIES[::-1]))).axes[0].lines}
    hsfl = lines.pop("HSFL")
    assert hsfl.get_linewidth() > 1.5 * max(line.get_linewidth() for line in lines.values())
    assert hsfl.get_zorder() > max(line.get_zorder() for line in lines.values())


def test_panels_of_other_labels_have_their_own_legends():
    figure = draw_result(
        make(line_panel(labels=["HSFL", "PSL"]), line_panel(labels=["3-tier", "HSFL"]), line_panel(labels=[]))
    )
    assert legends(figure) == [["HSFL", "PSL"], ["3-tier", "HSFL"]]


def test_nothing_overlaps_or_is_cut_off():
    """The hard case: names that need a slant above legends of unlike length, and a title too long for a line."""
    names = ["heterogeneous-phones", "few-and-slow-edges", "an-unlimited-cloud", "everything-is-slow"]
    panels = [
        bar_panel([Series(label, names, [1.0, 2.0, None, 4.0]) for label in labels])
        for labels in (["HSFL", "PSL"], STRATEGIES, ["3-tier", "HSFL"], ["a label of some length", "HSFL"])
    ]
    figure = draw_result(make(*panels, title="A title that goes on " * 10))
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    boxes = [figure._suptitle.get_window_extent()]
    for axes in figure.axes:
        assert axes.get_xticklabels()[0].get_rotation() == 30
        names = [label.get_window_extent() for label in axes.get_xticklabels()]
        label, legend = axes.xaxis.label.get_window_extent(), axes.get_legend().get_window_extent()
        assert legend.y1 < label.y0 < label.y1 < min(name.y0 for name in names)
        boxes += [axes.get_tightbbox(), legend]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    whole = [axes.get_tightbbox() for axes in figure.axes]
    assert not any(a.overlaps(b) for i, a in enumerate(whole) for b in [boxes[0], *whole[:i]])


def test_short_names_stay_level_and_long_ones_go_into_lines():
    names = ["IID", "twenty slow phones and one edge", "20"]
    axes = draw_result(make(bar_panel([Series("PSL", names, [1.0, 2.0, 3.0])]))).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["IID", "twenty slow phones and\none edge", "20"]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}


def test_lines_have_gaps_and_bands():
    series = Series("HSFL", [1, 2, 3, 4], [5.0, None, 7.0, 8.0], [4.0, None, 6.0, None], [6.0, None, 9.0, None])
    axes = draw_result(make(Panel("", "x", "y", [series, Series("PSL", [1, 2], [1.0, 2.0])], level=6.5))).axes[0]
    line, _, level = axes.lines
    assert np.array_equal(line.get_ydata(), [5, np.nan, 7, 8], equal_nan=True)
    assert len(axes.collections) == 1  # PSL has no band
    corners = {tuple(v) for path in axes.collections[0].get_paths() for v in path.vertices}
    assert {(1, 4), (1, 6), (3, 6), (3, 9)} <= corners and not any(x in (2, 4) for x, _ in corners)
    assert list(level.get_ydata()) == [6.5, 6.5] and level.is_dashed() and level.get_linewidth() < 1
    assert [text.get_text() for text in axes.texts] == ["6.5"]


def test_bars_stand_side_by_side_and_never_is_written():
    x = ["IID", "non-IID"]
    series = [
        Series("HSFL", x, [1.0, 2.0], [0.5, 1.5], [3.0, 4.0]),
        Series("PSL", x, [3.0, None], [2.0, None], [5.0, None]),
    ]
    axes = draw_result(make(bar_panel(series))).axes[0]
    hsfl, psl = axes.containers[1], axes.containers[3]
    assert [(round(b.get_x(), 9), b.get_height()) for b in hsfl] == [(-0.42, 1), (0.58, 2)]
    assert (psl[0].get_x(), psl[0].get_height()) == (pytest.approx(0), 3) and math.isnan(psl[1].get_height())
    (never,) = axes.texts
    assert never.get_text() == "never" and never.get_rotation() == 90
    assert never.get_position()[0] == pytest.approx(1.21)  # the middle of the second half of the group at 1
    whiskers = hsfl.errorbar.lines[2][0].get_segments()
    assert [[y for _, y in segment] for segment in whiskers] == [[0.5, 3.0], [1.5, 4.0]]
    assert psl.errorbar.lines[2][0].get_colors()[0, :3].min() > 0.4  # seen on black


def test_a_bar_of_nothing_is_not_never():
    axes = draw_result(make(bar_panel([Series("PSL", ["a", "b"], [0.0, 10.0])], log_y=True))).axes[0]
    assert len(axes.texts) == 0
    axes = draw_result(make(bar_panel([Series("PSL", ["a"], [None])], log_y=True))).axes[0]
    assert [text.get_text() for text in axes.texts] == ["never"]
    some = Series("PSL", ["a", "b"], [None, 1.0], missing=["never in 1 of 3", "1.0"])
    assert [text.get_text() for text in draw_result(make(bar_panel([some]))).axes[0].texts] == ["never in 1 of 3"]


def test_the_least_bar_is_seen_on_a_logarithmic_axis():
    axes = draw_result(make(bar_panel([Series("PSL", ["a", "b"], [10.0, 1e4])], log_y=True))).axes[0]
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert low < 4 and high > 1e4


def test_points_have_no_line_and_log_axes():
    series = Series("HSFL", [10, 100, 1000, 0], [1.0, None, 1e5, 3.0], [0.5, None, 1e4, None], [2.0, None, 2e5, None])
    axes = draw_result(make(Panel("", "x", "y", [series], kind="points", log_x=True, log_y=True))).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    markers, _, (bars,) = axes.containers[0].lines
    assert markers.get_linestyle() == "None" and markers.get_marker() == "o"
    assert np.array_equal(markers.get_ydata(), [1, np.nan, 1e5, 3], equal_nan=True)
    assert math.isnan(markers.get_xdata()[3])  # a logarithm has no 0
    ends = [segment[:, 1].tolist() for segment in bars.get_segments() if len(segment)]
    assert ends == [[0.5, 2.0], [1e4, 2e5]]
    assert {label.get_text() for label in axes.get_xticklabels()} >= {"10", "100", "1,000"}


@pytest.mark.parametrize("values", [[1.0, 1.3], [20.0, 90.0], [1.0, 90.0], [1.0, 1e7], [1e-6, 1e9]])
def test_logarithmic_axes_have_some_numbers_and_not_too_many(values):
    axes = draw_result(make(Panel("", "x", "y", [Series("PSL", [1, 2], values)], log_y=True))).axes[0]
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert 3 <= len(shown) <= 9
    labels = [axes.yaxis.get_major_formatter()(tick) for tick in shown]
    assert len(set(labels)) == len(labels) and all(len(label) <= 9 for label in labels if "$" not in label)


def test_the_terminal_shows_rows_claims_and_notes():
    console = Console(width=100, record=True, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for part in result_tables(make()):
        console.print(part)
    text = console.export_text(styles=False, clear=False)
    for cell in ("Time to target", "12.35", "12,345", "–", "yes", "1.9 times [three seeds]", "Three seeds."):
        assert cell in text
    coloured = console.export_text(styles=True)
    for verdict, code in ((HOLDS, 32), (IN_PART, 33), (FAILS, 31)):
        assert f"\x1b[{code}m{verdict}" in coloured


def test_the_terminal_shows_what_there_is():
    parts = result_tables(make(rows=[], claims=[], notes=[]))
    assert [str(part) for part in parts] == ["fig5: Time to target"] and isinstance(parts[0], Text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((1234.56, "1,235"), (123456.0, "123,500"), (0.000123456, "0.0001235"), (1.23456e-7, "1.235e-07")),
        *((3e9, "3e+09"), (0.0, "0"), (-2.0, "-2"), (1234567, "1,234,567"), (math.inf, "–"), (False, "no")),
        *(([3, 0.5], "3, 0.5"), ("", "")),
    ],
)
def test_numbers_are_short(value, text):
    page = results_markdown([make(rows=[["x", value]], columns=["a", "b"]).to_dict()], pictures="p")
    assert f"\n| x | {text} |\n" in page


def test_the_page_holds_everything(tmp_path):
    one = load(make(), tmp_path)
    two = load(make(name="fig6", title="Other", notes=[]), tmp_path)
    page = results_markdown([one, two], pictures="pics/", about="# Results\n\nMade by hand.\n")
    assert page.startswith(
        "# Results\n\nMade by hand.\n\n## fig5: Time to target\n\n![Time to target](pics/fig5.png)\n\n"
    )
    assert "## fig6: Other\n\n![Other](pics/fig6.png)" in page
    assert page.count("| claim | the paper | measured | verdict |\n| --- | --- | --- | --- |\n") == 2
    for claim in CLAIMS:
        cells = (claim.what.replace("|", "\\|"), claim.paper, claim.measured, claim.verdict)
        assert page.count(f"| {' | '.join(cells)} |\n") == 2
    assert "| data | strategy | time, in minutes | rounds | proven |\n| --- | --- | ---: | ---: | ---: |\n" in page
    assert "| IID | HSFL | 12.35 | 12,345 | – |\n| IID | a \\| b | 0.5 | 7 | yes |\n" in page
    assert page.count("\n- Three seeds.\n- Two lines.\n") == 1
    assert "why, we think" not in page and page.endswith("|\n")


def test_reasons_have_a_column_where_there_are_any():
    results = [make().to_dict(), make(name="fig6").to_dict()]
    reasons = {
        "fig6": {"the gap grows": "links are faster | here"},
        "fig5": {"no such claim": "lost"},
        "fig7": {"x": "y"},
    }
    first, second = results_markdown(results, pictures="p", reasons=reasons).split("## fig6")
    assert "why" not in first and "lost" not in first
    assert "| verdict | why, we think |\n| --- | --- | --- | --- | --- |\n" in second
    assert "| in part | links are faster \\| here |\n" in second
    assert "| does not hold |  |\n" in second


def test_long_tables_are_cut_on_the_page_only(tmp_path):
    result = make(rows=[[i, f"row {i}."] for i in range(75)], columns=["number", "name"])
    page = results_markdown([load(result, tmp_path)], pictures="p")
    assert "row 39." in page and "row 40." not in page and "The other 35 rows are in fig5.csv." in page
    assert len((tmp_path / "fig5.csv").read_text().splitlines()) == 76
    whole = results_markdown([make(rows=result.rows[:40], columns=result.columns).to_dict()], pictures="p")
    assert "row 39." in whole and "The other" not in whole


def test_a_result_without_panels_has_no_picture(tmp_path):
    result = make(panels=())
    assert [path.name for path in write_result(result, tmp_path)] == ["fig5.csv", "fig5.json"]
    assert "![" not in results_markdown([load(result, tmp_path)], pictures="p")
    with pytest.raises(HsflError, match="fig5: has no panels"):
        draw_result(result)


def test_bad_calls_are_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(HsflError, match="choose another place"):
        write_result(make(), tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="'pie' is no kind of panel"):
        draw_result(make(line_panel(kind="pie")))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="plot"):
        write_result(make(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tables_and_the_page_need_neither_matplotlib_nor_torch():
    check = "import hsfl.report.results, sys; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
