"""The objective of problem P', and the exact latency it approximates. The only objective anywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.convergence import rounds_needed, whole_rounds
from hsfl.theory.latency import aggregation_latency, split_latency


def objective(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """Theta(I, c) = R(I, c) * (T_S(c) + sum_m T_{m,A}(c) / I_m) in seconds; infinite off target; (...)."""
    rounds = rounds_needed(problem, cuts, intervals)
    return objective_of(rounds, split_latency(problem, cuts), aggregation_latency(problem, cuts), intervals)


def objective_of(
    rounds: FloatArray, split_s: FloatArray, aggregation_s: FloatArray, intervals: npt.ArrayLike
) -> FloatArray:
    """The same from R, T_S and T_{m,A}."""
    return _times(rounds, split_s + (aggregation_s / np.asarray(intervals)).sum(-1))


def total_latency(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """T(I, c) = R T_S + sum_m floor(R / I_m) T_{m,A}, with R a whole number of rounds; (...)."""
    rounds = rounds_needed(problem, cuts, intervals)
    return total_latency_of(rounds, split_latency(problem, cuts), aggregation_latency(problem, cuts), intervals)


def total_latency_of(
    rounds: FloatArray, split_s: FloatArray, aggregation_s: FloatArray, intervals: npt.ArrayLike
) -> FloatArray:
    """The same from R, before rounding up, T_S and T_{m,A}."""
    rounds = whole_rounds(rounds)
    averages = np.floor(rounds[..., None] / np.asarray(intervals))
    total: FloatArray = _times(rounds, split_s) + _times(averages, aggregation_s).sum(-1)
    return total


def _times(count: FloatArray, seconds: FloatArray) -> FloatArray:
    """count * seconds, where an infinite count of something that takes no time is still infinite."""
    endless = np.isinf(count)
    return np.where(endless, np.inf, np.where(endless, 0.0, count) * seconds)
