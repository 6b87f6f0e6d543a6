"""Values as TOML writes them."""

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
