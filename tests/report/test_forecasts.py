"""Forecasts in reports and on the line of progress."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hsfl.records import ForecastRecord, RoundRecord, Summary
from hsfl.report.forecasts import draw_forecasts
from hsfl.report.live import LiveLine
from hsfl.report.page import summary_rows
from hsfl.report.runs import draw_all
from hsfl.runs.reading import Run
from tests.runs.test_reading import write_run


def with_forecasts(folder: Path, reached: bool, **fields: object) -> Run:
    """Linear accuracy in 100 rounds of a second; from round 20 on evaluations say that the loss comes at round 110."""
    run = Run.load(write_run(folder))
    metrics = [
        line
        if line.accuracy is None or line.round < 20
        else line.model_copy(
            update={
                "forecast": ForecastRecord(
                    **{"loss": 0.1, "rounds": 110 - line.round, "low": 5, "high": None, "seconds": 3.0} | fields
                )
            }
        )
        for line in run.metrics
    ]
    return replace(run, metrics=metrics, summary=Summary(ended="loss") if reached else None)


@pytest.mark.parametrize("reached", [True, False])
def test_what_was_said_is_drawn_beside_what_happened(tmp_path, reached):
    run = with_forecasts(tmp_path / "run", reached)
    rounds, seconds = draw_forecasts(run).axes
    labels = [line.get_label() for line in rounds.lines]
    assert labels == ["forecast", "now", *(["reached"] if reached else [])]
    assert list(rounds.lines[0].get_xdata()) == list(range(20, 101, 10))
    assert set(rounds.lines[0].get_ydata()) == {110}
    assert list(seconds.lines[0].get_ydata()) == [line.time_s + 3 for line in run.metrics if line.forecast]
    assert "forecast.png" in [picture.name for picture in draw_all([run])]


def test_a_run_whose_loss_is_never_in_sight_is_drawn(tmp_path):
    run = with_forecasts(tmp_path / "run", False, rounds=None, low=None, seconds=None)
    assert draw_forecasts(run).axes


def test_the_table_says_that_the_loss_ended_training(tmp_path):
    header, (row,) = summary_rows([with_forecasts(tmp_path / "run", True)])
    assert row[header.index("ended by")] == "loss reached"


def test_the_line_shows_the_forecast_until_the_next_evaluation():
    line = LiveLine(Console(file=io.StringIO(), width=300))
    line.rounds, line.time_limit = float("inf"), None
    said = ForecastRecord(loss=0.1, rounds=90, low=60, high=200, seconds=45.0)
    line.on_round(RoundRecord(round=10, time_s=5.0, loss=1.0, accuracy=0.5, forecast=said))
    line.on_round(RoundRecord(round=11, time_s=5.5, loss=0.9))
    assert "loss 0.1 in 90 rounds (60 to 200), 45 s simulated" in line._line() and " left" in line._line()
    line.on_round(RoundRecord(round=20, time_s=10.0, loss=0.8, accuracy=0.6))
    assert "loss 0.1" not in line._line() and " left" not in line._line()
