"""Code that lies beside a file runs only once somebody has said so; what is trusted is remembered until it changes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from hsfl import factory
from hsfl.errors import HsflError, printable
from hsfl.files import write_whole
from hsfl.runs.processes import several


def ask(spec: str, files: Sequence[Path]) -> None:
    """HsflError unless the code is trusted: already, by the variable HSFL_TRUST, or now that the user is asked."""
    if os.environ.get("HSFL_TRUST", "0") not in ("", "0"):
        return
    trusted = _trusted().get(_name(files))
    if trusted == _digest(files):
        return
    new = "has not been trusted yet" if trusted is None else "has changed since it was trusted"
    if not _agreed(f"{spec} runs code from {files[-1]}, which {new}. Run it?"):
        raise HsflError(
            f"{spec} would run code from {files[-1]}, which {new}; read it, then give --trust, or set HSFL_TRUST=1"
        )
    remember(spec, files)


def remember(spec: str, files: Sequence[Path]) -> None:
    """Trust code from now on, as it is now."""
    with suppress(HsflError, OSError):  # then it is asked for again
        _place().parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_trusted() | {_name(files): _digest(files)}, indent=1)
        write_whole(_place(), text.encode(), replace=True)


def _remember_all(given: bool) -> bool:
    if given:
        factory.consent = remember
    return given


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_remember_all,
        help="Run code that lies beside the scenario, such as a factory's; it is remembered until it changes.",
    ),
]


def _agreed(question: str) -> bool:
    """Whether somebody is there to answer, and says yes."""
    if several() or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"hsfl: {printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _place() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(os.environ.get("HSFL_STATE") or os.path.join(state, "hsfl")) / "trusted.json"


def _trusted() -> dict[str, str]:
    """The digests of all trusted code, by its name."""
    try:
        known = json.loads(_place().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _name(files: Sequence[Path]) -> str:
    return str(files[-1].resolve())


def _digest(files: Sequence[Path]) -> str:
    """A checksum of the files that importing the code runs first."""
    found = hashlib.sha256()
    for file in files:
        with suppress(OSError):  # then it cannot be imported either
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
