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
    without the .gz that idx files usually have. `downloads` maps what is fetched from `url` to its SHA-256 sum.
    """

    shape: tuple[int, int, int]
    samples: tuple[int, int]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    url: str = ""
    downloads: dict[str, str] = field(default_factory=dict)
    first_labels: bytes = b""


_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)

SOURCES: dict[str, Source] = {
    "mnist-mini": Source((1, 28, 28), (10_000, 2_000), IDX_FILES, (".",)),
    "mnist": Source(
        (1, 28, 28),
        (60_000, 10_000),
        IDX_FILES,
        ("MNIST/raw", "MNIST", "mnist/raw", "mnist", "."),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {f"{file}.gz": sha256 for file, sha256 in zip(IDX_FILES, _MNIST_SHA256, strict=True)},
        first_labels=bytes((5, 0, 4, 1, 9, 2, 1, 3)),
    ),
    "fashion-mnist": Source(
        (1, 28, 28),
        (60_000, 10_000),
        IDX_FILES,
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist/raw", "fashion-mnist", "."),
        # The authors' repository: the place in their README has no https.
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        {f"{file}.gz": sha256 for file, sha256 in zip(IDX_FILES, _FASHION_SHA256, strict=True)},
        first_labels=bytes((9, 0, 0, 3, 0, 2, 7, 2)),
    ),
    "cifar10": Source(
        (3, 32, 32),
        (50_000, 10_000),
        CIFAR_FILES,
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "."),
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
}
