"""Reading data sets: formats, places, fitting to the model, and what a damaged file is told apart by."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl.data import Dataset, available, load_dataset
from hsfl.data.mini import make
from hsfl.data.official_files import read_idx, write_idx
from hsfl.data.sources import BUILT_IN, IDX_FILES, SOURCES
from hsfl.errors import HsflError, ScenarioError
from hsfl.scenario.data_section import DataSection
from tests.data.conftest import cifar_files, idx, images, mnist_files, put


def load(
    folder: Path | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    scenario_folder: Path | None = None,
    **fields: object,
) -> Dataset:
    section = DataSection.model_validate(fields)
    return load_dataset(section, input_shape=shape, scenario_folder=scenario_folder, data_folder=folder)


def test_a_part_of_the_training_samples_is_validated_on(tmp_path: Path) -> None:
    """The same for every seed, apart from what is trained on, and nothing of the test set."""
    put(tmp_path, mnist_files())
    whole, data = load(tmp_path, name="mnist"), load(tmp_path, name="mnist", validation=0.25)
    again = load(tmp_path, name="mnist", validation=0.25, alpha=1.0)
    assert [len(part[1]) for part in (data.train, data.test)] == [45, 15]
    assert torch.equal(data.test[0], again.test[0])

    def samples(*parts: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[bytes, int]]:
        pairs = (pair for part in parts for pair in zip(*part, strict=True))
        return sorted((image.numpy().tobytes(), int(label)) for image, label in pairs)

    assert samples(data.train, data.test) == samples(whole.train)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"validation": 0.001},
            "data.validation = 0.001: that is 0 of 60 training samples; both training and validation need some",
        ),
        (
            {"validation": 0.1, "partition": "csv", "assignments": "x.csv"},
            'data.validation: with data.partition = "csv" a file says what each sample is for; leave samples out there',
        ),
    ],
)
def test_what_cannot_be_validated_on_is_one_sentence(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    put(tmp_path, mnist_files())
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, name="mnist", **fields)
    assert str(caught.value) == message


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("place", ["MNIST/raw", "MNIST", "mnist/raw", "mnist", "."])
def test_mnist_is_read_from_every_layout(tmp_path: Path, place: str, compress: bool) -> None:
    put(tmp_path / place, mnist_files(), compress=compress)
    data = load(tmp_path, name="mnist")
    (train, labels), (test, test_labels) = images(0, 60, 28, 28), images(1, 20, 28, 28)
    assert data.name == "mnist" and data.num_classes == 10
    assert data.train[0].dtype == torch.uint8 and data.train[1].dtype == torch.int64
    np.testing.assert_array_equal(data.train[0].numpy(), train[:, None])
    np.testing.assert_array_equal(data.train[1].numpy(), labels)
    np.testing.assert_array_equal(data.test[0].numpy(), test[:, None])
    np.testing.assert_array_equal(data.test[1].numpy(), test_labels)
    assert data.mean == pytest.approx([train.mean() / 255]) and data.std == pytest.approx([train.std() / 255])


def test_cifar_is_read_with_its_channels(tmp_path: Path) -> None:
    put(tmp_path / "cifar-10-batches-bin", cifar_files())
    data = load(tmp_path, (3, 32, 32), name="cifar10")
    train, labels = images(0, 60, 3, 32, 32)
    np.testing.assert_array_equal(data.train[0].numpy(), train)
    np.testing.assert_array_equal(data.train[1].numpy(), labels)
    np.testing.assert_array_equal(data.test[0].numpy(), images(1, 20, 3, 32, 32)[0])
    assert data.mean == pytest.approx(train.mean(axis=(0, 2, 3)) / 255)
    assert data.std == pytest.approx(train.std(axis=(0, 2, 3)) / 255)


def test_places_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, variable, cache = tmp_path / "given", tmp_path / "variable", tmp_path / "cache"
    monkeypatch.setenv("HSFL_DATA", str(variable))
    monkeypatch.setattr("hsfl.data.official_files.cache_folder", lambda: cache)
    with pytest.raises(HsflError) as error:
        load(given, name="mnist")
    for expected in (str(given), str(variable), str(cache), "hsfl data get mnist", "--data DIR", "HSFL_DATA"):
        assert expected in str(error.value)
    for seed, folder in ((3, cache), (2, variable), (1, given)):
        assert dict(available(given))["mnist"] != folder / "MNIST/raw"
        put(folder / "MNIST/raw", mnist_files(seed), compress=True)
        np.testing.assert_array_equal(load(given, name="mnist").train[0][:, 0].numpy(), images(seed, 60, 28, 28)[0])
        assert dict(available(given))["mnist"] == folder / "MNIST/raw"


def test_available_lists_every_name(tmp_path: Path) -> None:
    put(tmp_path / "cifar10", cifar_files())
    put(tmp_path / "MNIST", dict(list(mnist_files().items())[:3]))  # one file is missing
    assert dict(available(tmp_path)) == {
        "mnist-mini": BUILT_IN,
        "mnist": None,
        "fashion-mnist": None,
        "cifar10": tmp_path / "cifar10",
    }


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    """The two have the same file names, and both may lie directly in a folder."""
    contents = mnist_files()
    labels = images(0, 60, 28, 28)[1]
    labels[:8] = (5, 0, 4, 1, 9, 2, 1, 3)
    put(tmp_path, contents | {"train-labels-idx1-ubyte": idx(labels)}, compress=True)
    found = dict(available(tmp_path))
    assert found["mnist"] == tmp_path and found["fashion-mnist"] is None


TRAIN, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
DAMAGES: dict[str, tuple[str, str, Callable[[bytes], bytes], str]] = {
    "cut short": ("mnist", TRAIN, lambda data: data[:-5], "47035 bytes of data and its header says 60x28x28"),
    "header alone": ("mnist", TRAIN, lambda data: data[:10], "begin like an idx file"),
    "empty": ("mnist", LABELS, lambda data: b"", "begin like an idx file"),
    "another type": ("mnist", TRAIN, lambda data: b"\0\0\x0d" + data[3:], "begin like an idx file"),
    "a web page": ("mnist", TRAIN, lambda data: b"<html>404</html>", "begin like an idx file"),
    "too few": ("mnist", LABELS, lambda data: idx(images(0, 59, 28, 28)[1]), "59 labels beside 60 images"),
    "wrong rank": ("mnist", LABELS, lambda data: idx(images(0, 60, 28, 28)[0]), "3 dimensions instead of 1"),
    "wrong size": ("mnist", TRAIN, lambda data: idx(images(0, 60, 20, 20)[0]), "1x20x20"),
    "a label 10": ("mnist", LABELS, lambda data: data[:-1] + b"\x0a", "label 10"),
    "cut record": ("cifar10", "data_batch_3.bin", lambda data: data[:-1], "36875 bytes"),
    "empty batch": ("cifar10", "data_batch_3.bin", lambda data: b"", "0 bytes"),
    "lost record": ("cifar10", "test_batch.bin", lambda data: data[3073:], "19 labels"),
    "shifted": ("cifar10", "test_batch.bin", lambda data: data[1:] + b"\0", "label"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_named_with_a_remedy(tmp_path: Path, damage: str) -> None:
    name, file, change, reason = DAMAGES[damage]
    contents = mnist_files() if name == "mnist" else cifar_files()
    put(tmp_path, contents | {file: change(contents[file])})
    with pytest.raises(HsflError) as error:
        load(tmp_path, SOURCES[name].shape, name=name)
    assert reason in str(error.value) and str(tmp_path) in str(error.value)
    assert f"remove it and run hsfl data get {name}" in str(error.value)


@pytest.mark.parametrize("change", ["cut", "garbage", "flipped"])
def test_damaged_gzip(tmp_path: Path, change: str) -> None:
    put(tmp_path, mnist_files(), compress=True)
    path = tmp_path / f"{TRAIN}.gz"
    data = bytearray(path.read_bytes())
    if change == "cut":
        data = data[:-1000]
    elif change == "garbage":
        data = bytearray(b"not gzip")
    else:
        data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(HsflError, match=r"train-images-idx3-ubyte\.gz: not a whole file of mnist .*; remove it"):
        load(tmp_path, name="mnist")


@pytest.mark.parametrize(("shape", "top", "left"), [((1, 32, 32), 2, 2), ((1, 29, 33), 0, 2), ((1, 28, 31), 0, 1)])
def test_small_images_get_a_frame_of_zeros(tmp_path: Path, shape: tuple[int, ...], top: int, left: int) -> None:
    put(tmp_path, mnist_files())
    data, plain = load(tmp_path, shape, name="mnist"), load(tmp_path, name="mnist")
    expected = np.zeros((20, *shape), dtype=np.uint8)
    expected[:, :, top : top + 28, left : left + 28] = images(1, 20, 28, 28)[0][:, None]
    np.testing.assert_array_equal(data.test[0].numpy(), expected)
    assert data.train[0].shape == (60, *shape)
    assert (data.mean, data.std) == (plain.mean, plain.std)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 27, 28), (784,), (1, 28)])
def test_images_that_do_not_fit_the_model(tmp_path: Path, shape: tuple[int, ...]) -> None:
    put(tmp_path, mnist_files())
    with pytest.raises(ScenarioError, match=r"data.name = mnist: .*model.input_shape = \["):
        load(tmp_path, shape, name="mnist")


@pytest.mark.parametrize("fields", [{}, {"name": "mnist-mini", "factory": "a:b"}])
def test_exactly_one_of_name_and_factory(fields: dict[str, str]) -> None:
    with pytest.raises(ScenarioError, match="exactly one of name and factory"):
        load(**fields)


#: How many images MNIST has of each digit.
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_the_built_in_data_is_real_and_small() -> None:
    data = load(name="mnist-mini")
    assert data.train[0].shape == (10_000, 1, 28, 28) and data.test[0].shape == (2_000, 1, 28, 28)
    for (_, labels), original, step in ((data.train, MNIST_TRAIN, 6), (data.test, MNIST_TEST, 5)):
        np.testing.assert_allclose(torch.bincount(labels), np.array(original) / step, atol=1)
        assert labels.unique_consecutive().numel() > 1000  # not sorted
    assert data.mean == pytest.approx([0.1307], abs=0.002) and data.std == pytest.approx([0.3081], abs=0.002)
    assert sum(path.stat().st_size for path in BUILT_IN.glob("*.gz")) < 3e6
    # The digits are told apart by their mean images, which noise or shuffled labels would not be.
    pixels = data.train[0].flatten(1).float()
    centres = torch.stack([pixels[data.train[1] == digit].mean(0) for digit in range(10)])
    nearest = torch.cdist(data.test[0].flatten(1).float(), centres).argmin(1)
    assert (nearest == data.test[1]).float().mean() > 0.75


def test_idx_files_are_reproducible(tmp_path: Path) -> None:
    array = images(5, 7, 3, 4)[0]
    (tmp_path / "a.gz").write_bytes(write_idx(array))
    assert gzip.decompress(write_idx(array)) == idx(array) and write_idx(array) == write_idx(array.copy())
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz"), array)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [
        ("mnist", (1, 28, 28), [0.1307], [0.3081]),
        ("fashion-mnist", (1, 28, 28), [0.2860], [0.3530]),
        ("cifar10", (3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_official_files(
    full_data: Path, name: str, shape: tuple[int, ...], mean: list[float], std: list[float]
) -> None:
    if dict(available(full_data))[name] is None:
        pytest.skip(f"HSFL_DATA has no {name}")
    data = load(full_data, shape, name=name)
    assert (len(data.train[0]), len(data.test[0])) == SOURCES[name].samples
    assert data.mean == pytest.approx(mean, abs=1e-4) and data.std == pytest.approx(std, abs=1e-4)
    train, test = (torch.bincount(targets).tolist() for _, targets in (data.train, data.test))
    if name == "mnist":
        assert (train, test) == (MNIST_TRAIN, MNIST_TEST)
        assert bytes(data.train[1][:8].tolist()) == SOURCES[name].first_labels
    else:
        assert train == [len(data.train[0]) // 10] * 10 and test == [1000] * 10


def test_the_built_in_data_is_made_from_mnist(full_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsfl.data.mini.write_idx", idx)  # compression takes seconds
    make(full_data, tmp_path)
    for file in IDX_FILES:
        assert (tmp_path / f"{file}.gz").read_bytes() == gzip.decompress((BUILT_IN / f"{file}.gz").read_bytes())


FACTORY = """
import numpy as np
import torch
from torch.utils.data import TensorDataset, IterableDataset

