"""How long training was forecast to take to a loss, while it went on, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from hsfl.experiments import gains
from hsfl.experiments.benchmarks import FULL_SYNC, PARTITIONS
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import Settings
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario
from hsfl.theory.forecast import loss_law, recent_losses
from hsfl.theory.latency import round_latency

#: Forecasts are made after these shares of a run's rounds; claims are about a fifth.
MOMENTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIFTH = 0.2
#: Targets are the losses of a run after these shares of its rounds, if that is later by at least `_AHEAD`.
REACHED = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_AHEAD = 0.2
#: A forecast is right within this factor, either way.
FACTOR = 1.5
#: What is forecast, and the field of `_Said` with what happened.
_TOOK = {"rounds": "took_rounds", "seconds": "took_s"}
_PERCENT = [round(100 * moment) for moment in MOMENTS]


def runs(settings: Settings) -> Wanted:
    """The runs of `beyond`, and on every data set those that plan or average in every round."""
    usual = {label: gains.variants(settings)[label] for label in (FULL_SYNC, gains.PLANNED)}
    wanted: Wanted = {(settings.dataset, *key): scenario for key, scenario in gains.beyond_runs(settings).items()}
    for dataset in settings.datasets:
        for partition in PARTITIONS:
            for label, overrides in usual.items():
                for seed in settings.some_seeds:
                    wanted[dataset, partition, label, seed] = settings.scenario(dataset, partition, seed, overrides)
    return wanted


@dataclass(frozen=True)
class _Said:
    """A forecast and what happened, in rounds and seconds from the moment it was made; infinite: none was made."""

    moment: float
    loss: float
    """The loss at the moment of the forecast."""
    rounds: float
    took_rounds: float
    seconds: float
    took_s: float
    in_range: bool


def said(run: Run, scenario: Scenario) -> list[_Said]:
    """All forecasts of a run: at every moment, to every target."""
    lines = [line for line in run.metrics if line.loss is not None]
    losses = np.array([line.loss for line in lines], dtype=float)
    times, recent, count = np.array([line.time_s for line in lines]), recent_losses(losses), len(lines)
    found = []
    for moment in MOMENTS:
        if not (now := round(moment * count)):
            continue
        law = loss_law(losses[:now])
        plan = next(plan for plan in reversed(run.plans) if plan.round < now)
        round_s = float(round_latency(scenario.training_problem, plan.cuts, plan.intervals))
        for reached in (share for share in REACHED if share >= moment + _AHEAD - 1e-9):
            target = recent[round(reached * count) - 1]
            then = int(np.flatnonzero(recent <= target)[0])
            if then < now:  # as low as that before: a run that does not learn any more
                continue
            told = law.rounds_to(float(target)) if law is not None else None
            took = then + 1 - now
            rounds = told.rounds if told is not None else inf
            found.append(
                _Said(
                    moment,
                    float(recent[now - 1]),
                    rounds,
                    took,
                    rounds * round_s,
                    float(times[then] - times[now - 1]),
                    told is not None and told.low <= took <= told.high,
                )
            )
    return found


def forecast(settings: Settings, found: Found) -> Result:
    """Forecasts at several moments of runs, against what happened."""
    wanted, panels, rows, claims = runs(settings), [], [], []
    shares: list[Series] = []
    for dataset in settings.datasets:
        for partition, word in PARTITIONS.items():
            of = [s for key, run in found.items() if key[:2] == (dataset, partition) for s in said(run, wanted[key])]
            place = f"{dataset}, {word}"
            panels.append(_over_moments(place, of))
            rows += [[dataset, word, *_row(of, moment)] for moment in MOMENTS]
            shares.append(Series(place, _PERCENT, [_share(of, m, "rounds") for m in MOMENTS]))
            claims.append(_claim(place, of))
    panels.append(
        Panel(f"rounds within a factor of {FACTOR}", "% of the run when it was said", "% of forecasts", shares)
    )
    return Result(
        "forecast",
        "Rounds and seconds to a loss, forecast while training, against what happened",
        panels,
        [
            "data",
            "partition",
            "said at (% of the run)",
            "loss then",
            "forecasts",
            "none made",
            "predicted / happened, 10 %",
            "median",
            "90 %",
            f"rounds within {FACTOR} (%)",
            f"seconds within {FACTOR} (%)",
            "in the range given (%)",
        ],
        rows,
        claims,
        [
            "Targets are the losses that each run really has after 50, 60, ... 100 % of its rounds (the mean over the "
            "last tenth of them), at least 20 % of the run later; what is compared is how many more rounds it takes.",
            "Runs are those of `beyond`, and on MNIST those that are planned or average in every round. "
            "Where no forecast is made, on the first plateau of the loss or because the target is too far away to "
            "say, it counts as wrong; the quantiles are of those that are made. Seconds are rounds at the pace of the "
            "plan in force. The range is to hold four in five.",
            "A claim holds if nine in ten are right, in rounds and in seconds, and in part if half are.",
        ],
    )


def _ratios(of: list[_Said], moment: float, unit: str, took: str) -> list[float]:
    """Predicted over happened, for every forecast of one moment; infinite where none was made."""
    return [getattr(s, unit) / getattr(s, took) for s in of if s.moment == moment]


def _quantiles(ratios: list[float]) -> list[float | None]:
    """Three numbers: a tenth of all is below the first, half below the second, a tenth above the third."""
    return [round(float(q), 3) for q in np.quantile(ratios, (0.1, 0.5, 0.9))] if ratios else [None] * 3


def _share(of: list[_Said], moment: float, unit: str) -> float:
    """The share of forecasts, in percent, that are within the factor."""
    right = [1 / FACTOR < ratio < FACTOR for ratio in _ratios(of, moment, unit, _TOOK[unit])]
    return round(100 * float(np.mean(right or [False])), 1)


def _row(of: list[_Said], moment: float) -> list[Any]:
    at = [s for s in of if s.moment == moment]
    made = [s for s in at if isfinite(s.rounds)]
    ratios = [s.rounds / s.took_rounds for s in made]
    in_range = round(100 * float(np.mean([s.in_range for s in made])), 1) if made else None
    loss = round(float(np.median([s.loss for s in at])), 2) if at else None
    right = [_share(of, moment, unit) for unit in _TOOK]
    return [round(100 * moment), loss, len(at), len(at) - len(made), *_quantiles(ratios), *right, in_range]


def _over_moments(place: str, of: list[_Said]) -> Panel:
    """Predicted over happened, by the moment: the median, and four in five as a band."""
    series = []
    for unit, took in _TOOK.items():
        made = [[r for r in _ratios(of, m, unit, took) if isfinite(r)] for m in MOMENTS]
        low, middle, high = zip(*(_quantiles(ratios) for ratios in made), strict=True)
        series.append(Series(unit, _PERCENT, middle, low, high))
    return Panel(place, "% of the run when it was said", "predicted / happened", series, log_y=True, level=1.0)


def _claim(place: str, of: list[_Said]) -> Claim:
    rounds, seconds = (_share(of, FIFTH, unit) for unit in _TOOK)
    made = [isfinite(s.rounds) for s in of if s.moment == FIFTH]
    worse = min(rounds, seconds)
    return Claim(
        f"forecasts made at a fifth of the run are within a factor of {FACTOR} ({place})",
        "not in the paper",
        f"{rounds:.0f} % in rounds and {seconds:.0f} % in seconds of {len(made)}; {made.count(False)} not made",
        HOLDS if worse >= 90 else IN_PART if worse >= 50 else FAILS,
    )
