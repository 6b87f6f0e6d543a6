"""A small valid scenario to change one thing of, and its TOML text."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hsfl

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "model": {"name": "lenet5"},
    "training": {"batch_size": 4, "learning_rate": 0.01},
    "tiers": [
        {
            "name": "device",
            "entities": 6,
            "compute": {"uniform": ["1 GFLOPS", "2 GFLOPS"]},
            "uplink": "10 Mbps",
            "downlink": "20 Mbps",
            "fed_uplink": "5 Mbps",
            "fed_downlink": "5 Mbps",
        },
        {
            "name": "edge",
            "entities": 2,
            "compute": "50 GFLOPS",
            "uplink": "100 Mbps",
            "downlink": "100 Mbps",
            "fed_uplink": "50 Mbps",
            "fed_downlink": "50 Mbps",
        },
        {"name": "cloud", "entities": 1, "compute": "5 TFLOPS"},
    ],
    "convergence": {"smoothness": 7.8, "initial_gap": 2.3, "rounds": 500, "slack": 0.5},
}
ABSENT = object()
"""As a value of a change: take the field away."""


def changed(changes: Mapping[str, Any], base: Mapping[str, Any] = SMALL) -> dict[str, Any]:
    """A copy of a scenario with fields set by path ("tiers.0.compute"), without any of the product's own code."""
    raw = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *parents, last = (int(key) if key.isdecimal() else key for key in path.split("."))
        node: Any = raw
        for key in parents:
            node = node[key]
        if value is ABSENT:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)
    return raw


def write(folder: Path, raw: Mapping[str, Any], name: str = "scenario.toml") -> Path:
    path = folder / name
    path.write_text(to_toml(raw), encoding="utf-8")
    return path


def load(folder: Path, changes: Mapping[str, Any] | None = None) -> hsfl.Scenario:
    """The small scenario with changes, through a real file, as planning needs it."""
    scenario = hsfl.load_scenario(write(folder, changed(changes or {})))
    _ = scenario.problem
    return scenario


def to_toml(raw: Mapping[str, Any]) -> str:
    """Any parsed TOML as text again. Sections first-level only; everything deeper is inline."""
    plain, sections = [], []
    for key, value in raw.items():
        if isinstance(value, dict):
            sections.append(f"[{_key(key)}]\n" + "".join(f"{_key(k)} = {_value(v)}\n" for k, v in value.items()))
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            for table in value:
                fields = "".join(f"{_key(k)} = {_value(v)}\n" for k, v in table.items())
                sections.append(f"[[{_key(key)}]]\n{fields}")
        else:
            plain.append(f"{_key(key)} = {_value(value)}\n")
    return "".join(plain) + "\n" + "\n".join(sections)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _quoted(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
