"""The scenario of a run folder, and what may change when the run goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import HsflError
from hsfl.runs.state import OriginRecord
from hsfl.runs.stopping import horizon
from hsfl.scenario.reading import read_scenario
from hsfl.scenario.scenario import Profiler, Scenario
from hsfl.scenario.toml_format import dotted
from hsfl.version import __version__

if TYPE_CHECKING:
    from hsfl.runs.preparing import Prepared

#: When training ends, how often it is saved, where it runs and how long it waits may change from session to session,
#: and the place of a tier.
MAY_CHANGE = {
    "stopping.rounds",
    "stopping.time_limit",
    "stopping.until_accuracy",
    "stopping.until_loss",
    "stopping.until_converged",
    "execution.checkpoint_every",
    "execution.keep_checkpoints",
    "execution.device",
    "execution.deadline",
}


def read(folder: Path, profiler: Profiler) -> tuple[Scenario, Path | None]:
    """The scenario a run was started with, and the folder of its data where one was given."""
    try:
        problem = None if (folder / "scenario.toml").is_file() else "not a run (it has no scenario.toml)"
        if problem and not folder.exists():
            problem = "does not exist"
    except (OSError, ValueError) as error:  # no path at all
        problem = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise HsflError(f"{folder}: {problem}; give a folder that hsfl train or hsfl run wrote")
    started_in, data = (_started(folder, key) for key in ("scenario_folder", "data_folder"))
    scenario = read_scenario(folder / "scenario.toml", profiler)
    return replace(scenario, folder=Path(started_in) if started_in else None), Path(data) if data else None


def run_id(folder: Path) -> str:
    """The name that a run was given when it began, and that no other has."""
    return str(_started(folder, "run"))


def check_strategy(folder: Path, name: str) -> None:
    """HsflError unless the strategy is that of the run: an object of one's own must be given again."""
    if (before := _started(folder, "strategy")) != name:
        raise HsflError(
            f"{folder}: the strategy of this run is {before!r}, not {name!r}; resume it with that one "
            "(an object of your own: hsfl.resume(folder, strategy=...))"
        )


def check_objective(folder: Path, prepared: Prepared) -> None:
    """HsflError unless loss and metrics are those of the run: functions given from Python must be given again."""
    now = {"loss": prepared.objective.name, "metrics": ", ".join(prepared.backend.metrics)}
    for key, name in now.items():
        if (before := _started(folder, key)) != name:
            raise HsflError(
                f"{folder}: the {key} of this run: {before!r}, not {name!r}; resume it with the same (functions of "
                f"your own: hsfl.resume(folder, {key}=...))"
            )


def changes(given: Scenario) -> dict[str, Any]:
    """What a scenario says about the fields that may change."""
    found = {field: value for field, value in dotted(given.raw).items() if field in MAY_CHANGE}
    return found | {f"tiers.{tier['name']}.place": tier["place"] for tier in given.raw["tiers"] if "place" in tier}


def check_same(of_run: Scenario, given: Scenario, folder: Path) -> None:
    """HsflError unless a scenario is that of the run, but for what may change."""
    if (odd := _differing(_fixed(of_run), _fixed(given))) is not None:
        field, before, after = odd
        raise HsflError(
            f"{folder}: {field} is {before} in this run, but {after} now; resume it as it is, or start a new run"
        )


def origin(scenario: Scenario, run: str) -> OriginRecord:
    """What the checkpoints of a run come from, as it is now."""
    return OriginRecord(run=run, hsfl=__version__, fields=_fixed(scenario), files=_checksums(scenario))


def fingerprint(scenario: Scenario) -> str:
    """A checksum of all that machines that train together must have in common: not who plans, nor until when."""
    fields = {
        field: value
        for field, value in _fixed(scenario).items()
        if field.split(".")[0] in ("seed", "model", "training", "data", "tiers") or field == "execution.precision"
    }
    text = json.dumps([__version__, fields, _checksums(scenario)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_origin(path: Path, then: OriginRecord, now: OriginRecord, warn: Callable[[str], None]) -> None:
    """HsflError unless a checkpoint, `path`, is of this run, with everything its results depend on as it was."""
    if then.run != now.run:
        raise HsflError(
            f"{path}: a checkpoint of another run ({then.run}, and this one is {now.run}); bring this run's own "
            "back, or resume the other one"
        )
    if (odd := _differing(then.fields, now.fields)) is not None:
        field, before, after = odd
        raise HsflError(
            f"{path.parent.parent / 'scenario.toml'}: changed since the run began: {field} was {before} and is "
            f"{after}; bring it back, or start a new run"
        )
    if (odd := _differing(then.files, now.files)) is not None:
        raise HsflError(f"{odd[0]}: changed since the run began; bring it back, or start a new run")
    if then.hsfl != now.hsfl:
        warn(
            f"{path}: written by hsfl {then.hsfl}, and this is {now.hsfl}, so the results may differ from those "
            "of a run that one version trained"
        )


def _fixed(scenario: Scenario) -> dict[str, Any]:
    """What a scenario says about the fields that may not change, as JSON holds it, with the order of the tiers."""
    tiers = [{key: value for key, value in tier.items() if key != "place"} for tier in scenario.raw["tiers"]]
    given = dotted({**scenario.raw, "tiers": tiers})
    fields = {field: value for field, value in given.items() if field not in MAY_CHANGE}
    if (end := horizon(scenario.spec)) is not None:  # by default when training was to end, which may change
        fields["training.horizon"] = end
    fixed: dict[str, Any] = json.loads(json.dumps(fields | {"tiers": [tier.name for tier in scenario.spec.tiers]}))
    return fixed


def _checksums(scenario: Scenario) -> dict[str, str]:
    """Checksums of the data files that a scenario names, which are no part of the run folder, by name."""
    spec = scenario.spec
    named = [
        spec.model.profile,
        spec.data.assignments if spec.data else None,
        spec.dynamics.trace if spec.dynamics else None,
        spec.participation.availability,
        spec.participation.failures,
    ]
    found = {}
    for name in (name for name in named if name is not None):
        try:
            found[name] = hashlib.sha256(((scenario.folder or Path()) / name).read_bytes()).hexdigest()
        except (OSError, ValueError):
            found[name] = "missing"
    return found


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first field that is not what it was, with both values."""
    for field in sorted(before.keys() | after.keys()):
        if before.get(field) != after.get(field):
            return field, _text(before.get(field)), _text(after.get(field))
    return None


def _started(folder: Path, key: str) -> str | None:
    """How the run was started."""
    try:
        value = json.loads((folder / "environment.json").read_text())[key]
        if not isinstance(value, str | None) or (value is None and not key.endswith("_folder")):
            raise TypeError
        if b"\0" in os.fsencode(value or ""):  # no path, and neither is what cannot be encoded
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise HsflError(
            f"{folder / 'environment.json'}: cannot be read, or has no {key}; give a folder that hsfl train or "
            "hsfl run wrote"
        ) from None
    return value


def _text(value: Any) -> str:
    return "not set" if value is None else repr(value)
