"""What `import hsfl` offers: load a scenario, plan it, evaluate a plan of your own, compare."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import HsflError, InfeasibleError, ScenarioError
from hsfl.planner.baselines import Alternative, alternatives
from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import Evaluation, Limit, PlanResult, evaluate_plan
from hsfl.planner.step import optimize_step
from hsfl.problem.plan import Plan, make_plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import LayerProfile
from hsfl.problem.scenario import Scenario, read_scenario
from hsfl.problem.schema import ModelSection
from hsfl.theory.convergence import noise_floor

if TYPE_CHECKING:
    from hsfl.engine import Backend

METHODS = ("exact", "bcd")
#: A gap up to this is rounding: the plan is proven optimal.
_ROUNDING_GAP = 1e-9


def load_scenario(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Read and check a scenario file, or a built-in scenario by name.

    `overrides` replaces fields by path, for example ``{"tiers.device.uplink": "20 Mbps"}``. Raises `hsfl.HsflError`
    with one sentence when anything is wrong.
    """
    scenario = read_scenario(path_or_name, measure=measure_model)
    if overrides:
        scenario = scenario.with_overrides(overrides)
    with _naming(scenario):
        _ = scenario.problem
    return scenario


def plan(
    scenario: Scenario | str | Path,
    method: str = "exact",
    *,
    allow_empty_tiers: bool = False,
    optimize_learning_rate: bool = False,
    time_limit_s: float = 60.0,
) -> PlanResult:
    """The best cuts and intervals for a scenario.

    `method` is "exact" (proven optimal) or "bcd" (the paper's Algorithm 2). `allow_empty_tiers` lets a tier relay only.
    `optimize_learning_rate` chooses the learning rate too. Beyond `time_limit_s` the exact method returns the best
    plan so far with a true lower bound and the gap between them.
    """
    scenario = _loaded(scenario)
    if method not in METHODS:
        raise ScenarioError(f"method {method!r}: it must be one of {', '.join(METHODS)}")
    if optimize_learning_rate and method != "exact":
        raise ScenarioError("only the exact method can optimise the learning rate; leave out --method or the option")
    with _naming(scenario):
        problem = scenario.problem
        if optimize_learning_rate:
            if scenario.spec.convergence.rounds is not None:
                check_reachable(problem)  # the target was worked out for the given rate, so that must be valid
            return _plan_with_step(problem, allow_empty_tiers, time_limit_s)
        check_reachable(problem)
        if method == "bcd":
            return _plan_bcd(problem, allow_empty_tiers)
        return _plan_exact(problem, allow_empty_tiers, time_limit_s)


def evaluate(
    scenario: Scenario | str | Path, cuts: Iterable[int], intervals: Iterable[int], *, allow_empty_tiers: bool = False
) -> Evaluation:
    """The numbers of a plan of your own: M-1 cuts (counts of layers) and M intervals (rounds).

    A plan that misses the target or the memories is evaluated all the same and says so.
    """
    scenario = _loaded(scenario)
    problem = scenario.problem
    with _naming(scenario):
        chosen = make_plan(
            cuts,
            intervals,
            entities=problem.system.entities,
            num_layers=problem.num_layers,
            allow_empty_tiers=allow_empty_tiers,
        )
        return evaluate_plan(problem, chosen)


def compare(
    scenario: Scenario | str | Path, chosen: Plan | PlanResult, *, allow_empty_tiers: bool = False
) -> list[Alternative]:
    """What other ways of choosing would cost: full synchronisation, random plans, AMS, PSL, one tier less.

    All at the learning rate of the result, or of the scenario for a bare plan.
    """
    problem = _loaded(scenario).problem
    if isinstance(chosen, PlanResult):
        problem = replace(problem, learning_rate=chosen.evaluation.learning_rate)
        chosen = chosen.plan
    return list(alternatives(problem, chosen, allow_empty_tiers=allow_empty_tiers))


def backend(
    kind: str,
    layers: Sequence[Any],
    hosts: Sequence[Sequence[int]],
    cuts: Sequence[int],
    optimizer: Mapping[str, Any],
    **options: Any,
) -> Backend:
    """An executor of training rounds: "stacked" (fast) or "reference" (slow, reads like the paper); same numbers.

    `layers` is the model as a list of torch modules, such as the children of `hsfl.models.chain`, `hosts[m][n]` the
    entity of tier m that serves client n, `cuts` M-1 counts of layers, `optimizer` for example
    ``{"name": "sgd", "lr": 0.01, "momentum": 0.9}``. Options: `loss` (of outputs and targets; default cross entropy),
    `dtype`, `device`, `precision` ("fp32", "tf32", "bf16") and `seed` (of dropout). Tiers, entities, clients and
    layers count from 0 here. Needs torch.
    """
    from hsfl.engine import BACKENDS

    if kind not in BACKENDS:
        raise ScenarioError(f"backend {kind!r}: it must be one of {', '.join(BACKENDS)}")
    return BACKENDS[kind](layers, hosts, cuts, optimizer, **options)


