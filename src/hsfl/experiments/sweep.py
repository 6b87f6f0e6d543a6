"""A sweep: one scenario trained for every combination of some fields' values, and for several seeds."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.errors import HsflError, ScenarioError
from hsfl.experiments.side_by_side import RunCounts, each
from hsfl.experiments.store import train_or_go_on
from hsfl.factory import GIVEN, Factory
from hsfl.runs.callback import Callback
from hsfl.runs.profiling import profile_model
from hsfl.runs.reading import Run, common_target
from hsfl.runs.resuming import check_same, read
from hsfl.runs.writing import METRICS, SCENARIO
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.toml_format import dotted
from hsfl.scenario.varying import drawn, grid, point_name, varied
from hsfl.strategies import make_strategy

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SEED = "training.seed"


@dataclass(frozen=True)
class Goal:
    """What the runs of a sweep are sorted by: "accuracy" (the last one), "loss" (the last on the test data, or else of
    training) or "time" (until training reaches a test accuracy)."""

    kind: str
    target: float | None = None

    @classmethod
    def parsed(cls, text: str) -> Goal:
        """accuracy, loss, time, or time=0.9."""
        kind, equals, target = text.partition("=")
        if kind not in ("accuracy", "loss", "time") or (equals and kind != "time"):
            raise HsflError(f"--goal {text}: write accuracy, loss, time, or time=0.9, the time to that test accuracy")
        try:
            reached = float(target) if equals else None
        except ValueError:
            reached = inf
        if reached is not None and not 0 < reached <= 1:
            raise HsflError(f"--goal {text}: write the test accuracy to reach as a share, as in time=0.9")
        return cls(kind, reached)

    def of(self, run: Run) -> float:
        """A number of a run that is to be small; infinite where it has none."""
        if self.kind == "time":
            target = inf if self.target is None else self.target
            reached = (line.time_s for line in run.evaluations() if line.round > 0 and (line.accuracy or 0.0) >= target)
            return next(reached, inf)
        found = [
            value
            for line in run.metrics
            if (value := line.accuracy if self.kind == "accuracy" else line.test_loss) is not None
        ]
        if self.kind == "loss":
            found = found or [line.loss for line in run.metrics if line.loss is not None]
        ended = run.summary is None or run.summary.ended != "diverged"
        return inf if not found or not ended else -found[-1] if self.kind == "accuracy" else found[-1]


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: the values of its fields, its seed (None: the scenario's), and what became of it."""

    point: Mapping[str, Any]
    seed: int | None
    folder: Path
    scenario: Scenario
    run: Run | None = None
    failed: str | None = None
    """Why there is no run, or none that ended."""


@dataclass(frozen=True, repr=False)
class Sweep:
    """What a sweep trained, point by point in the order of the goal."""

    out: Path
    goal: Goal
    fields: tuple[str, ...]
    points: tuple[tuple[SweepRun, ...], ...]
    """The runs of every point, one per seed; the best point first."""

    def __repr__(self) -> str:
        count = sum(map(len, self.points))
        return f"<Sweep {self.out}: {len(self.points)} points of {', '.join(self.fields)}, {count} runs>"

    @property
    def runs(self) -> list[Run]:
        """All that began."""
        return [one.run for point in self.points for one in point if one.run is not None and one.run.metrics]

    @property
    def best(self) -> Mapping[str, Any]:
        """The values of the best point."""
        return self.points[0][0].point


