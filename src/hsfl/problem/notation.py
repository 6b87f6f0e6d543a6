"""How fields and values are written: values as TOML has them, nested fields by their paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time
from typing import Any


def toml_value(value: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def dotted(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by their paths, as in {"tiers.device.uplink": "20 Mbps"}; entries of a list by name or from 1."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, start=1):
                found |= dotted(item, f"{prefix}{key}.{item.get('name', number)}.")
        else:
            found[prefix + key] = value
    return found
