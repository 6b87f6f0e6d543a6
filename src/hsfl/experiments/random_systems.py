"""What the paper leaves open, on random systems: how far its solver is from the optimum, what wrong constants cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hsfl.api import load_scenario
from hsfl.errors import HsflError, InfeasibleError
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.planner.exact import ExactSolver
from hsfl.planner.solve import check_reachable, solve
from hsfl.planner.terms import Terms
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.system import System, Tier
from hsfl.scenario.catalog import shipped_profile
from hsfl.theory.convergence import drift_coefficients, gap_over_step, quadratic, target_after
from hsfl.theory.objective import objective

DRIFTS, MODELS = ("paper", "refined"), ("vgg16", "resnet18", "lenet5")
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: A gap below OPTIMAL is rounding; one up to NEAR is near the optimum, as NEAR_SHARE of all systems should be.
OPTIMAL, NEAR, NEAR_SHARE = 1e-9, 0.01, 0.95
#: A wrong constant is tolerated if the median system loses less than this and at most MISSES of them miss the target.
TOLERABLE, MISSES = 0.05, 0.05
LEAST_GAP, LEAST_LOSS = 1e-6, 1e-3  # where logarithmic axes begin
_RATES = ("compute_flops", "uplink_bps", "downlink_bps", "fed_uplink_bps", "fed_downlink_bps")
_SYSTEMS = (
    f"Random systems: {', '.join(MODELS)} on 10-60 devices and 2-10 edges, with nothing above (a quarter), a cloud "
    "(half) or regions and a cloud (a quarter). The rates of every tier are those of the scenario paper times factors "
    "from 1/10 to 10, those of every machine times another of up to 4 either way. No memory limits. Full "
    "synchronisation reaches the target in 300 to 30,000 rounds; devices that held the whole model would miss it at "
    "intervals from 2 (strict) to 60 (easy). Time is the planned one, by the bound."
)


def random_problem(index: int, seed: int, drift: str) -> Problem:
    """System `index` of a seed; the drift model decides nothing but its learning rate and its target."""
    rng = np.random.default_rng([seed, index])
    profile = shipped_profile(name := MODELS[rng.integers(len(MODELS))])
    assert profile is not None and profile.gradient_variance is not None and profile.gradient_dissimilarity is not None
    system, given = _random_system(rng), _paper("paper").constants
    beta, theta, others = given.smoothness, given.initial_gap, np.array(system.entities)[:, None] - 1
    zeta_ML, moment_L = others / others[0] * profile.gradient_dissimilarity, profile.gradient_second_moment
    constants = Constants(beta, theta, np.nan, profile.gradient_variance, moment_L, zeta_ML, drift)
    batch, rounds, interval = int(2 ** rng.integers(3, 7)), _spread(rng, 300, 30_000), _spread(rng, 2, 60)
    problem = Problem(name, system, profile, constants, batch, learning_rate=1 / beta)
    # The drift at that interval grows with gamma^2, the margin of that many rounds with 1 / gamma: equal here.
    drifted = quadratic(drift_coefficients(problem)[:, 0].sum(axis=-1), interval)
    problem = problem.with_step(float(np.cbrt(gap_over_step(problem) / (rounds * drifted)) * problem.step))
    return replace(problem, constants=replace(constants, target=target_after(problem, rounds)))


def _random_system(rng: np.random.Generator) -> System:
    device, edge, cloud = _paper("paper").system.tiers
    region = replace(edge, name="region", compute_flops=np.sqrt(edge.compute_flops * cloud.compute_flops))
    devices, edges = int(rng.integers(10, 61)), int(rng.integers(2, 11))
    tree = [(device, devices), (edge, edges), (region, int(rng.integers(1, edges // 2 + 1))), (cloud, 1)]
    tree = (tree[:2], [*tree[:2], tree[3]], tree)[rng.choice(3, p=(0.25, 0.5, 0.25))]
    unlike, tiers = _spread(rng, 1, 4), []
    for (tier, count), above in zip(tree, [n for _, n in tree[1:]] + [0], strict=True):
        each = [_spread(rng, 0.1, 10) * _spread(rng, 1 / unlike, unlike, count) for _ in _RATES]
        rates = {rate: getattr(tier, rate).mean() * factors for rate, factors in zip(_RATES, each, strict=True)}
        parents = np.append(np.arange(above), rng.integers(0, above, count - above)) if above else None
        rates |= {} if above else dict.fromkeys(("uplink_bps", "downlink_bps"), np.full(count, np.inf))
        tiers.append(Tier(tier.name, memory_bits=np.full(count, np.inf), parents=parents, **rates))
    return System(tuple(tiers))


@cache
def _paper(drift: str) -> Problem:
    """The scenario `paper`; where the refined model needs it, clients differ as the catalog's profile says."""
    return load_scenario("paper", {"convergence.drift": drift}).problem


def _spread(rng: np.random.Generator, low: float, high: float, size: int | None = None) -> Any:
    """A number drawn log-uniformly."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _quantile(values: npt.ArrayLike, share: float) -> float:
    """The least value that this share of all does not exceed; numpy's cannot take infinities."""
    return float(np.sort(values)[max(0, int(np.ceil(share * np.size(values))) - 1)])


