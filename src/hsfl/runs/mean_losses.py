"""The mean loss of every client since the last evaluation, over the rounds that it took part in."""

from __future__ import annotations

from collections.abc import Sequence

from hsfl.runs.state import SessionRecord


class MeanLosses:
    """Sums of losses, and how many they are of, for every client that took part."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self.sums: dict[int, float] = {}
        self.counts: dict[int, int] = {}

    def restore(self, state: SessionRecord) -> None:
        self.sums = dict(zip(state.clients, state.losses, strict=True))
        self.counts = dict(zip(state.clients, state.counts, strict=True))

    def add(self, losses: Sequence[float], clients: Sequence[int] | None) -> None:
        """Add the losses of a round, of some clients or all."""
        for n, loss in zip(range(self._num_clients) if clients is None else clients, losses, strict=True):
            self.sums[n] = self.sums.get(n, 0.0) + loss
            self.counts[n] = self.counts.get(n, 0) + 1

    def taken(self) -> tuple[list[float], list[int] | None]:
        """The means, from where it begins anew, and of whom; None: everybody."""
        clients = sorted(self.sums)
        means = [self.sums[n] / self.counts[n] for n in clients]
        self.sums, self.counts = {}, {}
        return means, None if len(clients) == self._num_clients else clients
