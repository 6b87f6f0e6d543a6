"""A plan: where the model is cut over the tiers, and how often each tier is averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral

from hsfl.errors import ScenarioError
from hsfl.problem.codes import LinkCodes
from hsfl.problem.topology import tiers_text

#: The longest interval a plan may hold: longer than any training, so a tier with it is never averaged.
NEVER = 10**9


@dataclass(frozen=True)
class Plan:
    """Cuts (M-1 counts of layers: tier m holds the layers after cut m-1 up to cut m) and intervals (M, in rounds)."""

    cuts: tuple[int, ...]
    intervals: tuple[int, ...]
    codes: tuple[LinkCodes, ...] | None = None
    """The codes of every tier's links; None where no code is planned, and the machines' own are in force."""
    micro_batches: int | None = None
    """k: the mini-batches of every client in a round; None where that is not planned."""

    def code_names(self) -> list[dict[str, str]] | None:
        """The codes as a record names them: by link, for every tier."""
        return None if self.codes is None else [codes.names() for codes in self.codes]


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, Integral) and not isinstance(value, bool)


def make_plan(
    cuts: Iterable[int],
    intervals: Iterable[int],
    *,
    entities: tuple[int, ...],
    num_layers: int,
    codes: tuple[LinkCodes, ...] | None = None,
    micro_batches: int | None = None,
    allow_empty_tiers: bool = False,
    returns: bool = False,
) -> Plan:
    """A checked `Plan`; intervals of tiers with a single entity, which are always synchronised, become 1.

    `returns`: the last tier is the devices' tail, which is never empty.
    """
    cuts, intervals = tuple(cuts), tuple(intervals)
    num_tiers = len(entities)
    for label, values, length in (("cuts", cuts, num_tiers - 1), ("intervals", intervals, num_tiers)):
        if len(values) != length:
            tiers = tiers_text(num_tiers, returns=returns)
            raise ScenarioError(f"{label} {list(values)}: {length} whole numbers are needed for {tiers}")
        if not all(_is_whole(v) for v in values):
            raise ScenarioError(f"{label} {list(values)}: only whole numbers are allowed")
    if any(not 1 <= i <= NEVER for i in intervals):
        raise ScenarioError(f"intervals {list(intervals)}: each must be from 1 to {NEVER} rounds")
    if micro_batches is not None and not (_is_whole(micro_batches) and micro_batches >= 1):
        raise ScenarioError(f"micro_batches {micro_batches}: it must be a whole number from 1 on")
    smallest_step, last = (0, num_layers - returns) if allow_empty_tiers else (1, num_layers - 1)
    ordered = all(b - a >= smallest_step for a, b in pairwise(cuts))
    if not ordered or cuts[0] < 1 or cuts[-1] > last:
        order = "never falling" if allow_empty_tiers else "rising (unless empty tiers are allowed)"
        raise ScenarioError(
            f"cuts {list(cuts)}: they must be {order} and lie between 1 and {last} for {num_layers} layers"
        )
    in_step = tuple(1 if e == 1 else int(i) for i, e in zip(intervals, entities, strict=True))
    return Plan(tuple(int(c) for c in cuts), in_step, codes, None if micro_batches is None else int(micro_batches))
