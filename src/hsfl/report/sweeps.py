"""Sweeps: trained, sorted by their goal in a table, and reported."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from math import inf
from pathlib import Path
from typing import Any

from hsfl import api
from hsfl.errors import MissingExtraError
from hsfl.experiments.side_by_side import RunCounts
from hsfl.experiments.sweep import Goal, Sweep, SweepRun, planned_runs, sorted_sweep, sweep_runs
from hsfl.files import write_whole
from hsfl.problem.units import format_bits, format_seconds
from hsfl.report.grid import Grid
from hsfl.report.groups import accuracies, ended_by
from hsfl.report.runs import write_report
from hsfl.report.verdicts import spread
from hsfl.report.words import both, percent
from hsfl.runs.callback import Callback
from hsfl.runs.reading import Run, total_bytes
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.varying import short_name, value_text


def sweep(
    scenario: api.SomeScenario,
    vary: Mapping[str, Any],
    *,
    out: str | Path,
    random: int | None = None,
    draw_seed: int = 0,
    seeds: int | None = None,
    goal: str = "accuracy",
    jobs: int = 1,
    pool: Executor | None = None,
    gpus: Sequence[str] = (),
    data: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[RunCounts], None] = lambda counts: None,
    report: bool = True,
) -> Sweep:
    """Train a scenario for every combination of the values of some fields, into a folder, and sort them by a goal.

    `vary` has a list of values for every field, such as ``{"training.learning_rate": [0.01, 0.1]}``, or a range to draw
    from, "log:1e-3..1e-1", with `random` points of them; `draw_seed` draws others. `seeds` trains each with the
    training seeds 0, 1, and so on. `goal` is "accuracy", "loss", "time" (to the most accuracy that all runs reach) or
    "time=0.9". With `jobs` so many are trained side by side, each in a process of its own (a script then needs
    ``if __name__ == "__main__"``), and callbacks hear nothing; `pool` trains them instead, and `gpus` are shared out.
    The folder gets runs/, results.csv and, unless `report` is False, report/; runs in it are not trained again.
    """
    wanted, out = Goal.parsed(goal), Path(out)
    loaded = scenario if isinstance(scenario, Scenario) else api.load_scenario(scenario)
    runs = planned_runs(loaded, vary, out, random=random, draw_seed=draw_seed, seeds=seeds)
    done = sweep_runs(
        runs,
        data=None if data is None else Path(data),
        jobs=jobs,
        pool=pool,
        gpus=gpus,
        callbacks=callbacks,
        on_progress=on_progress,
    )
    found = sorted_sweep(out, wanted, done)
    write_whole(out / "results.csv", results_csv(found).encode(), replace=True)
    try:
        if report:
            write_report(found.runs, out / "report")
    except MissingExtraError as error:
        warnings.warn(str(error), stacklevel=2)
    return found


def sweep_table(found: Sweep) -> Grid:
    """A row per point, the best first."""
    by_accuracy = found.goal.kind == "accuracy"
    header = [*map(short_name, found.fields), "seeds", _goal(found.goal)]
    header += [*([] if by_accuracy else ["last accuracy"]), "time", "sent", "ended by"]
    rows = []
    for point in found.points:
        runs = [one.run for one in point if one.run is not None and one.run.metrics]
        row = [value_text(value) for value in point[0].point.values()]
        row += [str(len(point)), _reached(found.goal, point)]
        reached = [accuracies(run)[-1] for run in runs if accuracies(run)]
        row += [] if by_accuracy else [spread(reached, percent) if reached else "–"]
        lasts = [run.metrics[-1] for run in runs]
        row.append(spread([line.time_s for line in lasts], format_seconds) if lasts else "–")
        row.append(spread([8.0 * total_bytes(line) for line in lasts], format_bits) if lasts else "–")
        rows.append([*row, both(list(dict.fromkeys(map(_ended, point))))])
    return Grid(header, rows, [len(found.fields) <= i < len(header) - 1 for i in range(len(header))])


def failures(found: Sweep) -> list[str]:
    """A sentence for every run that failed."""
    return [f"{one.folder.name}: {one.failed}" for point in found.points for one in point if one.failed]


def _goal(goal: Goal) -> str:
    if goal.kind == "time":
        return "time to a common accuracy" if goal.target is None else f"time to {percent(goal.target, 1)}"
    return f"last {goal.kind}"


def _reached(goal: Goal, point: Sequence[SweepRun]) -> str:
    """What the seeds of a point reached, and how many of them nothing."""
    values = [inf if one.run is None or one.failed else goal.of(one.run) for one in point]
    found = [abs(value) for value in values if value < inf]
    none = len(values) - len(found)
    texts: dict[str, Callable[[float], str]] = {"time": format_seconds, "accuracy": percent, "loss": "{:.4g}".format}
    if not found:
        return "never" if goal.kind == "time" else "none"
    return spread(found, texts[goal.kind]) + (f", none in {none} of {len(values)}" if none else "")


def _ended(one: SweepRun) -> str:
    if one.failed:
        return "failed"
    return "not begun" if one.run is None else ended_by(one.run)


def results_csv(found: Sweep) -> str:
    """A line per run: its fields, its seed, and what it reached."""
    columns = ["run", *found.fields, "seed", "ended", "why", "rounds", "time_s", "accuracy", "best_accuracy"]
    columns += ["loss", "test_loss", "bytes"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for one in (one for point in found.points for one in point):
        values = [value_text(value) for value in one.point.values()]
        writer.writerow([one.folder.name, *values, one.seed, _ended(one), *_numbers(one.run, one.failed)])
    return text.getvalue()


def _numbers(run: Run | None, failed: str | None) -> list[Any]:
    """The columns of a run from why on; empty where it has none."""
    if run is None or not run.metrics:
        return [failed, *[None] * 7]
    last, reached = run.metrics[-1], accuracies(run)
    losses = [[v for line in run.metrics if (v := getattr(line, name)) is not None] for name in ("loss", "test_loss")]
    why = failed or (run.summary.why if run.summary is not None else None)
    best = [reached[-1], max(reached)] if reached else [None, None]
    return [why, last.round, last.time_s, *best, *(of[-1] if of else None for of in losses), total_bytes(last)]
