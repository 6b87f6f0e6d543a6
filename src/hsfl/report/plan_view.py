"""A plan as plain values that a page draws: every number and every word of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hsfl.errors import HsflError, InfeasibleError
from hsfl.planner.baselines import Alternative
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.problem import Problem
from hsfl.problem.topology import tier_layers
from hsfl.problem.units import format_bits, format_flops, format_seconds
from hsfl.report.colours import tier_colour
from hsfl.report.landscape import over_cuts, over_intervals
from hsfl.report.plan_words import (
    average_round,
    claim,
    interval_text,
    layer_names,
    limit_name,
    limits_text,
    model_text,
    notes,
    round_steps,
    slowest_text,
    system_text,
)
from hsfl.report.words import codes_text, counted, each_round, finite, numbers

#: More cut vectors are shown cut by cut.
_SHOWN = 5_000


def plan_view(problem: Problem, result: PlanResult, caveat: str | None = None) -> dict[str, Any]:
    """The plan, what is proven of it, the layers it cuts and the plans around it."""
    return {
        "scenario": result.scenario,
        "system": system_text(problem),
        "model": model_text(problem),
        "claim": claim(problem, result, caveat),
        "status": result.status,
        "caveat": caveat,
        "notes": notes(problem),
        "layers": _layers(problem),
        "plan": evaluation_view(problem, result.evaluation),
        "landscape": _landscape(problem, result),
        "intervals": [
            {"tier": tier, "at": at.tolist(), "seconds": finite(seconds)}
            for tier, at, seconds in over_intervals(problem, result.evaluation)
        ],
    }


def evaluation_view(problem: Problem, e: Evaluation) -> dict[str, Any]:
    """The numbers of one plan, its tiers, and the slowest client's round as a waterfall."""
    steps, at = [], 0.0
    total = average_round(e)
    for step in round_steps(problem, e):
        shown = {"label": step.label, "kind": step.kind, "tier": step.tier, "start": at, "seconds": step.seconds}
        steps.append(shown | {"text": f"{format_seconds(step.seconds)}, {100 * step.seconds / (total or 1.0):.0f} %"})
        at += step.seconds
    return {
        **e.to_dict(),
        "time": format_seconds(e.total_latency_s),
        "rounds_text": "never reached" if e.rounds is None else counted(e.rounds, "round"),
        "round_s": total,
        "round": format_seconds(total),
        "client": slowest_text(problem, e),
        "steps": steps,
        "tiers": _tiers(problem, e),
        "limits_text": limits_text(problem, e),
        "missing": [problem.system.tiers[m].name for m in e.tiers_over_memory],
    }


def compare_view(result: PlanResult, others: Sequence[Alternative]) -> list[dict[str, Any]]:
    """The plan and every alternative to it, as the table of --compare has them."""
    rows = [{"name": "HSFL", "what": "the plan", "slowdown": 1.0, **_choice(result.evaluation)}]
    for other in others:
        row: dict[str, Any] = {"name": other.name, "what": other.what, "slowdown": None}
        if other.evaluation is None:
            rows.append(row | {"time": "does not fit", "cuts": "", "intervals": ""})
            continue
        e = other.evaluation
        slowdown = e.objective_s / result.objective_s if e.reaches_target and result.objective_s else None
        rows.append(row | {"slowdown": slowdown} | _choice(e))
    return rows


def sweep_view(
    values: Sequence[str], points: Sequence[PlanResult | HsflError], names: Sequence[str], source: str
) -> list[dict[str, Any]]:
    """A point of a sweep for every value: the plan, or the sentence that says why there is none."""
    found: list[dict[str, Any]] = []
    for value, point in zip(values, points, strict=True):
        if isinstance(point, HsflError):
            found.append({"value": value, "error": str(point).removeprefix(f"{source}: ")})
            continue
        e = point.evaluation
        limit = limit_name(e.limits[0], names) if e.limits else ""
        shown = {"seconds": point.objective_s, "limit": limit, "rounds": e.rounds}
        found.append({"value": value, "at": list(e.plan.cuts), "every": list(e.plan.intervals)} | shown | _choice(e))
    return found


def _choice(e: Evaluation) -> dict[str, str]:
    time = format_seconds(e.total_latency_s) if e.reaches_target else "target missed"
    intervals = numbers(e.plan.intervals) + each_round(e.plan.micro_batches)
    return {"time": time, "cuts": numbers(e.plan.cuts), "intervals": intervals}


def _tiers(problem: Problem, e: Evaluation) -> list[dict[str, Any]]:
    problem, found = problem.as_planned(e.plan), []
    for m, layers in enumerate(tier_layers(e.plan.cuts, problem.num_layers)):
        tier = problem.system.tiers[m]
        averaged = tier.entities > 1 and len(layers) > 0
        hosted = problem.system.most_hosted[m]
        share = e.memory_bits[m] / int(hosted.max()) * hosted / tier.memory_bits
        limited = bool(np.isfinite(tier.memory_bits).any())
        tightest = int(np.argmax(share))
        found.append(
            {
                "name": tier.name,
                "count": counted(tier.entities, tier.name),
                "colour": tier_colour(m),
                "first": layers.start,
                "last": layers.stop,
                "layers": layer_names(problem.profile, layers),
                "averaged": averaged,
                "can_average": tier.entities > 1,
                "interval": e.plan.intervals[m],
                "interval_text": interval_text(e.plan.intervals[m]) if averaged else "",
                "averaging": format_seconds(e.aggregation_latency_s[m]) if averaged else "",
                "memory_bits": e.memory_bits[m],
                "memory": format_bits(e.memory_bits[m]) if m < len(problem.system.tree) else "",
                "memory_share": float(share.max()) if limited else None,
                "memory_limit": format_bits(float(tier.memory_bits[tightest])) if limited else "no limit",
                "links": codes_text(problem.system, m),
            }
        )
    return found


def _layers(problem: Problem) -> list[dict[str, Any]]:
    profile = problem.profile
    work = profile.forward_flops + profile.backward_flops
    return [
        {
            "name": profile.names[i],
            "work": format_flops(float(work[i]), "FLOPs"),
            "activation": format_bits(float(profile.activation_bits[i])),
            "activation_bits": float(profile.activation_bits[i]),
            "parameters": format_bits(float(profile.parameter_bits[i])),
            "parameter_bits": float(profile.parameter_bits[i]),
        }
        for i in range(len(profile))
    ]


def _landscape(problem: Problem, result: PlanResult) -> dict[str, Any]:
    """All cut vectors of three tiers; otherwise, or where they are many, the best objective for each cut."""
    try:
        landscape = over_cuts(problem, result.evaluation, allow_empty_tiers=result.allow_empty_tiers)
    except InfeasibleError as error:
        return {"error": str(error)}
    if problem.system.num_tiers == 3 and len(landscape.cuts) <= _SHOWN:
        return {"cuts": landscape.cuts.tolist(), "seconds": finite(landscape.seconds)}
    curves = [landscape.best_by_cut(m) for m in range(problem.system.num_tiers - 1)]
    return {"curves": [{"at": at.tolist(), "seconds": finite(seconds)} for at, seconds in curves]}
