"""The commands that train: train, report, estimate, data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsfl import api
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
    say,
    show,
    usable,
    warnings_in_one_line,
)
from hsfl.cli.output import may_get_lost
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError
from hsfl.runs.processes import follows, says_it
from hsfl.runs.profiling import profile_model
from hsfl.scenario.toml_format import toml_or_text

if TYPE_CHECKING:
    from hsfl.runs.callback import Callback

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        callback=usable,
        help="Folder with data sets; default: HSFL_DATA, or the cache folder.",
    ),
]
SomeScenario = Annotated[
    str | None, typer.Argument(help="A scenario file, or a built-in scenario by name (hsfl scenarios).")
]
RoundsOption = Annotated[int | None, typer.Option(help="Train for so many rounds.")]
LocalStepsOption = Annotated[
    int | None, typer.Option(help="With --strategy FedAvg: rounds that devices train on their own before an average.")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of weights, partition and mini-batches.")]
RunOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", callback=usable, help="The run's folder; default: the next free runs/NAME-STRATEGY-N."),
]
ResumeOption = Annotated[
    Path | None, typer.Option(metavar="DIR", callback=usable, help="Go on with a run from its last checkpoint.")
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME",
        help="Also log to tensorboard, wandb or mlflow, into the run's folder unless their own settings say where; "
        "repeatable.",
    ),
]
data_app = typer.Typer(
    help="Data sets: list them, fetch one, or show who has what.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")


@app.command()
def train(
    scenario: SomeScenario = None,
    rounds: RoundsOption = None,
    time: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Train for so much simulated time, such as "2h".')
    ] = None,
    until_accuracy: Annotated[
        float | None, typer.Option(help="Train until this test accuracy, such as 0.9, is reached.")
    ] = None,
    until_loss: Annotated[
        float | None, typer.Option(help="Train until this training loss is reached, and forecast when that will be.")
    ] = None,
    until_converged: Annotated[
        bool, typer.Option("--until-converged", help="Train until the test accuracy stops gaining.")
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Who chooses cuts and intervals: HSFL (planned), fixed, RMA+MS, MA+RMS, RMA+RMS, DAMA+RMS, RMA+AMS, "
            "PSL, FedAvg, or your own package.module:Class."
        ),
    ] = None,
    cuts: Annotated[
        str | None, typer.Option(metavar="4,7", help="With --strategy fixed, PSL or HSFL: after which layers to cut.")
    ] = None,
    intervals: Annotated[
        str | None,
        typer.Option(metavar="5,6,1", help="With --strategy fixed or HSFL: rounds between averages, per tier."),
    ] = None,
    local_steps: LocalStepsOption = None,
    averaging: AveragingOption = None,
    micro_batches: MicroBatchesOption = None,
    chunks: ChunksOption = None,
    backend: Annotated[str | None, typer.Option(help="stacked (fast) or reference (reads like the paper).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 (CUDA only) or bf16.")] = None,
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
    """Train a scenario on the simulated clock, into a folder; Ctrl-C stops it, --resume goes on.

    torchrun --nproc-per-node 4 -m hsfl train ... spreads the clients over 4 processes, on CUDA with a GPU each.
    """
    given: dict[str, Any] = {
        "stopping.rounds": rounds,
        "stopping.time_limit": time,
        "stopping.until_accuracy": until_accuracy,
        "stopping.until_loss": until_loss,
        "stopping.until_converged": until_converged or None,
        "strategy.name": strategy,
        "strategy.cuts": numbers(cuts, "--cuts"),
        "strategy.intervals": numbers(intervals, "--intervals"),
        "strategy.local_steps": local_steps,
        "training.averaging": averaging,
        "training.micro_batches": listed(micro_batches, toml_or_text),
        "training.chunks": chunks,
        "execution.backend": backend,
        "execution.device": device,
        "execution.precision": precision,
        "training.seed": seed,
    }
    overrides = overridden(given, code, set_)
    check_what("train", scenario, resume, out)
    callbacks = listeners(log)
    with may_get_lost(), warnings_in_one_line(), interrupts_that_say_how_to_go_on():
        if resume is None:
            assert scenario is not None
            loaded = api.load_scenario(scenario, overrides)
            if sys.stdout.isatty() and not follows():  # someone waits; a log tells what was trained
                show(f"Preparing {loaded.name}: model, data, first evaluation and plan")
            api.train(loaded, callbacks=callbacks, out=out, data=data)
            return
        api.resume(resume, changes_of(resume, scenario, overrides), callbacks=callbacks, data=data)


@app.command()
@warnings_in_one_line()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", callback=usable, help="Folders that hsfl train or hsfl run wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=usable, help="Where to write; default: the run's folder, or ./report."),
    ] = None,
    log_time: Annotated[bool, typer.Option("--log-time", help="Draw time on a logarithmic axis.")] = False,
    debug: DebugOption = False,
) -> None:
    """Draw runs, several over each other, and write one page that shows it all.

    Runs that differ in nothing but their seeds are shown together: mean, range, and how sure a comparison is.
    """
    from hsfl.report.measured import parts_tables
    from hsfl.report.page import differing, headline
    from hsfl.report.runs import runs_table, traffic_table, write_report
    from hsfl.runs.reading import Run

    loaded = [Run.load(folder) for folder in runs]
    target = out or (runs[0] if len(runs) == 1 else Path("report"))
    written = write_report(loaded, target, log_time=log_time)
    show(
        runs_table(loaded),
        traffic_table(loaded),
        *parts_tables(loaded),
        headline(loaded),
        *([differing(loaded)] if len(loaded) > 1 else []),
        f"\nWrote {written[-1]} and {len(written) - 1} pictures beside it",
    )


@app.command()
def estimate(
    scenario: ScenarioArgument,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of synchronised training to measure over.")] = 100,
    batches: Annotated[int, typer.Option(min=2, help="Mini-batches per client and measurement.")] = 16,
    set_: SetOption = None,
    data: DataOption = None,
    write: Annotated[bool, typer.Option("--write", help="Put the constants into the scenario file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure the constants of the convergence bound for a scenario's model and data."""
    loaded = api.load_scenario(scenario, overridden({}, None, set_))
    if write and loaded.folder is None:
        raise HsflError(f"{scenario}: built in, so it stays as it is; hsfl init FILE --from {scenario} makes your own")
    constants = api.estimate(loaded, rounds=rounds, batches=batches, data=data)
    from hsfl.runs.estimating import as_fields, write_constants

    if as_json:
        print(json.dumps(as_fields(constants, len(loaded.spec.tiers)), indent=2))
    else:
        from hsfl.report import tables

        show(*tables.constants_report(loaded.profile, loaded.system, constants))
        step = loaded.training_problem.step
        if constants.smoothness * step > 1:
            show(
                f"The step {step:g} is above 1/β = {1 / constants.smoothness:.3g}, where the bound ends: "
                f"training takes β as {1 / step:g}; hsfl plan wants a smaller step, or chooses one with "
                "--optimize-learning-rate."
            )
    if write:
        write_constants(Path(scenario), constants)
        if not as_json:
            show(f"Wrote them into {scenario}")
            if loaded.spec.convergence.target is None and loaded.spec.convergence.rounds is None:
                show("To plan it, also say what to reach: rounds = 1000, or a target, in [convergence].")


