"""The commands that plan: plan, scenarios, init, profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsfl import api, factory
from hsfl.cli.common import (
    AveragingOption,
    ChunksOption,
    CodeOption,
    DebugOption,
    MicroBatchesOption,
    ScenarioArgument,
    SetOption,
    app,
    listed,
    overridden,
    show,
    usable,
    warnings_in_one_line,
)
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError, InfeasibleError
from hsfl.files import write_whole
from hsfl.planner.result import PlanResult
from hsfl.runs.profiling import profile_model
from hsfl.scenario.catalog import DEFAULT_INPUT_SHAPES, checked_shape, scenario_names, shipped_profile
from hsfl.scenario.reading import read_scenario
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.toml_format import toml_or_text
from hsfl.scenario.varying import split_values

if TYPE_CHECKING:
    from hsfl.planner.baselines import Alternative


@app.command()
@warnings_in_one_line()
def plan(
    scenario: ScenarioArgument,
    method: Annotated[str, typer.Option(help="exact: the proven optimum; bcd: the paper's Algorithm 2.")] = "exact",
    averaging: AveragingOption = None,
    micro_batches: MicroBatchesOption = None,
    chunks: ChunksOption = None,
    code: CodeOption = None,
    set_: SetOption = None,
    allow_empty_tiers: Annotated[
        bool, typer.Option("--allow-empty-tiers", help="A tier above the devices may hold no layer and only relay.")
    ] = False,
    optimize_learning_rate: Annotated[
        bool, typer.Option("--optimize-learning-rate", help="Choose the learning rate too, up to 1/smoothness.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what other ways of choosing a plan would cost.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B,C", help="Plan again for every value of a field and show how the plan moves."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", callback=usable, help="Draw the objective over the cuts, or the sweep, into a file."
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds a search among too many cuts to list may take.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the best cuts and intervals for a scenario."""
    fields = {
        "training.averaging": averaging,
        "training.micro_batches": listed(micro_batches, toml_or_text),
        "training.chunks": chunks,
    }
    loaded = api.load_scenario(scenario, overridden(fields, code, set_))
    options = {
        "method": method,
        "allow_empty_tiers": allow_empty_tiers,
        "optimize_learning_rate": optimize_learning_rate,
        "time_limit_s": time_limit,
    }
    if sweep:
        if len(sweep) > 1:
            raise HsflError(f"--sweep is given {len(sweep)} times; one field can be swept at a time")
        if compare:
            raise HsflError("--compare and --sweep exclude each other; leave one out")
        _sweep(loaded, sweep[0], options, plot, as_json)
        return
    result = api.plan(loaded, **options)  # type: ignore[arg-type]
    others = api.compare(loaded, result, allow_empty_tiers=allow_empty_tiers) if compare else []
    if plot is not None:
        from hsfl.report.plots import draw_objective, save

        save(draw_objective(loaded.problem, result, allow_empty_tiers=allow_empty_tiers), plot)
    if as_json:
        print(
            json.dumps(
                result.to_dict() | ({"alternatives": _alternatives(result, others)} if compare else {}), indent=2
            )
        )
        return
    from hsfl.report import tables

    show(tables.plan_report(loaded.problem, result, loaded.caveat))
    if compare:
        show("", tables.compare_table(result, others))
    if plot is not None:
        show(f"\nWrote {plot}")


@app.command()
def scenarios(debug: DebugOption = False) -> None:
    """List the built-in scenarios."""
    from hsfl.report import tables

    show(tables.scenario_table([_builtin(name) for name in scenario_names()]))
    show("Plan one with  hsfl plan NAME ; make it your own with  hsfl init FILE --from NAME")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(callback=usable, help="The file to write; an existing one is left alone.")],
    source: Annotated[
        str, typer.Option("--from", metavar="NAME", help="The built-in scenario to start from.")
    ] = "paper",
    debug: DebugOption = False,
) -> None:
    """Write a scenario file with every field explained, to make your own."""
    from hsfl.scenario.template import scenario_text

    if source not in scenario_names():
        raise HsflError(f"--from {source}: no such built-in scenario; there are {', '.join(scenario_names())}")
    text = scenario_text(_builtin(source).raw)
    write_whole(file, text.encode(), replace=False)
    show(f"Wrote {file}: edit it, then  hsfl plan {file}")


