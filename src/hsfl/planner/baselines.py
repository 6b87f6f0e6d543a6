"""The plans a good one is compared with: full synchronisation, random choices, resource-aware cuts, PSL, fewer tiers.

The paper's names: MA plans intervals and MS plans cuts; R before either makes it random; AMS cuts for speed alone
(after CoopFL: the fastest round, convergence and averages left aside); PSL never averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hsfl.display import table
from hsfl.errors import InfeasibleError
from hsfl.planner.bcd import solve_bcd
from hsfl.planner.exact import ExactSolver
from hsfl.planner.result import Evaluation, evaluate_plan
from hsfl.planner.terms import Segments, Terms
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.units import format_seconds

#: The paper draws random intervals from 1 to 25 rounds.
LONGEST_RANDOM_INTERVAL = 25
#: In how many chunks mini-batches are taken to see what it would gain: most of it comes with the first few.
CHUNKS = 4
#: An odd number of draws, so that one of them is the median.
DRAWS = 101


@dataclass(frozen=True)
class Alternative:
    """A plan to compare with; `evaluation` is None when the memories allow none of its kind."""

    name: str
    what: str
    problem: Problem
    evaluation: Evaluation | None

    def __repr__(self) -> str:
        return f"<Alternative {self.name}: {'does not fit' if self.evaluation is None else self.evaluation.in_short}>"


class Comparison(list[Alternative]):
    """Alternatives to a plan; a notebook shows them as a table against `objective_s`, the plan's."""

    def __init__(self, found: Iterable[Alternative], objective_s: float) -> None:
        super().__init__(found)
        self.objective_s = objective_s

    def __repr__(self) -> str:
        return f"<Comparison of {format_seconds(self.objective_s)} with {', '.join(other.name for other in self)}>"

    def _repr_html_(self) -> str:
        rows = []
        for other in self:
            e = other.evaluation
            if e is None or not e.reaches_target:
                rows.append((other.name, "does not fit" if e is None else "target missed", "", other.what))
            else:
                ratio = f"{e.objective_s / self.objective_s:.2f} ×" if self.objective_s else ""
                rows.append((other.name, format_seconds(e.total_latency_s), ratio, other.what))
        return table("Compared with the plan", rows, ("choice", "time to target", "slowdown", "what it is"))


