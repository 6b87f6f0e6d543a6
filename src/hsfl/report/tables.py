"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hsfl.planner.baselines import Alternative
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import FloatArray, LayerProfile
from hsfl.problem.system import System
from hsfl.problem.topology import tier_layers
from hsfl.problem.units import format_bits, format_flops, format_rate, format_seconds
from hsfl.scenario.scenario import Scenario

_BAR = 32
_LIMIT = {
    "compute": "{tier} compute",
    "uplink": "{tier} ↑",
    "downlink": "{tier} ↓",
    "aggregation": "{tier} averaging",
    "memory": "{tier} memory",
}
_WHAT = {
    "compute": "compute in {tier}",
    "uplink": "activations up from {tier}",
    "downlink": "gradients down to {tier}",
    "aggregation": "averaging {tier}",
    "memory": "memory of {tier}",
}


def plan_report(problem: Problem, result: PlanResult) -> RenderableType:
    """Everything about a planned scenario."""
    e, clients = result.evaluation, problem.system.num_clients
    return Group(
        Text(f"{result.scenario}: {_describe_system(problem)}", style="bold"),
        Text(f"{problem.num_layers} layers, {format_bits(problem.profile.parameter_bits.sum())} of parameters"),
        Text(_claim(result)),
        *notes(problem),
        Text(),
        _tier_table(problem, e),
        Text(),
        _time_to_target(problem, result),
        Text(),
        Text(f"An average round of the slowest client (client {e.slowest_client + 1:,} of {clients:,}):"),
        round_bars(problem, e),
        Text(),
        limits_text(problem, e),
    )


def _claim(result: PlanResult) -> str:
    solved = f"{result.method}, {format_seconds(result.solve_ms / 1e3)}"
    kind = "" if result.allow_empty_tiers or len(result.intervals) == 2 else " with every tier used"
    if result.status == "optimal":
        return f"Proven optimal{kind} ({solved})"
    if result.status == "bounded":
        return f"Proven within {100 * (result.gap or 0):.2g} % of the optimum{kind} ({solved})"
    return f"A heuristic's plan, nothing proven ({solved}, {len(result.history)} iterations)"


def notes(problem: Problem) -> list[Text]:
    """Numbers so small that their unit was probably forgotten."""
    found = []
    for tier in problem.system.tiers:
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
                text = f"Note: tiers.{tier.name}.{field} is {shown(float(values.min()))}; is a unit missing?"
                found.append(Text(text, style="yellow"))
    return found


def _describe_system(problem: Problem) -> str:
    return " → ".join(f"{tier.entities:,} {tier.name}" for tier in problem.system.tiers)