@app.command()
@warnings_in_one_line()
def profile(
    model: Annotated[
        str, typer.Argument(metavar="NAME_OR_FACTORY", help='A built-in model, or "package.module:function".')
    ],
    input_: Annotated[
        str | None,
        typer.Option("--input", metavar="3,32,32", help="Shape of one sample; built-in models have a default."),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=usable, help="Write the profile as CSV, for [model] profile."),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time every layer on this machine.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Mini-batch for --measure.")] = 16,
    optimizer: Annotated[
        str, typer.Option(help="Whose state optimizer_bits counts: sgd, momentum, adam, adamw.")
    ] = "sgd",
    debug: DebugOption = False,
) -> None:
    """Show what every layer of a model costs; any torch model will do."""
    from hsfl.problem.profile import OPTIMIZER_STATE_COPIES

    if optimizer not in OPTIMIZER_STATE_COPIES:
        raise HsflError(f"--optimizer {optimizer}: it must be one of {', '.join(OPTIMIZER_STATE_COPIES)}")
    shape = _shape(input_) if input_ is not None else None
    if ":" in model and shape is None:
        raise HsflError(f"{model}: give the shape of one sample, such as --input 3,32,32")
    from hsfl.report import tables

    factory.consent = factory.allow  # whoever names the code in the command wants it run
    found = None
    if model in DEFAULT_INPUT_SHAPES and not measure and (shipped := shipped_profile(model, shape)) is not None:
        shape, found = shape or DEFAULT_INPUT_SHAPES[model], shipped.with_optimizer(optimizer)
    if found is None:
        from hsfl import models

        shape = shape or models.input_shape(model)
        network = models.load_factory(model, Path.cwd()) if ":" in model else models.build(model, shape)
        found = models.profile(network, shape, optimizer)
    if csv is not None:
        write_whole(csv, found.to_csv().encode(), replace=False)
    assert shape is not None
    title = f"{model}, input {' × '.join(map(str, shape))}"
    show(tables.profile_table(title, found))
    if measure:
        timing = models.time_layers(network, shape, batch_size).tolist()
        show(tables.timing_table(found, timing, batch_size, models.peak_flops()))
    if csv is not None:
        show(f'Wrote {csv}: use it with  [model] profile = "{csv}"')


def _builtin(name: str) -> Scenario:
    return read_scenario(name, profile_model)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise HsflError(f"--input {text}: write whole numbers with commas, such as 3,32,32") from None
    try:
        checked_shape(shape)
    except ValueError as error:
        raise HsflError(f"--input {text}: {error}") from None
    return shape


def _sweep(scenario: Scenario, text: str, options: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    field, equals, values = text.partition("=")
    if not equals or not field.strip() or not values.strip():
        raise HsflError(f"--sweep {text}: write FIELD=A,B,C, as in training.batch_size=8,16,32")
    texts = split_values(values)
    points = list(zip(texts, api.plan_sweep(scenario, field.strip(), map(toml_or_text, texts), **options), strict=True))
    for _, point in points:
        if isinstance(point, HsflError) and not isinstance(point, InfeasibleError):
            raise HsflError(f"--sweep {text}: {point}") from point
    if all(isinstance(point, HsflError) for _, point in points):
        raise HsflError(f"--sweep {text}: no value has a plan; the first: {points[0][1]}")
    names = scenario.tier_names
    if plot is not None:
        from hsfl.report.plots import draw_sweep, save

        save(draw_sweep(field, [(v, p) for v, p in points if isinstance(p, PlanResult)], names), plot)
    if as_json:
        plans = [{"value": v} | ({"error": str(p)} if isinstance(p, HsflError) else p.to_dict()) for v, p in points]
        print(json.dumps({"scenario": scenario.name, "field": field, "sweep": plans}, indent=2))
        return
    from hsfl.report import tables

    show(tables.sweep_table(field, points, names))
    if plot is not None:
        show(f"Wrote {plot}")


def _alternatives(result: PlanResult, others: list[Alternative]) -> list[dict[str, Any]]:
    found = []
    for other in others:
        entry: dict[str, Any] = {"name": other.name, "what": other.what}
        if other.evaluation is not None:
            reaches = other.evaluation.reaches_target
            entry["slowdown"] = other.evaluation.objective_s / result.objective_s if reaches else None
            entry |= other.evaluation.to_dict()
        found.append(entry)
    return found
