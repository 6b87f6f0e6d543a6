"""How fast a run goes on, and how long it still takes at that pace."""

from __future__ import annotations

from collections import deque


class Pace:
    """Rounds per second of about the last `window_s` seconds of real time."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int, float]] = deque()

    def add(self, now: float, round_: int, time_s: float) -> None:
        """A round that is over at a moment, and the run's own time after it."""
        self._seen.append((now, round_, time_s))
        while self._seen[-1][0] - self._seen[0][0] > self._window_s and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Rounds per second; None where too little was seen."""
        if not self._seen:
            return None
        (first, first_round, _), (now, round_, _) = self._seen[0], self._seen[-1]
        return (round_ - first_round) / (now - first) if now > first and round_ > first_round else None

    def left_s(self, last_round: float, time_limit: float | None) -> float | None:
        """Seconds until a round, or a moment of the run's own time, whichever comes first; None where unknown."""
        rate = self.rate
        if rate is None:
            return None
        (first, _, first_time), (now, round_, time_s) = self._seen[0], self._seen[-1]
        left = (last_round - round_) / rate
        if time_limit is not None and time_s > first_time:
            left = min(left, (time_limit - time_s) * (now - first) / (time_s - first_time))
        return max(0.0, left) if left < float("inf") else None
