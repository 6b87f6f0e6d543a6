"""Checkpoints: tensors in safetensors, the rest in JSON, both checksummed, written whole or not at all.

A checkpoint is complete once its JSON file is there: that is written last, and names the tensors by their checksum.
Its first line has the format and the checksum of all that follows; every format, also a later one, begins like that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsfl.errors import HsflError
from hsfl.files import remedy, sync, unfinished, write_whole

#: What is in a checkpoint and what it means; a change that older or newer code would misread makes it another number.
FORMAT = 3


class _Head(BaseModel):
    model_config = ConfigDict(strict=True)

    format: int
    sha256: str


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    round: Annotated[int, Field(ge=0)]
    tensors: str
    """The checksum of the file of tensors."""
    state: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is as it was written."""

    path: Path
    tensors: Path
    round: int
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, in a folder of their own; the last `keep` of them are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def write(self, round_: int, save: Callable[[Path], None], state: dict[str, Any]) -> None:
        """Write a checkpoint; `save` writes the tensors to a path. HsflError if there is no place for it."""
        tensors = self.folder / f"{_name(round_)}.safetensors"
        try:
            self.folder.mkdir(exist_ok=True)
            with unfinished(tensors) as place:
                save(place)
                checksum = _checksum(place)
        except OSError as error:
            raise HsflError(
                f"{self.folder}: a checkpoint cannot be written ({error.strerror or error}); "
                f"{remedy(error, 'correct that')}, then resume the run"
            ) from None
        body = json.dumps({"round": round_, "tensors": checksum, "state": state}).encode() + b"\n"
        head = json.dumps({"format": FORMAT, "sha256": _digest(FORMAT, body)}).encode() + b"\n"
        write_whole(tensors.with_suffix(".json"), head + body, replace=True)
        sync(self.folder)  # the new one is safe before old ones go
        self._prune(round_)

    def whole(self, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
        """The checkpoints that are as they were written, the newest first; `warn` hears of those that are not.

        HsflError at one in another format: it is worth keeping, so nothing may go on without it.
        """
        for path in self.found():
            try:
                found = _read(path)
            except (OSError, ValueError, RecursionError) as error:
                warn(f"{path}: damaged ({reason(error)}), so it is left out")
                continue
            yield found

    def found(self) -> list[Path]:
        """All, whole or not, the newest first."""
        return sorted(self.folder.glob("round-*.json"), reverse=True)

    def _prune(self, newest: int) -> None:
        """Remove all but the last ones up to `newest`.

        What is newer is damaged, or training would have gone on from there. What has no JSON file, a killed process
        left.
        """
        kept = [path.stem for path in self.found() if path.stem <= _name(newest)][: self.keep]
        for pattern in ("round-*.json", "round-*.safetensors"):
            for path in self.folder.glob(pattern):
                if path.stem not in kept:
                    with suppress(OSError):
                        path.unlink()


def reason(error: Exception) -> str:
    """What is wrong with a checkpoint, in a few words: the first field and what it should be."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return str(getattr(error, "strerror", None) or error)


def _read(path: Path) -> Checkpoint:
    """ValueError or OSError unless a checkpoint is as it was written."""
    first, _, rest = path.read_bytes().partition(b"\n")
    head = _Head.model_validate(json.loads(first))
    if _digest(head.format, rest) != head.sha256:
        raise ValueError("it does not match its checksum")
    if head.format != FORMAT:
        raise HsflError(
            f"{path}: a checkpoint of format {head.format}, but this hsfl reads and writes format {FORMAT}; resume the "
            "run with the hsfl that wrote it"
        )
    body = _Body.model_validate(json.loads(rest))
    if path.stem != _name(body.round):
        raise ValueError(f"it is of round {body.round}")
    tensors = path.with_suffix(".safetensors")
    if _checksum(tensors) != body.tensors:
        raise ValueError("its tensors do not match their checksum")
    return Checkpoint(path, tensors, body.round, body.state)


def _name(round_: int) -> str:
    return f"round-{round_:09d}"


def _digest(format_: int, body: bytes) -> str:
    return hashlib.sha256(b"%d\n%s" % (format_, body)).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
