"""Branch and bound over cut vectors, for problems with too many of them to tabulate.

For a price lambda it minimises T_S(c) + sum_m phi_m(c_{m-1}, c_m) exactly. Bounds rest on two facts: the slowest of
all clients is at least any weighted mean of them, and for a fixed weighting the rest of a cut vector is a shortest
path over tiers, solved by dynamic programming. Branching runs on whole blocks of cut vectors at once.
Axes: W weightings, P clients that can be the slowest, K cut vectors, m cuts from 0.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hsfl.planner.terms import Terms
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray, edges
from hsfl.theory.latency import latency_by_cut

_BLOCK = 400_000
_ASCENT_STEPS = 40
_MAX_ACTIVE = 24


@dataclass(frozen=True)
class Minimum:
    """The best cut vector found for a price, its value, and what no cut vector gets below."""

    cuts: IntArray
    value: float
    lower_bound: float


class Search:
    """Minimises T_S plus the tiers' costs, for as many prices as asked."""

    def __init__(self, problem: Problem, terms: Terms, slowness: FloatArray) -> None:
        self._index, self._M, self._L = terms.segments.index, problem.system.num_tiers, problem.num_layers
        self._base, self._per_cut = latency_by_cut(problem, slowness)
        # Clients that bounds weigh; those met as the slowest join them.
        self._active = [int(np.argmax(self._base + self._per_cut.mean(axis=2).sum(axis=0)))]

    def latencies(self, cuts: IntArray) -> FloatArray:
        """T_n of the cut vectors: (K, P)."""
        total = np.repeat(self._base[None], len(cuts), axis=0)
        for m, per_cut in enumerate(self._per_cut):
            total += per_cut[:, cuts[:, m]].T
        return total

    def least_split_latency(self) -> float:
        """A lower bound of T_S over all cut vectors."""
        free = np.where(self._index >= 0, 0.0, np.inf)
        weights, _ = self._ascend(free)
        return float(self._start(weights, self._suffixes(weights, free)).max())

    def path(self, costs: FloatArray) -> IntArray:
        """The cut vector with the least sum of the tiers' costs (S,), latency left aside."""
        table, weightless = self._table(costs), np.zeros((1, len(self._active)))
        return self._shortest(weightless, self._suffixes(weightless, table), table)

    def minimise(self, costs: FloatArray, start: IntArray, deadline: float) -> Minimum:
        """Minimise T_S(c) + sum of the costs (S,) of the tiers' segments, from a cut vector to start with."""
        table = self._table(costs)
        weights, candidates = self._ascend(table)
        candidates.append(start)
        best, best_value = self._best_of(np.array(candidates), table)
        best, best_value = self._descend(best, best_value, table)
        return self._branch(table, weights, best, best_value, deadline)

    def _branch(
        self, table: FloatArray, weights: FloatArray, best: IntArray, best_value: float, deadline: float
    ) -> Minimum:
        suffixes = self._suffixes(weights, table)
        weighted = self._weighted(weights)
        first = np.flatnonzero(np.isfinite(table[0, 0]))
        stack = [
            self._extended(
                np.zeros((len(first), 0), dtype=np.int64),
                first,
                table[0, 0, first],
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
            rows = max(1, _BLOCK // ((self._L + 1) * len(weights)))
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
            parent, cut = np.nonzero(np.isfinite(table[m, cuts[:, -1]]))
            if len(parent):
                step = table[m, cuts[parent, -1], cut]
                stack.append(
                    self._extended(cuts[parent], cut, cost[parent] + step, latency[parent], weighted, suffixes)
                )
        return Minimum(best, best_value, best_value)

    def _extended(
        self,
        cuts: IntArray,
        cut: IntArray,
        cost: FloatArray,
        latency: FloatArray,
        weighted: FloatArray,
        suffixes: FloatArray,
    ) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """A block of partial cut vectors with one more cut: cuts, costs, weighted latencies, bounds."""
        m = cuts.shape[1]
        latency = latency + weighted[m][:, cut].T
        bound = cost + (latency + suffixes[m][:, cut].T).max(axis=1)
        return np.column_stack((cuts, cut)), cost, latency, bound

    def _table(self, costs: FloatArray) -> FloatArray:
        """(M, L+1, L+1): the costs of segments, infinite where none is allowed."""
        return np.where(self._index >= 0, costs[self._index], np.inf)

    def _weighted(self, weights: FloatArray) -> FloatArray:
        """(M-1, W, L+1): what each cut adds to every weighted mean of the active clients' latencies."""
        means: FloatArray = np.einsum("wp,mpl->mwl", weights, self._per_cut[:, self._active])
        return means

    def _suffixes(self, weights: FloatArray, table: FloatArray) -> FloatArray:
        """(M-1, W, L+1): the least cost of everything after cut m, when it lies after layer l."""
        weighted = self._weighted(weights)
        suffixes = np.empty((self._M - 1, len(weights), self._L + 1))
        suffixes[-1] = table[-1, :, -1]
        for m in range(self._M - 3, -1, -1):
            for w, row in enumerate(suffixes[m + 1] + weighted[m + 1]):
                suffixes[m, w] = (table[m + 1] + row).min(axis=1)
        return suffixes

    def _start(self, weights: FloatArray, suffixes: FloatArray, table: FloatArray | None = None) -> FloatArray:
        """(W,): the least total cost for each weighting: a lower bound of the minimum."""
        onward = suffixes[0] + self._weighted(weights)[0]
        first = np.where(self._index[0, 0] >= 0, 0.0, np.inf) if table is None else table[0, 0]
        least: FloatArray = weights @ self._base[self._active] + (first + onward).min(axis=1)
        return least

    def _shortest(self, weights: FloatArray, suffixes: FloatArray, table: FloatArray) -> IntArray:
        """The cut vector that attains the least total cost for one weighting (W = 1)."""
        cuts, last = [], 0
        for m in range(self._M - 1):
            last = int(np.argmin(table[m, last] + suffixes[m, 0] + weights[0] @ self._per_cut[m, self._active]))
            cuts.append(last)
        return np.array(cuts)

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

    def _best_of(self, cuts: IntArray, table: FloatArray) -> tuple[IntArray, float]:
        """The best of some whole cut vectors, with the true slowest of all clients."""
        at = edges(cuts, self._L)
        cost = table[np.arange(self._M), at[:, :-1], at[:, 1:]].sum(axis=1)
        rows = max(1, 4 * _BLOCK // len(self._base))
        split = np.concatenate([self.latencies(cuts[k : k + rows]).max(axis=1) for k in range(0, len(cuts), rows)])
        k = int(np.argmin(split + cost))
        return cuts[k], float(split[k] + cost[k])

    def _descend(self, cuts: IntArray, value: float, table: FloatArray) -> tuple[IntArray, float]:
        """Move one cut at a time while that helps."""
        while True:
            moved = np.repeat(cuts[None], (self._M - 1) * self._L, axis=0)
            for m in range(self._M - 1):
                moved[m * self._L : (m + 1) * self._L, m] = np.arange(1, self._L + 1)
            moved = moved[(np.diff(moved, axis=1) >= 0).all(axis=1)]
            best, best_value = self._best_of(moved, table)
            if not best_value < value - 1e-12 * abs(value):
                return cuts, value
            cuts, value = best, best_value
