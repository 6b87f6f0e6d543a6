"""Fetch a named data set from where it is published."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from hsfl.data.official_files import cache_folder, locate, read
from hsfl.data.sources import BUILT_IN, SOURCES, Source
from hsfl.errors import HsflError, MissingExtraError


def get(name: str, folder: Path | None = None, progress: bool = True) -> Path:
    """Download a data set into `folder`, by default the cache, in its official layout; return the files' folder.

    Files are fetched, checked and unpacked in a temporary folder and then moved into place one by one, and a data set
    counts as present only with all its files. So whenever this is interrupted, what is in place is whole. What can be
    read already is not fetched again.
    """
    if name not in SOURCES:
        raise HsflError(f"no data set {name!r}; known are {', '.join(SOURCES)}")
    if name == "mnist-mini":
        _say(progress, "mnist-mini is built in")
        return BUILT_IN
    folder = folder or cache_folder()
    if folder is None:
        raise MissingExtraError("Downloading data", "torch")
    present = locate(name, folder)
    if present is not None and _readable(name, present):
        _say(progress, f"{name} is already in {present}")
        return present
    source = SOURCES[name]
    place = folder / source.folders[0]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".hsfl-") as temporary:
            fetched = [_fetch(name, file, place, Path(temporary), progress) for file in source.downloads]
            if fetched[0].name.endswith(".tar.gz"):
                fetched = _unpack(name, fetched[0], Path(temporary))
            read(name, fetched[0].parent)
            for path in fetched:
                os.replace(path, place / path.name)
    except OSError as error:
        raise HsflError(f"{place}: cannot be written ({error.strerror or error}); choose another folder") from None
    _say(progress, f"{name} is now in {place}")
    return place


def _readable(name: str, place: Path) -> bool:
    try:
        read(name, place)
    except HsflError:
        return False
    return True


def _fetch(name: str, file: str, place: Path, into: Path, progress: bool) -> Path:
    """Download one file and check its sum."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise MissingExtraError("Downloading data", "torch") from None
    source = SOURCES[name]
    pooch.get_logger().setLevel("ERROR")  # we tell what happens
    bar = _Progress(file) if progress else False
    try:
        pooch.retrieve(
            source.url + file,
            f"sha256:{source.downloads[file]}",
            fname=file,
            path=into,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16),
        )
    except OSError as error:
        if error.errno is not None:  # the disk's; those of the network, from requests, have no number
            raise
        raise HsflError(f"{_failed(name, file)} ({_reason(error)}); {_by_hand(source, place)}") from None
    except ValueError:
        reason = "the sum of what came is not that of the published file"
        raise HsflError(f"{_failed(name, file)} ({reason}); try again, or {_by_hand(source, place)}") from None
    return into / file


def _unpack(name: str, archive: Path, into: Path) -> list[Path]:
    source = SOURCES[name]
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise HsflError(f"{source.url}{archive.name}: cannot be unpacked ({error}); report this") from None
    return [into / source.folders[0] / file for file in source.files]


def _failed(name: str, file: str) -> str:
    return f"{name} could not be downloaded from {SOURCES[name].url}{file}"


def _by_hand(source: Source, place: Path) -> str:
    """What to do where there is no network."""
    urls = ", ".join(source.url + file for file in source.downloads)
    files = "its files" if any(file.endswith(".tar.gz") for file in source.downloads) else "them"
    return (
        f"with a browser or on another machine get {urls} and put {files} into {place}, or into any folder that --data "
        "or the variable HSFL_DATA then names"
    )


def _reason(error: Exception) -> str:
    """What a person can use of an error of requests, which wraps those of two other packages."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code} {response.reason}"
    cause: BaseException = error
    while inner := getattr(cause, "reason", None) or next((a for a in cause.args if isinstance(a, Exception)), None):
        if not isinstance(inner, BaseException):
            break
        cause = inner
    text = str(cause).rpartition(": ")[2].partition("[Errno")
    words = text[2].partition("] ")[2] or text[0]
    return words.strip("()'\" ") or type(cause).__name__


def _say(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr)


class _Progress:
    """A line on the terminal that counts up; what pooch calls while it downloads."""

    total = 0

    def __init__(self, file: str) -> None:
        self._file = file
        self._done = 0
        self._percent = -1

    def update(self, size: int) -> None:
        self._done += size
        percent = min(100, 100 * self._done // self.total) if self.total else 0
        if percent != self._percent and sys.stderr.isatty():
            self._percent = percent
            print(f"\r{self._file}: {percent} %", end="", file=sys.stderr, flush=True)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        else:
            print(f"{self._file}: done", file=sys.stderr)
