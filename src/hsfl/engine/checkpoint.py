"""Checkpoints: tensors in safetensors, the rest in JSON, both checksummed, written whole or not at all.

A checkpoint is complete once its JSON file is there: that is written last, and names the tensors by their checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.files import UNFINISHED, share, sync, write_whole


class Checkpoints:
    """The checkpoints of a run, in a folder of their own; the last `keep` of them are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def write(self, round_: int, save: Callable[[Path], None], state: dict[str, Any]) -> None:
        """Write a checkpoint; `save` writes the tensors to a path. HsflError if there is no place for it."""
        name = f"round-{round_:09d}"
        temporary, tensors = self.folder / f"{UNFINISHED}{name}", self.folder / f"{name}.safetensors"
        try:
            self.folder.mkdir(exist_ok=True)
            save(temporary)
            share(temporary)
            sync(temporary)
            checksum = _checksum(temporary)
            os.replace(temporary, tensors)
        except Exception as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or error
            raise HsflError(
                f"{self.folder}: a checkpoint cannot be written ({reason}); make room, then resume the run"
            ) from None
        text = json.dumps(state)
        about = {"round": round_, "tensors": checksum, "state": _digest(text)}
        write_whole(self.folder / f"{name}.json", f"{json.dumps(about)}\n{text}\n".encode(), replace=True)
        sync(self.folder)  # the new one is safe before old ones go
        self._prune(name)

    def whole(self, warn: Callable[[str], None]) -> Iterator[tuple[Path, Path, dict[str, Any]]]:
        """Those that are as they were written, the newest first: their path, their tensors' and their state.

        `warn` hears of those that are not.
        """
        for path in self.found():
            try:
                head, text = path.read_text().splitlines()
                about = json.loads(head)
                if _digest(text) != about["state"]:
                    raise ValueError("its state does not match its checksum")
                tensors = path.with_suffix(".safetensors")
                if _checksum(tensors) != about["tensors"]:
                    raise ValueError("its tensors do not match their checksum")
                state = json.loads(text)
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = getattr(error, "strerror", None) or error
                warn(f"{path}: damaged ({reason}), so it is left out")
                continue
            yield path, tensors, state

    def found(self) -> list[Path]:
        """All, whole or not, the newest first."""
        return sorted(self.folder.glob("round-*.json"), reverse=True)

    def _prune(self, newest: str) -> None:
        """Remove all but the last ones up to `newest`.

        What is newer is damaged, or training would have gone on from there. What has no JSON file, a killed process
        left.
        """
        kept = [path.stem for path in self.found() if path.stem <= newest][: self.keep]
        for pattern in ("round-*.json", "round-*.safetensors", f"{UNFINISHED}*"):
            for path in self.folder.glob(pattern):
                if path.stem not in kept:
                    with suppress(OSError):
                        path.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
