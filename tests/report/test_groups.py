"""Runs that differ in their seeds only: shown together, with their spread, and judged by it."""

from __future__ import annotations

import json
import re
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.experiments.confidence import confidence, confidence_apart
from hsfl.report.curves import draw_accuracy, draw_loss
from hsfl.report.groups import band, groups, seed_groups
from hsfl.report.page import headline, summary_rows, what_you_see
from hsfl.report.runs import write_report
from hsfl.report.traffic import traffic_rows
from hsfl.report.verdicts import apart, spread
from hsfl.runs.reading import Run, total_bytes
from tests.explorer.test_watching import with_seed
from tests.runs.test_reading import write_run


def runs_of(folder: Path, speeds: dict[str, list[float]], seeds: list[int] | None = None) -> list[Run]:
    """A run per strategy and speed, each with a seed of its own; all reach 90 %."""
    found = []
    for strategy, of_seeds in speeds.items():
        for seed, speed in zip(seeds or range(len(of_seeds)), of_seeds, strict=False):
            made = write_run(
                folder / f"{strategy}-{seed}", strategy=strategy, speed=speed, rounds=20, every=5, labels=False
            )
            found.append(Run.load(with_seed(made, seed)))
    return found


def test_a_seed_that_was_run_twice_is_one_seed(tmp_path) -> None:
    runs = [Run.load(with_seed(write_run(tmp_path / str(i)), seed)) for i, seed in enumerate([0, 1, 1, 2])]
    assert seed_groups(runs) == [[0, 1, 3], [2]]
    assert [group.label for group in groups(runs)] == ["HSFL (3 seeds)", "2"]
    # A seed that is given as it is by default is the seed of one that is not given.
    same = [Run.load(with_seed(write_run(tmp_path / "given"), 0)), Run.load(write_run(tmp_path / "not given"))]
    assert seed_groups(same) == [[0], [1]] and "seeds" not in what_you_see(same)


def test_what_differs_beside_seeds_stays_apart_and_names_the_groups(tmp_path) -> None:
    runs = []
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            folder = with_seed(write_run(tmp_path / f"{rate}-{seed}"), seed)
            text = (folder / "scenario.toml").read_text().replace("learning_rate = 0.01", f"learning_rate = {rate}")
            (folder / "scenario.toml").write_text(text)
            runs.append(Run.load(folder))
    assert seed_groups(runs) == [[0, 1], [2, 3]]
    assert [g.label for g in groups(runs)] == ["HSFL, learning_rate 0.1 (2 seeds)", "HSFL, learning_rate 0.2 (2 seeds)"]


def test_measured_and_simulated_times_are_no_seeds_of_each_other(tmp_path) -> None:
    folders = [with_seed(write_run(tmp_path / str(s), drift=False), s) for s in range(2)]
    lines = [json.loads(line) for line in (folders[1] / "metrics.jsonl").read_text().splitlines()]
    (folders[1] / "metrics.jsonl").write_text(
        "".join(json.dumps({**x, "planned_s": x["time_s"]}) + "\n" for x in lines)
    )
    assert seed_groups([Run.load(folder) for folder in folders]) == [[0], [1]]


def test_a_row_per_strategy_has_mean_and_spread(tmp_path) -> None:
    runs = runs_of(tmp_path, {"HSFL": [1.0, 2.0, 4.0], "fixed": [0.5, 1.0, 2.0]})
    header, rows = summary_rows(runs)
    assert header[:3] == ["runs", "strategy", "seeds"]
    assert [row[:3] for row in rows] == [["HSFL (3 seeds)", "HSFL", "3"], ["fixed (3 seeds)", "fixed", "3"]]
    times = [20.0, 10.0, 5.0]
    half = 4.302653 * np.std(times, ddof=1) / sqrt(3)  # Student's t with 2 degrees of freedom
    assert rows[0][header.index("simulated time")] == f"{np.mean(times):.3g} s ± {half:.3g} s"
    assert rows[0][header.index("last accuracy")] == "90.00 %"
    assert spread([0.5], str) == "0.5"


def test_a_verdict_says_how_sure_it_is(tmp_path) -> None:
    """By hand: in every seed the other takes 1.4, 1.5 and 1.6 times as long."""
    runs = runs_of(tmp_path, {"HSFL": [1.0, 2.0, 4.0], "fixed": [1 / 1.4, 2 / 1.5, 4 / 1.6]})
    logs = [log(1.4), log(1.5), log(1.6)]
    half = 4.302653 * np.std(logs, ddof=1) / sqrt(3)
    mean, low, high = (exp(np.mean(logs) + sign * half) for sign in (0, -1, 1))
    said = f"faster than fixed (3 seeds) in 3 of 3 seeds, {mean:.2f} times ({low:.2f} to {high:.2f})."
    assert said in headline(runs) and headline(runs).startswith("HSFL (3 seeds) is the first to reach 90.0 %")
    assert low > 1
    # Two seeds that disagree tell nothing, however large their mean.
    unsure = runs_of(tmp_path / "two", {"HSFL": [1.0, 1.0], "fixed": [1.1, 0.2]})
    assert re.search(r"in 1 of 2 seeds, .* which cannot be told from 2 seeds", headline(unsure))


