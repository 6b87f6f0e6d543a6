"""Run the command, and end it: a result, or one sentence and exit code 2."""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from hsfl import factory
from hsfl.cli import trust
from hsfl.cli.common import app, say
from hsfl.cli.output import lossy_output, lost
from hsfl.errors import HsflError, printable, raised
from hsfl.runs.processes import says_it
from hsfl.scenario.field_errors import value_problem
from hsfl.version import __version__

#: How often a thread of torch on a CPU looks for work before it sleeps. By default it looks on for so long that where
#: something else computes on the same cores, training takes ten times as long and more; idle, this is as fast.
SPIN = "3000"


def main() -> None:
    """Run the command; whatever ends it early is one sentence on stderr and exit code 2, no traceback."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN)
    factory.consent = trust.ask
    try:
        with lossy_output():
            code = _run()
            error = lost()
            if not code and error is not None and error.errno != errno.EPIPE:  # a reader may end when it likes
                say(f"the output could not be written ({error.strerror or error}); make room, or write it elsewhere")
                code = 2
    finally:
        factory.consent = factory.allow
    if code:
        sys.exit(code)


def _run() -> int:
    """Run the command; the exit code."""
    try:
        code = app(standalone_mode=False, prog_name="hsfl")
        return code if isinstance(code, int) else 0  # typer turns an interrupt into 130
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            return 0
        if not says_it():  # another process of the same training has
            return 2
        if debug := _debugging():
            print(printable(_traceback(error)), end="", file=sys.stderr)
        say(_sentence(error, debug))
        return 2


def _sentence(error: Exception, debug: bool) -> str:
    """What ended the command, for a person."""
    if isinstance(error, HsflError):
        return str(error)
    if hasattr(error, "format_message"):  # typer's own errors of usage have one
        asked = getattr(getattr(error, "ctx", None), "command_path", "hsfl")
        return f"{_usage(error)} ({asked} --help shows how to call it)"
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return "there is not enough memory; use a smaller training.batch_size, fewer entities or a smaller model"
    if isinstance(error, RecursionError):
        return "something is nested too deeply, a value in a file or a model; make it flatter (--debug shows where)"
    details = "its traceback is above" if debug else _logged(error)
    return f"{raised(error)} ended the command, which should not happen; please report it ({details})"


def _usage(error: Any) -> str:
    """What is wrong with how the command was called."""
    found = value_problem(error.__cause__)
    said = error.format_message() if found is None else f"{error.param.opts[0]} = {found}"
    return " ".join(said.split())


def _debugging() -> bool:
    """Whether --debug is given: looked up rather than parsed, because errors of usage, shown too, end the parsing."""
    return "--debug" in sys.argv[1:] or os.environ.get("HSFL_DEBUG", "0") not in ("", "0")


def _traceback(error: BaseException) -> str:
    """The traceback, with everything that led to the error, also what its sentence stands for."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__suppress_context__ = False
        cause = cause.__cause__ or cause.__context__
    return "".join(traceback.format_exception(error))


def _logged(error: Exception) -> str:
    """The file the traceback has been written to: in the working directory, or else in the temporary folder."""
    system = f"hsfl {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{system}\n{sys.argv}\n\n{_traceback(error)}"
    name = f"hsfl-error-{time.strftime('%Y%m%d-%H%M%S')}"
    for folder in (Path(), Path(tempfile.gettempdir())):
        for number in ("", *(f"-{n}" for n in range(2, 100))):
            path = folder / f"{name}{number}.log"
            try:
                with path.open("x", encoding="utf-8", errors="replace") as file:  # nothing is ever overwritten
                    file.write(text)
                return f"{path} has the details"
            except FileExistsError:
                continue
            except OSError:
                with suppress(OSError):
                    path.unlink()  # a part of it
                break
    return "--debug shows the details"