def _percent(value: float, least: float = -np.inf) -> float | None:
    return 100 * max(value, least) if np.isfinite(value) else None


class Gap(NamedTuple):
    """BCD against the exact solver on one system: its plan's time over the optimum, less 1, infinite if it raises."""

    gap: float
    slowdown: float  # of the solver
    other_cuts: bool
    other_intervals: bool


def measure_gap(problem: Problem) -> Gap:
    exact = solve(problem)
    assert exact.status == "optimal"
    try:
        bcd = solve(problem, "bcd")
    except HsflError:
        return Gap(np.inf, np.nan, True, True)
    gap, slowdown = bcd.objective_s / exact.objective_s - 1, bcd.solve_ms / exact.solve_ms
    return Gap(gap, slowdown, bcd.cuts != exact.cuts, bcd.intervals != exact.intervals)


def near_verdict(gaps: npt.ArrayLike) -> str:
    """Holds if NEAR_SHARE of the systems are near the optimum, in part if half of them are."""
    near = np.mean(np.array(gaps) <= NEAR)
    return HOLDS if near >= NEAR_SHARE else IN_PART if near >= 0.5 else FAILS


def bcd_gap(systems: int, seed: int = 0) -> Result:
    """How far the paper's Algorithm 2 ends above the proven optimum; the seed decides all but the running times."""
    kinds = ("all", *(f"{d} drift" for d in DRIFTS), "2 tiers", "3 tiers", "4 tiers", *MODELS)
    groups: dict[str, list[Gap]] = {kind: [] for kind in kinds}
    for k in range(systems):
        found = measure_gap(problem := random_problem(k, seed, drift := DRIFTS[k % 2]))
        for label in ("all", f"{drift} drift", f"{problem.system.num_tiers} tiers", problem.name):
            groups[label].append(found)
    gaps = {label: sorted(g.gap for g in group) for label, group in groups.items() if group}
    quantiles = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "largest": 1.0}
    marks = {label: [_quantile(v, q) for q in quantiles.values()] for label, v in gaps.items()}
    rows, every, above = [], np.array(gaps["all"]), "above the optimum (%)"
    for label, mark in marks.items():
        shares = np.mean([[g.gap < OPTIMAL, g.other_cuts, g.other_intervals] for g in groups[label]], axis=0)
        slowdown = _quantile([g.slowdown for g in groups[label]], 0.5)
        rows.append([label, len(groups[label]), *100 * shares, *map(_percent, mark), slowdown])
    drawn = {k: [_percent(g, LEAST_GAP) for g in v] for k, v in gaps.items() if "drift" in k}
    in_order = [Series(k, [(i + 1) / len(v) for i in range(len(v))], v) for k, v in drawn.items()]
    bars = [Series(k, [*marks], [_percent(m[i], LEAST_GAP) for m in marks.values()]) for i, k in enumerate(quantiles)]
    _, p95, p99, worst = marks["all"]
    measured = (
        f"{np.mean(every <= NEAR):.1%} of {systems} systems end within {NEAR:.0%} of the optimum, "
        f"{np.mean(every < OPTIMAL):.1%} at it; 95 % at most {p95:.1%} above, 99 % {p99:.1%}, the worst {worst:.0%}; "
        f"the scenario paper {measure_gap(_paper('paper')).gap:.1%}; BCD raised an error in {np.isinf(every).sum()}"
    )
    paper = '"efficient sub-optimal solutions"; how far from the optimum is not said'
    panels = [Panel("Systems in order", "share of systems", above, in_order, log_y=True, level=100 * NEAR)]
    panels += [Panel("By kind of system", "systems", above, bars, kind="bar", log_y=True, level=100 * NEAR)]
    claims = [Claim("BCD's alternating optimisation ends near the joint optimum", paper, measured, near_verdict(every))]
    columns = ["systems", "number", "optimum found (%)", "other cuts (%)", "other intervals (%)"]
    columns += [*(f"{q} {above}" for q in quantiles), "median running time, BCD / exact"]
    notes = (
        f"Holds if {NEAR_SHARE:.0%} of the systems end at most {NEAR:.0%} above the optimum; in part if half do.",
        "BCD starts from all intervals 1 and the best cuts for them; the paper leaves the start open. Every other "
        f"system has the refined drift model. Gaps below {100 * LEAST_GAP:g} % are drawn as {100 * LEAST_GAP:g} %.",
        _SYSTEMS,
    )
    return Result("bcd", "Block coordinate descent against the proven optimum", panels, columns, rows, claims, notes)


def wrong_constants(drift: str) -> dict[str, tuple[str, ...]]:
    """What may be wrong: the constants that the drift model needs, one at a time and all together."""
    unlike = {"paper": "gradient_second_moment", "refined": "gradient_dissimilarity"}[drift]
    names = ("smoothness", "gradient_variance", unlike, "initial_gap")
    return {name: (name,) for name in names} | {"all": names}


