"""stdout and stderr that may go away: their reader ends, or their disk is full."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Lossy(io.RawIOBase):
    """A file that is written to as long as that works; what cannot be written is dropped, and `error` says why."""

    error: OSError | None = None

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._file.fileno())

    def isatty(self) -> bool:
        return bool(self._file.isatty())

    def write(self, data: Any) -> int | None:
        try:
            written: int | None = self._file.write(data)
            return written
        except OSError as error:
            self.error = error
            return len(data)


@contextmanager
def lossy_output() -> Iterator[None]:
    """Writing to stdout and stderr never fails in this context, nor when Python ends; `lost` says what became of it."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_lossy, before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def may_get_lost() -> Iterator[None]:
    """A context whose output matters less than what is done in it: output that gets lost is not reported."""
    try:
        yield
    finally:
        sys.stdout.flush()
        if (file := _file(sys.stdout)) is not None:
            file.error = None


def lost() -> OSError | None:
    """Why output to stdout got lost; None where none did."""
    sys.stdout.flush()
    file = _file(sys.stdout)
    return None if file is None else file.error


def _file(stream: TextIO) -> _Lossy | None:
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)
    return file if isinstance(file, _Lossy) else None


def _lossy(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed before Python began; no file that is opened later may get its number
        return open(os.devnull, "w")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="replace")  # a terminal that knows no arrows shows a question mark
    try:
        stream.fileno()
    except OSError:  # there is no file behind it
        return stream
    stream.flush()
    file: Any = _Lossy(getattr(stream.buffer, "raw", stream.buffer))
    return io.TextIOWrapper(
        file if stream.write_through else io.BufferedWriter(file),  # as python -u has it
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
