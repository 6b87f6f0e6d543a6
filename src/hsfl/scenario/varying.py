"""Fields of a scenario varied: the values of each, or a range to draw from, and the points that they make together."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.errors import ScenarioError
from hsfl.scenario.toml_format import toml_or_text, toml_value

_END = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z][\w/]*)?")
_LOG, _TO = "log:", ".."
#: A folder's name has no more letters.
_LONGEST = 100


@dataclass(frozen=True)
class Range:
    """Numbers between two, both among them: evenly spread, or their logarithms are; whole where both ends are."""

    low: float
    high: float
    log: bool
    whole: bool
    unit: str = ""

    def at(self, share: float) -> Any:
        """The value at a share, from 0 to 1, of the range."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        number = (
            math.exp((1 - share) * math.log(low) + share * math.log(high)) if self.log else low + share * (high - low)
        )
        value: float = min(int(self.high), max(int(self.low), round(number))) if self.whole else float(f"{number:.4g}")
        return f"{value:g} {self.unit}" if self.unit else value


Values = Sequence[Any] | Range


def parsed(text: str, option: str = "--vary") -> tuple[str, Values]:
    """FIELD=A,B,C or FIELD=LOW..HIGH, as the command takes them."""
    field, equals, values = text.partition("=")
    if not equals or not field.strip() or not values.strip():
        raise ScenarioError(
            f"{option} {text}: write FIELD=A,B,C, as in training.batch_size=8,16,32, or a range to draw from: "
            "FIELD=LOW..HIGH, or FIELD=log:LOW..HIGH"
        )
    return field.strip(), values_of(values.strip(), f"{option} {text}")


def values_of(text: str, label: str) -> Values:
    """What was written for the values of a field; `label` begins the sentence about what is wrong."""
    found = _range(text, label)
    return [toml_or_text(part) for part in split_values(text)] if found is None else found


def varied(given: Mapping[str, Any]) -> dict[str, Values]:
    """Fields and their values as Python gives them: a list of values, or text as the command takes it."""
    found: dict[str, Values] = {}
    for field, values in given.items():
        if isinstance(values, str):
            found[field] = values_of(values, f"{field} = {values}")
        elif isinstance(values, Range):
            found[field] = values
        elif isinstance(values, Iterable):
            found[field] = list(values)
        else:
            raise ScenarioError(f"{field} = {values!r}: give a list of values, or a range such as 'log:1e-3..1e-1'")
        if not isinstance(found[field], Range) and not found[field]:
            raise ScenarioError(f"{field}: there is no value; give at least one")
    return found


def grid(fields: Mapping[str, Values]) -> list[dict[str, Any]]:
    """Every combination of values, the last field fastest."""
    columns: list[list[Any]] = []
    for field, values in fields.items():
        if isinstance(values, Range):
            raise ScenarioError(
                f"{field}: a range has no end of values; draw from it with --random N, or give values with commas"
            )
        columns.append(list(values))
    return _once(dict(zip(fields, point, strict=True)) for point in itertools.product(*columns))


def drawn(fields: Mapping[str, Values], count: int, seed: int) -> list[dict[str, Any]]:
    """So many combinations, drawn by themselves: the first of many are those of few, whatever else is varied."""

    def value(field: str, number: int) -> Any:
        share = float(np.random.default_rng([seed, zlib.crc32(field.encode()), number]).random())
        values = fields[field]
        return values.at(share) if isinstance(values, Range) else values[int(share * len(values))]

    return _once({field: value(field, number) for field in fields} for number in range(count))


def point_name(point: Mapping[str, Any]) -> str:
    """A name for a folder: "learning_rate=0.1,batch_size=16"."""
    short = [short_name(field) for field in point]
    names = short if len(set(short)) == len(short) else list(point)
    name = ",".join(f"{k}={_plain(value_text(value))}" for k, value in zip(names, point.values(), strict=True))
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def short_name(field: str) -> str:
    """A field without its section: "learning_rate", "device.uplink"."""
    section, _, rest = field.partition(".")
    return rest if section in ("training", "data", "stopping", "tiers", "convergence", "execution") else field


def value_text(value: Any) -> str:
    """A value as people write it."""
    return "–" if value is None else value if isinstance(value, str) else toml_value(value)


def _plain(text: str) -> str:
    """Without what file systems or shells take for something else."""
    return re.sub(r"[^\w.+-]+", "-", text.replace(" ", "")).strip("-")


def _once(points: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({repr(point): point for point in points}.values())


def _range(text: str, label: str) -> Range | None:
    log, body = text.startswith(_LOG), text.removeprefix(_LOG)
    ends = [_END.fullmatch(part.strip()) for part in body.split(_TO)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        if log:
            raise ScenarioError(f"{label}: write both ends of the range as numbers, as in log:1e-3..1e-1")
        return None
    (low, unit), (high, own_unit) = ends[0].groups(default=""), ends[1].groups(default="")
    if unit and own_unit and unit != own_unit:
        raise ScenarioError(f"{label}: {unit} and {own_unit}; write both ends of the range in one unit")
    whole = not (unit or own_unit) and re.fullmatch(r"[-+]?\d+", low) and re.fullmatch(r"[-+]?\d+", high)
    if not float(low) < float(high):
        raise ScenarioError(f"{label}: {low} is not below {high}; write the lower end first")
    if log and float(low) <= 0:
        raise ScenarioError(f"{label}: {low} has no logarithm; begin the range above 0, or leave out log:")
    return Range(float(low), float(high), log, bool(whole), unit or own_unit)


def split_values(text: str) -> list[str]:
    """At the commas that are not within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