@data_app.command("list")
def list_data(data: DataOption = None, debug: DebugOption = False) -> None:
    """Which data sets there are, and where they were found."""
    from hsfl import data as datasets
    from hsfl.report import tables

    show(tables.data_table(datasets.available(data)))


@data_app.command("show")
def show_data(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    data: DataOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=usable, help="Draw it, into a file such as labels.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Which samples each client of a scenario has: how many, and of which labels, or how their targets are spread."""
    from hsfl.report.labels import draw_samples, samples_table, summary
    from hsfl.runs.samples import scenario_samples

    found = scenario_samples(api.load_scenario(scenario, overridden({}, None, set_)), data)
    if plot is not None:
        from hsfl.report.plots import save

        save(draw_samples(found), plot)
    if as_json:
        print(json.dumps(found.model_dump(), indent=2))
        return
    show(samples_table(found), "", summary(found))
    if plot is not None:
        show(f"Wrote {plot}")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data: DataOption = None,
    debug: DebugOption = False,
) -> None:
    """Fetch a data set from its official place and check it."""
    from hsfl.data import download

    show(f"{name} is in {download.get(name, data)}")


def check_what(verb: str, scenario: str | None, resume: Path | None, out: Path | None) -> None:
    """HsflError unless a scenario is named or a run to go on with."""
    if resume is None and scenario is None:
        raise HsflError(f"name a scenario to {verb} (hsfl scenarios), or a run to go on with: --resume DIR")
    if resume is not None and out is not None:
        raise HsflError("--out and --resume exclude each other; a resumed run stays in its folder")


def changes_of(resume: Path, scenario: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """The changes that options, and the scenario if one is named, make to a run; HsflError where they are too many."""
    if scenario is None:
        return overrides
    from hsfl.runs import resuming

    loaded = api.load_scenario(scenario, overrides)
    resuming.check_same(resuming.read(resume, profile_model)[0], loaded, resume)
    return resuming.changes(loaded)


def numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HsflError(f"{option} {text}: write whole numbers with commas, such as 4,7") from None


@contextmanager
def interrupts_that_say_how_to_go_on() -> Iterator[None]:
    """Print the message of an interrupt: typer would catch the interrupt and keep the message to itself."""
    try:
        yield
    except KeyboardInterrupt as error:
        if str(error) and says_it():
            say(str(error))
        raise SystemExit(130) from None


def listeners(log: list[str] | None) -> list[Callback]:
    """What hears of training: the line of progress, and loggers."""
    from hsfl.report.live import LiveLine

    found: list[Callback] = [LiveLine()]
    if log:
        from hsfl.runs.loggers import loggers

        found += loggers(log)
    return found