def check_reachable(problem: Problem) -> None:
    """Raise unless the bound holds for the step and the target is above the noise floor."""
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
        raise InfeasibleError(
            f"convergence.target = {constants.target:.6g}: not above the noise floor {floor:.6g} (smoothness * step * "
            f"sum of gradient_variance / clients), so no plan reaches it; raise the target, or lower the learning "
            f"rate to less than {problem.learning_rate * constants.target / floor:.3g}"
        )


def _plan_exact(problem: Problem, allow_empty_tiers: bool, time_limit_s: float) -> PlanResult:
    started = time.perf_counter()
    solver = ExactSolver(problem, allow_empty_tiers=allow_empty_tiers, time_limit_s=time_limit_s)
    solution = solver.solve()
    solve_ms = 1e3 * (time.perf_counter() - started)
    evaluation = evaluate_plan(problem, solution.plan)
    lower = 2 * problem.constants.initial_gap / problem.step * solution.lower_bound
    evaluation = _with_memory_limits(problem, evaluation, allow_empty_tiers, time_limit_s)
    return _result(problem, evaluation, lower, solve_ms, allow_empty_tiers)


def _plan_bcd(problem: Problem, allow_empty_tiers: bool) -> PlanResult:
    from hsfl.planner.bcd import solve_bcd

    started = time.perf_counter()
    chosen, history = solve_bcd(problem, allow_empty_tiers=allow_empty_tiers)
    solve_ms = 1e3 * (time.perf_counter() - started)
    evaluation = evaluate_plan(problem, chosen)
    return PlanResult(problem.name, "bcd", "heuristic", evaluation, None, solve_ms, allow_empty_tiers, history)


def _plan_with_step(problem: Problem, allow_empty_tiers: bool, time_limit_s: float) -> PlanResult:
    given = None
    try:
        check_reachable(problem)
        given = _plan_exact(problem, allow_empty_tiers, time_limit_s).evaluation
    except InfeasibleError:  # at the given rate; another one may do
        pass
    started = time.perf_counter()
    solver = ExactSolver(problem, allow_empty_tiers=allow_empty_tiers, time_limit_s=time_limit_s)
    best = optimize_step(solver, time_limit_s=time_limit_s)
    solve_ms = 1e3 * (time.perf_counter() - started)
    evaluation = evaluate_plan(problem.with_step(best.step), best.plan)
    return replace(_result(problem, evaluation, best.lower_bound_s, solve_ms, allow_empty_tiers), given=given)


def _result(
    problem: Problem, evaluation: Evaluation, lower_bound_s: float, solve_ms: float, allow_empty_tiers: bool
) -> PlanResult:
    lower_bound_s = min(lower_bound_s, evaluation.objective_s)
    proven = evaluation.objective_s - lower_bound_s <= _ROUNDING_GAP * evaluation.objective_s
    status = "optimal" if proven else "bounded"
    return PlanResult(problem.name, "exact", status, evaluation, lower_bound_s, solve_ms, allow_empty_tiers)


def _with_memory_limits(
    problem: Problem, evaluation: Evaluation, allow_empty_tiers: bool, time_limit_s: float
) -> Evaluation:
    """Add the tiers whose memory keeps a better plan away."""
    free = replace(problem, system=problem.system.without_memory_limits())
    if not (problem.system.memory_per_client_bits < float("inf")).any():
        return evaluation
    solver = ExactSolver(free, allow_empty_tiers=allow_empty_tiers, time_limit_s=time_limit_s)
    best = evaluate_plan(free, solver.solve().plan)
    lost = evaluation.objective_s - best.objective_s
    if lost <= _ROUNDING_GAP * evaluation.objective_s:
        return evaluation
    over = evaluate_plan(problem, best.plan).tiers_over_memory
    found = tuple(Limit("memory", m, lost, lost / evaluation.objective_s) for m in over)
    return replace(evaluation, limits=(*evaluation.limits, *found))


def _loaded(scenario: Scenario | str | Path) -> Scenario:
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def measure_model(model: ModelSection, folder: Path | None) -> LayerProfile:
    """The profile of a model that has none in a file: build it and measure it, which needs torch."""
    from hsfl import models

    assert model.name is not None or model.factory is not None
    if model.factory is not None:
        assert model.input_shape is not None
        return models.profile(models.load_factory(model.factory, folder), tuple(model.input_shape))
    assert model.name is not None
    shape = tuple(model.input_shape or models.input_shape(model.name))
    return models.profile(models.build(model.name, shape), shape)


@contextmanager
def _naming(scenario: Scenario) -> Iterator[None]:
    """Put the scenario's name in front of what goes wrong."""
    try:
        yield
    except HsflError as error:
        if str(error).startswith(scenario.source):
            raise
        raise type(error)(f"{scenario.source}: {error}") from None
    except MemoryError:
        raise InfeasibleError(
            f"{scenario.source}: there is not enough memory for a problem of this size; use fewer entities or layers"
        ) from None
