"""The mean loss of every client since the last evaluation, over the rounds that it took part in."""

from __future__ import annotations

from collections.abc import Sequence

from hsfl.records import SessionRecord


class MeanLosses:
    """Sums of losses per client over `rounds` rounds, `missed` of which it was left out of."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._clear()

    def _clear(self) -> None:
        self.sums, self.rounds, self.missed = [0.0] * self.clients, 0, [0] * self.clients

    def restore(self, state: SessionRecord) -> None:
        self.sums, self.rounds = list(state.losses), state.summed
        self.missed = list(state.missed) or [0] * len(self.sums)

    def add(self, losses: Sequence[float | None]) -> None:
        """Those of a round; None for who was left out."""
        self.sums = [total + (new or 0.0) for total, new in zip(self.sums, losses, strict=True)]
        self.missed = [missed + (new is None) for missed, new in zip(self.missed, losses, strict=True)]
        self.rounds += 1

    def taken(self) -> list[float | None]:
        """The means, from where it begins anew; None for who never took part."""
        counts = [self.rounds - missed for missed in self.missed]
        found = [total / count if count else None for total, count in zip(self.sums, counts, strict=True)]
        self._clear()
        return found
