"""The exact joint solver: the cuts, intervals and codes that no others beat, with the proof.

Theta is a ratio (T_S + sum_m T_{m,A}/I_m) / D, up to the constant 2 theta0 / gamma. Dinkelbach turns it into a
sequence of problems with a price lambda on the margin D,

    F(lambda) = min_c { T_S(c) + lambda noise(c) + sum_m phi_m(c_{m-1}, c_m; lambda) } - lambda c0,
    phi_m     = min_I { T_{m,A}/I + lambda drift_m(I) },

where the intervals separate tier by tier; so do the codes of averages, which are part of the inner minimum, while those
of cuts are part of c. F(lambda) = 0 proves that the ratio lambda is the least possible. The paper alternates between
cuts and intervals instead (`bcd`), which can end above the optimum and proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsfl.errors import InfeasibleError
from hsfl.planner.options import Options, TierCuts
from hsfl.planner.search import Search
from hsfl.planner.slowest import slowest_clients
from hsfl.planner.terms import Best, Segments, Terms, best_intervals
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray
from hsfl.problem.units import format_bits
from hsfl.theory.convergence import quadratic

#: Up to this many (cut vector, client) pairs are tabulated; beyond, branch and bound.
TABLE_LIMIT = 20_000_000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Solution:
    """A plan with the ratio it reaches and the ratio that none gets below, in seconds per unit of margin."""

    plan: Plan
    ratio: float
    lower_bound: float

    @property
    def proven(self) -> bool:
        return self.lower_bound >= self.ratio * (1 - _ROUNDING)


@dataclass(frozen=True, eq=False)
class _Table:
    """Cut vectors in the options that a price leaves. Axis K."""

    tiers: list[TierCuts]
    options: IntArray
    """(K, M-1)"""
    cuts: IntArray
    parts: IntArray
    """(K, M): their segments."""
    split_s: FloatArray
    noise: FloatArray


@dataclass(frozen=True, eq=False)
class _Found:
    """A plan on the way, and what no plan gets below at the price it was found at."""

    tiers: list[TierCuts]
    cuts: IntArray
    options: IntArray
    """(M-1,): of the tiers."""
    parts: IntArray
    split_s: float
    noise: float
    best: Best
    lower_bound: float

    def ratio(self, margin: float) -> float:
        """T / D; infinite where nothing of the margin is left."""
        averages_s, drift = self.best.totals(self.parts)
        bottom = margin - self.noise - drift
        return (self.split_s + averages_s) / bottom if bottom > 0 else float("inf")


class ExactSolver:
    """Solves one problem, as often as needed: for all intervals or given ones, for given cuts, at other steps.

    `plan_codes`: codes are chosen too where the machines allow several. `time_limit_s` is for all its searches
    together; tables, which are fast, are not limited.
    """

    def __init__(
        self,
        problem: Problem,
        segments: Segments | None = None,
        *,
        allow_empty_tiers: bool = False,
        plan_codes: bool = True,
        time_limit_s: float = 60.0,
        table_limit: int = TABLE_LIMIT,
    ) -> None:
        self.problem = problem
        self.terms = Terms.from_problem(problem, segments, allow_empty_tiers=allow_empty_tiers, plan_codes=plan_codes)
        self._segments, self._plan_codes = self.terms.segments, plan_codes and problem.system.plans_codes
        slowness = problem.system.slowness[:, slowest_clients(problem.system.slowness)]
        self._options = Options.from_problem(problem, slowness, plan_codes=plan_codes)
        self._deadline = time.perf_counter() + time_limit_s
        self._active: list[int] = []
        if not self._segments.count:
            raise InfeasibleError(memory_shortfall(problem, allow_empty_tiers))
        self._table_limit = table_limit / slowness.shape[1]
        self.tabulated = bool(self._segments.count <= self._table_limit)

    def solve(
        self,
        intervals: Sequence[int] | None = None,
        terms: Terms | None = None,
        *,
        cuts: Sequence[int] | None = None,
        noise: float = 1.0,
    ) -> Solution:
        """The best plan, or the best one with given intervals or cuts.

        `terms` may be the problem's own, rescaled, and `noise` what multiplies that of codes then. Raises
        `InfeasibleError` when what is given keeps every plan from the target.
        """
        terms = terms or self.terms
        options = self._options if noise == 1.0 else self._options.with_noise_times(noise)
        given = None if intervals is None else np.asarray(intervals, dtype=float)[self._segments.tier]
        only = None if cuts is None else np.array([cuts])
        first = terms.every_round if given is None else terms.best(np.inf, given)
        found = self._start(options, first, terms.margin, only)
        price = found.ratio(terms.margin)
        if not np.isfinite(price):
            raise InfeasibleError(_OFF_TARGET if given is not None else _TOO_NOISY)
        while True:
            least = self._minimum(options, terms.best(price, given), price, found.cuts, only)
            ratio = least.ratio(terms.margin)
            if not ratio < price * (1 - _ROUNDING):
                break
            found, price = least, ratio  # the bound belongs to the old price: once more, even out of time
        shortfall = price * terms.margin - least.lower_bound
        return Solution(self._plan(found), price, self._lower(price, shortfall, found.split_s, options))

    def best_intervals(self, cuts: Sequence[int]) -> tuple[int, ...]:
        """The best intervals for given cuts (P1, exactly)."""
        return self.solve(cuts=cuts).plan.intervals

    def landscape(self) -> tuple[IntArray, FloatArray]:
        """Every cut vector (K, M-1) and its ratio with the best intervals for it (K,), in the codes in force."""
        if not self.tabulated:
            raise InfeasibleError("there are too many cut vectors to draw them all; use fewer tiers or layers")
        terms = Terms.from_problem(self.problem, self._segments, plan_codes=False)
        options = Options.from_problem(self.problem, self._options.slowness, plan_codes=False)
        table = _listed(self._segments, options, options.at(0.0), self._segments.cuts)
        margin, parts = terms.margin - table.noise, table.parts
        aggregation, drift, at_one = terms.aggregation_s[0, parts], terms.drift[:, 0, parts], terms.at_one[0, parts]

        def ratios(intervals: FloatArray) -> FloatArray:
            top = table.split_s + (aggregation / intervals).sum(axis=1)
            return _ratios(top, margin - quadratic(drift, intervals, at_one).sum(axis=1))

        ratio = ratios(np.ones(parts.shape))
        while True:
            price = np.where(np.isfinite(ratio), ratio, 1.0)[:, None]
            better = np.minimum(ratio, ratios(best_intervals(aggregation, drift, price, at_one)[0]))
            if not (better < ratio * (1 - _ROUNDING)).any():
                return table.cuts, better
            ratio = better

    def _start(self, options: Options, best: Best, margin: float, cuts: IntArray | None) -> _Found:
        """A plan to start from that reaches the target if any does: with the least noise, at an infinite price."""
        tiers = options.at(np.inf)
        if cuts is None and not self.tabulated:
            search = Search(self._segments, options, tiers, np.inf, self._active)
            return self._of_options(options, tiers, search.path(best.cost), best, 0.0)
        table = self._table(options, tiers, cuts)
        tops = table.split_s + best.aggregation_s(table.parts).sum(axis=1)
        bottoms = margin - table.noise - best.cost[table.parts].sum(axis=1)
        return _of_row(table, int(np.argmin(_ratios(tops, bottoms))), best, 0.0)

    def _minimum(self, options: Options, best: Best, price: float, near: IntArray, cuts: IntArray | None) -> _Found:
        """What attains F(price), by table or, from the cuts `near`, by search; or the best of given cuts."""
        tiers = options.at(price)
        if cuts is None and not self._fits_table(options, tiers):
            search = Search(self._segments, options, tiers, price, self._active)
            minimum = search.minimise(best.cost, near, self._deadline)
            return self._of_options(options, tiers, minimum.options, best, minimum.lower_bound)
        table = self._table(options, tiers, cuts)
        values = table.split_s + price * table.noise + best.cost[table.parts].sum(axis=1)
        k = int(np.argmin(values))
        return _of_row(table, k, best, float(values[k]))

    def _fits_table(self, options: Options, tiers: list[TierCuts]) -> bool:
        if not options.several:
            return self.tabulated
        return bool(self._segments.count_with([tier.count for tier in tiers]) <= self._table_limit)

    def _table(self, options: Options, tiers: list[TierCuts], cuts: IntArray | None) -> _Table:
        """The given cuts (K, M-1), or all cut vectors, in all options of the tiers."""
        if cuts is None and not options.several and options is self._options:
            return self._only
        return _listed(self._segments, options, tiers, self._segments.cuts if cuts is None else cuts)

    @cached_property
    def _only(self) -> _Table:
        """All cut vectors, where there is nothing to choose besides: whatever the price."""
        cuts, tiers = self._segments.cuts, self._options.at(0.0)
        noise = sum(tier.noise[cuts[:, m] - 1] for m, tier in enumerate(tiers))
        split_s = self._options.split_s(tiers, cuts, cuts - 1)
        return _Table(tiers, cuts - 1, cuts, self._segments.parts, split_s, np.asarray(noise))

    def _of_options(
        self, options: Options, tiers: list[TierCuts], chosen: IntArray, best: Best, lower_bound: float
    ) -> _Found:
        cuts = np.array([tier.layer[o] for tier, o in zip(tiers, chosen, strict=True)])
        split_s = float(options.split_s(tiers, cuts[None], chosen[None])[0])
        noise = sum(float(tier.noise[o]) for tier, o in zip(tiers, chosen, strict=True))
        return _Found(tiers, cuts, chosen, self._segments.at(cuts), split_s, noise, best, lower_bound)

    def _plan(self, found: _Found) -> Plan:
        intervals = tuple(int(i) for i in found.best.intervals[found.parts])
        cuts = tuple(int(c) for c in found.cuts)
        if not self._plan_codes:
            return Plan(cuts, intervals)
        codes, averages = [], found.best.averages(found.parts)
        for m, tier in enumerate(self.problem.system.tiers):
            places = {"average": int(averages[m])}
            if m < len(cuts):
                places |= zip(("up", "down"), map(int, found.tiers[m].codes[:, found.options[m]]), strict=True)
            codes.append(tier.codes.using({link: tier.codes.allowed(link)[k] for link, k in places.items()}))
        return Plan(cuts, intervals, tuple(codes))

    def _lower(self, ratio: float, shortfall: float, split_s: float, options: Options) -> float:
        """A true lower bound of the ratio, from F(ratio) >= -shortfall and T_S >= least_top.

        Any plan has T/D >= ratio - shortfall/D and T/D >= least_top/D; the smaller D, the better the second, and where
        they meet T/D = ratio * least_top / (least_top + shortfall).
        """
        if shortfall <= _ROUNDING * split_s:
            return ratio
        tiers = options.at(0.0)
        least_top = Search(self._segments, options, tiers, 0.0, self._active).least_split_latency()
        return ratio * least_top / (least_top + shortfall)


def _listed(segments: Segments, options: Options, tiers: list[TierCuts], cuts: IntArray) -> _Table:
    row, chosen = options.rows(tiers, cuts)
    cuts = cuts[row]
    noise = sum(tier.noise[chosen[:, m]] for m, tier in enumerate(tiers))
    return _Table(tiers, chosen, cuts, segments.at(cuts), options.split_s(tiers, cuts, chosen), np.asarray(noise))


def _of_row(table: _Table, k: int, best: Best, lower_bound: float) -> _Found:
    split_s, noise = float(table.split_s[k]), float(table.noise[k])
    return _Found(table.tiers, table.cuts[k], table.options[k], table.parts[k], split_s, noise, best, lower_bound)


_OFF_TARGET = "with these intervals no cut vector reaches the target: shorten the intervals or raise convergence.target"
_TOO_NOISY = (
    "the codes that the links may use add so much noise that no plan reaches the target: allow codes of more bits, or "
    "raise convergence.target"
)


def _ratios(tops: FloatArray, bottoms: FloatArray) -> FloatArray:
    """tops / bottoms, infinite where nothing of the margin is left."""
    return np.where(bottoms > 0, tops / np.where(bottoms > 0, bottoms, 1.0), np.inf)


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
