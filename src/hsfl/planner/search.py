"""Branch and bound over cut vectors, for problems with too many of them to tabulate.

For a price lambda it minimises T_S(c) + sum_m phi_m(c_{m-1}, c_m) exactly. Bounds rest on two facts: the slowest of
all clients is at least any weighted mean of them, and for a fixed weighting the rest of a cut vector is a shortest
path over tiers, solved by dynamic programming. Branching runs on whole blocks of cut vectors at once.
A cut is one of its tier's options, a layer with the codes over it, which cost lambda times their noise.
Axes: W weightings, P clients that can be the slowest, K cut vectors, m cuts from 0, O options of a tier.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsfl.planner.options import Options, TierCuts
from hsfl.planner.terms import Segments
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray, edges

_BLOCK = 400_000
_ASCENT_STEPS = 40
_MAX_ACTIVE = 24


@dataclass(frozen=True)
class Minimum:
    """The best options found for a price, one for every cut, their value, and what no cut vector gets below."""

    options: IntArray
    value: float
    lower_bound: float


def least_of(parts: Sequence[Minimum]) -> Minimum:
    """The best of searches that part all cut vectors among them, and what none of them gets below."""
    least = min(parts, key=lambda part: part.value)
    return replace(least, lower_bound=min(part.lower_bound for part in parts))


class Search:
    """Minimises T_S plus the costs of the tiers and of the options, at one price."""

    def __init__(
        self, segments: Segments, options: Options, tiers: list[TierCuts], price: float, active: list[int]
    ) -> None:
        """`active` are clients that bounds weigh; those met as the slowest join them. None of them: a good first."""
        self._index, self._tiers = segments.index, tiers
        self._M, self._L = len(tiers) + 1, self._index.shape[1] - 1
        self._base, self._per_option = options.latency_by_option(tiers)
        self._active = active
        if not active:
            active.append(int(np.argmax(self._base + sum(per.mean(axis=1) for per in self._per_option))))
        self._noise = [tier.noise if np.isinf(price) else price * tier.noise for tier in tiers]

    def latencies(self, options: IntArray) -> FloatArray:
        """T_n of some options for every cut (K, M-1): (K, P)."""
        total = np.repeat(self._base[None], len(options), axis=0)
        for m, per_option in enumerate(self._per_option):
            total += per_option[:, options[:, m]].T
        return total

    def least_split_latency(self) -> float:
        """A lower bound of T_S over all cut vectors, at price 0."""
        free = np.where(self._index >= 0, 0.0, np.inf)
        weights, _ = self._ascend(free)
        return float(self._start(weights, self._suffixes(weights, free), free).max())

    def path(self, costs: FloatArray) -> IntArray:
        """The options with the least sum of their own costs and the tiers' (S,), latency left aside."""
        table, weightless = self._table(costs), np.zeros((1, len(self._active)))
        return self._shortest(weightless, self._suffixes(weightless, table), table)

    def minimise(self, costs: FloatArray, start: IntArray, deadline: float) -> Minimum:
        """Minimise T_S(c) + sum of the costs (S,) of the tiers' segments, from cuts to start with."""
        table = self._table(costs)
        weights, candidates = self._ascend(table)
        candidates.append(self._somehow(start))
        best, best_value = self._best_of(np.array(candidates), table)
        best, best_value = self._descend(best, best_value, table)
        return self._branch(table, weights, best, best_value, deadline)

    def _somehow(self, cuts: IntArray) -> IntArray:
        """Options after the layers `cuts`: those that are best for the active clients in the mean."""
        even = np.full((1, len(self._active)), 1 / len(self._active))
        found = []
        for m, (tier, cut) in enumerate(zip(self._tiers, cuts, strict=True)):
            options = slice(tier.first[cut], tier.first[cut + 1])
            found.append(tier.first[cut] + int(np.argmin(self._weighted(even, m)[0, options])))
        return np.array(found)

    def _branch(
        self, table: FloatArray, weights: FloatArray, best: IntArray, best_value: float, deadline: float
    ) -> Minimum:
        suffixes = self._suffixes(weights, table)
        weighted = [self._weighted(weights, m) for m in range(self._M - 1)]
        first = np.flatnonzero(np.isfinite(table[0, 0, self._tiers[0].layer]))
        stack = [
            self._extended(
                np.zeros((len(first), 0), dtype=np.int64),
                first,
                table[0, 0, self._tiers[0].layer[first]],
                np.repeat((weights @ self._base[self._active])[None], len(first), axis=0),
                weighted,
                suffixes,
            )
        ]
        slack = 1e-12 * abs(best_value)
        while stack:
            cuts, cost, latency, bound = stack.pop()
            keep = bound < best_value - slack
            if not keep.any():
                continue
            if time.perf_counter() > deadline:
                unexplored = min(float(b.min(initial=np.inf)) for b in (bound, *(block[-1] for block in stack)))
                return Minimum(best, best_value, min(best_value, unexplored))
            order = np.flatnonzero(keep)[np.argsort(bound[keep], kind="stable")]
            rows = max(1, _BLOCK // (max(len(tier.layer) for tier in self._tiers) * len(weights)))
            if len(order) > rows:
                rest = order[rows:]
                stack.append((cuts[rest], cost[rest], latency[rest], bound[rest]))
                order = order[:rows]
            cuts, cost, latency = cuts[order], cost[order], latency[order]
            m = cuts.shape[1]
            if m == self._M - 1:
                found, value = self._best_of(cuts, table)
                if value < best_value:
                    best, best_value = found, value
                continue
            steps = table[m, self._tiers[m - 1].layer[cuts[:, -1]]][:, self._tiers[m].layer]
            parent, cut = np.nonzero(np.isfinite(steps))
            if len(parent):
                whole = cost[parent] + steps[parent, cut]
                stack.append(self._extended(cuts[parent], cut, whole, latency[parent], weighted, suffixes))
        return Minimum(best, best_value, best_value)

    def _extended(
        self,
        options: IntArray,
        option: IntArray,
        cost: FloatArray,
        latency: FloatArray,
        weighted: list[FloatArray],
        suffixes: FloatArray,
    ) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """A block of partial cut vectors with one more cut: options, costs, weighted latencies, bounds."""
        m = options.shape[1]
        latency = latency + weighted[m][:, option].T
        bound = cost + (latency + suffixes[m][:, self._tiers[m].layer[option]].T).max(axis=1)
        return np.column_stack((options, option)), cost, latency, bound

    def _table(self, costs: FloatArray) -> FloatArray:
        """(M, L+1, L+1): the costs of segments, infinite where none is allowed."""
        return np.where(self._index >= 0, costs[self._index], np.inf)

    def _weighted(self, weights: FloatArray, m: int) -> FloatArray:
        """(W, O): what each option adds to every weighted mean of the active clients' latencies, and costs itself."""
        means: FloatArray = weights @ self._per_option[m][self._active] + self._noise[m]
        return means

    def _by_layer(self, weights: FloatArray, m: int) -> FloatArray:
        """(W, L+1): the same for the best option after each layer."""
        tier, least = self._tiers[m], np.full((len(weights), self._L + 1), np.inf)
        layers = np.flatnonzero(tier.count)
        least[:, layers] = np.minimum.reduceat(self._weighted(weights, m), tier.first[layers], axis=1)
        return least

    def _suffixes(self, weights: FloatArray, table: FloatArray) -> FloatArray:
        """(M-1, W, L+1): the least cost of everything after cut m, when it lies after layer l."""
        suffixes = np.empty((self._M - 1, len(weights), self._L + 1))
        suffixes[-1] = table[-1, :, -1]
        for m in range(self._M - 3, -1, -1):
            for w, row in enumerate(suffixes[m + 1] + self._by_layer(weights, m + 1)):
                suffixes[m, w] = (table[m + 1] + row).min(axis=1)
        return suffixes

    def _start(self, weights: FloatArray, suffixes: FloatArray, table: FloatArray) -> FloatArray:
        """(W,): the least total cost for each weighting: a lower bound of the minimum."""
        onward = suffixes[0] + self._by_layer(weights, 0)
        least: FloatArray = weights @ self._base[self._active] + (table[0, 0] + onward).min(axis=1)
        return least

    def _shortest(self, weights: FloatArray, suffixes: FloatArray, table: FloatArray) -> IntArray:
        """The options that attain the least total cost for one weighting (W = 1)."""
        options, last = [], 0
        for m, tier in enumerate(self._tiers):
            onward = (table[m, last] + suffixes[m, 0])[tier.layer] + self._weighted(weights, m)[0]
            options.append(int(np.argmin(onward)))
            last = int(tier.layer[options[-1]])
        return np.array(options)

    def _ascend(self, table: FloatArray) -> tuple[FloatArray, list[IntArray]]:
        """Weightings of clients that give high lower bounds, and the cut vectors met on the way.

        Multiplicative weights on the Lagrangian dual: clients that are slow at the current shortest path gain weight.
        """
        weight = np.full(len(self._active), 1 / len(self._active))
        tried: list[FloatArray] = []
        values: list[float] = []
        candidates: list[IntArray] = []
        for step in range(1, _ASCENT_STEPS + 1):
            row = weight[None]
            suffixes = self._suffixes(row, table)
            cuts = self._shortest(row, suffixes, table)
            tried.append(weight)
            values.append(float(self._start(row, suffixes, table)[0]))
            candidates.append(cuts)
            latency = self.latencies(cuts[None])[0]
            slowest = int(np.argmax(latency))
            if slowest not in self._active and len(self._active) < _MAX_ACTIVE:
                self._active.append(slowest)
                weight = np.append(weight, weight.mean()) / (1 + weight.mean())
            lag = latency[slowest] - latency[self._active]
            spread = lag.max()
            if spread <= 0:
                break
            weight = weight * np.exp(-2 / np.sqrt(step) * lag / spread)
            weight = weight / weight.sum()
        count = len(self._active)
        tried = [np.pad(w, (0, count - len(w))) for w in tried]
        best = np.argsort(values)[::-1][:6]
        return np.concatenate((np.array(tried)[best], np.eye(count))), candidates

    def _best_of(self, options: IntArray, table: FloatArray) -> tuple[IntArray, float]:
        """The best of some whole cut vectors, with the true slowest of all clients."""
        cuts = np.stack([tier.layer[options[:, m]] for m, tier in enumerate(self._tiers)], axis=-1)
        at = edges(cuts, self._L)
        cost = table[np.arange(self._M), at[:, :-1], at[:, 1:]].sum(axis=1)
        for m, noise in enumerate(self._noise):
            cost += noise[options[:, m]]
        rows = max(1, 4 * _BLOCK // len(self._base))
        parts = (options[k : k + rows] for k in range(0, len(options), rows))
        split = np.concatenate([self.latencies(part).max(axis=1) for part in parts])
        k = int(np.argmin(split + cost))
        return options[k], float(split[k] + cost[k])

    def _descend(self, options: IntArray, value: float, table: FloatArray) -> tuple[IntArray, float]:
        """Move one cut at a time, or change its codes, while that helps."""
        while True:
            moved = []
            for m, tier in enumerate(self._tiers):
                rows = np.repeat(options[None], len(tier.layer), axis=0)
                rows[:, m] = np.arange(len(tier.layer))
                moved.append(rows)
            tried = np.concatenate(moved)
            cuts = np.stack([tier.layer[tried[:, m]] for m, tier in enumerate(self._tiers)], axis=-1)
            best, best_value = self._best_of(tried[(np.diff(cuts, axis=1) >= 0).all(axis=1)], table)
            if not best_value < value - 1e-12 * abs(value):
                return options, value
            options, value = best, best_value