def mistaken(problem: Problem, names: Sequence[str], factor: float) -> Problem:
    """The problem with constants wrong by a factor; as in training the smoothness is at most 1/step."""
    wrong = replace(problem.constants, **{name: factor * getattr(problem.constants, name) for name in names})
    return replace(problem, constants=replace(wrong, smoothness=min(wrong.smoothness, 1 / problem.step)))


def measure_losses(problem: Problem) -> dict[tuple[str, float], tuple[float, bool]]:
    """What planning with a wrong constant costs, by constant and factor: time / best time - 1, infinite if the plan
    misses the target; and whether all plans seemed to miss it."""
    solver, found = ExactSolver(problem), {}

    def time_s(plan: Plan) -> float:
        return float(objective(problem, plan.cuts, plan.intervals))

    best_s = time_s(solver.solve().plan)
    for name, names in wrong_constants(problem.constants.drift).items():
        for factor in FACTORS:
            wrong = mistaken(problem, names, factor)
            try:
                check_reachable(wrong)
                chosen, hopeless = solver.solve(terms=Terms.from_problem(wrong, solver.terms.segments)).plan, False
            except InfeasibleError:
                chosen, hopeless = solver.solve((1,) * problem.system.num_tiers).plan, True
            found[name, factor] = time_s(chosen) / best_s - 1, hopeless
    return found


def tolerance(losses: Mapping[float, Sequence[float]]) -> tuple[float, str]:
    """Up to which factor either way a constant may be wrong; the claim holds if up to the last, in part if up to 2."""
    tolerated = 1.0
    for factor in (f for f in FACTORS if f > 1):
        for values in (losses[factor], losses[1 / factor]):
            if _quantile(values, 0.5) >= TOLERABLE or np.mean(np.isinf(values)) > MISSES:
                return tolerated, FAILS if tolerated == 1 else IN_PART
        tolerated = factor
    return tolerated, HOLDS


def robustness(systems: int, seed: int = 0) -> Result:
    """How much planned time is lost when the constants of the bound are wrong."""
    panels, rows, claims, factors = [], [], [], [f for f in FACTORS if f != 1]
    for drift in DRIFTS:
        builtin, found, lines, missed = measure_losses(_paper(drift)), [], [], []
        for k in range(systems):
            found.append(measure_losses(random_problem(k, seed, drift)))
        for name in wrong_constants(drift):
            each, losses = [], {f: [one[name, f][0] for one in found] for f in FACTORS}
            misses = {f: float(np.mean(np.isinf(v))) for f, v in losses.items()}
            y, low, high = ([_percent(_quantile(losses[f], q), LEAST_LOSS) for f in FACTORS] for q in (0.5, 0.1, 0.9))
            lines.append(Series(name, FACTORS, y, low, high))
            missed.append(Series(name, FACTORS, [100 * share for share in misses.values()]))
            for f in factors:
                median, most = _quantile(losses[f], 0.5), _quantile(losses[f], 0.9)
                hopeless = float(np.mean([one[name, f][1] for one in found]))
                numbers = (median, most, misses[f], hopeless, builtin[name, f][0])
                rows.append([drift, name, f, *map(_percent, numbers)])
                if f in (0.5, 2.0):
                    lost = f"{median:.1%} lost" if np.isfinite(median) else "most miss"
                    each.append(f"times {f:g}: {lost}" + (f", {misses[f]:.1%} miss" if misses[f] else ""))
            tolerated, verdict = tolerance(losses)
            measured = f"{f'a factor of {tolerated:g}' if tolerated > 1 else 'none'} tolerated; {'; '.join(each)}"
            what = f"planning tolerates a factor on {name if name != 'all' else 'all constants'} ({drift} drift)"
            claims.append(Claim(what, "not studied", measured, verdict))
        title, x = f"Time lost, {drift} drift", "factor on the constant"
        panels.append(Panel(title, x, "time lost (%)", lines, log_x=True, log_y=True, level=100 * TOLERABLE))
        panels.append(Panel(f"Target missed, {drift} drift", x, "systems (%)", missed, log_x=True))
    columns = ["drift", "constant", "factor", "median time lost (%)", "90 % time lost (%)", "target missed (%)"]
    columns += ["seemed out of reach (%)", "scenario paper: time lost (%)"]
    notes = (
        "Planned for the true target with constants wrong by a factor, then timed with the true ones. A plan that in "
        "truth misses the target loses infinitely much: no number is given. If by the wrong constants all plans miss "
        "it, all intervals are 1, with the best cuts for that. Smoothness is at most 1/step, as in training.",
        "Measured: time lost by the median system, and the share of systems that miss. Tolerated: under "
        f"{TOLERABLE:.0%} lost by the median and at most {MISSES:.0%} that miss. Holds up to 10, in part up to 2 or 5.",
        "Constants that are too large never make a plan miss. The initial gap scales the time of all plans alike: a "
        f"wrong one changes none. Lines are medians, bands 10 to 90 %, drawn from {LEAST_LOSS:.1%} up.",
        _SYSTEMS,
    )
    return Result("robustness", "Plans made with wrong constants", panels, columns, rows, claims, notes)