def tensors():
    x = torch.arange(5 * 6, dtype=torch.float32).reshape(5, 6)
    return x, torch.arange(5), x[:2], torch.tensor([2, 0], dtype=torch.int32)

def datasets():
    x, y, v, w = tensors()
    return TensorDataset(x, y), [(row.numpy(), int(target)) for row, target in zip(v, w)]

def images():
    x = torch.full((4, 2, 3, 3), 51, dtype=torch.uint8)
    x[:, 1, :, 0] = 0
    return x, torch.arange(4), x[:1], torch.tensor([0])

def tokens():
    x = torch.arange(12, dtype=torch.int32).reshape(4, 3)
    return x, x + 1, x[:1], x[:1] + 1

def changed(**parts):
    names = ("x", "y", "v", "w")
    values = dict(zip(names, tensors())) | parts
    return tuple(values[name] for name in names)

def none(): return None
def three(): return tensors()[:3]
def arrays(): return changed(x=np.zeros((5, 6)))
def uneven(): return changed(y=torch.arange(4))
def empty(): return changed(v=torch.zeros(0, 6), w=torch.zeros(0, dtype=torch.int64))
def infinite(): return changed(x=torch.full((5, 6), torch.inf))
def negative(): return changed(w=torch.tensor([0, -1]))
def real(): return changed(y=torch.arange(5.0))
def flat(): return changed(x=torch.arange(5.0))
def flat_bytes(): return changed(x=torch.zeros(5, 6, dtype=torch.uint8))
def truths(): return changed(x=torch.zeros(5, 6, dtype=torch.bool))
def mixed(): return changed(v=torch.zeros(2, 6, dtype=torch.int64))
def many(): return changed(w=torch.zeros(2, 3, dtype=torch.int64))
def raises(): raise ValueError("no such disk.")
def leaves(): raise SystemExit(3)
def ragged(): return [(torch.zeros(6), 0), (torch.zeros(5), 1)], [(torch.zeros(6), 0)]
def nothing(): return [], []
class Endless(IterableDataset):
    def __iter__(self): yield 0
