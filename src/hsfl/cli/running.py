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
    ChunksOption,
    CodeOption,
    DebugOption,
    ScenarioArgument,
    SetOption,
    app,
    overridden,
    show,
    usable,
    warnings_in_one_line,
)
from hsfl.cli.output import may_get_lost
from hsfl.cli.ray_option import AddressMayBeLeftOut, RayOption
from hsfl.cli.training import (
    DataOption,
    LocalStepsOption,
    LogOption,
    ResumeOption,
    RoundsOption,
    RunOption,
    SeedOption,
    SomeScenario,
    changes_of,
    check_what,
    interrupts_that_say_how_to_go_on,
    listeners,
    numbers,
)
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError
from hsfl.runs.profiling import profile_model
from hsfl.scenario.reading import read_scenario

TokenOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=usable,
        help="A file with the run's token, or with that of this machine, if nobody dials it (hsfl certificates).",
    ),
]
CertificatesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        callback=usable,
        help="A folder with authority.pem and this machine's NAME.pem and NAME.key (hsfl certificates): streams are "
        "encrypted, and each machine proves its name.",
    ),
]


@app.command(cls=AddressMayBeLeftOut)
def run(
    scenario: SomeScenario = None,
    local: Annotated[
        bool, typer.Option("--local", help="Every machine a process of its own on this one, over real sockets.")
    ] = False,
    ray: RayOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen there for machines that join with hsfl node; with --ray, where its nodes reach this machine, "
            "if that cannot be found out.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=usable,
            help="With --ray: a folder that all nodes share, for what machines save; default: the disk of each node.",
        ),
    ] = None,
    token: TokenOption = None,
    certificates: CertificatesOption = None,
    rounds: RoundsOption = None,
    strategy: Annotated[str | None, typer.Option(help="Who chooses cuts and intervals; see hsfl train.")] = None,
    cuts: Annotated[str | None, typer.Option(metavar="4,7", help="After which layers to cut; see hsfl train.")] = None,
    intervals: Annotated[
        str | None, typer.Option(metavar="5,6,1", help="Rounds between averages, per tier; see hsfl train.")
    ] = None,
    local_steps: LocalStepsOption = None,
    as_measured: Annotated[
        bool,
        typer.Option(
            "--as-measured", help="Plan for the machines and links as measured, not as the scenario has them."
        ),
    ] = False,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS",
            help="Leave a client out of a round if its activations are not at the top so long after it began, instead "
            "of waiting for everyone.",
        ),
    ] = None,
    averaging: AveragingOption = None,
    chunks: ChunksOption = None,
    seed: SeedOption = None,
    code: CodeOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    out: RunOption = None,
    resume: ResumeOption = None,
    log: LogOption = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a scenario on machines: the coordinator here, every entity a process; measured times beside the planned."""
    given: dict[str, Any] = {
        "stopping.rounds": rounds,
        "strategy.name": strategy,
        "strategy.cuts": numbers(cuts, "--cuts"),
        "strategy.intervals": numbers(intervals, "--intervals"),
        "strategy.local_steps": local_steps,
        "training.averaging": averaging,
        "training.chunks": chunks,
        "training.seed": seed,
        "execution.deadline": deadline,
    }
    overrides = overridden(given, code, set_)
    if local + (ray is not None) + (listen is not None and ray is None) != 1:
        raise HsflError(
            "say where to run: --local, every machine a process here, --ray, on a Ray cluster, or --listen HOST:PORT, "
            "for others to join; only --ray and --listen go together"
        )
    if state is not None and ray is None:
        raise HsflError(f"--state {state}: it is for --ray; leave it out")
    where: dict[str, Any] = {
        "cluster": ray or listen or "local",
        "token": token,
        "certificates": certificates,
        "listen": listen if ray is not None else None,
        "state": state,
        "as_measured": as_measured,
    }
    check_what("run", scenario, resume, out)
    with may_get_lost(), warnings_in_one_line(), interrupts_that_say_how_to_go_on():
        if resume is not None:
            api.resume(resume, changes_of(resume, scenario, overrides), callbacks=listeners(log), data=data, **where)
            return
        assert scenario is not None
        loaded = api.load_scenario(scenario, overrides)
        if sys.stdout.isatty():
            show(f"Preparing {loaded.name}: model, data and machines")
        api.run(loaded, callbacks=listeners(log), out=out, data=data, **where)


@app.command()
def node(
    scenario: ScenarioArgument,
    name: Annotated[str, typer.Option(help="Who it is: a tier and a number from 1 on, such as edge-2, or fed.")],
    parent: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The machine above it; of the top ones and of fed, the coordinator."),
    ],
    fed: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The fed server; every machine but itself needs it.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where it listens, if machines are below it, or for fed.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=usable, help="Where it saves its part of the model; default: ./NAME."),
    ] = None,
    token: TokenOption = None,
    certificates: CertificatesOption = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads it computes with; as many on all machines.")] = 1,
    set_: SetOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help='A device\'s own data, where the scenario says data.name = "own": a .npz or .safetensors file with '
            "inputs and targets, or package.module:function, which returns both. Else, a folder with data sets "
            "(default: HSFL_DATA, or the cache folder).",
        ),
    ] = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Be one machine of a run: dial the parent, outbound only, and train until the run is over.

    Its data stay here: it sends activations in the code of its link, the targets they belong to, and its part of the
    model; where plans are made by what is measured also gradients of that part, and what they are like.
    """
    loaded = api.load_scenario(scenario, overridden({"execution.device": device}, None, set_))
    from hsfl.distributed.joining import join

    with warnings_in_one_line():
        join(
            loaded,
            name,
            parent=parent,
            fed=fed,
            listen=listen,
            folder=state or Path(name),
            token=token,
            certificates=certificates,
            data=data,
            threads=threads,
        )


@app.command()
def certificates(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", callback=usable, help="The folder to make.")],
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Make certificates and a token for every machine of a scenario, with an authority of their own."""
    loaded = api.load_scenario(scenario, overridden({}, None, set_))
    from hsfl.distributed.certificates import write_certificates
    from hsfl.distributed.describing import places_of
    from hsfl.distributed.places import COORDINATOR

    names = [COORDINATOR, *places_of(loaded).nodes]
    write_certificates(out, names)
    show(
        f"Wrote certificates and tokens of {len(names)} machines to {out}: give each machine authority.pem and the "
        ".pem, .key and .token of its own name, and token to those that listen; authority.key signs others, so keep it "
        "to yourself"
    )


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
        read_scenario(given["scenario"], profile_model),
        folder=None if given["scenario_folder"] is None else Path(given["scenario_folder"]),
    )
    described = describe(loaded, None if given["data"] is None else Path(given["data"]))
    if line := sys.stdin.readline():
        wanted, folder = json.loads(line), Path(given["folder"])
        raise_machines(described, wanted["names"], folder, wanted["coordinator"], Security(given["token"]))
    os._exit(0)  # nobody waits for what is left of it
