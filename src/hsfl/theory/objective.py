"""The objective of problem P', and the exact latency it approximates. The only objective anywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.convergence import rounds_needed, whole_rounds
from hsfl.theory.latency import aggregation_latency, round_latency, split_latency


def objective(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """Theta(I, c) = R(I, c) * (T_S(c) + sum_m T_{m,A}(c) / I_m) in seconds; infinite off target; (...)."""
    return _times(rounds_needed(problem, cuts, intervals), round_latency(problem, cuts, intervals))


def total_latency(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """T(I, c) = R T_S + sum_m floor(R / I_m) T_{m,A}, with R a whole number of rounds; (...)."""
    intervals = np.asarray(intervals)
    rounds = whole_rounds(rounds_needed(problem, cuts, intervals))
    averages = np.floor(rounds[..., None] / intervals)
    aggregation = _times(averages, aggregation_latency(problem, cuts)).sum(-1)
    total: FloatArray = _times(rounds, split_latency(problem, cuts)) + aggregation
    return total


def _times(count: FloatArray, seconds: FloatArray) -> FloatArray:
    """count * seconds, where an infinite count of something that takes no time is still infinite."""
    return np.where(np.isinf(count), np.inf, np.where(np.isinf(count), 0.0, count) * seconds)
