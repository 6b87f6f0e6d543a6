"""The learning rate as a decision: gamma in (0, 1/beta] chosen together with cuts and intervals.

gamma sits in every term of the bound: Theta = 2 theta0 T(I, c) / (gamma (epsilon - A gamma) - gamma^3 Q(I, c)), with
A gamma the noise floor and gamma^2 Q the drift; codes, where they are planned, and a cohort that stays take another
gamma^2 B(I, c) of the denominator. On an interval [low, high] of gamma that is at most max gamma (epsilon - A gamma) -
low^2 B - low^3 Q, so one exact solve bounds Theta from below on the whole interval: branch and bound over gamma.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass

from hsfl.errors import InfeasibleError
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.problem.plan import Plan
from hsfl.theory.convergence import gap_over_step, noise_floor

#: How close to the best over all learning rates is close enough.
GAP = 1e-3


@dataclass(frozen=True)
class StepSolution:
    """A step (gamma) with its best plan, and a lower bound of the objective over all steps and plans."""

    step: float
    plan: Plan
    lower_bound_s: float


def optimize_step(solver: ExactSolver, *, gap: float = GAP, time_limit_s: float = 60.0) -> StepSolution:
    """The best step and plan, to a relative `gap` that is proven (or, out of time, whatever is proven by then)."""
    problem = solver.problem
    epsilon, floor_per_step = problem.constants.target, noise_floor(problem) / problem.step
    deadline = time.perf_counter() + time_limit_s

    def progress(step: float) -> float:
        return step * (epsilon - floor_per_step * step)

    def solve(step: float, margin: float) -> Solution | None:
        """With drift and coding noise as at a step; None where the margin is too small for any plan."""
        noise = step**2 / problem.step
        terms = solver.terms.rescaled(step**3 / problem.step**2, noise, margin)
        try:
            return solver.solve(terms=terms, noise=noise) if margin > 0 else None
        except InfeasibleError:
            return None

    def lower_bound(low: float, high: float) -> float:
        peak = epsilon / (2 * floor_per_step) if floor_per_step else high
        solution = solve(low, progress(min(max(low, peak), high)))
        return float("inf") if solution is None else solution.lower_bound

    top = 1 / problem.constants.smoothness
    if floor_per_step:
        top = min(top, epsilon / floor_per_step)
    if not progress(top / 2) > 0:
        raise InfeasibleError("no learning rate reaches the target: raise convergence.target")
    best_ratio, best_step, best_plan = float("inf"), top, None
    queue = [(lower_bound(0.0, top), 0.0, top)]
    while True:
        bound, low, high = heapq.heappop(queue)
        if best_plan is not None and (bound >= best_ratio * (1 - gap) or time.perf_counter() > deadline):
            break
        middle = (low * high) ** 0.5 if low else high / 4
        trials = [middle, high] if best_plan is None else [middle]
        for step in trials:
            solution = solve(step, progress(step))
            if solution is not None and solution.ratio < best_ratio:
                best_ratio, best_step, best_plan = solution.ratio, step, solution.plan
        for a, b in ((low, middle), (middle, high)):
            child = max(bound, lower_bound(a, b))
            heapq.heappush(queue, (child, a, b))
    assert best_plan is not None
    # A ratio here is of seconds to the step times the margin.
    scale = gap_over_step(problem) * problem.step
    return StepSolution(best_step, best_plan, scale * min(bound, best_ratio))
