"""A run folder being written: appended line by line, so that whatever happens the rounds so far can be read."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hsfl.errors import HsflError
from hsfl.files import write_whole

METRICS, PLANS = "metrics.jsonl", "plans.jsonl"


class RunFolder:
    """The files of one run. One process at a time may write them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, IO[str]] = {}
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, scenario: str, about: Mapping[str, Any], labels: Mapping[str, Any] | None) -> RunFolder:
        """A new folder; an error if there is something already."""
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise HsflError(
                    f"{path}: exists already; choose another --out, or continue that run with --resume {path}"
                )
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HsflError(f"{path}: cannot be made ({error.strerror}); choose another --out") from None
        folder = cls(path)
        folder.lock()
        folder.write("environment.json", dict(about))
        if labels is not None:
            folder.write("labels.json", dict(labels))
        write_whole(path / "scenario.toml", scenario.encode(), replace=True)
        return folder

    def lock(self) -> None:
        """Keep other processes out until this one ends, however it ends."""
        try:
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise HsflError(f"{self.path}: cannot be written ({error.strerror}); choose another folder") from None
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except OSError:
            raise HsflError(f"{self.path}: another process is writing this run; wait for it, or end it") from None

    def write(self, name: str, value: dict[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        write_whole(self.path / name, (json.dumps(value, indent=1) + "\n").encode(), replace=True)

    def append(self, name: str, value: dict[str, Any]) -> None:
        """A line of a .jsonl file."""
        try:
            if name not in self._files:
                self._files[name] = (self.path / name).open("a", encoding="utf-8")
            self._files[name].write(json.dumps(value) + "\n")
        except OSError as error:
            raise self._full(error) from None

    def flush(self) -> None:
        """Hand what was appended to the operating system."""
        try:
            for file in self._files.values():
                file.flush()
        except OSError as error:
            raise self._full(error) from None

    def rewind(self, round_: int) -> list[dict[str, Any]]:
        """Forget what was written after a round, which is done again: the metrics that remain."""
        kept: list[dict[str, Any]] = []
        for name in (METRICS, PLANS):
            lines = _whole_lines(self.path / name)
            # A plan made after the round of a checkpoint is made again: the checkpoint is older than the plan.
            lines = [x for x in lines if x["round"] < round_ + (name == METRICS)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            write_whole(self.path / name, text.encode(), replace=True)
            kept = kept or lines
        return kept

    def close(self) -> None:
        for file in [*self._files.values(), self._lock]:
            if file is not None:
                with suppress(OSError):  # what could not be written was said already
                    file.close()
        self._files, self._lock = {}, None

    def _full(self, error: OSError) -> HsflError:
        for file in self._files.values():  # a failed write stays in the buffer and would fail again at exit
            _abandon(file)
        self._files = {}
        return HsflError(
            f"{self.path}: cannot be written ({error.strerror}); make room, then continue with hsfl train --resume "
            f"{self.path}"
        )


def _abandon(file: IO[str]) -> None:
    with suppress(OSError):
        if isinstance(file, io.TextIOWrapper):
            os.close(file.fileno())
            file.close()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut off, and what follows it, is not there."""
    found: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, ValueError), path.open(encoding="utf-8") as file:
        for line in file:
            found.append(json.loads(line))
    return found
