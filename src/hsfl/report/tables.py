"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hsfl.planner.baselines import Alternative
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.codes import PLAIN
from hsfl.problem.plan import NEVER
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import FloatArray, LayerProfile
from hsfl.problem.system import System
from hsfl.problem.topology import tier_layers
from hsfl.problem.units import format_bits, format_flops, format_rate, format_seconds
from hsfl.report.grid import Grid
from hsfl.report.words import codes_text, counted, numbers
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


def plan_report(problem: Problem, result: PlanResult, caveat: str | None = None) -> RenderableType:
    """Everything about a planned scenario; a caveat, as `Scenario.caveat` has it, bounds what is proven."""
    e, clients = result.evaluation, problem.system.num_clients
    return Group(
        Text(f"{result.scenario}: {_describe_system(problem)}", style="bold"),
        Text(f"{problem.num_layers} layers, {format_bits(problem.profile.parameter_bits.sum())} of parameters"),
        Text(_claim(result, caveat)),
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


def _claim(result: PlanResult, caveat: str | None) -> str:
    solved = f"{result.method}, {format_seconds(result.solve_ms / 1e3)}"
    kind = "" if result.allow_empty_tiers or len(result.intervals) == 2 else " with every tier used"
    if caveat is not None:
        kind += ", for the bound of SGD"
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
    return " → ".join(counted(tier.entities, tier.name) for tier in problem.system.tiers)


def _tier_table(problem: Problem, evaluation: Evaluation) -> Grid:
    problem, rows = problem.with_codes(evaluation.plan), []
    for m, layers in enumerate(tier_layers(evaluation.plan.cuts, problem.num_layers)):
        tier = problem.system.tiers[m]
        averaged, limit = tier.entities > 1 and len(layers) > 0, float(tier.memory_bits.min())
        memory = format_bits(evaluation.memory_bits[m])
        rows.append(
            (
                f"{m + 1} {tier.name}",
                _layer_names(problem.profile, layers),
                interval_text(evaluation.plan.intervals[m]) if averaged else "",
                format_seconds(evaluation.aggregation_latency_s[m]) if averaged else "",
                f"{memory} of {format_bits(limit)}" if math.isfinite(limit) else memory,
            )
        )
    header, right = ("tier", "layers", "averaged", "taking", "memory"), (False, False, True, True, True)
    if all(tier.codes == PLAIN for tier in problem.system.tiers):  # neither coded nor planned
        return Grid(header, rows, right)
    coded = [(*row, codes_text(tier)) for row, tier in zip(rows, problem.system.tiers, strict=True)]
    return Grid((*header, "links"), coded, (*right, False))


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
        limit, given = 1 / problem.constants.smoothness, f"The given learning rate {problem.learning_rate:.3g}"
        reason = "is above 1/smoothness, where the bound ends; a target given by rounds is that of 1/smoothness."
        lines.append(Text(f"{given} {reason if problem.step > limit else 'cannot reach the target.'}"))
    else:
        lines.append(_timing(f"With the given {problem.learning_rate:.3g}", result.given, style="dim"))
    return Group(*lines)


def _timing(label: str, e: Evaluation, style: str = "") -> Text:
    text = Text(f"{label}: ", style=style)
    text.append(format_seconds(e.total_latency_s), style=style or "bold green")
    if e.rounds is None:
        return text.append(f" ({e.target:.4g} is never reached)")
    text.append(f", {counted(e.rounds, 'round')} of {format_seconds(average_round(e))} on average\n")
    text.append(f"(cuts {numbers(e.plan.cuts)}; intervals {numbers(e.plan.intervals)}; ")
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
    words = max(len(word) for name, *_ in rows for word in name.split())
    room = max(words, min(30, max(len(name) for name, *_ in rows)))
    width = max(2, min(_BAR, 62 - room))  # 80 columns hold all of it
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=room)
    for name, seconds, style in rows:
        if seconds:
            bar = Bar(longest, 0, max(seconds, longest / 8 / width), width=width, color=style)
            table.add_row(Text(name), bar, format_seconds(seconds), f"{100 * seconds / total:.0f} %")
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
    rows = []
    for name, e in (("HSFL", result.evaluation), *((a.name, a.evaluation) for a in others)):
        if e is None:
            rows.append((name, "", "", "does not fit", ""))
            continue
        slowdown = f"{e.objective_s / result.objective_s:.2f} ×" if e.reaches_target else "∞"
        time = format_seconds(e.total_latency_s) if e.reaches_target else "target missed"
        rows.append((name, numbers(e.plan.cuts), numbers(e.plan.intervals), time, slowdown))
    header, right = ("plan", "cuts", "intervals", "time to target", "slowdown"), (False, False, False, True, True)
    legend = Table.grid(padding=(0, 1))
    legend.add_column(no_wrap=True)
    for alternative in others:
        legend.add_row(Text(f"  {alternative.name}", style="dim"), Text(alternative.what, style="dim"))
    notes: list[RenderableType] = [Grid(header, rows, right), legend]
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
    rows, failures = [], []
    for value, point in points:
        if isinstance(point, str):
            rows.append((value, "no plan", "", "", "", "", ""))
            failures.append(Text(f"{value}: {point}"))
            continue
        e = point.evaluation
        limit = e.limits[0] if e.limits else None
        rows.append(
            (
                value,
                numbers(e.plan.cuts),
                numbers(e.plan.intervals),
                f"{e.rounds:,}",
                format_seconds(average_round(e)),
                format_seconds(e.total_latency_s),
                _LIMIT[limit.kind].format(tier=names[limit.tier]) if limit else "",
            )
        )
    header = ("value", "cuts", "intervals", "rounds", "round", "time to target", "limited by")
    right = (False, False, False, True, True, True, False)
    return Group(Text(f"The plan as {field} moves", style="bold"), Grid(header, rows, right), *failures)


