"""Find the files of a named data set and read them, in the formats they are published in."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsfl.data.sources import BUILT_IN, SOURCES, Source
from hsfl.errors import HsflError

Bytes = npt.NDArray[np.uint8]
#: Images (n, channels, height, width) and labels (n,).
Part = tuple[Bytes, Bytes]

CLASSES = 10


def cache_folder() -> Path | None:
    """Where downloads go by default; none where the package that downloads is not installed."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return Path(pooch.os_cache("hsfl"))


def search_folders(data_folder: Path | None) -> list[Path]:
    """Where data is looked for: the given folder, then $HSFL_DATA, then the cache that downloads go to."""
    variable = os.environ.get("HSFL_DATA")
    folders = (data_folder, Path(variable) if variable else None, cache_folder())
    return list(dict.fromkeys(folder for folder in folders if folder is not None))


def available(data_folder: Path | None) -> list[tuple[str, Path | None]]:
    """Every named data set and the folder that holds all its files, if one does; the files are not read."""
    return [(name, find(name, data_folder)) for name in SOURCES]


def find(name: str, data_folder: Path | None) -> Path | None:
    """The first folder that holds all files of the data set."""
    folders = [BUILT_IN] if name == "mnist-mini" else search_folders(data_folder)
    return next((place for place in (locate(name, folder) for folder in folders) if place), None)


def locate(name: str, folder: Path) -> Path | None:
    """The folder in or below `folder` that holds all files of the data set."""
    source = SOURCES[name]
    for place in (folder / relative for relative in source.folders):
        if all(_path(place, file) for file in source.files) and not _is_another(source, place):
            return place
    return None


def read_named(name: str, data_folder: Path | None) -> tuple[Part, Part]:
    """The training and the test part of a named data set, wherever it is found."""
    place = find(name, data_folder)
    if place is None:
        looked = ", ".join(map(str, search_folders(data_folder))) or "no folder"
        raise HsflError(
            f"data.name = {name}: no complete copy of it (looked in {looked}); run hsfl data get {name}, or point "
            "--data DIR or the variable HSFL_DATA to a folder that has one"
        )
    return read(name, place)


def read(name: str, place: Path) -> tuple[Part, Part]:
    """The training and the test part of the data set whose files lie directly in `place`."""
    source = SOURCES[name]
    parts = _read_cifar(name, place) if source.files[0].endswith(".bin") else _read_idx_files(name, place)
    for (images, labels), count, file in zip(parts, source.samples, (source.files[1], source.files[-1]), strict=True):
        if len(images) != len(labels) or len(labels) != count:
            reason = f"it has {len(labels)} labels beside {len(images)} images, and {name} has {count} of both"
            raise _damaged(name, _path(place, file) or place, reason)
        if images.shape[1:] != source.shape:
            reason = f"its images are {_times(images.shape[1:])}, and those of {name} are {_times(source.shape)}"
            raise _damaged(name, place, reason)
        if labels.max() >= CLASSES:
            raise _damaged(name, _path(place, file) or place, f"it has a label {labels.max()} of 0 to {CLASSES - 1}")
    return parts


def read_idx(path: Path, name: str = "mnist") -> Bytes:
    """The array of bytes in an idx file, whose name ends in .gz when it is compressed."""
    data = _contents(name, path)
    dimensions = data[3] if len(data) > 3 else 0
    start = 4 + 4 * dimensions
    if data[:3] != b"\x00\x00\x08" or not dimensions or len(data) < start:
        raise _damaged(name, path, "it does not begin like an idx file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - start != math.prod(shape):
        reason = f"it holds {len(data) - start} bytes of data and its header says {_times(shape)}"
        raise _damaged(name, path, reason)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def write_idx(array: Bytes) -> bytes:
    """The contents of an idx file, compressed; the same array always gives the same bytes."""
    header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0)


def _read_idx_files(name: str, place: Path) -> tuple[Part, Part]:
    paths = [_path(place, file) or place / file for file in SOURCES[name].files]
    arrays = [read_idx(path, name) for path in paths]
    for path, array, ndim in zip(paths, arrays, (3, 1, 3, 1), strict=True):
        if array.ndim != ndim:
            raise _damaged(name, path, f"it holds an array of {array.ndim} dimensions instead of {ndim}")
    images, labels, test_images, test_labels = arrays
    return (images[:, None], labels), (test_images[:, None], test_labels)


def _read_cifar(name: str, place: Path) -> tuple[Part, Part]:
    """CIFAR's binary version: a record per image, one byte of label and 3072 of red, green and blue pixels."""
    size = 1 + math.prod(SOURCES[name].shape)
    batches = []
    for file in SOURCES[name].files:
        data = np.frombuffer(_contents(name, place / file), np.uint8)
        if not len(data) or len(data) % size:
            raise _damaged(name, place / file, f"it holds {len(data)} bytes and no multiple of {size}")
        batches.append(data.reshape(-1, size))
    return _records(name, np.concatenate(batches[:-1])), _records(name, batches[-1])


def _records(name: str, records: Bytes) -> Part:
    return records[:, 1:].reshape(-1, *SOURCES[name].shape), records[:, 0].copy()


def _contents(name: str, path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(name, path, str(error).rstrip(".") or "not a gzip file") from None
    except OSError as error:
        raise HsflError(f"{path}: cannot be read ({error.strerror or error}); make it readable") from None


def _path(place: Path, file: str) -> Path | None:
    """The file, compressed or not; a name or a folder that the system refuses is a file that is not there."""
    return next((path for path in _both_forms(place, file) if os.path.isfile(path)), None)


def _both_forms(place: Path, file: str) -> Iterator[Path]:
    if not file.endswith(".bin"):
        yield place / f"{file}.gz"
    yield place / file


def _is_another(source: Source, place: Path) -> bool:
    """Whether the files are another data set's: MNIST and Fashion-MNIST have the same file names."""
    others = {other.first_labels for other in SOURCES.values() if other.first_labels} - {source.first_labels}
    path = _path(place, source.files[1])
    if not source.first_labels or path is None:
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(8 + len(source.first_labels))[8:] in others
    except (OSError, EOFError, zlib.error):
        return False  # found, but damaged: reading it says so


def _damaged(name: str, path: Path, reason: str) -> HsflError:
    remedy = "install hsfl again" if name == "mnist-mini" else f"remove it and run hsfl data get {name}"
    return HsflError(f"{path}: not a whole file of {name} ({reason}); {remedy}")


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
