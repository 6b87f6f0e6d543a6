"""Make the built-in mnist-mini from the full MNIST: `python -m hsfl.data.mini DATA_FOLDER [INTO]`.

It takes every sixth training image and every fifth test image of each class. Even steps keep the classes' shares, need
no random numbers, and reach into both halves of MNIST's test images, of which the first is the easier one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsfl.data.official_files import Bytes, read_named, write_idx
from hsfl.data.sources import BUILT_IN, IDX_FILES
from hsfl.errors import HsflError
from hsfl.files import write_whole


def make(data_folder: Path, into: Path = BUILT_IN) -> None:
    """Write the four files of mnist-mini, in MNIST's own format, from the MNIST that is found in `data_folder`."""
    (images, labels), (test_images, test_labels) = read_named("mnist", data_folder)
    some, some_test = _every(6, labels), _every(5, test_labels)
    chosen = images[some, 0], labels[some], test_images[some_test, 0], test_labels[some_test]
    for file, array in zip(IDX_FILES, chosen, strict=True):
        write_whole(into / f"{file}.gz", write_idx(array), replace=True)


def _every(step: int, labels: Bytes) -> npt.NDArray[np.intp]:
    """Every so manieth sample of those sorted by label, in the order of the originals."""
    return np.sort(np.argsort(labels, kind="stable")[::step])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m hsfl.data.mini DATA_FOLDER [INTO]")
    try:
        make(*map(Path, sys.argv[1:]))
    except HsflError as error:
        sys.exit(f"error: {error}")
