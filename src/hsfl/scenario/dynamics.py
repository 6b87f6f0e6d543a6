"""Machines whose rates change while training: drawn anew every so often, or after a trace."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from hsfl.errors import ScenarioError, nearest
from hsfl.problem.system import System
from hsfl.problem.units import SMALLEST
from hsfl.scenario.draw import LINKS
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.traces import number, trace_rows

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
        tiers = list(system.tree)
        for (m, field), factor in latest.items():
            name = _ATTRIBUTES[field]
            tiers[m] = replace(tiers[m], **{name: getattr(tiers[m], name) * factor})
        if not latest:
            return system
        changed = System.returning(tiers) if system.returns else System(tuple(tiers))
        return replace(changed, cohort=system.cohort)


def _read(scenario: Scenario, trace: str) -> list[_Change]:
    names, changes = [t.name for t in scenario.spec.tiers], []
    for where, (time_s, tier, field, factor) in trace_rows(scenario, "dynamics.trace", trace, _COLUMNS):
        if tier not in names:
            raise ScenarioError(f"{where}: no tier {tier!r}{nearest(tier, names)}; the tiers are {', '.join(names)}")
        if field not in _ATTRIBUTES:
            raise ScenarioError(f"{where}: field {field!r} must be one of {', '.join(_ATTRIBUTES)}")
        changes.append(
            _Change(
                number(time_s, 0.0, f"{where}: time_s"),
                names.index(tier),
                field,
                number(factor, SMALLEST, f"{where}: factor"),
            )
        )
    return sorted(changes, key=lambda change: change.time_s)
