"""How fields and values are written: values as TOML has them, nested fields by their paths."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import PurePath
from typing import Any

import numpy as np


def toml_value(value: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_or_text(text: str) -> Any:
    """The value that a person wrote, in TOML's notation or else as plain text, since the shell takes quotes off."""
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def plain(value: Any) -> Any:
    """A value from Python as TOML can hold it: numbers and arrays of NumPy become plain ones; TypeError for others."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | date | time):
        return value
    raise TypeError(f"{value!r} is a {type(value).__name__}; give a number, text, a list or a table")


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
