"""Tables for the terminal: they fit, break no word, and say numbers as people do."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console, Group

import hsfl
from hsfl.experiments.result import Claim, Result
from hsfl.report import tables
from hsfl.report.grid import Grid
from hsfl.report.results import result_tables
from hsfl.report.runs import runs_table
from hsfl.report.words import counted
from hsfl.runs.reading import Run
from hsfl.scenario.catalog import DEFAULT_INPUT_SHAPES, shipped_profile
from tests.runs.test_reading import write_run
from tests.scenario.scenarios import changed, write

RESULTS = Path(__file__).parent.parent.parent / "experiments" / "results"
QUICK = [name for name in hsfl.scenario_names() if name != "city"]
LONG = "a-tier-whose-name-is-long"


def printed(*parts: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def grids(*parts: Any) -> list[Grid]:
    inner = [part for group in parts if isinstance(group, Group) for part in group.renderables]
    return [part for part in (*parts, *inner) if isinstance(part, Grid)]


def check(*parts: Any, width: int = 80) -> None:
    """There are tables, they fit, and every word of every cell and header is in them, whole."""
    text = printed(*parts, width=width)
    shown = set(text.split())
    assert grids(*parts) and max(cell_len(line) for line in text.splitlines()) <= width
    for grid in grids(*parts):
        for cell in (*grid.header, *(cell for row in grid.rows for cell in row)):
            assert set(str(cell).split()) <= shown, cell


def test_a_plan_for_a_cohort_says_whose_round_is_shown():
    scenario = hsfl.load_scenario("paper", {"participation.cohort": 5})
    result = hsfl.plan(scenario)
    report = tables.plan_report(scenario.problem, result)
    check(report)
    said = " ".join(printed(report).split())
    assert "1 cloud, 5 clients at a time" in said and "no tier averaged less often than cohorts change" in said
    nearest = f"(client {result.slowest_client + 1} is nearest to it)"
    assert f"An average round of the slowest of 5 of 20 clients at random, in the mean {nearest}:" in said
    alone = hsfl.load_scenario("paper", {"participation.cohort": 1})
    one = printed(tables.plan_report(alone.problem, hsfl.plan(alone)))
    assert "An average round of one of 20 clients at random" in one and "1 client at a time" in one


@pytest.mark.parametrize("name", QUICK)
def test_plans_break_no_word(name):
    scenario = hsfl.load_scenario(name)
    result = hsfl.plan(scenario)
    check(tables.plan_report(scenario.problem, result))
    check(tables.compare_table(result, hsfl.compare(scenario, result)))
    points = [("0.0001", result), ("1234567890 Mbps", result), ("nonsense", hsfl.HsflError("a sentence"))]
    check(tables.sweep_table("x", points, [tier.name for tier in scenario.spec.tiers]))


def test_plans_say_how_links_are_coded():
    scenario = hsfl.load_scenario("paper", {"tiers.device.code": {"up": "int4"}, "tiers.edge.code": "int8"})
    report = tables.plan_report(scenario.problem, hsfl.plan(scenario))
    check(report)
    (grid,) = (grid for grid in grids(report) if grid.header[0] == "tier")
    assert [row[-1] for row in grid.rows] == ["↑ int4, ↓ fp32, average fp32", "int8", ""]
    plain = hsfl.load_scenario("paper")
    assert "links" not in printed(tables.plan_report(plain.problem, hsfl.plan(plain)))


def test_long_names_break_no_word(tmp_path):
    names = {f"tiers.{m}.name": f"{LONG}-{m}" for m in range(3)}
    path = write(tmp_path, changed({**names, "tiers.0.memory": "123 MB", "tiers.1.memory": "1.234 GB"}))
    scenario = hsfl.load_scenario(path)
    result = hsfl.plan(scenario)
    check(tables.plan_report(scenario.problem, result))
    check(tables.compare_table(result, hsfl.compare(scenario, result)))
    check(tables.sweep_table("x", [("1", result), ("2", result)], list(names.values())))
    text = printed(tables.round_bars(scenario.problem, result.evaluation))
    assert text.split().count("ms") + text.split().count("µs") >= 7 and text.count(f"{LONG}-0") >= 3


@pytest.mark.parametrize("name", DEFAULT_INPUT_SHAPES)
def test_profiles_break_no_word(name):
    profile = shipped_profile(name, None)
    assert profile is not None
    check(tables.profile_table(name, profile))
    check(tables.timing_table(profile, [(1.234e-3, 5.678e-3)] * len(profile), 16, 1.234e12))
    names = (f"{name}\n" for name in profile.names)
    assert all(line.strip() in printed(tables.profile_table(name, profile)) for line in names)


def test_constants_and_lists_break_no_word():
    scenario = hsfl.load_scenario("four-tier")
    size = (4, len(scenario.profile))
    constants = replace(
        scenario.problem.constants,
        gradient_second_moment=np.full(size[1], 1.234e-5),
        gradient_dissimilarity=np.full(size, 1.234e-5),
    )
    check(*tables.constants_report(scenario.profile, scenario.system, constants))
    check(tables.scenario_table([hsfl.load_scenario(name) for name in QUICK]))
    check(tables.data_table([("mnist", Path("/home/someone/cache/hsfl")), ("fashion-mnist", None)]))


def test_runs_break_no_word(tmp_path):
    names = [f"mnist-mini-strategy-{i}" for i in range(6)]
    runs = [Run.load(write_run(tmp_path / name, plans=2, summary=i > 0)) for i, name in enumerate(names)]
    for count in range(1, 7):
        check(runs_table(runs[:count]))
    assert " mnist-mini-strategy-0 " in printed(runs_table(runs[:2]))


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in RESULTS.glob("*.json") if not path.stem.endswith(".runs"))
)
def test_results_break_no_word(name):
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    claims = [Claim(**claim) for claim in stored["claims"]]
    check(*result_tables(Result(name, stored["title"], (), stored["columns"], stored["rows"], claims, [])))


def lines(grid: Grid, width: int) -> list[str]:
    return [line.strip() for line in printed(grid, width=width).splitlines() if line.strip()]


def test_a_table_too_wide_is_turned_or_becomes_blocks():
    rows = [("a row", "12 ms", "some words"), ("b", "", "[more]")]
    grid = Grid(("name", "number", "text"), rows, (False, True, False))
    assert lines(grid, 40)[2] == "a row    12 ms   some words"
    assert lines(grid, 23)[2:4] == ["a row   12 ms  some", "words"]
    assert lines(grid, 15) == [
        *("name      a row", "number  12 ms", "text    some", "words", "name    b", "text  [more]")
    ]
    wide = Grid([f"column-{i}" for i in range(4)], [("1", "2", "3", "4"), ("5", "6", "7", "8")], [True] * 4)
    assert lines(wide, 50)[0] == "column-0   column-1   column-2   column-3"
    turned = [line.split() for line in lines(wide, 20)]
    assert turned[0] == ["column-0", "1", "5"] and turned[2:] == [
        [f"column-{i}", f"{i + 1}", f"{i + 5}"] for i in (1, 2, 3)
    ]


@pytest.mark.parametrize(("solve_ms", "text"), [(1.024, "1.02 ms"), (3691.0, "3.69 s"), (75_000.0, "1 min 15 s")])
def test_solver_times_are_durations(solve_ms, text):
    scenario = hsfl.load_scenario("paper")
    result = replace(hsfl.plan(scenario), solve_ms=solve_ms)
    assert f"(exact, {text})" in printed(tables.plan_report(scenario.problem, result))


@pytest.mark.parametrize(
    ("count", "name", "text"),
    [
        *((1, "server", "1 server"), (20, "sensor", "20 sensors"), (5, "gateway", "5 gateways"), (2, "box", "2 boxes")),
        *((3, "factory", "3 factories"), (2, "branch", "2 branches"), (1, "devices", "1 devices"), (2, "y", "2 ys")),
        *((4, "devices", "4 devices"), (2, "class", "2 classes"), (1200, "cell site", "1,200 cell sites")),
        *((2, "GPU", "2 GPUs"), (60, "t0", "60 t0"), (0, "round", "0 rounds")),
    ],
)
def test_counts_have_plurals(count, name, text):
    assert counted(count, name) == text
