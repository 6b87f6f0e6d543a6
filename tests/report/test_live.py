"""What a person sees while training runs."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from hsfl.records import PlanRecord, Summary
from hsfl.report.live import LiveLine


def test_plans_are_told_when_they_change_or_are_first_kept():
    console = Console(file=io.StringIO(), width=200)
    line = LiveLine(console)
    plans = [(0, [3], None), (10, [3], None), (20, [4], None), (30, [4], "no target"), (40, [4], "no target 2")]
    plans += [(50, [4], None), (60, [4], "no target 3"), (70, [3], None)]
    for round_, cuts, kept in plans:
        line.on_plan(PlanRecord(round=round_, cuts=cuts, intervals=[5, 10**9], layers=6, kept=kept))
    assert console.file.getvalue().splitlines() == [
        "  plan after round 0: cuts 3; intervals 5, never",
        "  plan after round 20: cuts 4; intervals 5, never",
        "  plan after round 30: cuts 4; intervals 5, never (kept: no target)",
        "  plan after round 60: cuts 4; intervals 5, never (kept: no target 3)",
        "  plan after round 70: cuts 3; intervals 5, never",
    ]
    assert line.plan == "cuts 3; intervals 5, never"


def test_planned_codes_are_told_where_they_change():
    console = Console(file=io.StringIO(), width=200)
    line = LiveLine(console)
    mixed = [{"up": "int4", "down": "int8", "average": "int4"}, {"up": "int4"}, {}]
    for round_, codes in ((0, [{"up": "int4", "down": "int4"}, {"up": "int4"}, {}]), (5, mixed), (9, mixed)):
        line.on_plan(PlanRecord(round=round_, cuts=[1, 2], intervals=[2, 2, 1], codes=codes, layers=6))
    assert console.file.getvalue().splitlines() == [
        "  plan after round 0: cuts 1, 2; intervals 2, 2, 1; links int4",
        "  plan after round 5: cuts 1, 2; intervals 2, 2, 1; links ↑ int4, ↓ int8, average int4 | int4",
    ]


def test_corrected_averages_are_proposed_where_they_pay():
    console = Console(file=io.StringIO(), width=200)
    for gains in ((1.02, 1.19, None), (1.1, 1.31, 1.0, None)):  # late plans, short of intervals, gain nothing
        line = LiveLine(console)
        line.folder = Path("runs/one")
        for gain in gains:
            line.on_plan(PlanRecord(round=0, cuts=[1], intervals=[2, 1], layers=6, corrected_gain=gain))
        line.on_end(Summary(ended="rounds", rounds=9, accuracy=0.5, best_accuracy=0.5))
    told = [text for text in console.file.getvalue().splitlines() if "--averaging" in text]
    assert told == ["Try  --averaging corrected: by the bound, plans would be up to 1.3 times as fast"]
