"""Runs in a few kilobytes each: their evaluations, plans and ends, so that results can be made again anywhere.

One file per recipe, with the setting it was made in. What a recipe shows of runs read back is what it shows of the runs
themselves, to the digit, but for recipes that look at every round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.experiments.recipe import Found, Key, Recipe
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import SIZES, Size
from hsfl.experiments.store import fingerprint
from hsfl.files import write_whole
from hsfl.records import Environment, PlanRecord, RoundRecord, Summary
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy

SUFFIX = ".runs.json"


def write_runs(folder: Path, recipe: Recipe, settings: Settings, found: Found) -> None:
    """Write NAME.runs.json, a line per run, if the recipe trains anything and can be shown from such a file.

    NAME is that of the recipe whose runs they are.
    """
    if not found or recipe.every_round:
        return
    head, wanted = (
        json.dumps(
            {"recipe": recipe.runs_of or recipe.name, "settings": asdict(settings) | {"size": settings.size.name}}
        ),
        recipe.runs(settings),
    )
    lines = ",\n".join(
        json.dumps({"key": key, "scenario": fingerprint(wanted[key]), **_packed(run)}) for key, run in found.items()
    )
    text = f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'
    write_whole(runs_file(folder, recipe), text.encode(), replace=True)


def runs_file(folder: Path, recipe: Recipe) -> Path:
    """Where a folder has, or would have, the runs of a recipe."""
    return folder / f"{recipe.runs_of or recipe.name}{SUFFIX}"


def read_runs(path: Path) -> tuple[Settings, dict[Key, Run]]:
    """The runs that `write_runs` wrote; HsflError where the file is something else."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        told = given["settings"]
        settings = Settings(**told | {"size": SIZES[told["size"]], "seeds": tuple(told["seeds"])})
        return settings, {_tuples(run["key"]): _unpacked(run) for run in given["runs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HsflError(f"{path}: not the runs of a recipe ({error}); hsfl reproduce writes such files") from None


def known_runs(folder: Path, recipes: Iterable[Recipe], size: Size) -> dict[str, Run]:
    """The runs in a folder's files of these recipes, by the fingerprints of their scenarios; the longest of those that
    plan nothing while they are trained also by that of their scenario without its end.

    HsflError where they are of another size, for results of one size would take the place of the other's.
    """
    found: dict[str, Run] = {}
    for recipe in recipes:
        if recipe.runs_of is not None or not (path := runs_file(folder, recipe)).exists():
            continue
        settings, runs = read_runs(path)
        if settings.size.name != size.name:
            raise HsflError(f"{path}: has runs of {settings.size.title}, not of {size.title}; give another --out")
        found.update({run.folder.name: run for run in runs.values()})
        for key, scenario in recipe.runs(settings).items():
            run = runs.get(key)
            if run is not None and run.folder.name == fingerprint(scenario) and not make_strategy(scenario).replans:
                endless = fingerprint(scenario, ends=False)
                found[endless] = max(found.get(endless, run), run, key=lambda run: run.metrics[-1].round)
    return found


def as_known(scenario: Scenario, known: Mapping[str, Run]) -> Run | None:
    """The run of a scenario among those of `known_runs`, if need be as the beginning of a longer one."""
    if (run := known.get(fingerprint(scenario))) is not None:
        return run
    longer, stopping = known.get(fingerprint(scenario, ends=False)), scenario.raw["stopping"]
    if longer is None or longer.summary is None or set(stopping) != {"rounds"}:
        return None
    rounds, last = stopping["rounds"], longer.metrics[-1].round
    metrics = [line for line in longer.metrics if line.round <= rounds]
    if not metrics or metrics[-1].round != rounds:
        return None
    return replace(
        longer,
        folder=Path(fingerprint(scenario)),
        scenario=longer.scenario | {"stopping": stopping},
        metrics=metrics,
        plans=[plan for plan in longer.plans if plan.round < rounds],
        summary=Summary(ended="rounds", rounds=rounds, wall_s=(longer.summary.wall_s or 0.0) * rounds / last),
    )


def shown_again(recipe: Recipe, folder: Path) -> Result | None:
    """The result of a recipe from its runs in a folder; None where they are not there."""
    path = runs_file(folder, recipe)
    return recipe.show(*read_runs(path)) if path.exists() and not recipe.every_round else None


def _packed(run: Run) -> dict[str, Any]:
    lines, last = run.evaluations(), run.metrics[-1]
    ends = {name: getattr(run.summary, name) for name in ("ended", "rounds", "wall_s")} if run.summary else None
    return {
        "rounds": run.scenario["stopping"].get("rounds"),
        "evaluate_every": run.scenario["execution"]["evaluate_every"],
        "made_on": {name: getattr(run.environment, name) for name in ("device", "torch", "python")},
        "ended": ends,
        "columns": {name: [getattr(line, name) for line in lines] for name in ("round", "time_s", "accuracy")},
        "bytes": {link: [line.bytes.get(link, 0) for line in lines] for link in last.bytes},
        "last": {"round": last.round, "time_s": last.time_s, "bytes": last.bytes},
        "plans": [plan.model_dump(include=_PLAN, exclude_none=True) for plan in run.plans],
    }


_PLAN = {"round", "time_s", "cuts", "intervals", "codes", "micro_batches", "layers", "shortened"}


def _unpacked(given: Mapping[str, Any]) -> Run:
    columns, sent = given["columns"], given["bytes"]
    metrics = [
        RoundRecord(
            round=round_, time_s=time_s, accuracy=accuracy, bytes={link: values[k] for link, values in sent.items()}
        )
        for k, (round_, time_s, accuracy) in enumerate(zip(*columns.values(), strict=True))
    ]
    if metrics[-1].round != given["last"]["round"]:
        metrics.append(RoundRecord(**given["last"]))
    return Run(
        folder=Path(given["scenario"]),
        scenario={
            "stopping": {"rounds": given["rounds"]},
            "execution": {"evaluate_every": given["evaluate_every"]},
        },
        scenario_text="",
        environment=Environment(**given["made_on"]),
        metrics=metrics,
        plans=[PlanRecord(**plan) for plan in given["plans"]],
        labels=None,
        summary=given["ended"] and Summary(**given["ended"]),
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
