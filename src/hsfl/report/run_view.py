"""Runs as plain values that a page draws: curves, plans, drift, and what is going on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hsfl.problem.plan import NEVER
from hsfl.problem.units import format_bits, format_seconds
from hsfl.records import RoundRecord
from hsfl.report.colours import RUNS, tier_colour
from hsfl.report.counted import metric_names
from hsfl.report.curves import smooth
from hsfl.report.groups import Group, band, ended_by, groups, run_labels
from hsfl.report.labels import CLIENTS_SHOWN
from hsfl.report.measured import is_measured, kind_of_time
from hsfl.report.page import summary_rows, what_you_see
from hsfl.report.words import each_round, finite, forecast_text, numbers, reached
from hsfl.runs.reading import Run, total_bytes
from hsfl.runs.stopping import round_limit
from hsfl.scenario.schema import ScenarioFile

#: A curve has about so many points at most.
_POINTS = 400
_X = ("time", "round", "bytes")


def runs_view(runs: Sequence[Run]) -> dict[str, Any]:
    """Every run that has begun, and runs that differ in seeds at most together."""
    header, rows = summary_rows(runs)
    labels, metrics = run_labels(runs), metric_names(runs)
    return {
        "lead": what_you_see(runs),
        "time": kind_of_time(runs),
        "header": header,
        "rows": rows,
        "runs": [
            _run(run, label, RUNS[i % len(RUNS)], metrics)
            for i, (run, label) in enumerate(zip(runs, labels, strict=True))
        ],
        "metrics": metrics,
        "groups": [_group(group) for group in groups(runs)],
    }


def _group(group: Group) -> dict[str, Any]:
    """The mean of what several seeds reached at the rounds in which all were evaluated, and its range."""
    drawn: dict[str, Any] = {"members": list(group.members), "colour": RUNS[group.members[0] % len(RUNS)]}
    drawn["label"] = group.label
    for name, get in _HEIGHTS.items() if group.several else ():
        found = band([run.evaluations() for run in group.runs], partial(_all, get))
        if found.mean.size:
            drawn[name] = {
                **{x: getattr(found, x).tolist() for x in _X},
                **{what: finite(getattr(found, what)) for what in ("mean", "low", "high")},
            }
    return drawn


def _all(get: Callable[[RoundRecord], float], lines: Sequence[RoundRecord]) -> list[float]:
    return [get(line) for line in lines]


def _accuracy(line: RoundRecord) -> float:
    return math.nan if line.accuracy is None else 100 * line.accuracy


def _test_loss(line: RoundRecord) -> float:
    return math.nan if line.test_loss is None else line.test_loss


_HEIGHTS: dict[str, Callable[[RoundRecord], float]] = {"accuracy": _accuracy, "test_loss": _test_loss}


def _run(run: Run, label: str, colour: str, metrics: Sequence[str]) -> dict[str, Any]:
    evaluated = run.evaluations()
    training = [line for line in run.metrics if line.loss is not None]
    losses = smooth([line.loss or 0.0 for line in training], max(1, len(training) // 100))
    some = _some(len(training))
    return {
        "label": label,
        "colour": colour,
        "strategy": run.strategy,
        "finished": run.finished,
        "tiers": [{"name": name, "colour": tier_colour(m)} for m, name in enumerate(run.tier_names)],
        "accuracy": _curve(evaluated, list(map(_accuracy, evaluated))),
        "test_loss": _curve(evaluated, list(map(_test_loss, evaluated))),
        **{f"metric {name}": _curve(*_counted(evaluated, name)) for name in metrics},
        "loss": _curve([training[i] for i in some], [float(losses[i]) for i in some]),
        "clients": _clients(run),
        "drift": _drift(run),
        "plans": _plans(run),
    }


def state(run: Run, rate: float | None, left_s: float | None, quiet_s: float) -> dict[str, Any]:
    """What is going on in a run: how far it is, how fast it goes, and how long it still takes."""
    limit = round_limit(ScenarioFile.model_validate(run.scenario).stopping)
    last = run.metrics[-1] if run.metrics else None
    total = int(limit) if math.isfinite(limit) else None
    round_ = 0 if last is None else last.round
    so_far = f"round {round_:,}" + ("" if total is None else f" of {total:,}")
    evaluated = run.evaluations()
    said = [] if last is None else [f"{format_seconds(last.time_s)}, {format_bits(8 * total_bytes(last))} sent"]
    said += [f"{name} {value}" for name, value in reached(evaluated[-1]).items()] if evaluated else []
    if evaluated and evaluated[-1].forecast is not None and not run.finished:
        said.append(forecast_text(evaluated[-1].forecast))
    if run.plans and not run.finished:
        plan = run.plans[-1]
        said.append(f"cuts {numbers(plan.cuts)}, intervals {numbers(plan.intervals)}{each_round(plan.micro_batches)}")
    if run.finished:
        now = f"ended by {ended_by(run)} after {round_:,} rounds"
    elif last is None:
        now = "preparing: no round yet"
    elif quiet_s > 120:
        command = "hsfl run" if is_measured(run) else "hsfl train"
        now = f"{so_far}; no news for {format_seconds(quiet_s)}: stopped, or slow ({command} --resume goes on)"
    else:
        pace = "" if rate is None else f", {rate:.3g} rounds/s"
        now = so_far + pace + ("" if left_s is None else f", {format_seconds(left_s)} left")
    share = None if total is None else min(1.0, round_ / total)
    return {"now": now, "said": "; ".join(said), "on": not run.finished and quiet_s <= 120, "share": share}


def _x(line: RoundRecord) -> dict[str, float]:
    return {"time": line.time_s, "round": line.round, "bytes": total_bytes(line)}


def _counted(lines: Sequence[RoundRecord], name: str) -> tuple[list[RoundRecord], list[float]]:
    having = [(line, value) for line in lines if (value := line.metrics.get(name)) is not None]
    return [line for line, _ in having], [value for _, value in having]


def _curve(lines: Sequence[RoundRecord], heights: Sequence[float]) -> dict[str, Any]:
    places = [_x(line) for line in lines]
    return {x: [place[x] for place in places] for x in _X} | {"y": finite(np.array(heights, dtype=float))}


def _clients(run: Run) -> dict[str, Any] | None:
    """The losses of every client at evaluations, which have the means since the one before."""
    lines = [line for line in run.evaluations() if line.losses]
    lines = [lines[i] for i in _some(len(lines), 80)]
    if not lines:
        return None
    own = [dict(zip(line.losses_of or range(len(line.losses or [])), line.losses or [], strict=True)) for line in lines]
    seen = Counter(client for losses in own for client in losses)
    shown = sorted(sorted(seen, key=lambda client: (-seen[client], client))[:CLIENTS_SHOWN])  # the most often seen
    values = np.array([[losses.get(client, np.nan) for client in shown] for losses in own], dtype=float)
    count = len(seen)
    return {"round": [line.round for line in lines], "count": count, "losses": [finite(row) for row in values]}


def _drift(run: Run) -> list[dict[str, Any]]:
    """The drift of every tier before its averages: measured, and as both models predict it."""
    found = []
    for m, tier in enumerate(run.tier_names):
        lines = [(line.round, line.drift[tier]) for line in run.metrics if tier in line.drift]
        lines = [lines[i] for i in _some(len(lines))]
        if lines:
            kinds = {
                kind: finite(np.array([getattr(drift, kind) for _, drift in lines], dtype=float))
                for kind in ("measured", "refined", "paper")
            }
            found.append({"tier": tier, "colour": tier_colour(m), "round": [r for r, _ in lines], **kinds})
    return found


def _plans(run: Run) -> dict[str, Any] | None:
    if not run.plans:
        return None
    end = max(run.metrics[-1].round if run.metrics else 0, run.plans[-1].round + 1)
    several = [tier.get("entities", 2) > 1 for tier in run.scenario["tiers"]]
    return {
        "layers": run.plans[-1].layers,
        "end": end,
        "plans": [
            {
                "round": plan.round,
                "cuts": plan.cuts,
                "intervals": [None if interval >= NEVER else interval for interval in plan.intervals],
                "why": plan.kept or plan.shortened or "",
            }
            for plan in run.plans
        ],
        "averaged": [several[m % len(several)] for m in range(len(run.tier_names))],
    }


def _some(count: int, most: int = _POINTS) -> list[int]:
    """Places of at most so many of them, the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))}) if count else []
