"""Checkpoints: tensors in safetensors, the rest in JSON, both checksummed, written whole or not at all.

A checkpoint is complete once its JSON file is there: that is written last, and names the tensors by their checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.files import write_whole


class Checkpoints:
    """The checkpoints of a run, in a folder of their own; the last `keep` of them are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def write(self, round_: int, save: Callable[[Path], None], state: dict[str, Any]) -> None:
        """Write a checkpoint; `save` writes the tensors to a path. HsflError if there is no place for it."""
        name = f"round-{round_:09d}"
        temporary, tensors = self.folder / f".{name}.safetensors", self.folder / f"{name}.safetensors"
        try:
            self.folder.mkdir(exist_ok=True)
            save(temporary)
            checksum = _checksum(temporary)
            os.replace(temporary, tensors)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, KeyboardInterrupt | HsflError) or not isinstance(error, Exception):
                raise
            raise HsflError(
                f"{self.folder}: a checkpoint cannot be written ({getattr(error, 'strerror', None) or error}); make "
                "room, then resume the run"
            ) from None
        text = json.dumps(state)
        about = {"round": round_, "tensors": checksum, "state": hashlib.sha256(text.encode()).hexdigest()}
        write_whole(self.folder / f"{name}.json", f"{json.dumps(about)}\n{text}\n".encode(), replace=True)
        for old in self._found()[self.keep :]:
            old.unlink(missing_ok=True)
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def latest(self, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
        """Tensors and state of the last checkpoint that is whole; `warn` hears of those that are not."""
        for path in self._found():
            try:
                head, text = path.read_text().splitlines()
                about = json.loads(head)
                if hashlib.sha256(text.encode()).hexdigest() != about["state"]:
                    raise ValueError("its state does not match its checksum")
                tensors = path.with_suffix(".safetensors")
                if _checksum(tensors) != about["tensors"]:
                    raise ValueError("its tensors do not match their checksum")
                return tensors, json.loads(text)
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = getattr(error, "strerror", None) or error
                warn(f"{path}: damaged ({reason}); the checkpoint before it is used")
        return None

    def _found(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("round-*.json"), reverse=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
