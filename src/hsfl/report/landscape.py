"""The time to target of plans around a plan: over all cuts, and over the interval of every tier."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import Evaluation
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import IntArray
from hsfl.theory.convergence import gap_over_step
from hsfl.theory.objective import objective

#: Intervals are tried up to this, or to so many times the plan's.
_LONGEST, _TIMES, _POINTS = 30, 4, 80


@dataclass(frozen=True)
class Landscape:
    """Every cut vector, and the objective with the best intervals for it, in the codes of the plan."""

    cuts: IntArray
    """(K, M-1)"""
    seconds: FloatArray
    """(K,)"""

    def best_by_cut(self, tier: int) -> tuple[IntArray, FloatArray]:
        """The places that the cut above a tier can have, and the least objective with each."""
        places = np.unique(self.cuts[:, tier])
        return places, np.array([self.seconds[self.cuts[:, tier] == place].min() for place in places])


def over_cuts(problem: Problem, evaluation: Evaluation, *, allow_empty_tiers: bool = False) -> Landscape:
    """The landscape that a plan is the lowest point of; InfeasibleError where there are too many cuts to list."""
    problem = as_planned(problem, evaluation)
    cuts, ratio = ExactSolver(problem, allow_empty_tiers=allow_empty_tiers).landscape()
    return Landscape(cuts, gap_over_step(problem) * ratio)


def over_intervals(problem: Problem, evaluation: Evaluation) -> list[tuple[int, IntArray, FloatArray]]:
    """For every tier that is averaged: its number, some intervals, and the objective with all else as planned."""
    problem, plan = as_planned(problem, evaluation), evaluation.plan
    missable, found = problem.system.missable, []
    least = np.array(plan.intervals)[missable].max(initial=1)  # what cohorts may miss is averaged as often as devices
    for tier in np.flatnonzero(problem.system.averaged):
        longest = max(_LONGEST, min(_TIMES * plan.intervals[tier], 10_000))
        tried = np.unique(np.round(np.geomspace(1, longest, _POINTS)).astype(int))
        tried = np.unique(np.append(tried, min(plan.intervals[tier], longest)))
        tried = tried[(tried >= least) if tier == 0 else (tried <= plan.intervals[0]) | ~missable[tier]]
        intervals = np.tile(np.array(plan.intervals), (len(tried), 1))
        intervals[:, tier] = tried
        found.append((int(tier), tried, objective(problem, plan.cuts, intervals)))
    return found


def as_planned(problem: Problem, evaluation: Evaluation) -> Problem:
    """The problem at the learning rate and in the codes of a plan."""
    return replace(problem, learning_rate=evaluation.learning_rate).as_planned(evaluation.plan)
