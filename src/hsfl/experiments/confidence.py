"""How sure a mean of a few numbers is, by Student's t: the only place that says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = Sequence[float] | npt.NDArray[np.float64]
#: The confidence of all intervals.
LEVEL = 0.95


def confidence(values: Numbers) -> tuple[float, float]:
    """The 95 % interval of the mean of a few independent numbers; of one, the number."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, mean
    from scipy import stats

    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * np.std(values, ddof=1) / np.sqrt(count))
    return mean - half, mean + half


def confidence_apart(values: Numbers, others: Numbers) -> tuple[float, float] | None:
    """The 95 % interval of how far the mean of some numbers lies above that of others, whatever their spreads.

    By Welch's t; None where there are less than two of either.
    """
    if min(len(values), len(others)) < 2:
        return None
    if np.ptp(values) == np.ptp(others) == 0.0:
        apart = float(np.mean(values) - np.mean(others))
        return apart, apart
    from scipy import stats

    found: Any = stats.ttest_ind(values, others, equal_var=False)
    interval = found.confidence_interval(LEVEL)
    return float(interval.low), float(interval.high)
