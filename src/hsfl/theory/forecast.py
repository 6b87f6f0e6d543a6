"""How many more rounds training takes to a loss, read off the losses so far.

After its first plateau the loss of training falls nearly like one over the rounds: a power of it close to 1/loss grows
along a straight line. Two lines are fitted, to all losses since the plateau and to the last of them; their mean is
followed to the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, hypot, inf

import numpy as np
import numpy.typing as npt

from hsfl.problem.profile import FloatArray

#: The share of the rounds so far, and the fewest, that the loss of the moment is the mean of.
RECENT, FEWEST = 0.1, 5
#: The plateau lasts until the loss stays below so much of the first; means of this share of the rounds are compared.
PLATEAU, _BRIEF = 0.8, 0.025
#: loss ** -POWER grows along a straight line.
POWER = 0.85
#: The second line is fitted to this share of the rounds; both to so many means at most, and to no fewer losses.
_LAST, _MEANS, _LEAST = 0.4, 16, 10
#: Forecasts reach so many times as far as the rounds that the line was fitted to.
FARTHEST = 16
#: How far the law itself is off, as seen over calibration runs: the standard deviation of the logarithm of rounds.
_LAW = 0.24
#: Of a normal distribution, four in five lie within so many standard deviations.
_FOUR_IN_FIVE = 1.2816


@dataclass(frozen=True)
class Forecast:
    """Rounds from now on, and the range that held what happened four times in five; infinite is too far to say."""

    rounds: float
    low: float
    high: float


@dataclass(frozen=True)
class LossLaw:
    """loss ** -POWER = level + slope * rounds from now on."""

    now: int
    """The rounds so far."""
    level: float
    slope: float
    error: float
    """The standard error of the slope, relative to it."""
    span: int
    """The rounds it was fitted to."""

    def rounds_to(self, target: float) -> Forecast:
        """How many more it takes to a loss of the moment."""
        then = self.now + (target**-POWER - self.level) / self.slope
        rounds = max(0.0, then / (1 - RECENT / 2) - self.now)  # a mean over the last tenth comes later
        factor = exp(_FOUR_IN_FIVE * hypot(_LAW, self.error))
        found = (r if r <= FARTHEST * self.span else inf for r in (rounds, rounds / factor, rounds * factor))
        return Forecast(*found)


def recent_losses(losses: npt.ArrayLike) -> FloatArray:
    """After every round, the loss of the moment: the mean over the last tenth of the rounds."""
    return _trailing(np.asarray(losses, dtype=float), RECENT)


def loss_law(losses: npt.ArrayLike) -> LossLaw | None:
    """The law of the losses of rounds 1, 2, ...; None while they show none: on a first plateau, or rising."""
    seen = np.asarray(losses, dtype=float)
    if len(seen) < _LEAST:
        return None
    high = np.flatnonzero(_trailing(seen, _BRIEF) > PLATEAU * np.median(seen[:FEWEST]))
    plateau = int(high[-1]) + 1 if len(high) else 0
    lines = [_line(seen, max(plateau, start)) for start in (0, int((1 - _LAST) * len(seen)))]
    if any(line is None for line in lines):
        return None
    (slope, level, error), (last_slope, last_level, last_error) = (line for line in lines if line is not None)
    mean = (slope + last_slope) / 2
    unsure = max(error, last_error, abs(slope - last_slope) / 2)
    if not mean > unsure:
        return None
    return LossLaw(len(seen), (level + last_level) / 2, mean, unsure / mean, len(seen) - plateau)


def _line(seen: FloatArray, start: int) -> tuple[float, float, float] | None:
    """loss ** -POWER from a round on: its slope, its level now, and the slope's error."""
    count = len(seen) - start
    if count < _LEAST:
        return None
    parts = np.array_split(np.arange(start, len(seen)), min(count, _MEANS))
    loss = np.array([seen[part].mean() for part in parts])
    if not (np.isfinite(loss).all() and (loss > 0).all()):
        return None
    ago = np.array([part.mean() for part in parts]) + 1 - len(seen)
    weights = np.sqrt(loss**POWER * [len(part) for part in parts])
    (slope, level), covariance = np.polyfit(ago, loss**-POWER, 1, w=weights, cov=True)
    return float(slope), float(level), float(np.sqrt(covariance[0, 0]))


def _trailing(losses: FloatArray, share: float) -> FloatArray:
    """After every round, the mean over a share of the rounds up to it, and no fewer than a few."""
    end = np.arange(1, len(losses) + 1)
    first = np.maximum(end - np.maximum(np.ceil(share * end), FEWEST).astype(int), 0)
    sums = np.concatenate(([0.0], np.cumsum(losses)))
    return np.asarray((sums[end] - sums[first]) / (end - first))
