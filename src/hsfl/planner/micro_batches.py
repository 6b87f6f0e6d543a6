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
    choices = problem.micro_batch_choices
    if choices is None:
        return solve(problem)
    found: list[Solution] = []
    why: InfeasibleError | None = None
    for k, count in enumerate(choices):
        try:
            one = solve(problem.with_micro_batches(count))
        except InfeasibleError as error:  # too noisy or too large; another number may do
            why = error
            continue
        found.append(replace(one, plan=replace(one.plan, micro_batches=count)))
        least = min(one.ratio for one in found)
        if k & (k + 1) == 0 and k + 2 < len(choices) and not _may_beat(least, problem, count, solve):
            break
    if not found:
        assert why is not None
        raise why
    return replace(min(found, key=lambda one: one.ratio), lower_bound=min(one.lower_bound for one in found))


def _may_beat(ratio: float, problem: Problem, count: int, solve: Callable[[Problem], Solution]) -> bool:
    """Whether a plan with more mini-batches than `count` may have a smaller ratio.

    Its rounds take no less time and memory than with `count`, and its noise is no less than with the most there are: a
    problem of both bounds them all. Where codes are planned it is not asked.
    """
    constants, most = problem.constants, max(problem.micro_batch_choices or (count,))
    if constants.coding_noise is not None:
        return True
    noise = constants.gradient_variance * count / most
    bounding = replace(problem, micro_batches=count, constants=replace(constants, gradient_variance=noise))
    try:
        return solve(bounding).lower_bound < ratio
    except InfeasibleError:
        return False


def least_noise(problem: Problem) -> Problem:
    """The problem with the most mini-batches that a round may have: if it misses its target, every other does."""
    choices = problem.micro_batch_choices
    return problem if choices is None else problem.with_micro_batches(max(choices))
