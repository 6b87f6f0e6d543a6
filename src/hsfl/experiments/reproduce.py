"""Run recipes: every run they need, once, then their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hsfl.engine.algorithm import DivergedError
from hsfl.experiments.recipe import Key, Recipe
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings
from hsfl.experiments.store import Store
from hsfl.problem.scenario import Scenario
from hsfl.runs.callback import Callback
from hsfl.runs.run import Run


@dataclass
class Progress:
    """What people are told: of how many runs so many are done, and which one is being trained."""

    total: int = 0
    done: int = 0
    trained: int = 0
    failed: list[str] = field(default_factory=list)
    current: str = ""

    @property
    def left(self) -> int:
        return self.total - self.done


def reproduce(
    recipes: Sequence[Recipe],
    settings: Settings,
    store: Store,
    *,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Iterator[Result]:
    """The results of recipes, each as soon as its runs are there; one with a run that diverged is left out."""
    wanted = {recipe.name: recipe.runs(settings) for recipe in recipes}
    found: dict[str, Run | None] = {}
    costed: set[Path] = set()
    progress = Progress(total=len({_same(scenario) for runs in wanted.values() for scenario in runs.values()}))
    for recipe in recipes:
        of_recipe: dict[Key, Run] = {}
        for key, scenario in wanted[recipe.name].items():
            same = _same(scenario)
            if same not in found:
                progress.current = f"{recipe.name}: {', '.join(map(str, key))}"
                on_progress(progress)
                before = len(store.trained)
                try:
                    found[same] = store.run(scenario, callbacks)
                except DivergedError as error:
                    found[same] = None
                    progress.failed.append(f"{progress.current}: {error}")
                progress.trained += len(store.trained) - before
                progress.done += 1
            if (run := found[same]) is not None:
                of_recipe[key] = run
        progress.current = f"{recipe.name}: {recipe.about}"
        on_progress(progress)
        if len(of_recipe) == len(wanted[recipe.name]):
            yield replace(recipe.show(settings, of_recipe), cost=_cost(of_recipe.values(), costed))


def _cost(runs: Iterable[Run], costed: set[Path]) -> dict[str, Any]:
    new = {run.folder: run for run in runs if run.folder not in costed}
    costed.update(new)
    return {
        "runs": len(new),
        "training_s": round(sum((run.summary or {}).get("wall_s", 0.0) for run in new.values()), 1),
        "devices": sorted({str(run.environment.get("device")) for run in new.values()}),
    }


def _same(scenario: Scenario) -> str:
    """Equal for scenarios that are one and the same run."""
    raw: dict[str, Any] = dict(scenario.raw)
    return repr(raw)
