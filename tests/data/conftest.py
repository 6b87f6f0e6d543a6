"""Small data sets in the official formats, written here byte by byte, and no data of the machine's own."""

from __future__ import annotations

import gzip
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsfl.data import official_files
from hsfl.data.sources import SOURCES

#: The folder of full data sets, for the tests that need them; taken away from everything else.
FULL_DATA = os.environ.get("HSFL_DATA")


@pytest.fixture(autouse=True)
def no_other_data(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.delenv("HSFL_DATA", raising=False)
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(official_files, "cache_folder", lambda: cache)


@pytest.fixture
def full_data() -> Path:
    if not FULL_DATA:
        pytest.skip("the variable HSFL_DATA names no folder with the full data sets")
    return Path(FULL_DATA)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let the published sizes be 60 + 20 images, except in the tests of the full data."""
    if "full_data" not in request.fixturenames:
        for name in ("mnist", "fashion-mnist", "cifar10"):
            monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], samples=(60, 20)))


def images(seed: int, count: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.uint8) % 10
    return generator.integers(0, 256, size=(count, *shape), dtype=np.uint8), generator.permutation(labels)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(seed: int = 0) -> dict[str, bytes]:
    """The four files, uncompressed and without the suffix .gz."""
    train, labels = images(seed, 60, 28, 28)
    test, test_labels = images(seed + 1, 20, 28, 28)
    return {
        "train-images-idx3-ubyte": idx(train),
        "train-labels-idx1-ubyte": idx(labels),
        "t10k-images-idx3-ubyte": idx(test),
        "t10k-labels-idx1-ubyte": idx(test_labels),
    }


def cifar_files() -> dict[str, bytes]:
    train, labels = images(0, 60, 3, 32, 32)
    test, test_labels = images(1, 20, 3, 32, 32)
    records = [bytes([label]) + image.tobytes() for image, label in zip(train, labels, strict=True)]
    result = {f"data_batch_{i + 1}.bin": b"".join(records[12 * i : 12 * i + 12]) for i in range(5)}
    result["test_batch.bin"] = b"".join(bytes([y]) + x.tobytes() for x, y in zip(test, test_labels, strict=True))
    return result


def put(folder: Path, contents: dict[str, bytes], *, compress: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return folder
