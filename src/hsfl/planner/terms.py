"""What a tier costs, as a function of nothing but its first and last layer; and the best interval for a given price.

For Dinkelbach's price lambda of a unit of margin, every tier on its own minimises T_{m,A}/I + lambda * drift_m(I).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from hsfl.problem.plan import NEVER
from hsfl.problem.problem import Problem, cumulative
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray, edges
from hsfl.theory.coding import unsent
from hsfl.theory.convergence import drift_sums, noise_floor, quadratic, staying_cohort

BoolArray = npt.NDArray[np.bool_]

#: In the place of no drift: nothing is divided by 0, and the root is beyond any interval.
_TINY = 1e-250


@dataclass(frozen=True, eq=False)
class Segments:
    """Which runs of layers each tier may hold (C4, C5), numbered. A plan is M of them, each where the last one ends.

    Where labels stay on the devices, `together` says which first cuts go with which last ones: a device has room for
    the layers before and after. Axis S: segments, by tier.
    """

    index: IntArray
    """(M, L+1, L+1): the number of the segment of tier m from cut a to cut b, or -1 where there is none."""
    tier: IntArray
    first: IntArray
    last: IntArray
    together: BoolArray | None = None
    """(L+1, L+1): by the first cut and the last one; None: all go together."""

    @cached_property
    def by_last_cut(self) -> list[Segments]:
        """These segments, numbered as they are, in parts in which all go together: one for every last cut."""
        if self.together is None:
            return [self]
        found = []
        for last in np.flatnonzero(self.together.any(axis=0)):
            index = self.index.copy()
            index[-1, np.arange(len(index[-1])) != last] = -1
            index[0, 0, ~self.together[:, last]] = -1
            part = replace(self, index=index, together=None)
            if part.count:
                found.append(part)
        return found

    @cached_property
    def count(self) -> float:
        """How many cut vectors there are, without listing them."""
        return self.count_with([np.ones(self.index.shape[1])] * (len(self.index) - 1))

    def count_with(self, options: Sequence[npt.NDArray[np.generic]]) -> float:
        """The same where cut m may be made in options[m][l] ways (L+1,) after layer l."""
        if self.together is not None:
            return sum(part.count_with(options) for part in self.by_last_cut)
        ways = (self.index[0, 0] >= 0).astype(float)
        for allowed, each in zip(self.index[1:] >= 0, options, strict=True):
            ways = (ways * each) @ allowed
        return float(ways[-1])

    @cached_property
    def cuts(self) -> IntArray:
        """Every cut vector: (K, M-1), in lexicographic order."""
        M, L = self.index.shape[0], self.index.shape[1] - 1
        cuts = np.zeros((1, 1), dtype=np.int64)
        for m in range(M - 1):
            prefix, cut = np.nonzero(self.index[m, cuts[:, -1]] >= 0)
            cuts = np.column_stack((cuts[prefix], cut))
        complete: IntArray = cuts[self.index[M - 1, cuts[:, -1], L] >= 0, 1:]
        return complete if self.together is None else complete[self.together[complete[:, 0], complete[:, -1]]]

    @cached_property
    def parts(self) -> IntArray:
        """The segments of every cut vector: (K, M)."""
        return self.at(self.cuts)

    def at(self, cuts: IntArray) -> IntArray:
        """The M segments of each of some cut vectors: (..., M)."""
        M, L = self.index.shape[0], self.index.shape[1] - 1
        at = edges(cuts, L)
        chosen: IntArray = self.index[np.arange(M), at[..., :-1], at[..., 1:]]
        return chosen

    def keep(self, allowed: BoolArray) -> Segments:
        """Only those that a mask (M, L+1, L+1) allows."""
        found = _numbered(allowed & (self.index >= 0))
        return found if self.together is None else replace(found, together=self.together)


@dataclass(frozen=True, eq=False)
class Terms:
    """What every segment costs."""

    segments: Segments
    averages: IntArray
    """(W, S): the allowed codes of averages, by their place among those of the segment's tier; some twice."""
    aggregation_s: FloatArray
    """(W, S): T_{m,A}."""
    drift: FloatArray
    """(3, W, S): coefficients of I^2, I and 1."""
    at_one: FloatArray
    """(W, S): in the place of drift where I = 1: what averages leave unsent."""
    margin: float
    """c0 = epsilon - noise floor."""
    by_step: FloatArray
    """(3, S): the part of the drift that grows with the step, not with its square: that of a cohort that stays."""
    shortest: FloatArray | float = 1.0
    """(S,): no interval is shorter,"""
    longest: FloatArray | float = float(NEVER)
    """(S,): and none is longer."""

    @classmethod
    def from_problem(
        cls,
        problem: Problem,
        segments: Segments | None = None,
        *,
        allow_empty_tiers: bool = False,
        plan_codes: bool = True,
    ) -> Terms:
        """The terms of the given segments, or of all that order (C4) and memory (C5) allow.

        `plan_codes`: with all codes that averages may have; else only those in force.
        """
        system = problem.system
        if segments is None:
            segments = in_order(system.num_tiers, problem.num_layers, allow_empty_tiers, system.returns)
            limit = system.memory_per_client_bits
            if np.isfinite(limit).any():
                size = problem.client_memory_bits
                segments = segments.keep(size[:, None, :] - size[:, :, None] < limit[:, None, None])
            if system.returns and np.isfinite(limit[0]):
                tail = size[-1, -1] - size[-1]
                segments = replace(segments, together=size[0][:, None] + tail < limit[0])
        tier, first, last = segments.tier, segments.first, segments.last
        margin = problem.constants.target - noise_floor(problem)

        def of_segments(sums: FloatArray) -> FloatArray:
            found: FloatArray = sums[..., tier, last] - sums[..., tier, first]
            return found

        drift = of_segments(drift_sums(problem))[:, None]
        by_step = np.zeros((3, len(tier)))
        if system.sampled:
            by_step, by_square = (np.where(tier == 0, part[:, None], 0.0) for part in staying_cohort(problem))
            drift = drift + (by_step + by_square)[:, None]
        if not (plan_codes and system.plans_codes) and problem.constants.coding_noise is None:
            aggregation_s = of_segments(problem.averaged_bits)[None] * system.fed_seconds_per_bit[tier]
            none = np.zeros_like(aggregation_s)
            return cls(segments, none.astype(int), aggregation_s, drift, none, margin, by_step)
        codes = [t.codes.allowed("average") if plan_codes else (t.codes.average,) for t in system.tiers]
        width = max(map(len, codes))
        chosen = np.array([[min(w, len(own) - 1) for own in codes] for w in range(width)])
        each = [[own[w] for own, w in zip(codes, row, strict=True)] for row in chosen]
        bits = {code: problem.averaged_bits_in(code) for own in codes for code in own}
        sent = of_segments(np.array([[bits[code] for code in row] for row in each]))
        drift = np.repeat(drift, width, axis=1)
        at_one = np.zeros_like(sent)
        if problem.constants.coding_noise is not None:
            noise = np.array([[code.average_noise for code in row] for row in each])[:, tier]
            left = of_segments(cumulative(unsent(problem)))[:, None] * noise
            drift[:2] += left
            at_one = left.sum(axis=0)
        return cls(
            segments,
            chosen[:, tier],
            sent * system.fed_seconds_per_bit[tier],
            drift,
            at_one,
            margin,
            by_step,
        )

    def rescaled(self, drift: float, noise: float, margin: float) -> Terms:
        """The same terms as at another step: what grows with its square multiplied, and what grows with it."""
        by_step = noise * self.by_step
        grown = drift * (self.drift - self.by_step[:, None]) + by_step[:, None]
        return replace(self, drift=grown, at_one=drift * self.at_one, margin=margin, by_step=by_step)

    def within(self, shortest: FloatArray | float, longest: FloatArray | float) -> Terms:
        """The same terms for intervals within limits, (S,) or one for all."""
        return replace(self, shortest=shortest, longest=longest)

    @cached_property
    def every_round(self) -> Best:
        """All intervals 1, in the codes that leave the least unsent."""
        left, once = self.at_one, np.ones(self.at_one.shape[1])
        return Best(self, left.argmin(axis=0) if len(left) > 1 else 0, once, left.min(axis=0))

    def best(self, price: float, given: FloatArray | None = None) -> Best:
        """The best interval of every segment, or the given one (S,), in the best code."""
        if given is None:
            limits = self.shortest, self.longest
            intervals, cost = best_intervals(self.aggregation_s, self.drift, price, self.at_one, *limits)
        else:
            intervals = np.broadcast_to(given, self.aggregation_s.shape)
            drifted = quadratic(self.drift, intervals, self.at_one)
            cost = drifted if np.isinf(price) else self.aggregation_s / intervals + price * drifted
        if len(cost) == 1:
            return Best(self, 0, intervals[0], cost[0])
        code = cost.argmin(axis=0)
        at = code, np.arange(cost.shape[1])
        return Best(self, code, intervals[at], cost[at])


