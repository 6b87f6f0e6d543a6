"""A factory's data with named columns: dictionaries of arrays, and data sets of Hugging Face's `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsfl.data import load_dataset
from hsfl.data.columns import is_split, read_split
from hsfl.errors import ScenarioError
from hsfl.scenario.data_section import ColumnsSection, DataSection

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 4), dtype=np.uint8)
WRITERS = ["ann", "bob", "ann", "cy", "bob", "ann"]
COLUMNS = {"inputs": "image", "targets": "label", "client": "writer"}


def columns(**fields: str) -> ColumnsSection:
    return ColumnsSection.model_validate(fields)


def test_dictionaries_of_columns(tmp_path: Path) -> None:
    """From the scenario's section to the data set, with whose each sample is."""
    (tmp_path / "tables.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    images = np.arange(6 * 16, dtype=np.uint8).reshape(6, 1, 4, 4)\n"
        f"    part = {{'image': images, 'label': [0, 1, 2, 0, 1, 2], 'writer': {WRITERS}, 'more': None}}\n"
        "    return {'train': part, 'validation': {'image': images[:2], 'label': np.array([2, 0])}}\n"
    )
    section = DataSection.model_validate({"factory": "tables:load", "columns": COLUMNS})
    found = load_dataset(section, input_shape=(1, 4, 4), scenario_folder=tmp_path, data_folder=None)
    assert found.train[0].dtype == torch.uint8 and found.train[0].flatten().tolist() == list(range(96))
    assert found.train[1].tolist() == [0, 1, 2, 0, 1, 2] and found.test[1].tolist() == [2, 0]
    assert found.users is not None and found.users.tolist() == [0, 1, 0, 2, 1, 0]


def test_data_sets_of_hugging_face() -> None:
    """Images as `datasets` decodes them, with a class label; as one finds them there."""
    datasets = pytest.importorskip(
        "datasets", reason="`datasets` and what it needs are 400 MB: not a dependency of tests"
    )
    image = pytest.importorskip("PIL.Image", reason="`datasets` decodes images with Pillow")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b", "c"]),
            "writer": datasets.Value("string"),
        }
    )
    rows = {
        "image": [image.fromarray(one[0]) for one in IMAGES],
        "label": [0, 1, 2, 0, 1, 2],
        "writer": WRITERS,
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    split = datasets.DatasetDict({"train": whole, "test": whole.select(range(2))})
    assert is_split(split)
    train, test = read_split(split, columns(**COLUMNS), "data.factory = a:b")
    assert np.array_equal(train.inputs.numpy(), IMAGES) and train.targets.tolist() == [0, 1, 2, 0, 1, 2]
    assert train.clients is not None and train.clients.tolist() == [0, 1, 0, 2, 1, 0]
    assert np.array_equal(test.inputs.numpy(), IMAGES[:2]) and test.clients is None
    tokens = datasets.Dataset.from_dict({"inputs": [[1, 2, 3], [4, 5, 6]], "targets": [[2, 3, 4], [5, 6, 7]]})
    train, _ = read_split({"train": tokens, "test": tokens}, columns(), "data.factory = a:b")
    assert train.inputs.tolist() == [[1, 2, 3], [4, 5, 6]] and train.clients is None


PART = {"inputs": np.zeros((2, 3), np.float32), "targets": [0, 1]}
BAD: dict[str, tuple[Any, dict[str, str], list[str]]] = {
    "no test": ({"train": PART, "dev": PART}, {}, ["parts called train, dev", "test or validation"]),
    "no such column": (
        {"train": PART, "test": PART},
        {"inputs": "image"},
        ["train has no column 'image', but inputs, targets", "data.columns.inputs"],
    ),
    "no such client": (
        {"train": PART, "test": PART},
        {"client": "who"},
        ["train has no column 'who'", "data.columns.client"],
    ),
    "no table": ({"train": 3, "test": PART}, {}, ["train is a int", "columns"]),
    "ragged": (
        {"train": PART | {"inputs": [[1.0], [1.0, 2.0]]}, "test": PART},
        {},
        ["train: the column inputs cannot be stacked", "one shape"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_sentence(name: str) -> None:
    split, given, says = BAD[name]
    with pytest.raises(ScenarioError) as caught:
        read_split(split, columns(**given), "data.factory = a:b")
    assert str(caught.value).startswith("data.factory = a:b") and "\n" not in str(caught.value)
    for part in says:
        assert part in str(caught.value)
