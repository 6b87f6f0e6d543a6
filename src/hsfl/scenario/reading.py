"""From a file, or the name of a built-in scenario, to a checked `Scenario`; fields are replaced before the check."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hsfl.errors import ScenarioError, nearest
from hsfl.files import MAX_TOML, read_text
from hsfl.scenario.catalog import CATALOG, scenario_names
from hsfl.scenario.objects import given_fields
from hsfl.scenario.overrides import with_fields
from hsfl.scenario.scenario import Profiler, Scenario, scenario_from_dict
from hsfl.scenario.toml_format import plain


def read_scenario(
    given: str | Path | Mapping[str, Any],
    profiler: Profiler,
    overrides: Mapping[str, Any] | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Scenario:
    """Read a scenario file, a built-in scenario by its name, or what such a file would say.

    `overrides` as `Scenario.with_overrides` takes them, `objects` as `Scenario.with_objects` does.
    """
    things = {kind: thing for kind, thing in (objects or {}).items() if thing is not None}
    raw, source, folder = _from_python(given) if isinstance(given, Mapping) else _from_file(given)
    raw = with_fields(raw, given_fields(raw, things, overrides), source)
    return scenario_from_dict(raw, source, folder, profiler, things)


def _from_python(given: Mapping[str, Any]) -> tuple[dict[str, Any], str, Path]:
    """What a dictionary says, its source, and where its relative paths start: in the working directory."""
    source = f"scenario {given.get('name', '')!s}".strip()
    try:
        return copy.deepcopy(plain(given)), source, Path.cwd()
    except (TypeError, RecursionError) as error:
        raise ScenarioError(f"{source}: {error or 'nested too deeply'}") from None


def _from_file(path_or_name: str | Path) -> tuple[dict[str, Any], str, Path | None]:
    """What a file, or a built-in scenario, says, its source, and its folder."""
    path = Path(path_or_name)
    known = scenario_names()
    try:
        is_folder = bool(str(path_or_name)) and path.is_dir()
        is_file = path.exists() and not path.is_dir()
    except (OSError, ValueError):  # no path at all
        is_file = is_folder = False
    source: str
    folder: Path | None
    place: Path | Traversable
    if is_file:
        place, source, folder = path, str(path), path.parent
    elif str(path_or_name) in known:
        place, source, folder = CATALOG / "scenarios" / f"{path_or_name}.toml", f"scenario {path_or_name}", None
    else:
        problem = "is a folder" if is_folder else "no such file or built-in scenario"
        shown = str(path_or_name) if len(str(path_or_name)) <= 200 else f"{str(path_or_name)[:100]}…"
        raise ScenarioError(
            f"{shown}: {problem}{nearest(str(path_or_name), known)}; built-in are {', '.join(known)}, and "
            "hsfl init FILE writes a file to start from"
        )
    return _parse(place, source), source, folder


def _parse(path: Path | Traversable, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, MAX_TOML))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not valid TOML: {error}; correct that line") from None
    except RecursionError:
        raise ScenarioError(f"{source}: not valid TOML: nested too deeply; a scenario needs three levels") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{source}: cannot be read as a text file ({reason}); write a TOML file in UTF-8") from None