def planned_runs(
    scenario: Scenario,
    vary: Mapping[str, Any],
    out: Path,
    *,
    random: int | None = None,
    draw_seed: int = 0,
    seeds: int | None = None,
) -> list[SweepRun]:
    """The runs that a sweep consists of, each checked as far as it can be without training.

    `vary` has the values of fields by path, or ranges; with `random`, so many points are drawn instead of taking all.
    """
    fields = varied(vary)
    if not fields:
        raise HsflError("nothing is varied; name a field and its values, as in --vary training.learning_rate=0.01,0.1")
    if seeds is not None and SEED in fields:
        raise HsflError(f"--seeds {seeds}: {SEED} is varied already; leave one of them out")
    if out.exists() and not out.is_dir():
        raise HsflError(f"{out}: there is a file; choose another folder")
    if (out / SCENARIO).exists() and (out / METRICS).exists():
        raise HsflError(f"{out}: the folder of one run, not of a sweep; choose another folder")
    points = grid(fields) if random is None else drawn(fields, random, draw_seed)
    found = []
    for point in points:
        for seed in [None] if seeds is None else range(seeds):
            seeded = {} if seed is None else {SEED: seed}
            changed = scenario.with_overrides({**point, **seeded})
            name = point_name({**point, **({} if seed is None else {"seed": seed})})
            found.append(SweepRun(point, seed, out / "runs" / name, changed))
    names = [one.folder for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HsflError(
            f"{twice}: two points would have this folder; write their values so that letters tell them apart"
        )
    for one in found:
        _check(one)
    return found


def _check(one: SweepRun) -> None:
    """What is wrong with a scenario, or with a folder that is there, is said before anything is trained."""
    scenario = one.scenario
    _ = scenario.training_problem
    make_strategy(scenario)
    if scenario.spec.data is None:
        raise ScenarioError(f"{scenario.source}: data is missing; add a section [data], or --set data.name=mnist-mini")
    for field, value in dotted(scenario.raw).items():
        named = isinstance(value, str) and _CODE.fullmatch(value) and not value.startswith(f"{GIVEN}:")
        if named:  # whoever must agree is asked here, not in every process
            with Factory(value, scenario.folder, f"{field} = {value}", ScenarioError).importing():
                pass
    if (one.folder / "scenario.toml").exists():
        check_same(read(one.folder, profile_model)[0], scenario, one.folder)


def sweep_runs(
    runs: Sequence[SweepRun],
    *,
    data: Path | None = None,
    jobs: int = 1,
    pool: Executor | None = None,
    gpus: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[RunCounts], None] = lambda counts: None,
) -> list[SweepRun]:
    """Train what has not ended, and read all of it. A run that fails or diverges is one that did; the others go on."""
    counts = RunCounts(total=len(runs))
    waiting = [one for one in runs if _ended(one) is None]
    failed: dict[Path, str | None] = {}
    counts.done = len(runs) - len(waiting)
    on_progress(counts)
    for one in waiting[:1]:
        if (caveat := one.scenario.caveat) is not None:
            warnings.warn(caveat, stacklevel=2)
    work = partial(_trained, None if data is None else data.resolve())
    jobs = min(jobs, len(waiting))
    several = jobs > 1 or pool is not None
    if several and waiting:
        _check_travels(waiting[0].scenario)
    items = [(one.folder.resolve() if several else one.folder, one.scenario) for one in waiting]
    found = (
        each(work, items, jobs=jobs, pool=pool, gpus=gpus)
        if several
        else _one_by_one(work, items, callbacks, counts, on_progress)
    )
    for (folder, _), why in found:
        failed[folder.resolve()] = why or None
        counts.done += 1
        counts.trained += not why
        counts.current = folder.name
        on_progress(counts)
    return [_read(one, failed.get(one.folder.resolve())) for one in runs]


def _check_travels(scenario: Scenario) -> None:
    """HsflError where an object that was given from Python cannot be had in another process."""
    for kind, thing in scenario.objects.items():
        try:
            pickle.dumps(thing)
        except Exception as error:  # whatever its own code raises
            raise HsflError(
                f"{scenario.source}: the {kind} cannot be sent to other processes ({error}); define it at the top of a "
                "module, or train one run at a time (jobs=1)"
            ) from None


def _one_by_one(
    work: Callable[..., str],
    items: Sequence[tuple[Path, Scenario]],
    callbacks: Sequence[Callback],
    counts: RunCounts,
    on_progress: Callable[[RunCounts], None],
) -> Iterator[tuple[tuple[Path, Scenario], str]]:
    for item in items:
        counts.current = item[0].name
        on_progress(counts)
        yield item, work(item, callbacks)


def _trained(data: Path | None, item: tuple[Path, Scenario], callbacks: Sequence[Callback] = ()) -> str:
    """Train one run: nothing, or why it failed."""
    folder, scenario = item
    try:
        train_or_go_on(scenario, folder, callbacks, data)
    except HsflError as error:
        return str(error)
    return ""


def _ended(one: SweepRun) -> Run | None:
    """The run that is there, if it ended as this one would."""
    try:
        run = Run.load(one.folder)
    except HsflError:
        return None
    return run if run.finished and run.scenario == one.scenario.raw else None


def _read(one: SweepRun, failed: str | None) -> SweepRun:
    try:
        run = Run.load(one.folder)
    except HsflError as error:
        return SweepRun(one.point, one.seed, one.folder, one.scenario, None, failed or str(error))
    return SweepRun(one.point, one.seed, one.folder, one.scenario, run, failed)


def sorted_sweep(out: Path, goal: Goal, runs: Sequence[SweepRun]) -> Sweep:
    """The points of a sweep, best first; HsflError where no run came about at all."""
    if not any(one.run is not None and one.run.metrics for one in runs):
        why = next((one.failed for one in runs if one.failed), "there is no run")
        raise HsflError(f"{out}: no run could be trained; the first: {why}")
    if goal == Goal("time"):
        goal = Goal("time", common_target([one.run for one in runs if one.run is not None and one.run.finished]))
    points: dict[str, list[SweepRun]] = {}
    for one in runs:
        points.setdefault(repr(dict(one.point)), []).append(one)

    def key(of_seeds: Sequence[SweepRun]) -> tuple[int, float]:
        values = [inf if one.run is None or one.failed else goal.of(one.run) for one in of_seeds]
        reached = [value for value in values if isfinite(value)]
        return len(values) - len(reached), float(np.mean(reached)) if reached else inf

    return Sweep(out, goal, tuple(runs[0].point), tuple(tuple(point) for point in sorted(points.values(), key=key)))
