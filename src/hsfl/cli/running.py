"""The commands that run a scenario on machines."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hsfl import api
from hsfl.cli.common import (
    AveragingOption,
    CodeOption,
    DebugOption,
    SetOption,
    app,
    overridden,
    show,
    usable,
    warnings_in_one_line,
)
from hsfl.cli.output import may_get_lost
from hsfl.cli.training import DataOption, interrupts_that_say_how_to_go_on, live, numbers
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError
from hsfl.scenario.reading import read_scenario


@app.command()
def run(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario file, or a built-in scenario by name (hsfl scenarios).")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Every machine a process of its own on this one, over real sockets.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(help="Train for so many rounds.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Who chooses cuts and intervals; see hsfl train.")] = None,
    cuts: Annotated[str | None, typer.Option(metavar="4,7", help="After which layers to cut; see hsfl train.")] = None,
    intervals: Annotated[
        str | None, typer.Option(metavar="5,6,1", help="Rounds between averages, per tier; see hsfl train.")
    ] = None,
    averaging: AveragingOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, partition and mini-batches.")] = None,
    code: CodeOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", callback=usable, help="The run's folder; default: the next free runs/NAME-STRATEGY-N."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=usable, help="Go on with a run from its last checkpoint.")
    ] = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a scenario on machines: the coordinator here, every entity a process; measured times beside the planned."""
    given: dict[str, Any] = {
        "stopping.rounds": rounds,
        "strategy.name": strategy,
        "strategy.cuts": numbers(cuts, "--cuts"),
        "strategy.intervals": numbers(intervals, "--intervals"),
        "training.averaging": averaging,
        "training.seed": seed,
    }
    overrides = overridden(given, code, set_)
    if not local:
        raise HsflError("say where to run: --local, with every machine a process on this one")
    if (resume is None) == (scenario is None):
        raise HsflError("name a scenario to run (hsfl scenarios), or a run to go on with: --resume DIR")
    if resume is not None and out is not None:
        raise HsflError("--out and --resume exclude each other; a resumed run stays in its folder")
    with may_get_lost(), warnings_in_one_line(), interrupts_that_say_how_to_go_on():
        if resume is not None:
            api.resume(resume, overrides, callbacks=[live()], data=data, cluster="local")
            return
        assert scenario is not None
        loaded = api.load_scenario(scenario, overrides)
        if sys.stdout.isatty():
            show(f"Preparing {loaded.name}: model, data and machines")
        api.run(loaded, cluster="local", callbacks=[live()], out=out, data=data)


@app.command(hidden=True)
def nursery() -> None:
    """Start the machines of a local run, as its coordinator says on standard input."""
    from hsfl.distributed.describing import describe
    from hsfl.distributed.nursery import raise_machines
    from hsfl.distributed.process import set_threads
    from hsfl.distributed.security import Security

    set_threads(1)
    given = json.loads(sys.stdin.readline())
    loaded = replace(
        read_scenario(given["scenario"], api.profile_model),
        folder=None if given["scenario_folder"] is None else Path(given["scenario_folder"]),
    )
    described = describe(loaded, None if given["data"] is None else Path(given["data"]))
    if line := sys.stdin.readline():
        wanted, folder = json.loads(line), Path(given["folder"])
        raise_machines(described, wanted["names"], folder, wanted["coordinator"], Security(given["token"]))
    os._exit(0)  # nobody waits for what is left of it
