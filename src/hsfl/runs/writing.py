"""A run folder being written: appended line by line, so that whatever happens the rounds so far can be read."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hsfl.errors import HsflError
from hsfl.files import UNFINISHED, clear_unfinished, remedy, write_whole
from hsfl.records import Record, RoundRecord
from hsfl.runs.given import GIVEN_FILES
from hsfl.runs.state import Position

METRICS, PLANS, SCENARIO, CHECKPOINTS = "metrics.jsonl", "plans.jsonl", "scenario.toml", "checkpoints"
_LOCK = ".lock"
#: What a process that was killed while it made a folder leaves there; the scenario, written last, makes it a run.
_BEGUN = {_LOCK, "environment.json", "labels.json", *GIVEN_FILES.values()}
#: What locking a file fails with where the file system has no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


class RunFolder:
    """The files of one run. One process at a time may write them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logs: dict[str, _Log] = {}
        self._lock: FileLock | None = None

    @classmethod
    def create(cls, out: Path | None, stem: str, contents: Mapping[str, bytes]) -> RunFolder:
        """A new folder, `out` or the first free runs/STEM-N; `contents` must have a scenario. If it fails, no trace."""
        if out is not None:
            check_free(out)
        made = out is None or not out.exists()
        try:
            path = out or _numbered(stem)
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            place = out or Path("runs")
            raise HsflError(f"{place}: cannot be made ({error.strerror}); choose another --out") from None
        folder = cls(path)
        try:
            folder.lock()
            check_free(path)  # again: another process may have filled it meanwhile
            folder._fill(contents)
        except BaseException:
            folder.close()
            if made:
                with suppress(OSError):  # another process is writing there
                    path.rmdir()
            raise
        return folder

    def _fill(self, contents: Mapping[str, bytes]) -> None:
        """The first files; if one cannot be written, none."""
        try:
            for name in sorted(contents, key=lambda name: name == SCENARIO):
                write_whole(self.path / name, contents[name], replace=True)
            self.rewind(None)
        except BaseException:
            for name in (*contents, METRICS, PLANS, _LOCK):  # the lock last: until then nobody else writes here
                with suppress(OSError):
                    (self.path / name).unlink()
            raise

    def lock(self) -> None:
        """Keep other processes out until this one ends, however it ends, and clear away what a killed one left."""
        # Without `fallback_to_soft`: a lock that is nothing but a file would outlive a killed process.
        lock = FileLock(self.path / _LOCK, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise HsflError(f"{self.path}: another process is writing this run; wait for it, or end it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise HsflError(f"{self.path}: cannot be written ({error.strerror}); {remedy(error)}") from None
        self._lock = lock
        clear_unfinished(self.path)
        clear_unfinished(self.path / CHECKPOINTS)

    def write(self, name: str, record: Record) -> None:
        """A JSON file, whole or not at all."""
        write_whole(self.path / name, record.to_file(), replace=True)

    def write_scenario(self, text: str) -> None:
        """The run's scenario, where it has changed."""
        path = self.path / SCENARIO
        with suppress(OSError):
            if path.read_bytes() == text.encode():
                return
        write_whole(path, text.encode(), replace=True)

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise HsflError(f"{self.path / name}: cannot be removed ({error.strerror}); remove it yourself") from None

    def append(self, name: str, record: Record) -> None:
        """A line of a .jsonl file; `flush` writes it."""
        self._logs[name].append(record.to_line())

    def flush(self, *, sync: bool = False) -> None:
        """Hand what was appended to the operating system; with `sync`, wait until it would survive a crash."""
        try:
            for log in self._logs.values():
                log.flush(sync)
        except OSError as error:
            raise HsflError(
                f"{self.path}: cannot be written ({error.strerror}); {remedy(error)}, then continue with hsfl train "
                f"--resume {self.path}"
            ) from None

    def marks(self) -> dict[str, Position]:
        """What has been appended to the .jsonl files up to now."""
        return {name: log.mark for name, log in self._logs.items()}

    def differing(self, marks: Mapping[str, Position]) -> str | None:
        """A file that does not begin with what it held at its mark."""
        return next((name for name, mark in marks.items() if _kept(self.path / name, mark) is None), None)

    def rewind(self, marks: Mapping[str, Position] | None) -> list[RoundRecord]:
        """Forget what was appended after the marks (None: everything), to be done again: the metrics that remain.

        ValueError, and nothing is forgotten, where those are no metrics.
        """
        kept = {name: _kept(self.path / name, marks[name]) or b"" if marks else b"" for name in (METRICS, PLANS)}
        metrics = [RoundRecord.model_validate_json(line) for line in kept[METRICS].splitlines()]
        try:
            self._logs = {name: _Log(self.path / name, data) for name, data in kept.items()}
        except OSError as error:
            raise HsflError(f"{self.path}: cannot be written ({error.strerror}); {remedy(error)}") from None
        return metrics

    def close(self) -> None:
        with suppress(HsflError):  # when all goes well nothing is left to write; else the first error was the cause
            self.flush()
        for log in self._logs.values():
            log.file.close()
        if self._lock is not None:
            self._lock.release()
        self._logs, self._lock = {}, None


class _Log:
    """A file that is appended to, and the checksum of all that is in it."""

    def __init__(self, path: Path, kept: bytes) -> None:
        """Cut the file off after what is kept of it."""
        self.file = path.open("ab", buffering=0)
        self.file.truncate(len(kept))
        self.size, self.hash, self.waiting = len(kept), hashlib.sha256(kept), b""
        self.failed = False

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        self.waiting += data
        self.size += len(data)
        self.hash.update(data)

    def flush(self, sync: bool) -> None:
        if self.failed:  # what came before is missing
            return
        data, self.waiting = self.waiting, b""
        whole = self.size - len(data)
        try:
            while data:
                data = data[self.file.write(data) :]
            if sync:
                os.fsync(self.file.fileno())
        except OSError:
            self.failed = True
            with suppress(OSError):
                self.file.truncate(whole)
            raise

    @property
    def mark(self) -> Position:
        return Position(size=self.size, checksum=self.hash.hexdigest())


def check_free(path: Path) -> None:
    """HsflError unless a new run can be made there."""
    try:
        str(path).encode()  # safetensors cannot open other names, so that the run could never go on
        names = {p.name for p in path.iterdir()}
    except FileNotFoundError:
        names = set()
    except UnicodeEncodeError:
        raise HsflError(f"{path}: not a name in UTF-8; choose another --out") from None
    except NotADirectoryError:
        raise HsflError(f"{path}: there is a file; choose another --out") from None
    except (OSError, ValueError) as error:  # ValueError: no path at all
        reason = getattr(error, "strerror", None) or error
        raise HsflError(f"{path}: cannot be read ({reason}); choose another --out") from None
    if any(name not in _BEGUN and not name.startswith(UNFINISHED) for name in names):
        go_on = f", or continue that run with --resume {path}" if SCENARIO in names else ""
        raise HsflError(f"{path}: exists already; choose another --out{go_on}")
    place = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.access(place, os.W_OK):  # said now rather than after the first plan
        raise HsflError(f"{path}: cannot be written (no permission in {place}); choose another --out")


def _numbered(stem: str) -> Path:
    """Make runs/STEM-N with the first N that is free; two runs that start together get two folders."""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    number = 1
    while True:
        path = Path("runs") / f"{stem}-{number}"
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not path.parent.is_dir():
                raise
            number += 1


def _kept(path: Path, mark: Position) -> bytes | None:
    """What a file held at its mark; None if it does not any more."""
    try:
        with path.open("rb") as file:
            data = file.read(mark.size)
    except OSError:
        return None
    if data and not data.endswith(b"\n"):  # marks are made between lines
        return None
    return data if hashlib.sha256(data).hexdigest() == mark.checksum else None