@dataclass(frozen=True, eq=False)
class Best:
    """What every segment does at a price."""

    terms: Terms
    code: IntArray | int
    """(S,): of averages, among the first axis of the terms; or one for all."""
    intervals: FloatArray
    """(S,)"""
    cost: FloatArray
    """(S,): averages and price * drift; at an infinite price the drift."""

    def averages(self, parts: IntArray) -> IntArray:
        """The codes of averages of some segments: the place among those that the segment's tier allows."""
        found: IntArray = self.terms.averages[self._at(parts)]
        return found

    def aggregation_s(self, parts: IntArray) -> FloatArray:
        """Per round, of some segments."""
        found: FloatArray = self.terms.aggregation_s[self._at(parts)] / self.intervals[parts]
        return found

    def drift(self, parts: IntArray) -> FloatArray:
        """The drift of some segments at their intervals."""
        at = self._at(parts)
        return quadratic(self.terms.drift[:, *at], self.intervals[parts], self.terms.at_one[at])

    def totals(self, parts: IntArray) -> tuple[float, float]:
        """What the segments of one plan take in a round, and their drift."""
        seconds = drift = 0.0
        for s, interval in zip(parts.tolist(), self.intervals[parts].tolist(), strict=True):
            w = self.code if isinstance(self.code, int) else int(self.code[s])
            seconds += float(self.terms.aggregation_s[w, s]) / interval
            q2, q1, q0 = self.terms.drift[:, w, s].tolist()
            drift += (q2 * interval + q1) * interval + q0 if interval > 1 else float(self.terms.at_one[w, s])
        return seconds, drift

    def _at(self, parts: IntArray) -> tuple[IntArray | int, IntArray]:
        return (self.code if isinstance(self.code, int) else self.code[parts]), parts


