"""Reports of runs on machines: parts of their time beside the planned, and both kinds of seconds told apart."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hsfl.records import PartRecord
from hsfl.report.measured import draw_times, parts_of_a_round, parts_tables
from hsfl.report.page import headline, render, summary_rows
from hsfl.runs.reading import Run
from tests.report.test_runs import Page
from tests.runs.test_reading import write_run


@pytest.fixture
def simulated(tmp_path: Path) -> Run:
    return Run.load(write_run(tmp_path / "simulated", rounds=20))


@pytest.fixture
def measured(tmp_path: Path) -> Run:
    """Each round takes 3 s on its way up where 2 s were planned, and every other one 1 s for an average of 4 s."""
    run = Run.load(write_run(tmp_path / "measured", rounds=20))
    lines = []
    for line in run.metrics:
        parts = {"up": PartRecord(planned=2.0, measured=3.0), "rest": PartRecord(planned=0.0, measured=0.5)}
        if line.round % 2 == 0:
            parts["average"] = PartRecord(planned=4.0, measured=1.0)
        changes = {"planned_s": 4.0 * line.round, "time_s": 4.0 * line.round, "parts": parts if line.round else {}}
        lines.append(line.model_copy(update=changes))
    return replace(run, metrics=lines)


def test_parts_of_a_mean_round_by_hand(measured: Run, simulated: Run) -> None:
    header, rows = parts_of_a_round(measured) or ([], [])
    assert header == ["of a round (mean of 20)", "planned", "measured", "ratio"]
    assert rows == [
        ["up, activations on their way", "2 s", "3 s", "1.5"],
        ["average", "2 s", "500 ms", "0.25"],
        ["the rest: commands, saves, losses", "0 s", "500 ms", "–"],
        ["all of it", "4 s", "4 s", "1"],
    ]
    assert parts_of_a_round(simulated) is None
    (grid,) = parts_tables([simulated, measured])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(grid)
    text = console.export_text()
    assert "measured, of a round (mean of 20)" in text
    assert all(cell in text for row in rows for cell in row)
    page = Page(render([measured], []))
    assert all(row in page.rows for row in rows)


def test_two_kinds_of_seconds_are_told_apart(measured: Run, simulated: Run) -> None:
    """In the table, under it, and on the page; once."""
    both = [measured, simulated]
    header, rows = summary_rows(both)
    assert "time" in header
    for column in (header.index("time"), next(i for i, name in enumerate(header) if name.startswith("time to"))):
        assert [row[column].split()[-1] for row in rows] == ["measured", "simulated"]
    said = "seconds that passed with seconds that were computed"
    assert headline(both).count(said) == 1
    assert Page(render(both, [])).text.count(said) == 1
    for alone in ([measured], [simulated], [simulated, simulated]):
        assert said not in headline(alone)
        assert "simulated" not in summary_rows(alone)[1][0][3]


def test_simulated_runs_are_drawn_over_the_measured(measured: Run, simulated: Run) -> None:
    left, right = draw_times(measured, [measured, simulated]).axes
    assert [line.get_label() for line in left.lines] == ["measured", "planned", "simulated: simulated"]
    assert left.lines[2].get_ydata()[-1] == simulated.metrics[-1].time_s
    assert right.lines[0].get_ydata() == pytest.approx(4.0)
