"""The exact joint solver: the cuts, intervals and codes that no others beat, with the proof.

Theta is a ratio (T_S + sum_m T_{m,A}/I_m) / D, up to the constant 2 theta0 / gamma. Dinkelbach turns it into a
sequence of problems with a price lambda on the margin D,

    F(lambda) = min_c { T_S(c) + lambda noise(c) + sum_m phi_m(c_{m-1}, c_m; lambda) } - lambda c0,
    phi_m     = min_I { T_{m,A}/I + lambda drift_m(I) },

where the intervals separate tier by tier; so do the codes of averages, which are part of the inner minimum, while those
of cuts are part of c. F(lambda) = 0 proves that the ratio lambda is the least possible. The paper alternates between
cuts and intervals instead (`bcd`), which can end above the optimum and proves nothing.

With random cohorts T_S is an expectation, which mean clients bound from below and attain (`planner.slowest`), and tiers
that a cohort may miss are averaged at least as often as the devices.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt

import numpy as np

from hsfl.errors import InfeasibleError
from hsfl.planner.memory import memory_shortfall
from hsfl.planner.options import Options, TierCuts
from hsfl.planner.search import Search, least_of
from hsfl.planner.slowest import MeanClients, slowest_clients
from hsfl.planner.terms import Best, Segments, Terms, best_intervals
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray
from hsfl.theory.convergence import quadratic
from hsfl.theory.latency import columns

#: Up to this many (cut vector, client) pairs are tabulated; beyond, branch and bound.
TABLE_LIMIT = 20_000_000
#: With cohorts a table is read for many ranges of intervals, so it counts as if for so many clients.
_COHORTS_AS_CLIENTS = 400
#: With cohorts every cut vector that is drawn is solved on its own.
_DRAWN_WITH_COHORTS = 2000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Solution:
    """A plan with the ratio it reaches and the ratio that none gets below, in seconds per unit of margin."""

    plan: Plan
    ratio: float
    lower_bound: float
    step: float | None = None
    """gamma, where it was chosen, too; ratio and bound are then those of the objective."""

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
    together, until its `deadline`; tables, which are fast, are not limited.
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
        system, self._cohorts = problem.system, None
        if system.sampled:
            self._cohorts = MeanClients(problem)
            slowness = self._cohorts.slowness
        else:
            slowness = columns(problem, system.slowness[:, slowest_clients(system.slowness)])
        self._options = Options.from_problem(problem, slowness, plan_codes=plan_codes)
        self.deadline = time.perf_counter() + time_limit_s
        self._active: list[int] = []
        if not self._segments.count:
            raise InfeasibleError(memory_shortfall(problem, allow_empty_tiers))
        self._table_limit = table_limit / (_COHORTS_AS_CLIENTS if system.sampled else slowness.shape[1])
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
        if intervals is None and self.problem.system.missable.any():
            return self._in_order(terms, cuts, noise)
        return self._solve(intervals, terms, cuts, noise)

    def _solve(
        self, intervals: Sequence[int] | None, terms: Terms, cuts: Sequence[int] | None, noise: float
    ) -> Solution:
        given = None if intervals is None else np.asarray(intervals, dtype=float)[self._segments.tier]
        only = None if cuts is None else np.array([cuts])
        start = terms.shortest if given is None and isinstance(terms.shortest, np.ndarray) else given
        first = terms.every_round if start is None else terms.best(np.inf, start)
        found = self._start(noise, first, terms.margin, only)
        price = found.ratio(terms.margin)
        if not np.isfinite(price):
            raise InfeasibleError(_OFF_TARGET if start is not None else _TOO_NOISY)
        while True:
            least = self._minimum(noise, terms.best(price, given), price, found.cuts, only)
            ratio = least.ratio(terms.margin)
            if not ratio < price * (1 - _ROUNDING):
                break
            found, price = least, ratio  # the bound belongs to the old price: once more, even out of time
        shortfall = price * terms.margin - least.lower_bound
        return Solution(self._plan(found), price, self._lower(price, shortfall, found.split_s, noise))

    def _in_order(self, terms: Terms, cuts: Sequence[int] | None, noise: float) -> Solution:
        """The best plan in which no tier that a cohort may miss is averaged less often than the devices.

        Branch and bound: some number of rounds is no more than the devices' interval and no less than the others', so
        each range of that number is a problem in which tiers are on their own again.
        """
        tier, missable = self._segments.tier, self.problem.system.missable
        free = self._solve(None, terms, cuts, noise)
        queue = [(free.lower_bound, 1, NEVER, free)]
        while True:
            bound, low, high, solution = heapq.heappop(queue)
            own = solution.plan.intervals[0]
            others = max(i for i, missed in zip(solution.plan.intervals, missable, strict=True) if missed)
            if others <= own:
                return replace(solution, lower_bound=bound)
            middle = min(max(own, isqrt(own * others)), others - 1)
            for a, b in ((low, middle), (middle + 1, high)):
                limits = np.where(tier == 0, float(a), 1.0), np.where(missable[tier], float(b), float(NEVER))
                try:
                    part = self._solve(None, terms.within(*limits), cuts, noise)
                except InfeasibleError:  # so long a stay of cohorts misses the target
                    continue
                heapq.heappush(queue, (max(bound, part.lower_bound), a, b, part))

    def landscape(self) -> tuple[IntArray, FloatArray]:
        """Every cut vector (K, M-1) and its ratio with the best intervals for it (K,), in the codes in force."""
        if not self.tabulated or (self._cohorts is not None and self._segments.count > _DRAWN_WITH_COHORTS):
            raise InfeasibleError("there are too many cut vectors to draw them all; use fewer tiers or layers")
        if self._cohorts is not None:
            solver, cuts = ExactSolver(self.problem, self._segments, plan_codes=False), self._segments.cuts
            return cuts, np.array([solver._ratio_at(one) for one in cuts])
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

    def _ratio_at(self, cuts: IntArray) -> float:
        try:
            return self.solve(cuts=cuts.tolist()).ratio
        except InfeasibleError:
            return float("inf")

    def _start(self, noise: float, best: Best, margin: float, cuts: IntArray | None) -> _Found:
        """A plan to start from that reaches the target if any does: with the least noise, at an infinite price."""
        options = self._options_at(noise)
        tiers = options.at(np.inf)
        if cuts is None and not self.tabulated:
            searches = (Search(p, options, tiers, np.inf, self._active) for p in self._segments.by_last_cut)
            paths = [self._of_options(options, tiers, search.path(best.cost), best, 0.0) for search in searches]
            return self._in_truth(min(paths, key=lambda path: path.noise + float(best.cost[path.parts].sum())))[0]
        table = self._table(options, tiers, cuts)
        tops = table.split_s + best.aggregation_s(table.parts).sum(axis=1)
        bottoms = margin - table.noise - best.cost[table.parts].sum(axis=1)
        return self._in_truth(_of_row(table, int(np.argmin(_ratios(tops, bottoms))), best, 0.0))[0]

    def _minimum(self, noise: float, best: Best, price: float, near: IntArray, cuts: IntArray | None) -> _Found:
        """What attains F(price): with cohorts, once no mean client that is not known yet decides it."""
        while True:
            found, known = self._in_truth(self._least(self._options_at(noise), best, price, near, cuts))
            if known or time.perf_counter() > self.deadline:
                return found

    def _in_truth(self, found: _Found) -> tuple[_Found, bool]:
        """With cohorts: the true T_S in the place of what the mean clients so far make of it; whether it was known."""
        if self._cohorts is None:
            return found, True
        demand = self._options.demand(found.tiers, found.cuts[None], found.options[None])[0]
        split_s, new = self._cohorts.split_s(demand)
        if new:
            self._options = replace(self._options, slowness=self._cohorts.slowness)
            self.__dict__.pop("_only", None)
        known = not new or split_s <= found.split_s * (1 + _ROUNDING / 10)
        return replace(found, split_s=split_s), known

    def _options_at(self, noise: float) -> Options:
        """The options at the problem's step, or at one at which the noise of codes is multiplied."""
        return self._options if noise == 1.0 else self._options.with_noise_times(noise)

    def _least(self, options: Options, best: Best, price: float, near: IntArray, cuts: IntArray | None) -> _Found:
        """The least by table or, from the cuts `near`, by search; or the best of given cuts."""
        tiers = options.at(price)
        if cuts is None and not self._fits_table(options, tiers):
            searches = (Search(p, options, tiers, price, self._active) for p in self._segments.by_last_cut)
            minimum = least_of([search.minimise(best.cost, near, self.deadline) for search in searches])
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

    def _lower(self, ratio: float, shortfall: float, split_s: float, noise: float) -> float:
        """A true lower bound of the ratio, from F(ratio) >= -shortfall and T_S >= least_top.

        Any plan has T/D >= ratio - shortfall/D and T/D >= least_top/D; the smaller D, the better the second, and where
        they meet T/D = ratio * least_top / (least_top + shortfall).
        """
        if shortfall <= _ROUNDING * split_s:
            return ratio
        options = self._options_at(noise)
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
