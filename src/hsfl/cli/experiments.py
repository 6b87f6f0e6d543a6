"""hsfl reproduce: the paper's figures."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsfl.cli.common import DebugOption, app, say, show, usable, warnings_in_one_line
from hsfl.cli.ray_option import AddressMayBeLeftOut, RayOption, pool_of
from hsfl.cli.training import DataOption
from hsfl.errors import HsflError, nearest
from hsfl.files import write_whole
from hsfl.version import __version__

if TYPE_CHECKING:
    from hsfl.experiments.settings import Settings
    from hsfl.experiments.side_by_side import RunCounts


@app.command(cls=AddressMayBeLeftOut)
def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(metavar="FIG...", help="fig2a to fig9, or all; --list shows every name.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="LeNet-5 on mnist-mini and one seed: every figure in minutes on two cores.")
    ] = False,
    small: Annotated[
        bool,
        typer.Option(
            "--small", help="LeNet-5 on CIFAR-10 and MNIST, as long and with as many seeds: hours on two cores."
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Seeds of what the paper has numbers of; the rest takes the first three, or one. Default: 3, or 1 "
            "with --quick.",
        ),
    ] = None,
    first_seed: Annotated[
        int,
        typer.Option(min=0, help="The first of the seeds, so that others than those that chose a setting judge it."),
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16; default: bf16 on a GPU, else fp32.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs trained side by side; default: the number of cores, or 1 on a GPU."),
    ] = None,
    ray: RayOption = None,
    data: DataOption = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", callback=usable, help="Where figures and runs go; work that was interrupted goes on there."
        ),
    ] = Path("reproduced"),
    list_: Annotated[bool, typer.Option("--list", help="Show what can be reproduced and end.")] = False,
    debug: DebugOption = False,
) -> None:
    """Train, time and draw the experiments of the paper, and say claim by claim what holds."""
    from hsfl.experiments.recipes import RECIPES

    figures = [name.lower() for name in figures or ()]
    for name in figures:
        if name not in (*RECIPES, "all"):
            raise HsflError(f"{name}: no such figure{nearest(name, RECIPES)}; there are all, {', '.join(RECIPES)}")
    if list_:
        width = max(map(len, RECIPES))
        show("\n".join(f"{recipe.name:{width}}  {recipe.about}" for recipe in RECIPES.values()))
        return
    if quick and small:
        raise HsflError("--quick and --small are two sizes of the same; give one")
    if not figures:
        raise HsflError(f"name what to reproduce: all, or some of {', '.join(RECIPES)}")
    if out.exists() and not out.is_dir():
        raise HsflError(f"{out}: there is a file; choose another folder")
    chosen = [recipe for name, recipe in RECIPES.items() if name in figures or "all" in figures]

    from hsfl.experiments.compact import known_runs, write_runs
    from hsfl.experiments.reproduce import reproduce as results
    from hsfl.experiments.settings import Settings
    from hsfl.experiments.sizes import FULL, QUICK, SMALL
    from hsfl.experiments.store import Store
    from hsfl.report.progress import RunsProgress
    from hsfl.report.results import result_tables, results_markdown, write_result
    from hsfl.runs.interrupting import stops_at_once
    from hsfl.runs.preparing import choose_device

    on_gpu = choose_device(device).type == "cuda"
    jobs = jobs or (1 if on_gpu else os.cpu_count() or 1)
    number = seeds or (1 if quick else 3)
    settings = Settings(
        QUICK if quick else SMALL if small else FULL,
        tuple(range(first_seed, first_seed + number)),
        device,
        precision or ("bf16" if on_gpu else "fp32"),
    )
    store = Store(out / "runs", data)
    if settings.size is FULL and not on_gpu and any(recipe.runs(settings) for recipe in chosen):
        say("without a GPU, runs of VGG-16 that are not stored yet take days; --small and --quick show the same small")
    try:
        with (
            pool_of(ray, on_gpu) as pool,
            stops_at_once(),
            warnings_in_one_line(),
            RunsProgress() as progress,
        ):
            for result in results(
                chosen,
                settings,
                store,
                known=known_runs(out, RECIPES.values(), settings.size),
                jobs=jobs,
                pool=pool,
                callbacks=[progress],
                on_progress=progress.update,
                on_found=lambda recipe, found: write_runs(out, recipe, settings, found),
            ):
                result = replace(result, cost={**result.cost, "made": _about(settings)})
                write_result(result, out)
                progress.print(*result_tables(result))
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise SystemExit(130) from None
    shown = [out / f"{name}.json" for name in RECIPES if (out / f"{name}.json").exists()]
    about = "# Results"
    if settings.size is not FULL:
        about += f"\n\n{settings.size.about}"
    page = results_markdown([json.loads(path.read_text()) for path in shown], pictures=".", about=about)
    write_whole(out / "results.md", page.encode(), replace=True)
    _end(progress.seen, out)


def _about(settings: Settings) -> str:
    return f"Made by `hsfl {' '.join(sys.argv[1:])}` (hsfl {__version__}), {settings.size.title}."


def _end(seen: RunCounts, out: Path) -> None:
    show(f"{seen.total} runs, {seen.trained} of them trained now; results in {out / 'results.md'}")
