"""Fields of a scenario replaced by path, as --set and `hsfl.load_scenario` do, before the scenario is checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hsfl.errors import ScenarioError, nearest
from hsfl.scenario.toml_format import plain

#: Stands in place of a tier's name for all tiers.
EVERY = "*"
#: Fields that exclude each other: an override of one displaces the others.
_ALTERNATIVES = {
    "model": [{"name"}, {"profile"}, {"factory"}],
    "convergence": [{"target"}, {"rounds", "slack"}],
    "data": [{"name"}, {"factory"}],
}
#: Fields that belong to what another field names: an override of the other field removes them.
_BELONGING = {
    "strategy.name": ("cuts", "intervals"),
    "training.averaging": ("proximal", "server"),
    "training.schedule": ("horizon", "decay_rounds", "decay"),
}


def with_fields(raw: dict[str, Any], overrides: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`raw`, changed in place: values by path, where None removes a field.

    Fields to which others belong are set first, because setting one removes the others.
    """
    for path, value in sorted(overrides.items(), key=lambda item: item[0] not in _BELONGING):
        try:
            _override(raw, path, plain(value), source)
        except TypeError as error:
            raise ScenarioError(f"{source}: {path}: {error}") from None
        except RecursionError:
            raise ScenarioError(f"{source}: {path}: nested too deeply; a scenario needs three levels") from None
    return raw


def _override(raw: dict[str, Any], path: str, value: Any, source: str) -> None:
    keys = path.split(".")
    if keys[:2] == ["tiers", EVERY] and isinstance(tiers := raw.get("tiers"), list):
        for tier in tiers:
            _override({"tiers": [tier]}, ".".join(["tiers", "1", *keys[2:]]), copy.deepcopy(value), source)
        return
    node: Any = raw
    for depth, key in enumerate(keys[:-1]):
        if isinstance(node, list):
            node = _tier_by_name(node, key, path, source)
        elif isinstance(node, dict):
            node = node.setdefault(key, {})
        if not isinstance(node, dict | list):
            section = ".".join(keys[: depth + 1])
            raise ScenarioError(f"{source}: {path}: {section} is a value, not a section; shorten the path")
    if not isinstance(node, dict):
        raise ScenarioError(f"{source}: {path}: name a tier and a field, such as tiers.device.uplink")
    if value is None:
        node.pop(keys[-1], None)
        return
    for other in _BELONGING.get(path, ()):
        node.pop(other, None)
    group = _ALTERNATIVES.get(keys[0], []) if len(keys) == 2 else []
    if any(keys[-1] in names for names in group):
        for names in group:
            if keys[-1] not in names:
                for other in names:
                    node.pop(other, None)
    node[keys[-1]] = value


def _tier_by_name(tiers: list[Any], key: str, path: str, source: str) -> Any:
    names = [t.get("name") if isinstance(t, dict) else None for t in tiers]
    if key in names:
        return tiers[names.index(key)]
    if key.isdecimal() and 1 <= int(key) <= len(tiers):
        return tiers[int(key) - 1]
    known = ", ".join(str(n) for n in names)
    raise ScenarioError(f"{source}: {path}: no tier {key!r}{nearest(key, map(str, names))}; the tiers are {known}")
