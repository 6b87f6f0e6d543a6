"""What the commands share: arguments, output, and how they end."""

from __future__ import annotations

import io
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from hsfl.errors import HsflError
from hsfl.version import __version__

app = typer.Typer(
    help="Hierarchical split federated learning: plan where to cut a model over tiers of machines and how often to "
    "average each tier, train it that way on a simulated clock, and look at the result.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

ScenarioArgument = Annotated[
    str, typer.Argument(help="A scenario file, or a built-in scenario by name (hsfl scenarios).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help='Replace a field, as in tiers.device.uplink="20 Mbps"; repeatable.'
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hsfl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; what a user can get wrong ends in one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no arrows shows a question mark
    try:
        code = app(standalone_mode=False, prog_name="hsfl")
        if isinstance(code, int):  # typer turns an interrupt into 130
            sys.exit(code)
    except HsflError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors of usage have one
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return
        _fail(f"{' '.join(error.format_message().split())} (hsfl --help shows how to call it)")


def _fail(message: str) -> None:
    print(f"hsfl: {message}", file=sys.stderr)
    sys.exit(2)


def show(*renderables: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(renderable, markup=False) if isinstance(renderable, str) else console.print(renderable)


def assignment(text: str, option: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals or not field.strip():
        raise HsflError(f'{option} {text}: write FIELD=VALUE, as in tiers.device.uplink="20 Mbps"')
    return field.strip(), toml_or_text(value.strip())


def toml_or_text(text: str) -> Any:
    """A value in TOML's notation, or else plain text: the shell has taken the quotes off."""
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Warnings on stderr as sentences, like errors."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"hsfl: {message}", file=sys.stderr)
        yield
