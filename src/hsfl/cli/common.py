"""What the commands share: arguments and output."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsfl.errors import HsflError, printable
from hsfl.runs.processes import follows
from hsfl.scenario.overrides import EVERY
from hsfl.scenario.toml_format import toml_or_text
from hsfl.version import __version__

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

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
AveragingOption = Annotated[
    str | None,
    typer.Option(
        "--averaging",
        help="What an average does: plain, corrected for each machine's pull, fedprox, or a step of the fed server: "
        "fedavgm, fedadam, fedyogi, fedadagrad.",
    ),
]
CodeOption = Annotated[
    str | None,
    typer.Option(
        help="How every link writes what it carries: fp32, bf16, int8 or int4, or auto: as planned, or, as in "
        "int8,int4, planned among these (tiers.TIER.code of all tiers)."
    ),
]
MicroBatchesOption = Annotated[
    str | None,
    typer.Option(
        "--micro-batches",
        metavar="K",
        help="Mini-batches of every client in a round, pipelined through the tiers: a number, auto: as planned, or, as "
        "in 1,2,4, planned among these.",
    ),
]
ChunksOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="C",
        help="Equal parts in which a mini-batch goes through the tiers, which then work at the same time: shorter "
        "rounds, the same training.",
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the whole traceback of whatever ends the command early.")
]
#: Characters that no system takes in a path, however it is used.
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ELOOP}


def usable(given: Any) -> Any:
    """A path, or a list of them; HsflError for one that can neither be read nor written. For callbacks of options."""
    for path in given if isinstance(given, list) else [given]:
        try:
            str(path).encode()
            if path is not None:
                os.lstat(path)
        except ValueError:  # bytes that are no text, or a zero
            reason = "it is not text in UTF-8" if "\0" not in str(path) else "it holds a zero byte"
            raise HsflError(f"{path!s}: cannot be written or read ({reason}); choose another name") from None
        except OSError as error:
            if error.errno in _IMPOSSIBLE:
                raise HsflError(f"{path}: cannot be written or read ({error.strerror}); choose another name") from None
    return given


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hsfl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    pass


def say(message: str) -> None:
    """A sentence about what the command does, on stderr."""
    print(f"hsfl: {printable(message)}", file=sys.stderr)


def show(*renderables: Any) -> None:
    """Print text and tables; what a file holds reaches the terminal as text, never as a code that steers it."""
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(_Printable(renderable))


class _Printable:
    """Something that rich shows, with only rich's own codes in it."""

    def __init__(self, renderable: Any) -> None:
        from rich.text import Text

        self._renderable = Text(renderable) if isinstance(renderable, str) else renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def overridden(given: Mapping[str, Any], code: str | None, set_: list[str] | None) -> dict[str, Any]:
    """The fields that options replace: those that are given, --code, and --set, which goes last."""
    codes = listed(code)
    fields = {**given, f"tiers.{EVERY}.code": codes}
    found = {field: value for field, value in fields.items() if value is not None}
    return found | dict(assignment(text, "--set") for text in set_ or [])


def listed(text: str | None, read: Callable[[str], Any] = str) -> Any:
    """What is read, or a list of that where there are commas."""
    if text is None or "," not in text:
        return None if text is None else read(text)
    return [read(one.strip()) for one in text.split(",")]


def assignment(text: str, option: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals or not field.strip():
        raise HsflError(f'{option} {text}: write FIELD=VALUE, as in tiers.device.uplink="20 Mbps"')
    return field.strip(), toml_or_text(value.strip())


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Warnings on stderr as sentences, like errors; of several processes, those of the first."""
    with warnings.catch_warnings():
        if follows():
            warnings.simplefilter("ignore")
        warnings.showwarning = lambda message, *_, **__: say(" ".join(str(message).split()))
        yield