def alternatives(problem: Problem, plan: Plan, *, allow_empty_tiers: bool = False) -> Iterator[Alternative]:
    """Every alternative to `plan`, in its codes and with its number of mini-batches.

    A random one is the median of `DRAWS` draws, seeded by the scenario.
    """
    problem, planned = problem.as_planned(plan), problem.system.plans_codes
    solver = ExactSolver(problem, allow_empty_tiers=allow_empty_tiers, plan_codes=False)
    every_round = Plan(plan.cuts, (1,) * problem.system.num_tiers)
    rng = np.random.default_rng([problem.seed, 101])
    draws = DRAWS if solver.tabulated else 5  # each of these is a search of its own
    resource_aware = fastest_round_cuts(problem, allow_empty_tiers=allow_empty_tiers)

    def single(name: str, what: str, chosen: Plan) -> Alternative:
        return Alternative(name, what, problem, evaluate_plan(problem, chosen))

    def drawn(name: str, what: str, draw: Callable[[], Plan], count: int = DRAWS) -> Alternative:
        evaluations = sorted((evaluate_plan(problem, draw()) for _ in range(count)), key=lambda e: e.objective_s)
        return Alternative(name, f"{what}; median of {count}", problem, evaluations[count // 2])

    def best_cuts(intervals: tuple[int, ...]) -> Plan:
        try:
            return solver.solve(intervals).plan
        except InfeasibleError:  # no cuts reach the target with these intervals: any are as good
            return Plan(plan.cuts, intervals)

    def best_intervals(cuts: tuple[int, ...]) -> Plan:
        return Plan(cuts, solver.solve(cuts=cuts).plan.intervals)

    def intervals() -> tuple[int, ...]:
        return random_intervals(problem, rng)

    def cuts() -> tuple[int, ...]:
        return random_cuts(solver.terms.segments, rng)

    if solver.tabulated and not planned and not problem.system.sampled:  # it knows no noise of codes and no cohorts
        bcd, _ = solve_bcd(problem, allow_empty_tiers=allow_empty_tiers)
        yield single("BCD", "the paper's Algorithm 2, without proof", bcd)
    yield single("full sync", "every tier averaged every round, the cuts of the plan", every_round)
    yield single(
        "full sync + MS", "every tier averaged every round, the best cuts for that", best_cuts(every_round.intervals)
    )
    yield drawn(
        "RMA+MS",
        f"random intervals up to {LONGEST_RANDOM_INTERVAL}, the best cuts for them",
        lambda: best_cuts(intervals()),
        draws,
    )
    yield drawn("MA+RMS", "random cuts, the best intervals for them", lambda: best_intervals(cuts()))
    yield drawn("RMA+RMS", "random intervals and cuts", lambda: Plan(cuts(), intervals()))
    yield drawn("RMA+AMS", "cuts for the fastest round, random intervals", lambda: Plan(resource_aware, intervals()))
    yield single("MA+AMS", "cuts for the fastest round, the best intervals for them", best_intervals(resource_aware))
    never = tuple(NEVER if averaged else 1 for averaged in problem.system.averaged)
    yield single("PSL", "parallel split learning: never averaged, the cuts of the plan", Plan(plan.cuts, never))
    yield from one_tier_less(problem, allow_empty_tiers=allow_empty_tiers)
    yield from taken_apart(problem, allow_empty_tiers=allow_empty_tiers)


def full_sync_cuts(problem: Problem) -> tuple[int, ...]:
    """The cuts with the shortest rounds of full synchronisation that fit the memories."""
    return ExactSolver(convergence_aside(problem), plan_codes=False).solve((1,) * problem.system.num_tiers).plan.cuts


def convergence_aside(problem: Problem) -> Problem:
    """The problem for choices that leave convergence aside: its constants need not be known."""
    M, L = problem.system.num_tiers, problem.num_layers
    nothing = Constants(1.0, 1.0, 1.0, np.zeros(L), np.zeros(L), np.zeros((M, L)), "paper")
    return replace(problem, constants=nothing)


def fastest_round_cuts(
    problem: Problem, intervals: tuple[int, ...] | None = None, *, allow_empty_tiers: bool = False
) -> tuple[int, ...]:
    """AMS: the cuts with the least T_S that fit the memories, averages left aside; or counted, at given intervals."""
    if intervals is not None:
        aside = convergence_aside(problem)
        return ExactSolver(aside, allow_empty_tiers=allow_empty_tiers, plan_codes=False).solve(intervals).plan.cuts
    free = replace(problem, system=problem.system.with_free_aggregation())
    return ExactSolver(free, allow_empty_tiers=allow_empty_tiers, plan_codes=False).solve().plan.cuts


def random_intervals(problem: Problem, rng: np.random.Generator) -> tuple[int, ...]:
    """RMA: each interval uniform from 1 to `LONGEST_RANDOM_INTERVAL`; 1 for single-entity tiers.

    A tier that a cohort may miss has at most that of the devices.
    """
    drawn = rng.integers(1, LONGEST_RANDOM_INTERVAL + 1, problem.system.num_tiers)
    drawn = np.where(problem.system.missable, np.minimum(drawn, drawn[0]), drawn)
    return tuple(int(i) if averaged else 1 for i, averaged in zip(drawn, problem.system.averaged, strict=True))


def random_cuts(segments: Segments, rng: np.random.Generator) -> tuple[int, ...]:
    """RMS: distinct cuts, uniform over those that fit the memories; the paper's 3..14 of 16 layers where they exist."""
    M, L = segments.index.shape[0], segments.index.shape[1] - 1
    first, last = np.arange(L + 1)[:, None], np.arange(L + 1)[None, :]
    distinct = np.repeat((first < last)[None], M, axis=0)
    inner = distinct.copy()
    inner[:-1] &= (last >= 3) & (last <= L - 2)
    for candidates in (segments.keep(inner), segments.keep(distinct)):
        if candidates.count:
            return _uniform_cuts(candidates, rng)
    return _uniform_cuts(segments, rng)


def _uniform_cuts(segments: Segments, rng: np.random.Generator) -> tuple[int, ...]:
    """One cut vector, uniform over all allowed ones, without listing them: each cut by the number of ways to go on."""
    M, L = segments.index.shape[0], segments.index.shape[1] - 1
    if segments.together is not None:
        parts = segments.by_last_cut
        ways = np.array([part.count for part in parts])
        segments = parts[int(rng.choice(len(parts), p=ways / ways.sum()))]
    allowed = (segments.index >= 0).astype(float)
    onward = [allowed[-1, :, L]]
    for m in range(M - 2, 0, -1):
        onward.append(allowed[m] @ onward[-1])
    cuts, last = [], 0
    for m in range(M - 1):
        weight = allowed[m, last] * onward[M - 2 - m]
        last = int(rng.choice(L + 1, p=weight / weight.sum()))
        cuts.append(last)
    return tuple(cuts)


def one_tier_less(problem: Problem, *, allow_empty_tiers: bool = False) -> Iterator[Alternative]:
    """The best plan without each tier above the devices: a middle tier only relays, the top one is not there."""
    names = [t.name for t in problem.system.tiers]
    tree = len(problem.system.tree)
    for m in range(1, tree):
        top = m == tree - 1
        if top and tree == 2:
            continue
        without = problem.without_top_tier() if top else problem
        what = f"best plan without tier {m + 1} ({names[m]}" + (")" if top else " only relays)")
        try:
            solver = ExactSolver(
                without,
                None if top else _relaying(problem, m, allow_empty_tiers),
                allow_empty_tiers=allow_empty_tiers,
                plan_codes=False,
            )
            evaluation = evaluate_plan(without, solver.solve().plan)
        except InfeasibleError:
            evaluation = None
        yield Alternative(f"no {names[m]}", what, without, evaluation)


def taken_apart(problem: Problem, *, allow_empty_tiers: bool = False) -> Iterator[Alternative]:
    """The best plan with mini-batches in `CHUNKS` chunks, where they are in one piece and could be taken apart."""
    buffers = problem.profile.buffer_bits
    whole = problem.system.returns or (buffers is not None and buffers.any())
    if problem.chunks > 1 or problem.batch_size % CHUNKS or whole:
        return
    apart = replace(problem, chunks=CHUNKS)
    try:
        solver = ExactSolver(apart, allow_empty_tiers=allow_empty_tiers, plan_codes=False)
        evaluation = evaluate_plan(apart, solver.solve().plan)
    except InfeasibleError:
        evaluation = None
    yield Alternative(f"{CHUNKS} chunks", f"mini-batches in {CHUNKS} chunks, the best plan for that", apart, evaluation)


def _relaying(problem: Problem, tier: int, allow_empty_tiers: bool) -> Segments:
    """All segments in which one tier holds no layer, and every other at least one or as many as it likes."""
    segments = Terms.from_problem(problem, allow_empty_tiers=True).segments
    size = problem.num_layers + 1
    empty = np.eye(size, dtype=bool)
    others = np.ones_like(empty) if allow_empty_tiers else ~empty
    wanted = np.repeat(others[None], problem.system.num_tiers, axis=0)
    wanted[tier] = empty
    return segments.keep(wanted)
