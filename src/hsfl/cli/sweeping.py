"""hsfl sweep: train one scenario for many values of its fields."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hsfl import api
from hsfl.cli.common import (
    DebugOption,
    ScenarioArgument,
    SetOption,
    app,
    overridden,
    say,
    show,
    usable,
    warnings_in_one_line,
)
from hsfl.cli.ray_option import AddressMayBeLeftOut, RayOption, pool_of
from hsfl.cli.training import DataOption, RoundsOption
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError
from hsfl.scenario.varying import Values, parsed


@app.command(cls=AddressMayBeLeftOut)
def sweep(
    scenario: ScenarioArgument,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B,C",
            help="A field and its values; repeatable: every combination is trained. With --random also a range to draw "
            "from: FIELD=LOW..HIGH, or FIELD=log:1e-3..1e-1, evenly in logarithms.",
        ),
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Draw so many combinations instead of training all of them.")
    ] = None,
    draw_seed: Annotated[int, typer.Option(min=0, help="With --random: another seed draws other combinations.")] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Train each with training.seed 0, 1, ...; default: the scenario's own seed."
        ),
    ] = None,
    goal: Annotated[
        str,
        typer.Option(
            help="What the table is sorted by: accuracy, loss, time (to the most accuracy that all reach) or time=0.9 "
            "(to that one)."
        ),
    ] = "accuracy",
    rounds: RoundsOption = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = None,
    set_: SetOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs trained side by side; default: the number of cores, or of GPUs."),
    ] = None,
    ray: RayOption = None,
    data: DataOption = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", callback=usable, help="Where runs and the report go; what was interrupted goes on there."
        ),
    ] = Path("sweep"),
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a scenario for many values of its fields, a grid or a random search, and report on all of it.

    The same command goes on where it was stopped. (hsfl plan --sweep plans for many values, without training.)
    """
    from hsfl.experiments.side_by_side import gpus_for
    from hsfl.report.progress import RunsProgress
    from hsfl.report.sweeps import failures, sweep, sweep_table
    from hsfl.report.words import counted
    from hsfl.runs.interrupting import stops_at_once
    from hsfl.runs.preparing import choose_device

    fields: dict[str, Values] = {}
    for text in vary or []:
        field, values = parsed(text)
        if field in fields:
            raise HsflError(f"--vary {text}: {field} is varied twice; give all its values at once")
        fields[field] = values
    loaded = api.load_scenario(
        scenario, overridden({"stopping.rounds": rounds, "execution.device": device}, None, set_)
    )
    chosen = loaded.spec.execution.device
    on_gpu = choose_device(chosen).type == "cuda"
    gpus = gpus_for(chosen) if on_gpu else []
    if jobs is None:
        jobs = max(1, len(gpus)) if on_gpu else os.cpu_count() or 1
    try:
        with pool_of(ray, on_gpu) as pool, stops_at_once(), warnings_in_one_line(), RunsProgress() as progress:
            found = sweep(
                loaded,
                fields,
                out=out,
                random=random,
                draw_seed=draw_seed,
                seeds=seeds,
                goal=goal,
                jobs=jobs,
                pool=pool,
                gpus=gpus if len(gpus) > 1 else (),
                data=data,
                callbacks=[progress],
                on_progress=progress.update,
            )
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise SystemExit(130) from None
    show(sweep_table(found))
    for text in failures(found):
        say(text)
    trained = progress.seen.trained
    show(
        f"{counted(len(found.runs), 'run')}, {trained} of them trained now; report in {out / 'report' / 'report.html'}"
    )
