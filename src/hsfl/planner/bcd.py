"""The paper's own solver, Algorithm 2: block coordinate descent over intervals (P1) and cuts (P2).

P1 follows Proposition 1: for every subset of tiers with I = 1, Newton-Jacobi on dTheta/dI = 0 for the others, then
floor and ceiling. P2 follows Dinkelbach with a mixed-integer linear programme per step, solved by HiGHS. Each block is
solved well, but their alternation may stop above the optimum, and nothing is proven about its result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hsfl.errors import InfeasibleError
from hsfl.planner.memory import memory_shortfall
from hsfl.planner.result import Step
from hsfl.planner.slowest import slowest_clients
from hsfl.planner.terms import Terms
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.convergence import drift_coefficients, quadratic
from hsfl.theory.latency import columns, latency_by_cut, split_latency
from hsfl.theory.objective import objective

_ITERATIONS = 100


class CutSolver(Protocol):
    """Solves P2."""

    def solve(self, intervals: tuple[int, ...], start: tuple[int, ...] | None) -> tuple[int, ...]:
        """The best cuts for given intervals, from `start` on; None: the intervals are all 1."""


def solve_bcd(
    problem: Problem,
    *,
    allow_empty_tiers: bool = False,
    threshold: float = 1e-9,
    solver: Callable[[Problem, Terms, bool], CutSolver] | None = None,
) -> tuple[Plan, tuple[Step, ...]]:
    """Alternate P1 and P2 until the objective falls by no more than `threshold` of itself; the plan and all iterations.

    The start, which the paper leaves open: all intervals 1, and the best cuts for them. `solver` makes what solves P2;
    the paper's is `CutStep`.
    """
    terms = Terms.from_problem(problem, allow_empty_tiers=allow_empty_tiers)
    if not terms.segments.count:
        raise InfeasibleError(memory_shortfall(problem, allow_empty_tiers))
    cut_step = (solver or CutStep)(problem, terms, allow_empty_tiers)
    intervals = (1,) * problem.system.num_tiers
    cuts = cut_step.solve(intervals, start=None)
    history = [_step(problem, cuts, intervals)]
    for _ in range(_ITERATIONS):
        intervals = interval_step(problem, terms, cuts, intervals)
        cuts = cut_step.solve(intervals, start=cuts)
        history.append(_step(problem, cuts, intervals))
        if history[-2].objective_s - history[-1].objective_s <= threshold * history[-2].objective_s:
            break
    return history[-1].plan, tuple(history)


def interval_step(problem: Problem, terms: Terms, cuts: Sequence[int], current: tuple[int, ...]) -> tuple[int, ...]:
    """P1: the best intervals for the cuts, as Proposition 1 finds them, or the current ones if those are no worse."""
    parts = terms.segments.at(np.array(cuts))
    b, q = terms.aggregation_s[0, parts], terms.drift[:, 0, parts]
    split_s = float(split_latency(problem, cuts))
    free = [m for m in range(len(b)) if b[m] > 0]
    candidates = [np.array(current, dtype=float)]
    for size in range(len(free) + 1):
        for subset in itertools.combinations(free, size):
            chosen = list(subset)
            fixed_s = split_s + b.sum() - b[chosen].sum()
            root = newton_jacobi(fixed_s, b[chosen], q[:, chosen], terms.margin)
            for rounding in itertools.product((np.floor, np.ceil), repeat=size):
                candidate = np.ones(len(b))
                candidate[chosen] = [np.clip(f(x), 1, NEVER) for f, x in zip(rounding, root, strict=True)]
                candidates.append(candidate)
    intervals = np.array(candidates)
    D = terms.margin - quadratic(q, intervals).sum(axis=1)
    T = split_s + (b / intervals).sum(axis=1)
    best = int(np.argmin(np.where(D > 0, T / np.where(D > 0, D, 1.0), np.inf)))
    return tuple(int(i) for i in intervals[best])


def newton_jacobi(fixed_s: float, b: FloatArray, q: FloatArray, margin: float) -> FloatArray:
    """The intervals (real, not yet whole) where Theta is stationary in all of them: (S,).

    With the others held, tier m's equation is 2 A q_2 I^3 + (A q_1 + 3 b q_2) I^2 + 2 b q_1 I = b (C - q_0), where A is
    the time and C the margin without tier m (the paper's Xi for q_1 = q_0 = 0). Every sweep takes one Newton step in
    each equation, from the values of the sweep before; a step that would use up the margin is halved.
    """
    q2, q1, q0 = q
    drifting = (q2 > 0) | (q1 > 0)
    within_margin = (q2 + q1 + q0).sum() < margin
    start = 1.0 if within_margin else 0.5 * float(np.sqrt(margin / q2.sum()))
    intervals = np.where(drifting, start, float(NEVER))
    for _ in range(2000):
        cost, drift = b / intervals, (q2 * intervals + q1) * intervals + q0
        A = fixed_s + cost.sum() - cost
        C = margin - drift.sum() + drift
        xi = ((2 * A * q2 * intervals + A * q1 + 3 * b * q2) * intervals + 2 * b * q1) * intervals - b * (C - q0)
        slope = (6 * A * q2 * intervals + 2 * (A * q1 + 3 * b * q2)) * intervals + 2 * b * q1
        step = np.where(drifting & (slope > 0), xi / np.where(slope > 0, slope, 1.0), 0.0)
        step = np.clip(step, -4 * intervals, 0.75 * intervals)
        for _ in range(60):
            if ((q2 * (intervals - step) + q1) * (intervals - step) + q0).sum() < margin:
                break
            step = step / 2
        intervals = intervals - step
        if (np.abs(step) <= 1e-13 * intervals).all():
            break
    return np.minimum(intervals, NEVER)


class CutStep:
    """P2: the best cuts for given intervals, as a mixed-integer linear fractional programme.

    Variables: mu_{m,l} (1 where cut m lies after layer l) and T_1 >= T_n(c) for every client (R1). R2 and R3 hold with
    equality at the slowest entity of each tier, so T_{m,2} + T_{m,3} is put in directly.
    """

    def __init__(self, problem: Problem, terms: Terms, allow_empty_tiers: bool) -> None:
        self._problem, self._terms = problem, terms
        self._M, self._L = problem.system.num_tiers, problem.num_layers
        self._constraints(allow_empty_tiers)

    def solve(self, intervals: tuple[int, ...], start: tuple[int, ...] | None) -> tuple[int, ...]:
        """Dinkelbach from `start` (None: the intervals are all 1, for which every cut vector keeps its margin)."""
        parts = quadratic(self._terms.drift[:, 0], np.asarray(intervals, dtype=float)[self._terms.segments.tier])
        cuts = self._milp(intervals, 0.0) if start is None else start
        ratio = self._ratio(cuts, intervals, parts)
        while True:
            better = self._milp(intervals, ratio)
            new_ratio = self._ratio(better, intervals, parts)
            if not new_ratio < ratio * (1 - 1e-12):
                return cuts
            cuts, ratio = better, new_ratio

    def _ratio(self, cuts: tuple[int, ...], intervals: tuple[int, ...], drift: FloatArray) -> float:
        chosen = self._terms.segments.at(np.array(cuts))
        D = self._terms.margin - float(drift[chosen].sum())
        T = float(split_latency(self._problem, cuts)) + float((self._terms.aggregation_s[0, chosen] / intervals).sum())
        return T / D if D > 0 else np.inf

    def _milp(self, intervals: tuple[int, ...], price: float) -> tuple[int, ...]:
        from scipy.optimize import Bounds, LinearConstraint, milp

        problem, M, L = self._problem, self._M, self._L
        I = np.asarray(intervals, dtype=float)
        drift_ML = quadratic(np.cumsum(self._drift_ML, axis=-1), I[:, None])
        fed = problem.system.fed_seconds_per_bit[:, None] / I[:, None] * problem.averaged_bits[:, 1:]
        tier_cost = (fed + price * drift_ML) / self._scale
        weights = np.concatenate(((tier_cost[:-1] - tier_cost[1:]).ravel(), [1.0]))
        result = milp(
            weights,
            integrality=np.append(np.ones((M - 1) * L), 0),
            bounds=Bounds(np.zeros(len(weights)), np.append(self._allowed.ravel().astype(float), np.inf)),
            constraints=[LinearConstraint(self._rows, self._lower, self._upper)],
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            raise InfeasibleError(f"HiGHS found no cuts for the intervals {list(intervals)}: {result.message}")
        return tuple(int(c) + 1 for c in result.x[:-1].reshape(M - 1, L).argmax(axis=1))

    def _constraints(self, allow_empty_tiers: bool) -> None:
        problem, index, M, L = self._problem, self._terms.segments.index, self._M, self._L
        self._drift_ML = drift_coefficients(problem)
        slowness = problem.system.slowness[:, slowest_clients(problem.system.slowness)]
        base, per_cut = latency_by_cut(problem, columns(problem, slowness))
        per_cut = per_cut[:, :, 1:]
        self._scale = float(base.max() + per_cut.max(axis=2).sum(axis=0).max()) or 1.0
        rows: list[FloatArray] = []
        lower: list[float] = []
        upper: list[float] = []

        def add(mu: FloatArray, low: float, high: float, t: float = 0.0) -> None:
            rows.append(np.append(mu.ravel(), t))
            lower.append(low)
            upper.append(high)

        for n in range(len(base)):  # R1
            add(per_cut[:, n] / self._scale, -np.inf, -base[n] / self._scale, t=-1.0)
        up_to = np.tril(np.ones((L, L)))  # row l: the cut is at most l + 1
        gap = 0 if allow_empty_tiers else 1
        for m in range(M - 1):
            only = np.zeros((M - 1, L))
            only[m] = 1
            add(only, 1, 1)  # C3
            for layer in range(L if m else 0):
                order = np.zeros((M - 1, L))  # C4: cut m may be at most here only if cut m-1 is far enough below
                order[m] = up_to[layer]
                if layer >= gap:
                    order[m - 1] = -up_to[layer - gap]
                add(order, -np.inf, 0)
                # C5, over whole cut vectors because a solver's tolerance must not decide whether a model fits:
                # if cut m-1 is at most here, cut m is at most the last layer that still fits behind it.
                fitting = np.flatnonzero(index[m, layer + 1] >= 0)
                last = int(fitting[-1]) if len(fitting) else layer + 1
                room = np.zeros((M - 1, L))
                room[m - 1] = up_to[layer]
                room[m] = -up_to[last - 1]
                add(room, -np.inf, 0)
        if (together := self._terms.segments.together) is not None:
            for layer in range(1, L + 1):  # if cut 1 is at least here, the last is at least where the tail still fits
                fitting = np.flatnonzero(together[layer])
                room = np.zeros((M - 1, L))
                room[0, layer - 1 :] = 1
                room[-1, max(int(fitting[0]), 1) - 1 if len(fitting) else L :] = -1
                add(room, -np.inf, 0)
        self._rows, self._lower, self._upper = np.array(rows), np.array(lower), np.array(upper)
        self._allowed = np.array([(index[m] >= 0).any(axis=0) for m in range(M - 1)])[:, 1:]
        self._allowed[-1] &= index[-1, 1:, L] >= 0
        self._allowed[0] &= index[0, 0, 1:] >= 0


def _step(problem: Problem, cuts: tuple[int, ...], intervals: tuple[int, ...]) -> Step:
    return Step(Plan(cuts, intervals), float(objective(problem, cuts, intervals)))
