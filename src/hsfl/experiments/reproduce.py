"""Run recipes: every run they need, once, then their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.experiments.benchmarks import PARTITIONS
from hsfl.experiments.compact import as_known
from hsfl.experiments.recipe import Found, Key, Recipe
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings
from hsfl.experiments.side_by_side import RunCounts, each
from hsfl.experiments.store import Store, fingerprint, shared
from hsfl.runs.callback import Callback
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario


@dataclass(frozen=True)
class _Wanted:
    name: str
    scenario: Scenario


def reproduce(
    recipes: Sequence[Recipe],
    settings: Settings,
    store: Store,
    *,
    known: Mapping[str, Run] | None = None,
    jobs: int = 1,
    pool: Executor | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[RunCounts], None] = lambda counts: None,
    on_found: Callable[[Recipe, Found], None] = lambda recipe, found: None,
) -> Iterator[Result]:
    """The results of recipes, each as soon as its runs are there; `on_found` hears of the runs of each.

    With several jobs, so many runs are trained side by side before the first result, each on one core; callbacks then
    hear nothing. A `pool` trains them instead: its processes may be on other machines that share the store's folder.
    `known` are runs of which no more is known than a compact file has (`compact.known_runs`): none of them is trained
    again, unless a recipe looks at every round.
    """
    wanted = {recipe.name: recipe.runs(settings) for recipe in recipes}
    runs: dict[str, _Wanted] = {}
    for name, scenarios in wanted.items():
        for key, scenario in scenarios.items():
            runs.setdefault(fingerprint(scenario), _Wanted(f"{name}: {_words(key, scenario)}", scenario))
    whole = {fingerprint(s) for recipe in recipes if recipe.every_round for s in wanted[recipe.name].values()}
    found = {
        name: run
        for name, one in runs.items()
        if name not in whole and (run := as_known(one.scenario, known or {})) is not None
    }
    counts = RunCounts(total=len(runs), done=len(found))
    side_by_side = jobs > 1 or pool is not None
    if side_by_side:
        missing = {name: run for name, run in runs.items() if name not in found}
        _side_by_side(missing, store, jobs, pool, counts, on_progress)
    costed: set[Path] = set()
    for recipe in recipes:
        names = {key: fingerprint(scenario) for key, scenario in wanted[recipe.name].items()}
        for name in names.values():
            if name not in found:
                counts.current = runs[name].name
                on_progress(counts)
                before = len(store.trained)
                found[name] = store.run(runs[name].scenario, callbacks)
                counts.trained += len(store.trained) - before
                counts.done += not side_by_side
                on_progress(counts)
        counts.current = f"{recipe.name}: {recipe.about}"
        on_progress(counts)
        of_recipe = {key: found[name] for key, name in names.items()}
        on_found(recipe, of_recipe)
        result = recipe.show(settings, of_recipe)
        seeds = sorted({scenario.spec.training.seed for scenario in wanted[recipe.name].values()}, key=str)
        yield replace(result, cost={"seeds": seeds, **_cost((found[name] for name in names.values()), costed)})


def _side_by_side(
    runs: dict[str, _Wanted],
    store: Store,
    jobs: int,
    pool: Executor | None,
    counts: RunCounts,
    on_progress: Callable[[RunCounts], None],
) -> None:
    """Train in processes of their own what the store lacks."""
    groups: dict[str, list[_Wanted]] = {}
    for run in runs.values():
        groups.setdefault(shared(run.scenario), []).append(run)
    folder, data = store.folder.resolve(), None if store.data is None else store.data.resolve()
    scenarios = [[run.scenario for run in group] for group in groups.values()]
    names = {id(wanted): group for wanted, group in zip(scenarios, groups.values(), strict=True)}
    for wanted, trained in each(partial(_train, folder, data), scenarios, jobs=jobs, pool=pool):
        if not all(path.is_dir() for path in trained):
            raise HsflError(f"{store.folder}: what was trained elsewhere is not here; use a folder all share")
        store.trained += trained
        counts.trained = len(store.trained)
        for run in names[id(wanted)]:
            counts.done += 1
            counts.current = run.name
            on_progress(counts)


def _train(folder: Path, data: Path | None, scenarios: list[Scenario]) -> list[Path]:
    """Runs of which the later may be the earlier in other seconds, one after the other."""
    store = Store(folder, data)
    for scenario in scenarios:
        store.run(scenario)
    return store.trained


def _cost(runs: Iterable[Run], costed: set[Path]) -> dict[str, Any]:
    new = {run.folder: run for run in runs if run.folder not in costed}
    costed.update(new)
    environments = [run.environment for run in new.values()]
    return {
        "runs": len(new),
        "training_s": round(sum((run.summary and run.summary.wall_s) or 0.0 for run in new.values()), 1),
        "devices": sorted({str(e.device) for e in environments}),
        "versions": sorted({f"torch {e.torch}, Python {e.python}" for e in environments}),
    }


def _words(key: Key, scenario: Scenario) -> str:
    """A key for people: the last part may be the seed."""
    words = [PARTITIONS.get(str(part), str(part)) for part in key]
    if key and type(key[-1]) is int and key[-1] == scenario.spec.training.seed:
        words[-1] = f"seed {words[-1]}"
    return ", ".join(words)