def scenario_table(scenarios: Sequence[Scenario]) -> Grid:
    """The built-in scenarios."""
    specs = [scenario.spec for scenario in scenarios]
    rows = [(spec.name, str(len(spec.tiers)), spec.model.name or "", spec.description or "") for spec in specs]
    return Grid(("name", "tiers", "model", "what it is"), rows, (False, False, False, False))


def profile_table(name: str, profile: LayerProfile) -> RenderableType:
    """What every layer costs."""
    rows = [
        (
            f"{i + 1} {layer}",
            format_flops(profile.forward_flops[i], ""),
            format_flops(profile.backward_flops[i], ""),
            format_bits(profile.activation_bits[i]),
            format_bits(profile.gradient_bits[i]),
            format_bits(profile.parameter_bits[i]),
        )
        for i, layer in enumerate(profile.names)
    ]
    header = ("layer", "forward FLOPs", "backward", "activation", "gradient", "params")
    table = Grid(header, rows, (False, *[True] * 5))
    forward, backward = (format_flops(f.sum(), "FLOPs") for f in (profile.forward_flops, profile.backward_flops))
    total = f"{len(profile)} layers; {forward} forward and {backward} backward per sample; "
    return Group(
        Text(name, style="bold"), table, Text(total + f"{format_bits(profile.parameter_bits.sum())} of parameters.")
    )


def timing_table(
    profile: LayerProfile, timing: Sequence[tuple[float, float]], batch_size: int, peak_flops: float
) -> RenderableType:
    """The FLOP/s each layer really gets, from the seconds of its passes, next to the machine's nominal FLOP/s."""
    work = batch_size * (profile.forward_flops + profile.backward_flops)
    timed = [(f"{i + 1} {n}", *timing[i], float(work[i])) for i, n in enumerate(profile.names)]
    timed.append(("all", sum(t[0] for t in timing), sum(t[1] for t in timing), float(work.sum())))
    rows = []
    for layer, forward, backward, flops in timed:
        rate = flops / (forward + backward)
        share = f"{100 * rate / peak_flops:.0f} %"
        rows.append((layer, format_seconds(forward), format_seconds(backward), format_flops(rate), share))
    title = Text(f"On this machine, batch {batch_size}", style="bold")
    table = Grid(
        ("layer", "forward", "backward", "effective FLOP/s", "of nominal"), rows, (False, *[True] * 4), total=True
    )
    return Group(title, table, Text(f"Nominal is a large float32 matrix product: {format_flops(peak_flops)}."))


def constants_report(profile: LayerProfile, system: System, constants: Constants) -> list[RenderableType]:
    """Measured constants, by layer where they are."""
    tiers = [m for m in range(system.num_tiers) if system.averaged[m]]
    moment, zeta = constants.gradient_second_moment, constants.gradient_dissimilarity
    assert moment is not None and zeta is not None
    columns = [constants.gradient_variance, moment, *(zeta[m] for m in tiers)]
    rows = [(f"{i + 1} {layer}", *(f"{c[i]:.3g}" for c in columns)) for i, layer in enumerate(profile.names)]
    rows.append(("all", *(f"{column.sum():.3g}" for column in columns)))
    named = [f"dissimilarity ζ² of {system.tiers[m].name}" for m in tiers]
    header = ["layer", "variance σ²", "second moment G²", *named]
    text = f"smoothness β = {constants.smoothness:.4g}, initial gap θ0 = {constants.initial_gap:.4g}"
    return [Text(text), Grid(header, rows, (False, *[True] * len(columns)), total=True)]


def data_table(found: Sequence[tuple[str, Path | str | None]]) -> RenderableType:
    """Data sets and where they are."""
    rows = [(name, f"not here: hsfl data get {name}" if where is None else str(where)) for name, where in found]
    return Grid(("data set", "where"), rows, (False, False))