def endless(): return Endless(), Endless()
number = 3
"""


@pytest.fixture
def scenario_folder(tmp_path: Path) -> Path:
    (tmp_path / "own_data.py").write_text(FACTORY)
    return tmp_path


@pytest.mark.parametrize("function", ["tensors", "datasets"])
def test_a_factory_gives_tensors_or_datasets(scenario_folder: Path, function: str) -> None:
    path = sys.path[:]
    data = load(shape=(6,), scenario_folder=scenario_folder, factory=f"own_data:{function}")
    assert torch.equal(data.train[0], torch.arange(30.0).reshape(5, 6)) and data.train[0].dtype == torch.float32
    assert data.train[1].tolist() == [0, 1, 2, 3, 4] and data.test[1].tolist() == [2, 0]
    assert data.test[1].dtype == torch.int64 and data.num_classes == 5
    assert data.mean is None and data.std is None
    assert sys.path == path


def test_a_factorys_images_are_measured_and_padded(scenario_folder: Path) -> None:
    data = load(shape=(2, 4, 3), scenario_folder=scenario_folder, factory="own_data:images")
    assert data.mean == pytest.approx([0.2, 0.2 * 2 / 3])
    assert data.std == pytest.approx([1, 0.2 * (2 / 9) ** 0.5])  # a constant channel is not divided by 0
    assert data.train[0].shape == (4, 2, 4, 3)


def test_a_factorys_tokens_stay_whole_numbers(scenario_folder: Path) -> None:
    data = load(shape=(3,), scenario_folder=scenario_folder, factory="own_data:tokens")
    assert data.train[0].dtype == torch.int64 and data.train[1].shape == (4, 3) and data.num_classes == 13


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("none", "returned a NoneType"),
        ("three", "returned a tuple of 3"),
        ("arrays", "returned a ndarray among the four"),
        ("uneven", "5 training inputs and 4 training targets"),
        ("empty", "0 test inputs"),
        ("infinite", "nan or infinite"),
        ("negative", "a test target is -1; count classes from 0"),
        ("real", "targets are torch.float32"),
        ("flat", r"inputs have the shape \(5,\)"),
        ("flat_bytes", "uint8 inputs are images"),
        ("truths", "inputs are torch.bool"),
        ("mixed", "training inputs are torch.float32 but test inputs torch.int64"),
        ("many", "training targets are a single number but test targets 3 per sample"),
        ("raises", r"raised ValueError \(no such disk\)"),
        ("leaves", r"raised SystemExit \(3\)"),
        ("ragged", "cannot be stacked"),
        ("nothing", "has no items"),
        ("endless", "reading the items of its Endless raised"),
        ("number", "is a int; name a function"),
        ("tensor", "did you mean tensors"),
    ],
)
def test_bad_factories(scenario_folder: Path, function: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=f"^data.factory = own_data:{function}.*{reason}"):
        load(shape=(6,), scenario_folder=scenario_folder, factory=f"own_data:{function}")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [("own_data", "package.module:function"), ("own_data.py:tensors", "own_data:tensors"), ("absent:f", "no module")],
)
def test_bad_names_of_factories(scenario_folder: Path, spec: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        load(shape=(6,), scenario_folder=scenario_folder, factory=spec)


def test_a_factorys_samples_must_have_the_models_shape(scenario_folder: Path) -> None:
    with pytest.raises(ScenarioError, match=r"a sample is 6, unlike model.input_shape = \[7\]"):
        load(shape=(7,), scenario_folder=scenario_folder, factory="own_data:tensors")
