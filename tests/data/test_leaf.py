"""Files as LEAF's preprocessing writes them: users, counts, samples; images of FEMNIST and texts of Shakespeare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsfl.data.leaf import LETTERS, read_leaf
from hsfl.errors import ScenarioError


def write(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    """One file of LEAF: `json.dump` of these three, as its data_to_json.py and split_data.py do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    all_data = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(all_data))


def images(rng: np.random.Generator, count: int) -> tuple[list[Any], list[int]]:
    """As FEMNIST has them: 784 numbers, a 255th each, and one of 62 classes."""
    return (rng.integers(0, 256, (count, 784)) / 255).tolist(), rng.integers(0, 62, count).tolist()


def test_femnist(tmp_path: Path) -> None:
    """Two files, a writer in both; pixels come back to the bit."""
    rng = np.random.default_rng(0)
    ann, bob, more = images(rng, 3), images(rng, 2), images(rng, 4)
    write(tmp_path / "train" / "all_data_0_niid_0_keep_0_train_9.json", {"f0000_14": ann, "f0001_41": bob})
    write(tmp_path / "train" / "all_data_1_niid_0_keep_0_train_9.json", {"f0000_14": more})
    write(tmp_path / "test" / "all_data_0_niid_0_keep_0_test_9.json", {"f0000_14": images(rng, 5)})
    split = read_leaf(tmp_path)
    inputs, targets = split.train
    assert inputs.dtype == torch.uint8 and inputs.shape == (9, 1, 28, 28) and len(split.test[0]) == 5
    assert split.users.tolist() == [0] * 7 + [1] * 2
    expected = np.rint(255 * np.array([*ann[0], *more[0], *bob[0]])).reshape(9, 1, 28, 28)
    assert np.array_equal(inputs.numpy(), expected)
    assert targets.tolist() == [*ann[1], *more[1], *bob[1]]


def test_what_nobody_has_split_is_split_here(tmp_path: Path) -> None:
    """Every tenth sample of each user is for testing; all_data has the same form."""
    rng = np.random.default_rng(1)
    ann, bob = images(rng, 20), images(rng, 9)
    write(tmp_path / "all_data" / "all_data_0.json", {"ann": ann, "bob": bob})
    split = read_leaf(tmp_path)
    assert split.test[1].tolist() == [ann[1][9], ann[1][19]]
    assert split.users.tolist() == [0] * 18 + [1] * 9
    assert split.train[1].tolist() == [*ann[1][:9], *ann[1][10:19], *bob[1]]


def test_shakespeare(tmp_path: Path) -> None:
    """A text of 80 letters and the one after it: every letter is to be foretold from those before."""
    assert len(LETTERS) == 80 and LETTERS[0] == "\n" and LETTERS[-1] == "}"
    text = "Yet I am doubtful; for I am mainly ignorant what place this is, and all the skill"
    x, y = [text[i : i + 80] for i in range(2)], [text[80], "é"]  # a letter that LEAF does not know
    for part in ("train", "test"):
        write(tmp_path / part / "all_data.json", {"THE_TRAGEDY_OF_KING_LEAR_LEAR": (x, y)})
    (inputs, targets), _, users = read_leaf(tmp_path)
    assert inputs.dtype == torch.int64 and inputs.shape == targets.shape == (2, 80) and users.tolist() == [0, 0]
    assert "".join(LETTERS[token] for token in inputs[0]) == x[0]
    assert "".join(LETTERS[token] for token in targets[0]) == x[0][1:] + y[0]
    assert int(targets[1, -1]) == 79  # as in LEAF, whose index of -1 is the last one


def test_other_numbers_stay_numbers(tmp_path: Path) -> None:
    """LEAF's synthetic set: 60 features of any size."""
    write(tmp_path / "all_data" / "data.json", {"0": (np.linspace(-3, 3, 600).reshape(10, 60).tolist(), [0, 1] * 5)})
    (inputs, targets), _, _ = read_leaf(tmp_path)
    assert inputs.dtype == torch.float32 and inputs.shape == (9, 60) and targets.dtype == torch.int64


GOOD = ([[0.5] * 784], [3])
BAD: dict[str, tuple[Any, list[str]]] = {
    "no file": (None, ["there are no .json files in it", "train and test", "leaf/data/femnist/data"]),
    "no JSON": ("{", ["a.json: not a file of LEAF", "users and user_data"]),
    "a list": ([1], ["a.json: not a file of LEAF"]),
    "nothing of a user": ({"users": ["ann"], "user_data": {}}, ["a.json: not a file of LEAF", "ann"]),
    "no users": ({"users": [], "user_data": {}}, ["its files have no users"]),
    "no y": ({"users": ["ann"], "user_data": {"ann": {"x": [[1.0]]}}}, ["samples of user ann", "'y'"]),
    "more x": ({"users": ["ann"], "user_data": {"ann": {"x": [[1.0], [2.0]], "y": [1]}}}, ["user ann", "2 x and 1 y"]),
    "ragged": ({"users": ["ann"], "user_data": {"ann": {"x": [[1.0], [2.0, 3.0]], "y": [1, 2]}}}, ["user ann"]),
    "words for y": ({"users": ["ann"], "user_data": {"ann": {"x": [[1.0]], "y": ["cat"]}}}, ["user ann", "type <U3"]),
    "texts of other lengths": (
        {"users": ["ann"], "user_data": {"ann": {"x": ["abc", "ab"], "y": ["d", "c"]}}},
        ["user ann"],
    ),
    "two kinds": (
        {"users": ["ann", "bob"], "user_data": {"ann": {"x": [[1.0]], "y": [1]}, "bob": {"x": ["ab"], "y": ["c"]}}},
        ["user bob has other samples", "1 and 2"],
    ),
    "too few to split": (
        {"users": ["ann"], "user_data": {"ann": {"x": GOOD[0], "y": GOOD[1]}}},
        ["no user has 10 samples", "train and test"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_of_leaf_is_one_sentence(name: str, tmp_path: Path) -> None:
    content, says = BAD[name]
    if content is not None:
        (tmp_path / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ScenarioError) as caught:
        read_leaf(tmp_path)
    assert "\n" not in str(caught.value)
    for part in says:
        assert part in str(caught.value)
