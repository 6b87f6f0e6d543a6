"""What a recipe hands over: numbers to draw, a table, and a verdict per claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HOLDS, EXCEEDS, IN_PART, FAILS = "holds", "exceeds", "in part", "does not hold"
#: The verdict on what goes further than the paper: measured, and not judged by it.
PAST = "past the paper"
#: The verdict where too few seeds were run to tell.
OPEN = "open"
VERDICTS = (HOLDS, EXCEEDS, IN_PART, FAILS, OPEN, PAST)


def all_of(shown: Sequence[bool | None]) -> str:
    """The verdict on a claim of several comparisons, of which each is shown, or is not, or cannot be told (None)."""
    if any(shown):
        return HOLDS if all(shown) else IN_PART
    return OPEN if None in shown else FAILS


def judged(measured: float, low: float, high: float, paper: float, nothing: float = 0.0) -> str:
    """The verdict on "better by so much", of a number that is more the better, measured between `low` and `high`.

    It holds if the interval contains the paper's number or lies beyond it; it exceeds if all of it lies beyond twice
    the paper's number, for then what is compared with does much worse here; in part if what was measured goes the same
    way from `nothing`, the number of no difference.
    """
    if low > 2 * paper:
        return EXCEEDS
    if high >= paper:
        return HOLDS
    return IN_PART if measured > nothing else FAILS


@dataclass(frozen=True)
class Series:
    """One line, or one group of bars; `low` and `high` are the least and the most over seeds."""

    label: str
    x: Sequence[Any]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    missing: Sequence[str] = ()
    """What bars say where there is no value; by default "never"."""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: str = "line"
    """line, bar or points."""
    log_x: bool = False
    log_y: bool = False
    level: float | None = None
    """A horizontal line, such as a target."""
    diagonal: bool = False
    """The line on which y is x."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, what was measured, and whether it is so."""

    what: str
    paper: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Result:
    """Everything a recipe shows."""

    name: str
    title: str
    panels: Sequence[Panel]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    claims: Sequence[Claim]
    notes: Sequence[str] = field(default_factory=tuple)
    """How to read the result: definitions, what was fixed, what differs from the paper."""

    cost: Mapping[str, Any] = field(default_factory=dict)
    """What the runs took that no earlier recipe needed: their number, seconds of training, machines and versions."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
