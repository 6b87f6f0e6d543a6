"""Whether corrected averages would pay: the same problem, planned with what they leave of systematic drift."""

from __future__ import annotations

from dataclasses import replace

from hsfl.errors import InfeasibleError
from hsfl.planner.exact import ExactSolver
from hsfl.problem.problem import Problem

#: What corrected averages are taken to leave of systematic drift, where training has not seen it.
REMAINS = 0.25


def corrected_gain(problem: Problem, *, allow_empty_tiers: bool = False) -> float:
    """How many times as fast the best plan is with corrected averages; 1 where there is no such plan.

    They keep more on every machine, which has to fit the memories, and are no choice where cohorts come and go.
    """
    if problem.system.sampled:
        return 1.0
    constants = problem.constants
    assert constants.gradient_dissimilarity is not None
    left = constants.with_dissimilarity_times(REMAINS)
    try:
        plain, corrected = (
            ExactSolver(one, allow_empty_tiers=allow_empty_tiers).solve().ratio
            for one in (problem, replace(problem, averaging="corrected", constants=left))
        )
    except InfeasibleError:
        return 1.0
    return plain / corrected
