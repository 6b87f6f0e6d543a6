"""Machines whose rates change while training: drawn anew every so often, or after a trace."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hsfl.errors import ScenarioError, nearest
from hsfl.files import MAX_CSV, read_text
from hsfl.problem.system import System
from hsfl.problem.units import LARGEST, SMALLEST
from hsfl.scenario.draw import LINKS
from hsfl.scenario.scenario import Scenario

_COLUMNS = ["time_s", "tier", "field", "factor"]
_ATTRIBUTES = {"compute": "compute_flops"} | {field: f"{field}_bps" for field in LINKS}


@dataclass(frozen=True)
class _Change:
    time_s: float
    tier: int
    field: str
    factor: float


class Conditions:
    """The machines at any moment of a run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, dynamics = scenario, scenario.spec.dynamics
        self._redraw_every = dynamics.redraw_every if dynamics else None
        self._changes = _read(scenario, dynamics.trace) if dynamics and dynamics.trace is not None else []
        self._times = [change.time_s for change in self._changes]
        self._last: tuple[tuple[int, int], System] | None = None

    def at(self, round_: int, time_s: float) -> System:
        """The machines in round `round_`, counted from 0, which starts at simulated time `time_s`.

        As long as nothing has changed, that is the same object as before.
        """
        key = (round_ // self._redraw_every if self._redraw_every else 0, bisect_right(self._times, time_s))
        if self._last is None or self._last[0] != key:
            self._last = (key, self._built(*key))
        return self._last[1]

    def _built(self, epoch: int, changes: int) -> System:
        system = self._scenario.system_in(epoch) if epoch else self._scenario.system
        latest = {(c.tier, c.field): c.factor for c in self._changes[:changes]}
        tiers = list(system.tiers)
        for (m, field), factor in latest.items():
            name = _ATTRIBUTES[field]
            tiers[m] = replace(tiers[m], **{name: getattr(tiers[m], name) * factor})
        return replace(system, tiers=tuple(tiers)) if latest else system


def _read(scenario: Scenario, trace: str) -> list[_Change]:
    path, names = (scenario.folder or Path()) / trace, [t.name for t in scenario.spec.tiers]
    label = f"{scenario.source}: dynamics.trace = {trace!r}"
    try:
        rows = list(csv.reader(io.StringIO(read_text(path, MAX_CSV))))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{label}: cannot be read ({reason}); give a CSV with {','.join(_COLUMNS)}") from None
    if not rows or [c.strip() for c in rows[0]] != _COLUMNS:
        raise ScenarioError(f"{label}: the first line must be {','.join(_COLUMNS)}")
    changes = []
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        where = f"{label}, line {number}"
        if len(row) != len(_COLUMNS):
            raise ScenarioError(f"{where}: it has {len(row)} fields; {','.join(_COLUMNS)} are needed")
        time_s, tier, field, factor = (cell.strip() for cell in row)
        if tier not in names:
            raise ScenarioError(f"{where}: no tier {tier!r}{nearest(tier, names)}; the tiers are {', '.join(names)}")
        if field not in _ATTRIBUTES:
            raise ScenarioError(f"{where}: field {field!r} must be one of {', '.join(_ATTRIBUTES)}")
        changes.append(
            _Change(
                _number(time_s, 0.0, f"{where}: time_s"),
                names.index(tier),
                field,
                _number(factor, SMALLEST, f"{where}: factor"),
            )
        )
    return sorted(changes, key=lambda change: change.time_s)


def _number(text: str, least: float, label: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not least <= value <= LARGEST:
        raise ScenarioError(f"{label} = {text!r} must be a number of at least {least:g}")
    return value
