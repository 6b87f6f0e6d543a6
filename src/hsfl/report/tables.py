"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hsfl.errors import HsflError
from hsfl.planner.baselines import Alternative
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.codes import PLAIN
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import LayerProfile
from hsfl.problem.system import System
from hsfl.problem.topology import tier_layers
from hsfl.problem.units import format_bits, format_flops, format_seconds
from hsfl.report.colours import tier_colour
from hsfl.report.grid import Grid
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
from hsfl.report.words import codes_text, counted, each_round, numbers
from hsfl.scenario.scenario import Scenario

_BAR = 32


def plan_report(problem: Problem, result: PlanResult, caveat: str | None = None) -> RenderableType:
    """Everything about a planned scenario; a caveat, as `Scenario.caveat` has it, bounds what is proven."""
    e = result.evaluation
    return Group(
        Text(f"{result.scenario}: {system_text(problem)}", style="bold"),
        Text(model_text(problem)),
        Text(claim(problem, result, caveat)),
        *(Text(note, style="yellow") for note in notes(problem)),
        Text(),
        _tier_table(problem, e),
        Text(),
        _time_to_target(problem, result),
        Text(),
        Text(f"An average round of {slowest_text(problem, e)}:"),
        round_bars(problem, e),
        Text(),
        Text(limits_text(problem, e)),
    )


def _tier_table(problem: Problem, evaluation: Evaluation) -> Grid:
    problem, rows = problem.as_planned(evaluation.plan), []
    for m, layers in enumerate(tier_layers(evaluation.plan.cuts, problem.num_layers)):
        tier = problem.system.tiers[m]
        averaged, limit = tier.entities > 1 and len(layers) > 0, float(tier.memory_bits.min())
        memory = format_bits(evaluation.memory_bits[m])
        memory = f"{memory} of {format_bits(limit)}" if math.isfinite(limit) else memory
        rows.append(
            (
                Text(f"{m + 1} {tier.name}", style=tier_colour(m)),
                layer_names(problem.profile, layers),
                interval_text(evaluation.plan.intervals[m]) if averaged else "",
                format_seconds(evaluation.aggregation_latency_s[m]) if averaged else "",
                memory if m < len(problem.system.tree) else f"with {problem.system.machines(m).name}",
            )
        )
    header, right = ("tier", "layers", "averaged", "taking", "memory"), (False, False, True, True, True)
    if all(tier.codes == PLAIN for tier in problem.system.tiers):  # neither coded nor planned
        return Grid(header, rows, right)
    coded = [(*row, codes_text(problem.system, m)) for m, row in enumerate(rows)]
    return Grid((*header, "links"), coded, (*right, False))


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
    chosen = f"cuts {numbers(e.plan.cuts)}; intervals {numbers(e.plan.intervals)}{each_round(e.plan.micro_batches)}"
    text.append(f"({chosen}; ")
    return text.append(f"target: mean squared gradient norm {e.target:.4g})")


def round_bars(problem: Problem, evaluation: Evaluation) -> Table:
    """The slowest client's round, in the order it happens."""
    steps = round_steps(problem, evaluation)
    total = sum(step.seconds for step in steps) or 1.0
    longest = max((step.seconds for step in steps), default=0.0) or 1.0
    labels = [step.label for step in steps] or [""]
    words = max(len(word) for label in labels for word in (label.split() or [""]))
    room = max(words, min(30, max(map(len, labels))))
    width = max(2, min(_BAR, 62 - room))  # 80 columns hold all of it
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=room)
    for step in steps:
        bar = Bar(longest, 0, max(step.seconds, longest / 8 / width), width=width, color=tier_colour(step.tier))
        table.add_row(Text(step.label), bar, format_seconds(step.seconds), f"{100 * step.seconds / total:.0f} %")
    return table


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
        said = [f"Faster than this plan: {', '.join(a.name for a in faster)}."]
        found = [e for a in faster if (e := a.evaluation) is not None]
        apart = [e.chunks for e in found if e.chunks > result.evaluation.chunks]
        if any(len(e.plan.cuts) == len(result.cuts) and e.chunks not in apart for e in found):
            said += ["--allow-empty-tiers plans for tiers that only relay."] if result.method == "exact" else []
        said += [f"--chunks {count} takes mini-batches apart." for count in apart]
        notes.append(Text(" ".join(said), style="yellow"))
    return Group(*notes)


def sweep_table(
    field: str, points: Sequence[tuple[str, PlanResult | HsflError]], names: Sequence[str]
) -> RenderableType:
    """How the plan moves as a field moves; a point is a result or the error that says why there is none.

    `names` are those of the tiers.
    """
    rows, failures = [], []
    counted_too = any(isinstance(p, PlanResult) and p.plan.micro_batches is not None for _, p in points)
    for value, point in points:
        if isinstance(point, HsflError):
            rows.append((value, "no plan", *[""] * (5 + counted_too)))
            failures.append(Text(f"{value}: {point}"))
            continue
        e = point.evaluation
        limit = e.limits[0] if e.limits else None
        rows.append(
            (
                value,
                numbers(e.plan.cuts),
                numbers(e.plan.intervals),
                *([str(e.plan.micro_batches or "")] if counted_too else []),
                f"{e.rounds:,}",
                format_seconds(average_round(e)),
                format_seconds(e.total_latency_s),
                limit_name(limit, names) if limit else "",
            )
        )
    more = ["mini-batches"] if counted_too else []
    header = ("value", "cuts", "intervals", *more, "rounds", "round", "time to target", "limited by")
    right = (False, False, False, *[True] * len(more), True, True, True, False)
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
    tiers = [m for m in range(len(system.tree)) if system.averaged[m]]
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
