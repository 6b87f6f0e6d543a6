"""From a problem to a plan with its numbers and its proof, by either method."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from hsfl.errors import InfeasibleError, ScenarioError
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.planner.learning_rate import optimize_step
from hsfl.planner.micro_batches import best_of_all, least_noise
from hsfl.planner.result import Evaluation, Limit, PlanResult, evaluate_plan
from hsfl.planner.terms import Segments, in_order
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.convergence import gap_over_step, noise_floor

METHODS = ("exact", "bcd")
#: A gap up to this is rounding: the plan is proven optimal.
_ROUNDING_GAP = 1e-9
#: The most cut vectors of a problem whose solver is kept as long as the problem is.
_SMALL = 10_000


def solve(
    problem: Problem, method: str = "exact", *, allow_empty_tiers: bool = False, time_limit_s: float = 60.0
) -> PlanResult:
    """The best plan, by "exact" (proven) or "bcd" (the paper's Algorithm 2); InfeasibleError if there is none."""
    if method not in METHODS:
        raise ScenarioError(f"method {method!r}: it must be one of {', '.join(METHODS)}")
    if method == "bcd" and problem.system.plans_codes:
        raise ScenarioError('method "bcd": it chooses no codes; name a code for every link, or use the method "exact"')
    if method == "bcd" and problem.micro_batch_choices is not None:
        raise ScenarioError('method "bcd": it plans no training.micro_batches; give a number, or use "exact"')
    if method == "bcd" and problem.system.sampled:
        raise ScenarioError('method "bcd": it knows no cohorts; leave out participation.cohort, or use "exact"')
    check_reachable(problem)
    if method == "bcd":
        return _plan_bcd(problem, allow_empty_tiers)
    return _plan_exact(problem, allow_empty_tiers, time_limit_s)


def check_reachable(problem: Problem) -> None:
    """Raise unless the bound holds for the step and the target is above the noise floor."""
    problem = least_noise(problem)
    constants, floor = problem.constants, noise_floor(problem)
    limit = 1 / constants.smoothness
    if problem.step > limit * (1 + 1e-12):
        effective = (
            f" (effective step {problem.step:.4g} with momentum {problem.momentum:g})" if problem.momentum else ""
        )
        raise InfeasibleError(
            f"training.learning_rate = {problem.learning_rate:g}{effective}: above 1/smoothness = {limit:.4g}, where "
            f"the convergence bound ends; write at most {limit * (1 - problem.momentum):.4g}"
        )
    if constants.target <= floor:
        count, ways = problem.micro_batches, "raise the target"
        what = f"sum of gradient_variance / {'clients' if count == 1 else f'(clients * {count})'}"
        if problem.system.sampled:
            what = f"(sum of gradient_variance / {problem.system.participants * count} + variance between cohorts)"
            ways = "raise the target or participation.cohort"
        raise InfeasibleError(
            f"convergence.target = {constants.target:.6g}: not above the noise floor {floor:.6g} (smoothness * step * "
            f"{what}), so no plan reaches it; {ways}, or lower the learning rate to less "
            f"than {problem.learning_rate * constants.target / floor:.3g}"
        )


def check_order(system: System, intervals: Sequence[int]) -> None:
    """ScenarioError where the bound says nothing of intervals: machines that cohorts miss would fall behind."""
    for m in np.flatnonzero(system.missable).tolist():
        if intervals[m] > intervals[0]:
            name = system.tiers[m].name
            raise ScenarioError(
                f"intervals {list(intervals)}: tier {m + 1} ({name}) is averaged less often than the devices, so that "
                f"one without clients in a cohort would fall behind; with participation.cohort = {system.cohort} give "
                f"it at most {intervals[0]}"
            )


def _plan_exact(problem: Problem, allow_empty_tiers: bool, time_limit_s: float) -> PlanResult:
    started = time.perf_counter()
    # Memory is first left aside: a proven plan that fits it all the same is the best of those that fit, too.
    every = in_order(problem.system.num_tiers, problem.num_layers, allow_empty_tiers, problem.system.returns)
    limit_s = time_limit_s / len(problem.micro_batch_choices or (1,))
    solution = best_of_all(problem, lambda one: _solver(one, every, limit_s).solve())
    evaluation, free = evaluate_plan(problem, solution.plan), None
    limited = not evaluation.fits_memory or not solution.proven
    if limited and (problem.system.memory_per_client_bits < float("inf")).any():

        def fitting(one: Problem) -> Solution:
            return ExactSolver(one, allow_empty_tiers=allow_empty_tiers, time_limit_s=limit_s).solve()

        solution = best_of_all(problem, fitting)
        evaluation, free = evaluate_plan(problem, solution.plan), evaluation
    solve_ms = 1e3 * (time.perf_counter() - started)
    if free is not None:
        evaluation = _with_memory_limits(evaluation, free)
    return _result(problem, evaluation, gap_over_step(problem) * solution.lower_bound, solve_ms, allow_empty_tiers)


def _solver(problem: Problem, every: Segments, time_limit_s: float) -> ExactSolver:
    """The solver of a problem over all segments, with so much time from now on; a small one is made only once."""
    known: dict[int, ExactSolver] = vars(problem).setdefault("_solvers", {})
    solver = known.get(id(every)) or ExactSolver(problem, every)
    if every.count <= _SMALL:
        known[id(every)] = solver  # which keeps the segments, and so their id
    solver.deadline = time.perf_counter() + time_limit_s
    return solver


def _plan_bcd(problem: Problem, allow_empty_tiers: bool) -> PlanResult:
    from hsfl.planner.bcd import solve_bcd

    started = time.perf_counter()
    chosen, history = solve_bcd(problem, allow_empty_tiers=allow_empty_tiers)
    solve_ms = 1e3 * (time.perf_counter() - started)
    evaluation = evaluate_plan(problem, chosen)
    return PlanResult(problem.name, "bcd", "heuristic", evaluation, None, solve_ms, allow_empty_tiers, history)


def completed(problem: Problem, plan: Plan) -> Plan:
    """The plan in the best codes and with the best number of mini-batches, where these are planned.

    Fit for its memories or not, for its target or an easier one: the target is doubled until the plan reaches it.
    """
    if not problem.system.plans_codes and problem.micro_batch_choices is None:
        return plan
    problem = replace(problem, system=problem.system.without_memory_limits())

    def solved(one: Problem) -> Solution:
        return ExactSolver(one, allow_empty_tiers=True).solve(plan.intervals, cuts=plan.cuts)

    while True:
        try:
            return best_of_all(problem, solved).plan
        except InfeasibleError:
            target = 2 * problem.constants.target
            if not isfinite(target):
                raise
            problem = replace(problem, constants=replace(problem.constants, target=target))


def best_at(problem: Problem, cuts: tuple[int, ...]) -> Plan:
    """The best intervals, codes and number of mini-batches for given cuts, whether or not these fit the memories."""
    check_reachable(problem)
    free = replace(problem, system=problem.system.without_memory_limits())
    return best_of_all(free, lambda one: ExactSolver(one, allow_empty_tiers=True).solve(cuts=cuts)).plan


def solve_with_step(problem: Problem, *, allow_empty_tiers: bool = False, time_limit_s: float = 60.0) -> PlanResult:
    """The best plan and learning rate together."""
    given = None
    try:
        check_reachable(problem)
        given = _plan_exact(problem, allow_empty_tiers, time_limit_s).evaluation
    except InfeasibleError:  # at the given rate; another one may do
        pass
    started = time.perf_counter()
    limit_s = time_limit_s / len(problem.micro_batch_choices or (1,))

    def with_step(one: Problem) -> Solution:
        solver = ExactSolver(one, allow_empty_tiers=allow_empty_tiers, time_limit_s=limit_s)
        found = optimize_step(solver, time_limit_s=limit_s)
        reached_s = evaluate_plan(one.with_step(found.step), found.plan).objective_s
        return Solution(found.plan, reached_s, found.lower_bound_s, found.step)

    best = best_of_all(problem, with_step)
    assert best.step is not None
    solve_ms = 1e3 * (time.perf_counter() - started)
    evaluation = evaluate_plan(problem.with_step(best.step), best.plan)
    return replace(_result(problem, evaluation, best.lower_bound, solve_ms, allow_empty_tiers), given=given)


def _result(
    problem: Problem, evaluation: Evaluation, lower_bound_s: float, solve_ms: float, allow_empty_tiers: bool
) -> PlanResult:
    lower_bound_s = min(lower_bound_s, evaluation.objective_s)
    proven = evaluation.objective_s - lower_bound_s <= _ROUNDING_GAP * evaluation.objective_s
    status = "optimal" if proven else "bounded"
    return PlanResult(problem.name, "exact", status, evaluation, lower_bound_s, solve_ms, allow_empty_tiers)


def _with_memory_limits(evaluation: Evaluation, free: Evaluation) -> Evaluation:
    """Add the tiers whose memory keeps a better plan away: the best one if there were no limits."""
    lost = evaluation.objective_s - free.objective_s
    if lost <= _ROUNDING_GAP * evaluation.objective_s:
        return evaluation
    found = tuple(Limit("memory", m, lost, lost / evaluation.objective_s) for m in free.tiers_over_memory)
    return replace(evaluation, limits=(*evaluation.limits, *found))
