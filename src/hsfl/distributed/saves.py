"""What a machine has saved of its own state: the last two positions of a session, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from hsfl.engine import saving
from hsfl.errors import HsflError
from hsfl.files import clear_unfinished, remedy, unfinished, write_whole

KEPT = 2


class Saves:
    """Files of one machine in a folder of its own; a position counts the commands that changed weights or codes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, session: str) -> None:
        """Begin a session: what is here from another is of no use any more."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            clear_unfinished(self.folder)
            place = self.folder / "session"
            if not place.is_file() or place.read_text() != session:
                for position in self.held():
                    self.forget(position)
                write_whole(place, session.encode(), replace=True)
        except OSError as error:
            raise self._error(error) from None

    def held(self) -> frozenset[int]:
        return frozenset(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())

    def write(self, position: int, tensors: Mapping[str, torch.Tensor]) -> None:
        try:
            with unfinished(self._path(position)) as place:
                saving.save(place, tensors)
        except OSError as error:
            raise self._error(error) from None
        for old in sorted(self.held())[:-KEPT]:
            self.forget(old)

    def read(self, position: int) -> dict[str, torch.Tensor]:
        """Read a position; OSError or ValueError where the file is not as it was written."""
        return saving.tensors(self._path(position))

    def forget(self, position: int) -> None:
        with suppress(OSError):
            self._path(position).unlink()

    def _path(self, position: int) -> Path:
        return self.folder / f"{position}.safetensors"

    def _error(self, error: OSError) -> HsflError:
        return HsflError(
            f"{self.folder}: cannot be written ({error.strerror or error}); {remedy(error, 'correct that')}, then go on"
        )
