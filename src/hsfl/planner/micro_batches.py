"""The number of mini-batches in a round as a decision: the best of the optima of all numbers that are allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hsfl.errors import InfeasibleError
from hsfl.planner.exact import Solution
from hsfl.problem.problem import Problem


def best_of_all(problem: Problem, solve: Callable[[Problem], Solution]) -> Solution:
    """The best of what `solve` finds for each number, and what no plan with any of them gets below.

    Where the number is given, what it finds for that one. InfeasibleError where there is no plan for any.
    """
    if problem.micro_batch_choices is None:
        return solve(problem)
    found: list[Solution] = []
    why: InfeasibleError | None = None
    for count in problem.micro_batch_choices:
        try:
            one = solve(problem.with_micro_batches(count))
        except InfeasibleError as error:  # too noisy or too large; another number may do
            why = error
        else:
            found.append(replace(one, plan=replace(one.plan, micro_batches=count)))
    if not found:
        assert why is not None
        raise why
    return replace(min(found, key=lambda one: one.ratio), lower_bound=min(one.lower_bound for one in found))


def least_noise(problem: Problem) -> Problem:
    """The problem with the most mini-batches that a round may have: if it misses its target, every other does."""
    choices = problem.micro_batch_choices
    return problem if choices is None else problem.with_micro_batches(max(choices))
