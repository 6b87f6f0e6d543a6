"""A plan in words and in the steps of its round, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hsfl.planner.result import Evaluation, Limit, PlanResult
from hsfl.problem.plan import NEVER
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray, LayerProfile
from hsfl.problem.topology import with_tail
from hsfl.problem.units import format_bits, format_flops, format_rate, format_seconds
from hsfl.report.words import counted

_LIMIT = {
    "compute": "{tier} compute",
    "uplink": "{tier} ↑",
    "downlink": "{tier} ↓",
    "to tail": "{tier} ↓ tail",
    "from tail": "{tier} ↑ tail",
    "aggregation": "{tier} averaging",
    "memory": "{tier} memory",
}
_WHAT = {
    "compute": "compute in {tier}",
    "uplink": "activations up from {tier}",
    "downlink": "gradients down to {tier}",
    "to tail": "activations from {tier} down to the devices' tail",
    "from tail": "gradients of the tail up to {tier}",
    "aggregation": "averaging {tier}",
    "memory": "memory of {tier}",
}


@dataclass(frozen=True)
class RoundStep:
    """A part of the slowest client's average round that takes time.

    Of several mini-batches the slowest stage up and the slowest down take that of all, the others that of one.
    """

    label: str
    kind: str
    """"compute", "uplink", "downlink" or "aggregation"."""
    tier: int
    """Counted from 0."""
    seconds: float


def round_steps(problem: Problem, evaluation: Evaluation) -> list[RoundStep]:
    """The slowest client's round, in the order it happens, and its part of the averages; with cohorts in the mean."""
    parts, M = evaluation.parts, problem.system.num_tiers
    names = [t.name for t in problem.system.tiers]
    steps = []
    for m in range(M):
        steps.append(RoundStep(f"compute in {names[m]}", "compute", m, float(parts.compute_s[m])))
        if m < M - 1:
            ways = [("↑", "uplink", float(parts.uplink_s[m])), ("↓", "downlink", float(parts.downlink_s[m]))]
            if m == len(problem.system.tree) - 1:  # to the devices again: activations come down, gradients go up
                ways = [(*ways[1][:2], ways[0][2]), (*ways[0][:2], ways[1][2])]
            steps += [RoundStep(f"{names[m]} {arrow} {names[m + 1]}", kind, m, s) for arrow, kind, s in ways]
    pairs = zip(evaluation.aggregation_latency_s, evaluation.plan.intervals, strict=True)
    for m, (seconds, interval) in enumerate(pairs):
        steps.append(RoundStep(f"averaging {names[m]}", "aggregation", m, seconds / interval))
    return [step for step in steps if step.seconds]


def average_round(e: Evaluation) -> float:
    """T_S + sum_m T_{m,A}/I_m."""
    pairs = zip(e.aggregation_latency_s, e.plan.intervals, strict=True)
    return e.split_latency_s + sum(seconds / interval for seconds, interval in pairs)


def system_text(problem: Problem) -> str:
    """The tiers and how many machines each has, and how many clients take part where not all do."""
    system = problem.system
    tiers = " → ".join(counted(tier.entities, tier.name) for tier in system.tiers)
    return f"{tiers}, {counted(system.participants, 'client')} at a time" if system.sampled else tiers


def slowest_text(problem: Problem, e: Evaluation) -> str:
    """Whose round it is that a plan's time is made of."""
    clients, participants = problem.system.num_clients, problem.system.participants
    count, chunks = e.plan.micro_batches or problem.micro_batches, problem.chunks
    whole = f"{count:,} mini-batches" if count > 1 else "the mini-batch"
    pieces = f" in {chunks:,} chunks" if count == 1 else f" of {chunks:,} chunks each"
    piped = "" if count * chunks == 1 else f", with {whole}{pieces if chunks > 1 else ''} in a pipeline"
    piped += f" (what takes longest is for all {count * chunks:,}, the rest for one)" if piped else ""
    if not problem.system.sampled:
        return f"the slowest client (client {e.slowest_client + 1:,} of {clients:,}){piped}"
    slowest = "one" if participants == 1 else f"the slowest of {participants:,}"
    nearest = f"client {e.slowest_client + 1:,} is nearest to it"
    return f"{slowest} of {clients:,} clients at random, in the mean ({nearest}){piped}"


def model_text(problem: Problem) -> str:
    return f"{problem.num_layers} layers, {format_bits(problem.profile.parameter_bits.sum())} of parameters"


def claim(problem: Problem, result: PlanResult, caveat: str | None) -> str:
    """What is proven of a plan; a caveat, as `Scenario.caveat` has it, bounds it."""
    solved = f"{result.method}, {format_seconds(result.solve_ms / 1e3)}"
    kind = "" if result.allow_empty_tiers or len(result.intervals) == 2 else " with every tier used"
    if problem.system.missable.any():
        kind += ", no tier averaged less often than cohorts change"
    if caveat is not None:
        kind += ", for what the bound knows"
    if result.status == "optimal":
        return f"Proven optimal{kind} ({solved})"
    if result.status == "bounded":
        return f"Proven within {100 * (result.gap or 0):.2g} % of the optimum{kind} ({solved})"
    return f"A heuristic's plan, nothing proven ({solved}, {len(result.history)} iterations)"


def layer_names(profile: LayerProfile, layers: range) -> str:
    """The layers of a tier: "1–4 (conv1 – conv4)"."""
    if not layers:
        return "none: relays"
    first, last = layers[0], layers[-1]
    if first == last:
        return f"{first + 1} ({_short(profile.names[first])})"
    return f"{first + 1}–{last + 1} ({_short(profile.names[first])} – {_short(profile.names[last])})"


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def interval_text(interval: int) -> str:
    if interval >= NEVER:
        return "never"
    return "every round" if interval == 1 else f"every {interval:,} rounds"


def limit_name(limit: Limit, names: Sequence[str]) -> str:
    """What limits a plan, in two words; `names` are those of the tiers, with or without a tail."""
    return _LIMIT[limit.kind].format(tier=with_tail(names)[limit.tier])


def limits_text(problem: Problem, evaluation: Evaluation) -> str:
    """What limits the plan, most first."""
    names = [t.name for t in problem.system.tiers]
    shown = []
    for limit in evaluation.limits:
        what = _WHAT[limit.kind].format(tier=names[limit.tier])
        if limit.kind == "memory":
            shown.append(f"{what} (without its limit {100 * limit.share:.0f}\u00a0% less time)")
        elif limit.share >= 0.15 or not shown:
            shown.append(f"{what} ({100 * limit.share:.0f}\u00a0% of the round)")
    return "Limited by " + "; ".join(shown) + "." if shown else "Nothing takes time."


def notes(problem: Problem) -> list[str]:
    """Numbers so small that their unit was probably forgotten."""
    found = []
    for tier in problem.system.tree:
        fields: list[tuple[str, FloatArray, float, Callable[[float], str]]] = [
            ("compute", tier.compute_flops, 1e6, format_flops),
            ("memory", tier.memory_bits, 8e3, format_bits),
            ("uplink", tier.uplink_bps, 1e3, format_rate),
            ("downlink", tier.downlink_bps, 1e3, format_rate),
            ("fed_uplink", tier.fed_uplink_bps, 1e3, format_rate),
            ("fed_downlink", tier.fed_downlink_bps, 1e3, format_rate),
        ]
        for field, values, least, shown in fields:
            if values.min() < least:
                found.append(f"Note: tiers.{tier.name}.{field} is {shown(float(values.min()))}; is a unit missing?")
    return found
