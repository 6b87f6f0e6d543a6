"""The scenario of a run folder, and what may change when the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.problem.profile import LayerProfile
from hsfl.scenario.reading import read_scenario
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.schema import ModelSection
from hsfl.scenario.toml_format import dotted

#: When training ends, how often it is saved and where it runs may change from session to session; nothing else.
MAY_CHANGE = {
    "stopping.rounds",
    "stopping.time_limit",
    "stopping.until_accuracy",
    "stopping.until_converged",
    "execution.checkpoint_every",
    "execution.keep_checkpoints",
    "execution.device",
}


def read(folder: Path, profiler: Callable[[ModelSection, Path | None], LayerProfile]) -> tuple[Scenario, Path | None]:
    """The scenario a run was started with, and the folder of its data where one was given."""
    if not (folder / "scenario.toml").is_file():
        problem = "not a run (it has no scenario.toml)" if folder.exists() else "does not exist"
        raise HsflError(f"{folder}: {problem}; give a folder that hsfl train wrote")
    started_in, data = (_started(folder, key) for key in ("scenario_folder", "data_folder"))
    scenario = read_scenario(folder / "scenario.toml", profiler)
    return replace(scenario, folder=started_in and Path(started_in)), data and Path(data)


def check_strategy(folder: Path, name: str) -> None:
    """HsflError unless the strategy is that of the run: an object of one's own must be given again."""
    if (before := _started(folder, "strategy")) != name:
        raise HsflError(
            f"{folder}: the strategy of this run is {before!r}, not {name!r}; resume it with that one "
            "(an object of your own: hsfl.resume(folder, strategy=...))"
        )


def changes(given: Scenario) -> dict[str, Any]:
    """What a scenario says about the fields that may change."""
    return {field: value for field, value in dotted(given.raw).items() if field in MAY_CHANGE}


def check_same(of_run: Scenario, given: Scenario, folder: Path) -> None:
    """HsflError unless a scenario is that of the run, but for what may change."""
    before, after = dotted(of_run.raw), dotted(given.raw)
    for field in sorted(before.keys() | after.keys()):
        if field not in MAY_CHANGE and before.get(field) != after.get(field):
            raise HsflError(
                f"{folder}: {field} is {_text(before.get(field))} in this run, but {_text(after.get(field))} now; "
                "resume it as it is, or start a new run"
            )


def _started(folder: Path, key: str) -> Any:
    """How the run was started."""
    try:
        return json.loads((folder / "environment.json").read_text())[key]
    except (OSError, ValueError, KeyError, TypeError):
        raise HsflError(f"{folder / 'environment.json'}: cannot be read; give a folder that hsfl train wrote") from None


def _text(value: Any) -> str:
    return "not set" if value is None else repr(value)
