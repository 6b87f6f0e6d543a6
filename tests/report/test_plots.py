"""Pictures of plans: round durations on their axes, names of tiers in their legends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib.axes import Axes

import hsfl
from hsfl.planner.result import PlanResult
from hsfl.problem.units import format_seconds
from hsfl.report import plots

NAMES = ["phone", "edge", "cloud"]


@pytest.fixture(scope="module")
def planned() -> PlanResult:
    return hsfl.plan("paper")


def taking(planned: PlanResult, seconds: float) -> PlanResult:
    return replace(planned, evaluation=replace(planned.evaluation, objective_s=seconds))


def shown(axes: Axes) -> list[float]:
    low, high = axes.get_ylim()
    return [tick for tick in axes.get_yticks() if low <= tick <= high]


@pytest.mark.parametrize("spread", [1.05, 2.9, 3.5, 40])
@pytest.mark.parametrize("seconds", [2e-5, 0.04, 0.9, 7, 55, 100, 1000, 3000, 2e4, 1e5, 3e6, 4e8])
def test_ticks_of_time_are_round_in_their_unit(planned, seconds, spread):
    points = [("a", taking(planned, seconds)), ("b", taking(planned, spread * seconds))]
    figure = plots.draw_sweep("x", points, NAMES)
    ticks = shown(figure.axes[0])
    labels = [format_seconds(tick) for tick in ticks]
    assert 2 <= len(ticks) <= 14 and len(set(labels)) == len(labels)
    for label in labels:
        counts = re.findall(r"[\d.]+", label)
        assert re.fullmatch(r"\d+(\.5)? \S+( \d+ \S+)?", label), label
        assert len(counts) == 1 or int(counts[1]) % 5 == 0 or int(counts[1]) % 6 == 0, label


def test_a_thousand_seconds_are_told_in_whole_minutes(planned):
    points = [("a", taking(planned, 2500.0)), ("b", taking(planned, 3000.0))]
    figure = plots.draw_sweep("x", points, NAMES)
    assert [format_seconds(tick) for tick in shown(figure.axes[0])] == [
        *("0 s", "10 min", "20 min", "30 min", "40 min", "50 min")
    ]


def test_a_sweep_names_the_tiers(planned):
    figure = plots.draw_sweep("x", [("a", planned), ("b", planned)], NAMES)
    _, cuts, intervals = figure.axes
    assert [text.get_text() for text in cuts.get_legend().get_texts()] == ["phone | edge", "edge | cloud"]
    assert [text.get_text() for text in intervals.get_legend().get_texts()] == ["phone", "edge"]
