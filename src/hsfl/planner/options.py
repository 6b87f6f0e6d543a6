"""What a cut may be: the layer after which it lies, and the codes of the two links over it.

T_n is a sum over cuts, and what codes take of the margin is too, so a cut in one pair of codes is a choice like any
other. For a price most of them drop out: a code that another one beats on the fastest link and on the slowest beats
it on all, whatever the rest of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray, edges
from hsfl.theory.coding import crossing_noise
from hsfl.theory.latency import slowest_latency


@dataclass(frozen=True, eq=False)
class TierCuts:
    """The cuts of one tier. Axis O: options, in the order of their layers."""

    layer: IntArray
    codes: IntArray
    """(2, O): which of the allowed codes, up and down."""
    bits: FloatArray
    """(2, O): of a mini-batch, up and down."""
    noise: FloatArray
    """(O,)"""
    first: IntArray
    """(L+2,): options first[l] up to first[l+1] lie after layer l."""

    @cached_property
    def count(self) -> IntArray:
        """(L+1,): how many options there are after each layer."""
        return np.diff(self.first)


@dataclass(frozen=True, eq=False)
class Options:
    """The options of all tiers below the top, for clients given by `theory.latency.columns`.

    Axis U: the codes that a link allows, the most bits first; the last again where others allow more.
    """

    bits: FloatArray
    """(2, M-1, U, L): of a chunk up and down, if the cut lies after the layer."""
    noise: FloatArray
    """(2, M-1, U, L): what the code takes of the margin."""
    work: FloatArray
    """(L+1,): FLOPs of the first layers."""
    slowness: FloatArray

    @classmethod
    def from_problem(cls, problem: Problem, slowness: FloatArray, *, plan_codes: bool = True) -> Options:
        """`plan_codes`: among the codes that are allowed; else only those in force."""
        if not (plan_codes and problem.system.plans_codes) and problem.constants.coding_noise is None:
            bits = problem.chunk_samples * np.stack((problem.uplink_bits, problem.downlink_bits))[:, :, None]
            return cls(bits, np.zeros_like(bits), problem.work_flops, slowness)
        links = ("up", "down")
        codes = [
            [
                tier.codes.allowed(link) if plan_codes else (getattr(tier.codes, link),)
                for tier in problem.system.tiers[:-1]
            ]
            for link in links
        ]
        most = max(len(own) for tiers in codes for own in tiers)
        each = [[[own[min(u, len(own) - 1)] for u in range(most)] for own in tiers] for tiers in codes]
        every, noise = [], []
        for link, tiers in zip(links, each, strict=True):
            used = {code for own in tiers for code in own}
            sent = {code: problem.chunk_samples * problem.crossing_bits(link, code) for code in used}
            lost = {code: crossing_noise(problem, link, code) for code in used}
            every.append([[sent[code] for code in own] for own in tiers])
            noise.append([[lost[code] for code in own] for own in tiers])
        return cls(np.array(every), np.array(noise), problem.work_flops, slowness)

    @property
    def several(self) -> bool:
        """Whether there is anything to choose."""
        return bool(self.bits.shape[2] > 1)

    def with_noise_times(self, factor: float) -> Options:
        """The same options at another step."""
        return replace(self, noise=factor * self.noise)

    def at(self, price: float) -> list[TierCuts]:
        """Those that can be part of the best plan at a price of the margin; at an infinite one, the least noise."""
        return self._tier_cuts(self._worthwhile(price)) if self.several else self._only

    @cached_property
    def _only(self) -> list[TierCuts]:
        L = self.bits.shape[-1]
        layer, first, codes = np.arange(1, L + 1), np.maximum(np.arange(-1, L + 1), 0), np.zeros((2, L), dtype=int)
        bits, noise = self.bits[:, :, 0], self.noise[:, :, 0].sum(axis=0)
        return [TierCuts(layer, codes, bits[:, m], noise[m], first) for m in range(bits.shape[1])]

    @cached_property
    def _seconds_per_bit(self) -> FloatArray:
        """(2, M-1, 1, 1, 2): of the fastest client's link, and of the slowest."""
        of_links = self.slowness[-2 * self.bits.shape[1] :]
        ends = np.stack((of_links.min(axis=1), of_links.max(axis=1)), axis=-1)
        return ends.reshape(*self.bits.shape[:2], 1, 1, 2)

    def _worthwhile(self, price: float) -> npt.NDArray[np.bool_]:
        """(2, M-1, U, L): the codes that no other beats for every client."""
        cost = self.noise[..., None]
        if np.isfinite(price):
            cost = self.bits[..., None] * self._seconds_per_bit + price * cost
        # (2, M-1, U, U, L): the first is no worse than the second; of two that are equal, the first stays.
        no_worse = np.all(cost[:, :, :, None] <= cost[:, :, None], axis=-1)
        number = np.arange(self.bits.shape[2])
        beaten = no_worse & (~np.swapaxes(no_worse, 2, 3) | (number[:, None] < number)[:, :, None])
        worthwhile: npt.NDArray[np.bool_] = np.logical_not(np.any(beaten, axis=2))
        return worthwhile

    def _tier_cuts(self, kept: npt.NDArray[np.bool_]) -> list[TierCuts]:
        """The pairs of the codes kept, (2, M-1, U, L), in every tier."""
        L, found = self.bits.shape[-1], []
        pairs = kept[0].transpose(0, 2, 1)[:, :, :, None] & kept[1].transpose(0, 2, 1)[:, :, None]
        for m in range(self.bits.shape[1]):
            layer, u, d = np.nonzero(pairs[m])
            bits = np.stack((self.bits[0, m, u, layer], self.bits[1, m, d, layer]))
            noise = self.noise[0, m, u, layer] + self.noise[1, m, d, layer]
            first = np.searchsorted(layer, np.arange(-1, L + 1))
            found.append(TierCuts(layer + 1, np.stack((u, d)), bits, noise, first))
        return found

    def rows(self, tiers: list[TierCuts], cuts: IntArray) -> tuple[IntArray, IntArray]:
        """All combinations of options for cut vectors (K, M-1): the cut vector of each (K',) and its options (K', M-1).

        In the order of the cut vectors.
        """
        if not self.several:
            return np.arange(len(cuts)), cuts - 1
        row, columns = np.arange(len(cuts)), list[IntArray]()
        for m, tier in enumerate(tiers):
            at = cuts[row, m]
            chosen, counts = tier.first[at], tier.count[at]
            if (counts != 1).any():
                again = np.repeat(np.arange(len(row)), counts)
                within = np.arange(len(again)) - np.repeat(np.cumsum(counts) - counts, counts)
                row, chosen, columns = row[again], chosen[again] + within, [column[again] for column in columns]
            columns.append(chosen)
        return row, np.stack(columns, axis=-1)

    def split_s(self, tiers: list[TierCuts], cuts: IntArray, options: IntArray) -> FloatArray:
        """T_S of cut vectors (K, M-1) in the options (K, M-1): (K,), over the clients given."""
        return slowest_latency(self.demand(tiers, cuts, options), self.slowness)

    def demand(self, tiers: list[TierCuts], cuts: IntArray, options: IntArray) -> FloatArray:
        """(K, D): what a chunk of cut vectors in the options asks of every client, as `theory.latency.demands`."""
        M, done = len(tiers) + 1, self.work[edges(cuts, len(self.work) - 1)]
        demand = np.empty((len(cuts), len(self.slowness)))
        np.subtract(done[:, 1:], done[:, :-1], out=demand[:, :M])
        for m, tier in enumerate(tiers):
            demand[:, m - 2 * (M - 1)], demand[:, m - (M - 1)] = tier.bits[:, options[:, m]]
        return demand

    def latency_by_option(self, tiers: list[TierCuts]) -> tuple[FloatArray, list[FloatArray]]:
        """T_n as `theory.latency.latency_by_cut` has it, regrouped by options: (P,) and, for every tier, (P, O)."""
        M, slowness, work = len(tiers) + 1, self.slowness, self.work
        f, links = slowness[:M], (slowness[M : 2 * M - 1], slowness[2 * M - 1 :])
        per_option = [
            (f[m] - f[m + 1])[:, None] * work[tier.layer]
            + sum(seconds[m][:, None] * bits for seconds, bits in zip(links, tier.bits, strict=True))
            for m, tier in enumerate(tiers)
        ]
        return work[-1] * f[-1], per_option
