"""Rows of a tier for the entities that have a copy of their own; what is left over holds what all others have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hsfl.engine.attendance import Sources
from hsfl.engine.averaging import Tensors

Seats = dict[int, int]
"""The row of each entity that has one."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a tier's rows in a mean."""

    shares: torch.Tensor
    rows: torch.Tensor | None = None
    """Those that have a share; None: all, one after the other."""

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return self.shares @ (rows if self.rows is None else rows[self.rows])

    def apart(self, rows: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
        """The mean squared distance from the middle, in float64."""
        apart = (rows if self.rows is None else rows[self.rows]) - middle
        return self.shares.double() @ apart.square_().sum(1, dtype=torch.float64)

    @contextmanager
    def only_theirs(self, rows: Tensors) -> Iterator[None]:
        """Whatever happens to rows, those without a share are then as they were."""
        if self.rows is None:
            yield
            return
        before = [one.clone() for one in rows]
        yield
        for one, was in zip(rows, before, strict=True):
            was[self.rows] = one[self.rows]
            one.copy_(was)


def free_rows(seats: Seats, rows: int) -> list[int]:
    """Those that nobody has."""
    return sorted(set(range(rows)) - set(seats.values()))


def rows_for(needed: int, entities: int) -> int:
    """How many rows so many entities of a tier take: one more holds what all others have."""
    return needed + (needed < entities)


def stayed(old: Seats, old_rows: int, new: Seats, new_rows: int) -> list[int]:
    """For every row of a tier that was laid out anew the one it was before."""
    (other, *_) = (*free_rows(old, old_rows), 0)
    found = [other] * new_rows
    for entity, row in new.items():
        found[row] = old.get(entity, other)
    return found


def taken(
    sources: Sources, old: Seats, old_rows: int, new: Seats, new_rows: int, like: torch.Tensor
) -> list[tuple[Weights, list[int]]]:
    """The rows of a layer's new tier, by what they take of those of the tier that it was in; weights are `like` that.

    Sums are those of entities in order, whichever rows they have.
    """
    (other, *_) = (*free_rows(old, old_rows), 0)  # without any, all are the same where nobody took part

    def weights(shares: Mapping[int, float]) -> Weights:
        rows, values = [old[j] for j in shares] or [other], list(shares.values()) or [1.0]
        return Weights(like.new_tensor(values), torch.tensor(rows, device=like.device))

    hosts = [(weights(shares), [new[entity]]) for entity, shares in sources.of_host.items()]
    rest = sorted(set(range(new_rows)) - {row for _, rows in hosts for row in rows})
    return [*hosts, (weights(sources.others), rest)]


def spread(means: list[tuple[Weights, list[int]]], count: int, rows: torch.Tensor) -> torch.Tensor:
    """So many rows, each the mean that it takes of others."""
    found = rows.new_empty(count, *rows.shape[1:])
    for weights, own in means:
        found[own] = weights.mean(rows)
    return found
