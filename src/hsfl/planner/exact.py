"""The exact joint solver: the cuts and intervals that no others beat, with the proof.

Theta is a ratio (T_S + sum_m T_{m,A}/I_m) / D, up to the constant 2 theta0 / gamma. Dinkelbach turns it into a
sequence of problems with a price lambda on the margin D,

    F(lambda) = min_c { T_S(c) + sum_m phi_m(c_{m-1}, c_m; lambda) } - lambda c0,
    phi_m     = min_I { T_{m,A}/I + lambda drift_m(I) },

where the intervals separate tier by tier. F(lambda) = 0 proves that the ratio lambda is the least possible. The paper
alternates between cuts and intervals instead (`bcd`), which can end above the optimum and proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsfl.errors import InfeasibleError
from hsfl.planner.search import Search
from hsfl.planner.slowest import slowest_clients
from hsfl.planner.terms import Segments, Terms, best_intervals
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray
from hsfl.problem.units import format_bits
from hsfl.theory.convergence import quadratic
from hsfl.theory.latency import split_latency

#: Up to this many (cut vector, client) pairs are tabulated; beyond, branch and bound.
TABLE_LIMIT = 20_000_000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Solution:
    """A plan with the ratio it reaches and the ratio that none gets below, in seconds per unit of margin."""

    plan: Plan
    ratio: float
    lower_bound: float


class ExactSolver:
    """Solves one problem, as often as needed: for all intervals or given ones, at other steps.

    `time_limit_s` is for all its searches together; tables, which are fast, are not limited.
    """

    def __init__(
        self,
        problem: Problem,
        segments: Segments | None = None,
        *,
        allow_empty_tiers: bool = False,
        time_limit_s: float = 60.0,
        table_limit: int = TABLE_LIMIT,
    ) -> None:
        self.problem = problem
        self.terms = Terms.from_problem(problem, segments, allow_empty_tiers=allow_empty_tiers)
        self._segments = self.terms.segments
        self._slowness = problem.system.slowness[:, slowest_clients(problem.system.slowness)]
        self._deadline = time.perf_counter() + time_limit_s
        if not self._segments.count:
            raise InfeasibleError(memory_shortfall(problem, allow_empty_tiers))
        self.tabulated = self._segments.count * self._slowness.shape[1] <= table_limit

    def solve(self, intervals: Sequence[int] | None = None, terms: Terms | None = None) -> Solution:
        """The best plan, or the best cuts for given intervals; `terms` may be the problem's own, rescaled.

        Raises `InfeasibleError` when the given intervals keep every cut vector from the target.
        """
        terms = terms or self.terms
        if not self.tabulated:
            return self._solve_by_search(terms, intervals)
        segments = self._segments
        if intervals is None:
            return _solve_table(terms, segments.cuts, segments.parts, self._split_s)
        chosen = np.asarray(intervals, dtype=float)
        tops = self._split_s + (terms.aggregation_s[segments.parts] / chosen).sum(axis=1)
        bottoms = terms.margin - quadratic(terms.drift[:, segments.parts], chosen).sum(axis=1)
        k = int(np.argmin(_ratios(tops, bottoms)))
        if not bottoms[k] > 0:
            raise InfeasibleError(_OFF_TARGET)
        return _solution(segments.cuts[k], chosen, float(tops[k] / bottoms[k]), 0.0, float(self._split_s.min()))

    def best_intervals(self, cuts: Sequence[int]) -> tuple[int, ...]:
        """The best intervals for given cuts (P1, exactly)."""
        row = np.array([cuts])
        split = split_latency(self.problem, row, self._slowness)
        return _solve_table(self.terms, row, self._segments.at(row), split).plan.intervals

    def landscape(self) -> tuple[IntArray, FloatArray]:
        """Every cut vector (K, M-1) and its ratio with the best intervals for it (K,)."""
        if not self.tabulated:
            raise InfeasibleError("there are too many cut vectors to draw them all; use fewer tiers or layers")
        parts, split, margin = self._segments.parts, self._split_s, self.terms.margin
        aggregation, drift = self.terms.aggregation_s[parts], self.terms.drift[:, parts]
        ratio = (split + aggregation.sum(axis=1)) / margin
        while True:
            intervals, _ = best_intervals(aggregation, drift, ratio[:, None])
            top = split + (aggregation / intervals).sum(axis=1)
            better = np.minimum(ratio, _ratios(top, margin - quadratic(drift, intervals).sum(axis=1)))
            if not (better < ratio * (1 - _ROUNDING)).any():
                return self._segments.cuts, better
            ratio = better

    @cached_property
    def _split_s(self) -> FloatArray:
        """T_S of every cut vector: (K,)."""
        return split_latency(self.problem, self._segments.cuts, self._slowness)

    def _solve_by_search(self, terms: Terms, given: Sequence[int] | None) -> Solution:
        search = Search(self.problem, terms, self._slowness)
        fixed = None if given is None else np.asarray(given, dtype=float)[self._segments.tier]

        def intervals_at(price: float) -> FloatArray:
            return terms.best_intervals(price)[0] if fixed is None else fixed

        def ratio_at(cuts: IntArray, intervals: FloatArray) -> float:
            split_s = float(search.latencies(cuts[None]).max())
            return _ratio(terms, self._segments.at(cuts), intervals, split_s)

        # The cut vector with the least drift for the intervals to start from: if it misses the target, all do.
        intervals = np.ones(len(terms.aggregation_s)) if fixed is None else fixed
        cuts = search.path(quadratic(terms.drift, intervals))
        price = ratio_at(cuts, intervals)
        if not np.isfinite(price):
            raise InfeasibleError(_OFF_TARGET)
        while True:
            intervals = intervals_at(price)
            minimum = search.minimise(terms.cost(intervals, price), cuts, self._deadline)
            ratio = ratio_at(minimum.cuts, intervals)
            if not ratio < price * (1 - _ROUNDING):
                break
            cuts, price = minimum.cuts, ratio  # the bound belongs to the old price: once more, even out of time
        value = minimum.lower_bound - price * terms.margin
        return _solution(cuts, intervals[self._segments.at(cuts)], price, value, search.least_split_latency())


def _solve_table(terms: Terms, cuts: IntArray, parts: IntArray, split: FloatArray) -> Solution:
    """Dinkelbach over a table of cut vectors (K, M-1), their segments (K, M) and T_S (K,), from all intervals 1."""
    tops = split + terms.aggregation_s[parts].sum(axis=1)
    k = int(np.argmin(tops))
    price, intervals = float(tops[k]) / terms.margin, np.ones(parts.shape[1])
    while True:
        chosen, cost = terms.best_intervals(price)
        values = split + cost[parts].sum(axis=1)
        best = int(np.argmin(values))
        ratio = _ratio(terms, parts[best], chosen, float(split[best]))
        if not ratio < price * (1 - _ROUNDING):
            return _solution(cuts[k], intervals, price, float(values[best]) - price * terms.margin, float(split.min()))
        k, price, intervals = best, ratio, chosen[parts[best]]


_OFF_TARGET = "with these intervals no cut vector reaches the target: shorten the intervals or raise convergence.target"


def _ratios(tops: FloatArray, bottoms: FloatArray) -> FloatArray:
    """tops / bottoms, infinite where nothing of the margin is left."""
    return np.where(bottoms > 0, tops / np.where(bottoms > 0, bottoms, 1.0), np.inf)


def _ratio(terms: Terms, parts: IntArray, intervals: FloatArray, split_s: float) -> float:
    chosen = intervals[parts]
    bottom = terms.margin - float(quadratic(terms.drift[:, parts], chosen).sum())
    return float(split_s + (terms.aggregation_s[parts] / chosen).sum()) / bottom if bottom > 0 else np.inf


def _solution(cuts: IntArray, intervals: FloatArray, ratio: float, value: float, least_top: float) -> Solution:
    """The plan and a true lower bound of the ratio, from F(ratio) >= value and T_S >= least_top.

    Any plan has T/D >= ratio + value/D and T/D >= least_top/D; the smaller D, the better the second, and where they
    meet T/D = ratio * least_top / (least_top - value).
    """
    shortfall = max(0.0, -value)
    if shortfall <= _ROUNDING * least_top:
        shortfall = 0.0
    lower = ratio if not shortfall else ratio * least_top / (least_top + shortfall)
    plan = Plan(tuple(int(c) for c in cuts), tuple(int(i) for i in intervals))
    return Solution(plan, ratio, lower)


def memory_shortfall(problem: Problem, allow_empty_tiers: bool) -> str:
    """Name the tier that is short of memory, and by how much, for the cut vector that comes closest to fitting."""
    system, M = problem.system, problem.system.num_tiers
    unlimited = Terms.from_problem(
        replace(problem, system=system.without_memory_limits()), allow_empty_tiers=allow_empty_tiers
    )
    size = problem.client_memory_bits
    hosted = np.array([c[j] for c, j in zip(system.clients_per_entity, system.tightest_entity, strict=True)])
    excess = hosted[:, None, None] * (
        size[:, None, :] - size[:, :, None] - system.memory_per_client_bits[:, None, None]
    )
    excess = np.where(unlimited.segments.index >= 0, excess, np.inf)
    # A shortest path with the largest excess as its length: least[m][b] is the best for tiers up to m ending at cut b.
    least, back = [excess[0, 0]], []
    for m in range(1, M):
        through = np.maximum(least[-1][:, None], excess[m])
        back.append(np.argmin(through, axis=0))
        least.append(through.min(axis=0))
    edges = [problem.num_layers]
    for step in reversed(back):
        edges.append(int(step[edges[-1]]))
    edges = [0, *reversed(edges)]
    worst = [excess[m, edges[m], edges[m + 1]] for m in range(M)]
    m = int(np.argmax(worst))
    entity = system.tightest_entity[m]
    has = system.tiers[m].memory_bits[entity]
    cuts = ", ".join(map(str, edges[1:-1]))
    return (
        f"no cut vector fits the memories: the closest, cuts ({cuts}), needs {format_bits(has + worst[m])} on entity "
        f"{entity + 1} of tier {m + 1} ({system.tiers[m].name}), which has {format_bits(has)}, so it is short of "
        f"{format_bits(max(worst[m], 0.0))}; give tiers.{system.tiers[m].name}.memory more, or a smaller batch_size"
    )
