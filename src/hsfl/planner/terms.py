"""What a tier costs, as a function of nothing but its first and last layer; and the best interval for a given price.

For Dinkelbach's price lambda of a unit of margin, every tier on its own minimises T_{m,A}/I + lambda * drift_m(I).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hsfl.problem.plan import NEVER
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.convergence import drift_coefficients, noise_floor, quadratic

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Terms:
    """All segments of layers that a tier may hold (C4, C5), tier by tier, and their costs.

    Axis S: segments. A plan is M segments, each starting where the one below ends.
    """

    index: IntArray
    """(M, L+1, L+1): the segment of tier m from cut a to cut b, or -1 where C4 or C5 forbids it."""
    tier: IntArray
    """(S,)"""
    aggregation_s: FloatArray
    """(S,): T_{m,A}."""
    drift: FloatArray
    """(3, S): coefficients of I^2, I and 1."""
    margin: float
    """c0 = epsilon - noise floor."""

    @classmethod
    def of(cls, problem: Problem, *, allow_empty_tiers: bool = False) -> Terms:
        M, L = problem.system.num_tiers, problem.num_layers
        fits = _allowed_by_order(M, L, allow_empty_tiers)
        size = problem.client_memory_bits
        need = size[None, :] - size[:, None]
        fits &= need < problem.system.memory_per_client_bits[:, None, None]
        tier, first, last = np.nonzero(fits)
        index = np.full(fits.shape, -1)
        index[tier, first, last] = np.arange(len(tier))
        parameters = problem.parameter_bits
        cumulative = np.zeros((3, M, L + 1))
        np.cumsum(drift_coefficients(problem), axis=-1, out=cumulative[..., 1:])
        return cls(
            index,
            tier,
            (parameters[last] - parameters[first]) * problem.system.fed_seconds_per_bit[tier],
            cumulative[:, tier, last] - cumulative[:, tier, first],
            problem.constants.target - noise_floor(problem),
        )

    def keep(self, allowed: npt.NDArray[np.bool_]) -> Terms:
        """The same terms with only some of the segments (M, L+1, L+1) allowed."""
        return replace(self, index=np.where(allowed, self.index, -1))

    def best_intervals(self, price: float) -> FloatArray:
        """(S,): the best interval of every segment."""
        return best_intervals(self.aggregation_s, self.drift, price)

    def cost(self, intervals: FloatArray, price: float) -> FloatArray:
        """(S,): T_{m,A}/I + price * drift(I)."""
        return _cost(self.aggregation_s, self.drift, intervals, price)


def best_intervals(aggregation_s: FloatArray, drift: FloatArray, price: float | FloatArray) -> FloatArray:
    """The whole numbers I that minimise T_{m,A}/I + price * drift(I), each on its own; `drift` is (3, ...).

    Without the jump at I = 1 the cost is convex, so the minimum is at 1 or at a whole number next to the only
    positive root of its derivative, 2 price q_2 I^3 + price q_1 I^2 = T_{m,A}.
    """
    below = np.clip(np.floor(_stationary(aggregation_s, drift, price)), 2.0, NEVER - 1.0)
    cost_below = _cost(aggregation_s, drift, below, price)
    cost_above = _cost(aggregation_s, drift, below + 1, price)
    best = np.where(cost_above < cost_below, below + 1, below)
    return np.where(np.minimum(cost_below, cost_above) < aggregation_s, best, 1.0)


def _cost(aggregation_s: FloatArray, drift: FloatArray, intervals: FloatArray, price: float | FloatArray) -> FloatArray:
    return aggregation_s / intervals + np.multiply(price, quadratic(drift, intervals))


def all_cuts(terms: Terms) -> IntArray:
    """Every cut vector that C4 and C5 allow: (K, M-1), in lexicographic order."""
    M, L = terms.index.shape[0], terms.index.shape[1] - 1
    cuts = np.zeros((1, 1), dtype=np.int64)
    for m in range(M - 1):
        prefix, cut = np.nonzero(terms.index[m, cuts[:, -1]] >= 0)
        cuts = np.column_stack((cuts[prefix], cut))
    complete: IntArray = cuts[terms.index[M - 1, cuts[:, -1], L] >= 0, 1:]
    return complete


def segments(terms: Terms, cuts: IntArray) -> IntArray:
    """The M segments of each cut vector: (K, M)."""
    M, L = terms.index.shape[0], terms.index.shape[1] - 1
    edges = np.column_stack((np.zeros(len(cuts), dtype=np.int64), cuts, np.full(len(cuts), L)))
    chosen: IntArray = terms.index[np.arange(M), edges[:, :-1], edges[:, 1:]]
    return chosen


def count_cuts(terms: Terms) -> float:
    """How many cut vectors there are, without listing them."""
    ways = (terms.index[0, 0] >= 0).astype(float)
    for allowed in terms.index[1:] >= 0:
        ways = ways @ allowed
    return float(ways[-1])


def _allowed_by_order(M: int, L: int, allow_empty_tiers: bool) -> npt.NDArray[np.bool_]:
    """C4: (M, L+1, L+1). Raw data never leave a device, so even with empty tiers the first keeps a layer."""
    first, last = np.arange(L + 1)[:, None], np.arange(L + 1)[None, :]
    step = 0 if allow_empty_tiers else 1
    allowed = np.repeat((last - first >= step)[None], M, axis=0)
    allowed[0] &= (first == 0) & (last >= 1)
    allowed[1:] &= first >= 1
    allowed[-1] &= last == L
    allowed[:-1] &= last <= L - step
    return allowed


def _stationary(aggregation_s: FloatArray, drift: FloatArray, price: float | FloatArray) -> FloatArray:
    """The positive root I of 2 price q_2 I^3 + price q_1 I^2 = T_{m,A}; capped at `NEVER`."""
    cubic, square = 2 * price * np.maximum(drift[0], 0.0), price * drift[1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        root = np.cbrt(aggregation_s / cubic)
        if square.any():
            # From above the root Newton's steps fall monotonically towards it: the cubic is convex there.
            start = np.where(square < 0, root - square / cubic, np.fmin(root, np.sqrt(aggregation_s / np.abs(square))))
            root = np.minimum(np.nan_to_num(start, nan=1.0, posinf=NEVER), NEVER)
            for _ in range(60):
                value = (cubic * root + square) * root * root - aggregation_s
                slope = (3 * cubic * root + 2 * square) * root
                before, root = root, np.minimum(root - np.where(slope > 0, value / slope, 0.0), NEVER)
                if not (np.abs(root - before) > 1e-9 * root).any():
                    break
    capped: FloatArray = np.minimum(np.nan_to_num(root, nan=1.0, posinf=NEVER), NEVER)
    return capped
