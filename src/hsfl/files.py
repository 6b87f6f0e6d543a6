"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hsfl.errors import HsflError


def write_whole(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file so that nobody ever sees a part of it; without `replace` an existing one is an error."""
    try:
        if path.is_dir():
            raise HsflError(f"{path}: cannot be written (it is a folder); choose another place")
        if not replace and path.exists():
            raise HsflError(f"{path}: exists already; choose another name or remove it first")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".hsfl-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # or a crash could leave the new name with nothing in it
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HsflError(f"{path}: cannot be written ({reason}); choose another place") from None


def _umask() -> int:
    """What files are made without; mkstemp makes them private."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
