"""The data sets that hsfl knows by name: how they lie on disk, where they come from and what identifies them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

#: The images that come with hsfl; `python -m hsfl.data.mini` writes them.
BUILT_IN = Path(__file__).parent / "mnist_mini"

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


@dataclass(frozen=True)
class Source:
    """One data set of images with ten classes.

    `folders` are the places inside a data folder where its files may lie, the official one first. `files` come
    without the .gz that idx files usually have. `downloads` maps what is fetched from `url` to its MD5 sum.
    """

    shape: tuple[int, int, int]
    samples: tuple[int, int]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    url: str = ""
    downloads: dict[str, str] = field(default_factory=dict)
    first_labels: bytes = b""


_MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)

SOURCES: dict[str, Source] = {
    "mnist-mini": Source((1, 28, 28), (10_000, 2_000), IDX_FILES, (".",)),
    "mnist": Source(
        (1, 28, 28),
        (60_000, 10_000),
        IDX_FILES,
        ("MNIST/raw", "MNIST", "mnist/raw", "mnist", "."),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {f"{file}.gz": md5 for file, md5 in zip(IDX_FILES, _MNIST_MD5, strict=True)},
        first_labels=bytes((5, 0, 4, 1, 9, 2, 1, 3)),
    ),
    "fashion-mnist": Source(
        (1, 28, 28),
        (60_000, 10_000),
        IDX_FILES,
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist/raw", "fashion-mnist", "."),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {f"{file}.gz": md5 for file, md5 in zip(IDX_FILES, _FASHION_MD5, strict=True)},
        first_labels=bytes((9, 0, 0, 3, 0, 2, 7, 2)),
    ),
    "cifar10": Source(
        (3, 32, 32),
        (50_000, 10_000),
        CIFAR_FILES,
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "."),
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
}
