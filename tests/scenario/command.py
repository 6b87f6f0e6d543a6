"""The hsfl command, called in this process or as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import hsfl.cli

SOURCE = Path(hsfl.__file__).parent.parent


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@dataclass
class Command:
    """`hsfl ARGUMENTS` in this process: quick, and with the real argument parser and the real exit."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *args: object) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["hsfl", *map(str, args)])
        self.capsys.readouterr()
        try:
            hsfl.cli.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        return Ended(code, *self.capsys.readouterr())


def environment() -> dict[str, str]:
    """That of a new process, which imports this hsfl from wherever it runs."""
    return os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200"}


def process(*args: object, cwd: Path, python_options: tuple[str, ...] = ()) -> Ended:
    """`python -m hsfl ARGUMENTS` as a new process."""
    ended = subprocess.run(
        [sys.executable, *python_options, "-m", "hsfl", *map(str, args)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, byte for byte."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
        if "__pycache__" not in p.parts
    }


class HangError(Exception):
    """Neither a result nor an error."""


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
