"""Files: read when they are what they should be, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources.abc import Traversable
from pathlib import Path

from hsfl.errors import HsflError

#: How the names of unfinished files and folders begin; a killed process leaves them behind.
UNFINISHED = ".hsfl-"
#: The largest files that are read, in bytes: far more than anybody writes by hand, and less than fills a memory.
MAX_TOML, MAX_CSV = 64 * 2**20, 256 * 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def read_text(path: Path | Traversable, limit: int) -> str:
    """The text of a file in UTF-8, of at most `limit` bytes; OSError or ValueError say why there is none.

    A pipe or a device is refused rather than waited for: it may never end.
    """
    if isinstance(path, Path):
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        if found.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit // 2**20} MiB")
    return path.read_text(encoding="utf-8-sig")


def write_whole(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file so that nobody ever sees a part of it; without `replace` an existing one is an error."""
    try:
        if path.is_dir():
            raise HsflError(f"{path}: cannot be written (it is a folder); choose another place")
        if not replace and path.exists():
            raise HsflError(f"{path}: exists already; choose another name or remove it first")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # or a crash could leave the new name with nothing in it
            share(Path(temporary))
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):  # an interrupt can come after the file has its name
                os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HsflError(f"{path}: cannot be written ({reason}); {remedy(error)}") from None


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A place to write a file to, which gets its name once it is whole; OSError if that fails, and nothing is left.

    The place is in a folder of its own: some writers put temporary files with names of their own beside it, and
    `clear_unfinished` must find those too.
    """
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=UNFINISHED))
    try:
        place = folder / path.name
        yield place
        share(place)
        sync(place)
        os.replace(place, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote to a folder left there."""
    for path in folder.glob(f"{UNFINISHED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def remedy(error: BaseException, otherwise: str = "choose another place") -> str:
    """What helps against a failed write: more room, where that is what it lacked."""
    return "make room" if getattr(error, "errno", None) in _FULL else otherwise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a crash of the machine."""
    with suppress(PermissionError):  # folders cannot be opened on every system
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def share(path: Path) -> None:
    """Give a file the usual rights: some ways to make one, such as mkstemp, make it private."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)