def best_intervals(
    aggregation_s: FloatArray,
    drift: FloatArray,
    price: float | FloatArray,
    at_one: FloatArray | float = 0.0,
    shortest: FloatArray | float = 1.0,
    longest: FloatArray | float = float(NEVER),
) -> tuple[FloatArray, FloatArray]:
    """The whole numbers I that minimise T_{m,A}/I + price * drift(I), each on its own, and the minima.

    `drift` is (3, ...), and `at_one` stands for it where I = 1. Without that jump the cost is convex, so the minimum
    is at 1 or at a whole number next to the only positive root of its derivative, 2 price q_2 I^3 + price q_1 I^2 =
    T_{m,A}; or, where that is not within the limits, at the nearer of them.
    """
    q2, q1, q0 = price * drift
    around = np.empty((2, *aggregation_s.shape))
    np.floor(_stationary(aggregation_s, q2, q1), out=around[0])
    np.minimum(np.maximum(around[0], 2.0, out=around[0]), NEVER - 1.0, out=around[0])
    np.add(around[0], 1.0, out=around[1])
    limited = isinstance(shortest, np.ndarray) or isinstance(longest, np.ndarray)
    if limited:
        np.clip(around, np.maximum(shortest, 2.0), np.maximum(longest, 2.0), out=around)
    below, above = aggregation_s / around + ((q2 * around + q1) * around + q0)
    every_round = aggregation_s + price * at_one
    intervals, cost = np.where(above < below, around[1], around[0]), np.minimum(below, above)
    longer = cost < every_round
    if limited:
        longer = (longer | (np.asarray(shortest) > 1)) & (np.asarray(longest) > 1)
    return np.where(longer, intervals, 1.0), np.where(longer, cost, every_round)


@lru_cache(maxsize=16)
def in_order(M: int, L: int, allow_empty_tiers: bool, returns: bool = False) -> Segments:
    """All that C4 allows. Raw data never leave a device, so even with empty tiers the first keeps a layer.

    Nor do labels, where they stay (`returns`): then so does the last.
    """
    first, last = np.arange(L + 1)[:, None], np.arange(L + 1)[None, :]
    step = 0 if allow_empty_tiers else 1
    allowed = np.repeat((last - first >= step)[None], M, axis=0)
    allowed[0] &= (first == 0) & (last >= 1)
    allowed[1:] &= first >= 1
    allowed[-1] &= last == L
    allowed[:-1] &= last <= L - (1 if returns else step)
    allowed[-1] &= first <= L - (1 if returns else step)
    return _numbered(allowed)


def _numbered(allowed: BoolArray) -> Segments:
    return numbered(allowed.shape, np.packbits(allowed).tobytes())


@lru_cache(maxsize=16)
def numbered(shape: tuple[int, ...], packed: bytes) -> Segments:
    """Planning runs again and again over the same segments, at other rates: their numbering is kept."""
    allowed = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=int(np.prod(shape))).reshape(shape)
    tier, first, last = np.nonzero(allowed)
    index = np.full(shape, -1)
    index[tier, first, last] = np.arange(len(tier))
    return Segments(index, tier, first, last)


def _stationary(aggregation_s: FloatArray, q2: FloatArray, q1: FloatArray) -> FloatArray:
    """The positive root I of 2 q_2 I^3 + q_1 I^2 = T_{m,A}; capped at `NEVER`."""
    cubic = 2 * np.maximum(q2, _TINY)
    root = np.cbrt(aggregation_s / cubic)
    if q1.any():
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # From above the root Newton's steps fall monotonically towards it: the cubic is convex there.
            start = np.where(q1 < 0, root - q1 / cubic, np.fmin(root, np.sqrt(aggregation_s / np.abs(q1))))
            root = np.fmin(start, NEVER)
            for _ in range(60):
                value = (cubic * root + q1) * root * root - aggregation_s
                slope = (3 * cubic * root + 2 * q1) * root
                before, root = root, np.fmin(root - np.where(slope > 0, value / slope, 0.0), NEVER)
                if not (np.abs(root - before) > 1e-9 * root).any():
                    break
    capped: FloatArray = np.fmin(root, NEVER)
    return capped
