"""Runs made up from their accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hsfl.records import Environment, PlanRecord, RoundRecord, Summary
from hsfl.runs.reading import Run


def run(accuracies: Sequence[float], pace: float = 1.0, ended: str = "rounds", rounds: int | None = None) -> Run:
    """Evaluated every 10 rounds, each of so many seconds."""
    metrics = [
        RoundRecord(round=10 * k, time_s=10 * k * pace, accuracy=a, bytes={"up": 10 * k})
        for k, a in enumerate(accuracies)
    ]
    scenario = {"stopping": {"rounds": rounds or metrics[-1].round}, "execution": {"evaluate_every": 10}}
    plans = [PlanRecord(round=0, cuts=[1, 2], intervals=[1, 1, 1], layers=5)]
    return Run(Path("x"), scenario, "", Environment(), metrics, plans, None, Summary(ended=ended))