def test_seeds_that_are_not_the_same_are_compared_by_their_means(tmp_path) -> None:
    runs = runs_of(tmp_path, {"HSFL": [4.0, 4.1, 4.2]}) + runs_of(tmp_path, {"fixed": [1.0, 1.1, 1.2]}, [7, 8, 9])
    first, other = groups(runs)
    found = apart(other, first, lambda run: log(run.metrics[-1].time_s))
    assert (found.wins, found.seeds) == (0, 0) and found.sure
    assert "faster than fixed (3 seeds), 3." in headline(runs) and "cannot be told" not in headline(runs)
    one = runs_of(tmp_path / "one", {"HSFL": [2.0, 2.1], "fixed": [1.0]})
    assert "by one seed of one of them" in headline(one)


def test_without_a_common_accuracy_the_last_one_decides(tmp_path) -> None:
    runs = runs_of(tmp_path, {"HSFL": [1.0, 1.0]})
    stuck = [with_seed(write_run(tmp_path / f"x{s}", strategy="fixed", accuracy=0.1, rounds=20), s) for s in range(2)]
    said = headline([*runs, *map(Run.load, stuck)])
    assert "HSFL (2 seeds) ends best, at 90.00 %" in said and "in 2 of 2 seeds, 80.00 points" in said


def test_pictures_have_a_line_and_a_band_per_strategy(tmp_path) -> None:
    runs = runs_of(tmp_path, {"HSFL": [1.0, 2.0], "fixed": [0.5]})
    panels = draw_accuracy(runs, log_time=True).axes
    assert [panel.get_xscale() for panel in panels] == ["log", "linear", "linear"]
    assert [len(panel.collections) for panel in panels] == [1, 1, 1], "a band for those of two seeds"
    mean = panels[0].lines[0].get_xdata()[-1] * 1.0
    assert mean == pytest.approx(15.0) and panels[1].lines[0].get_xdata()[-1] == 20
    assert draw_loss(runs).axes[0].get_xscale() == "linear"


def test_the_page_of_seeds_has_all_runs_and_all_links(tmp_path) -> None:
    runs = runs_of(tmp_path, {"HSFL": [1.0, 2.0], "fixed": [0.5, 0.6]})
    names = {path.name for path in write_report(runs, tmp_path / "out")}
    assert {"plans-HSFL-0.png", "plans-fixed-0.png"} <= names and "plans-HSFL-1.png" not in names
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Every run by itself" in text and all(f"<h2>{run.name}</h2>" in text for run in runs)
    header, rows = traffic_rows(runs)
    assert header[1:5] == ["device up", "device down", "device averages up", "device averages down"]
    assert rows[0][1] == "20 MB" and header[-1] == "all links"
    alone = traffic_rows(runs[:1])[1][0]
    assert alone[0] == "HSFL-0" and alone[-1] == "240 MB" and total_bytes(runs[0].metrics[-1]) == 240_000_000


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_band_is_that_of_the_rounds_that_all_have(values: list[list[float]]) -> None:
    from hsfl.records import RoundRecord

    lines = [[RoundRecord(round=r, time_s=float(r), accuracy=v) for r, v in enumerate(of)] for of in values]
    found = band(lines, lambda points: [line.accuracy or 0.0 for line in points])
    count = min(map(len, values))
    assert found.round.tolist() == list(range(count))
    for r in range(count):
        column = [of[r] for of in values]
        assert found.low[r] == min(column) and found.high[r] == max(column)
        assert found.mean[r] == pytest.approx(np.mean(column))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8), st.floats(-50, 50))
def test_intervals_move_with_the_numbers_and_hold_their_mean(values: list[float], shift: float) -> None:
    low, high = confidence(values)
    assert low <= np.mean(values) + 1e-9 and high >= np.mean(values) - 1e-9
    assert confidence([v + shift for v in values]) == pytest.approx((low + shift, high + shift), abs=1e-6)
    between = confidence_apart(values, [v + shift for v in values])
    assert between is not None and between[0] - 1e-6 <= -shift <= between[1] + 1e-6
    assert confidence_apart(values, [1.0]) is None and confidence([2.0]) == (2.0, 2.0)