def _tier_table(problem: Problem, evaluation: Evaluation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("tier", "layers", "averaged", "taking", "memory"):
        table.add_column(header, justify="left" if header in ("tier", "layers") else "right")
    for m, layers in enumerate(tier_layers(evaluation.plan.cuts, problem.num_layers)):
        tier = problem.system.tiers[m]
        averaged, limit = tier.entities > 1 and len(layers) > 0, float(tier.memory_bits.min())
        table.add_row(
            f"{m + 1} {tier.name}",
            _layer_names(problem.profile, layers),
            interval_text(evaluation.plan.intervals[m]) if averaged else "",
            format_seconds(evaluation.aggregation_latency_s[m]) if averaged else "",
            format_bits(evaluation.memory_bits[m]) + (f" of {format_bits(limit)}" if math.isfinite(limit) else ""),
        )
    return table


def _layer_names(profile: LayerProfile, layers: range) -> str:
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


def _time_to_target(problem: Problem, result: PlanResult) -> RenderableType:
    e = result.evaluation
    if e.learning_rate == problem.learning_rate:
        return _timing("Time to target", e)
    lines = [_timing(f"Time to target with the learning rate {e.learning_rate:.3g}", e)]
    if result.given is None:
        lines.append(Text(f"The given learning rate {problem.learning_rate:.3g} cannot reach the target."))
    else:
        lines.append(_timing(f"With the given {problem.learning_rate:.3g}", result.given, style="dim"))
    return Group(*lines)


def _timing(label: str, e: Evaluation, style: str = "") -> Text:
    text = Text(f"{label}: ", style=style)
    text.append(format_seconds(e.total_latency_s), style=style or "bold green")
    if e.rounds is None:
        return text.append(f" ({e.target:.4g} is never reached)")
    rounds = "1 round" if e.rounds == 1 else f"{e.rounds:,} rounds"
    text.append(f", {rounds} of {format_seconds(average_round(e))} on average\n")
    text.append(f"(cuts {_numbers(e.plan.cuts)}; intervals {_intervals(e.plan)}; ")
    return text.append(f"target: mean squared gradient norm {e.target:.4g})")


def average_round(e: Evaluation) -> float:
    """T_S + sum_m T_{m,A}/I_m."""
    pairs = zip(e.aggregation_latency_s, e.plan.intervals, strict=True)
    return e.split_latency_s + sum(seconds / interval for seconds, interval in pairs)


def round_bars(problem: Problem, evaluation: Evaluation) -> Table:
    """The slowest client's round, in the order it happens."""
    parts, M = evaluation.parts, problem.system.num_tiers
    names = [t.name for t in problem.system.tiers]
    rows = []
    for m in range(M):
        rows.append((f"compute in {names[m]}", float(parts.compute_s[m]), "cyan"))
        if m < M - 1:
            rows.append((f"{names[m]} ↑ {names[m + 1]}", float(parts.uplink_s[m]), "magenta"))
            rows.append((f"{names[m]} ↓ {names[m + 1]}", float(parts.downlink_s[m]), "blue"))
    for m, seconds in enumerate(evaluation.aggregation_latency_s):
        if seconds:
            rows.append((f"averaging {names[m]}", seconds / evaluation.plan.intervals[m], "yellow"))
    total = sum(seconds for _, seconds, _ in rows) or 1.0
    longest = max(seconds for _, seconds, _ in rows) or 1.0
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, seconds, style in rows:
        if not seconds:
            continue
        length = round(_BAR * seconds / longest)
        table.add_row(
            name, Text("█" * length or "▏", style=style), format_seconds(seconds), f"{100 * seconds / total:.0f} %"
        )
    return table


def limits_text(problem: Problem, evaluation: Evaluation) -> Text:
    """What limits the plan, most first."""
    names = [t.name for t in problem.system.tiers]
    shown = []
    for limit in evaluation.limits:
        what = _WHAT[limit.kind].format(tier=names[limit.tier])
        if limit.kind == "memory":
            shown.append(f"{what} (without its limit {100 * limit.share:.0f}\u00a0% less time)")
        elif limit.share >= 0.15 or not shown:
            shown.append(f"{what} ({100 * limit.share:.0f}\u00a0% of the round)")
    return Text("Limited by " + "; ".join(shown) + "." if shown else "Nothing takes time.")


def compare_table(result: PlanResult, others: Sequence[Alternative]) -> RenderableType:
    """Every alternative with its slowdown."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("plan", "cuts", "intervals", "time to target", "slowdown"):
        table.add_column(header, justify="right" if header in ("time to target", "slowdown") else "left")
    rows = [("HSFL", result.evaluation), *((a.name, a.evaluation) for a in others)]
    for name, e in rows:
        if e is None:
            table.add_row(name, "", "", "does not fit", "")
            continue
        slowdown = f"{e.objective_s / result.objective_s:.2f} ×" if e.reaches_target else "∞"
        time = format_seconds(e.total_latency_s) if e.reaches_target else "target missed"
        table.add_row(name, _numbers(e.plan.cuts), _intervals(e.plan), time, slowdown)
    legend = Table.grid(padding=(0, 1))
    for alternative in others:
        legend.add_row(Text(f"  {alternative.name}", style="dim"), Text(alternative.what, style="dim"))
    notes: list[RenderableType] = [table, legend]
    faster = [a for a in others if a.evaluation and a.evaluation.objective_s < result.objective_s * (1 - 1e-9)]
    if faster:
        relaying = any(len(a.evaluation.plan.cuts) == len(result.cuts) for a in faster if a.evaluation)
        remedy = (
            " --allow-empty-tiers plans for tiers that only relay." if relaying and result.method == "exact" else ""
        )
        notes.append(Text(f"Faster than this plan: {', '.join(a.name for a in faster)}.{remedy}", style="yellow"))
    return Group(*notes)


def sweep_table(field: str, points: Sequence[tuple[str, PlanResult | str]], names: Sequence[str]) -> RenderableType:
    """How the plan moves as a field moves; a point is a result or the sentence that says why there is none.

    `names` are those of the tiers.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("value", "cuts", "intervals", "rounds", "round", "time to target", "limited by"):
        table.add_column(header, justify="left" if header in ("value", "cuts", "intervals", "limited by") else "right")
    failures = []
    for value, point in points:
        if isinstance(point, str):
            table.add_row(value, "no plan")
            failures.append(Text(f"{value}: {point}"))
            continue
        e = point.evaluation
        limit = e.limits[0] if e.limits else None
        table.add_row(
            value,
            _numbers(e.plan.cuts),
            _intervals(e.plan),
            f"{e.rounds:,}",
            format_seconds(average_round(e)),
            format_seconds(e.total_latency_s),
            _LIMIT[limit.kind].format(tier=names[limit.tier]) if limit else "",
        )
    return Group(Text(f"The plan as {field} moves", style="bold"), table, *failures)


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """The built-in scenarios."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("name", "tiers", "model", "what it is"):
        table.add_column(header)
    for scenario in scenarios:
        spec = scenario.spec
        table.add_row(spec.name, str(len(spec.tiers)), spec.model.name or "", spec.description or "")
    return table


def profile_table(name: str, profile: LayerProfile) -> RenderableType:
    """What every layer costs."""
    table = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for header in ("forward FLOPs", "backward", "activation", "gradient", "parameters"):
        table.add_column(header, justify="right")
    for i, layer in enumerate(profile.names):
        table.add_row(
            f"{i + 1} {layer}",
            format_flops(profile.forward_flops[i], ""),
            format_flops(profile.backward_flops[i], ""),
            format_bits(profile.activation_bits[i]),
            format_bits(profile.gradient_bits[i]),
            format_bits(profile.parameter_bits[i]),
        )
    forward, backward = (format_flops(f.sum(), "FLOPs") for f in (profile.forward_flops, profile.backward_flops))
    total = f"{len(profile)} layers; {forward} forward and {backward} backward per sample; "
    return Group(table, Text(total + f"{format_bits(profile.parameter_bits.sum())} of parameters."))


def timing_table(
    profile: LayerProfile, timing: Sequence[tuple[float, float]], batch_size: int, peak_flops: float
) -> RenderableType:
    """The FLOP/s each layer really gets, from the seconds of its passes, next to the machine's nominal FLOP/s."""
    table = Table(
        title=f"On this machine, batch {batch_size}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("layer", no_wrap=True)
    for header in ("forward", "backward", "effective FLOP/s", "of nominal"):
        table.add_column(header, justify="right")
    work = batch_size * (profile.forward_flops + profile.backward_flops)
    rows = [(f"{i + 1} {n}", *timing[i], float(work[i])) for i, n in enumerate(profile.names)]
    rows.append(("all", sum(t[0] for t in timing), sum(t[1] for t in timing), float(work.sum())))
    for layer, forward, backward, flops in rows:
        rate = flops / (forward + backward)
        share = f"{100 * rate / peak_flops:.0f} %"
        table.add_row(layer, format_seconds(forward), format_seconds(backward), format_flops(rate), share)
    return Group(table, Text(f"Nominal is a large float32 matrix product: {format_flops(peak_flops)}."))


def constants_report(profile: LayerProfile, system: System, constants: Constants) -> list[RenderableType]:
    """Measured constants, by layer where they are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    tiers = [m for m in range(system.num_tiers) if system.averaged[m]]
    headers = ["variance σ²", "second moment G²", *(f"dissimilarity ζ² of {system.tiers[m].name}" for m in tiers)]
    for header in headers:
        table.add_column(header, justify="right")
    moment, zeta = constants.gradient_second_moment, constants.gradient_dissimilarity
    assert moment is not None and zeta is not None
    columns = [constants.gradient_variance, moment, *(zeta[m] for m in tiers)]
    for i, layer in enumerate(profile.names):
        table.add_row(f"{i + 1} {layer}", *(f"{column[i]:.3g}" for column in columns))
    table.add_section()
    table.add_row("all", *(f"{column.sum():.3g}" for column in columns))
    text = f"smoothness β = {constants.smoothness:.4g}, initial gap θ0 = {constants.initial_gap:.4g}"
    return [Text(text), table]


def data_table(found: Sequence[tuple[str, Path | str | None]]) -> RenderableType:
    """Data sets and where they are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("data set")
    table.add_column("where", overflow="fold")
    for name, where in found:
        table.add_row(name, str(where) if where is not None else f"not here: hsfl data get {name}")
    return table


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _intervals(plan: Plan) -> str:
    return ", ".join("never" if i >= NEVER else f"{i}" for i in plan.intervals)
