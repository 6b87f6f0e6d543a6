"""Data in the form of LEAF, a benchmark of federated data: JSON files of users, each with samples of its own.

LEAF's `preprocess.sh` writes them into `train` and `test` or, before it splits them, into `all_data`:

    {"users": [...], "num_samples": [...], "user_data": {USER: {"x": [...], "y": [...]}, ...}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hsfl.errors import ScenarioError

#: The characters of LEAF's Shakespeare, in its order: a token is the place of a character.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
#: Of samples that nobody has split: one in so many of each user's is for testing.
_TEST_EVERY = 10
_SIDE = 28

Part = tuple[Tensor, Tensor]


class Split(NamedTuple):
    """What a folder holds."""

    train: Part
    test: Part
    users: npt.NDArray[np.int64]
    """The user of each training sample, numbered in the order of the files."""


def read_leaf(folder: Path) -> Split:
    """All users of the files in a folder; ScenarioError says what is not as LEAF writes it."""
    train, test = _files(folder / "train"), _files(folder / "test")
    if train and test:
        parts = [_stacked(_users(files), folder) for files in (train, test)]
        return Split(parts[0][0], parts[1][0], parts[0][1])
    files = _files(folder / "all_data") or _files(folder)
    if not files:
        raise ScenarioError(
            f"data.folder = {folder}: there are no .json files in it, in train and test or in all_data; name the data "
            "folder of a LEAF data set, such as leaf/data/femnist/data"
        )
    (inputs, targets), users = _stacked(_users(files), folder)
    kept = np.concatenate([np.arange(count) % _TEST_EVERY != _TEST_EVERY - 1 for count in np.bincount(users)])
    if kept.all():
        raise ScenarioError(
            f"data.folder = {folder}: no user has {_TEST_EVERY} samples, of which one would be for testing; let LEAF "
            "split them into train and test"
        )
    chosen = torch.from_numpy(kept)
    return Split((inputs[chosen], targets[chosen]), (inputs[~chosen], targets[~chosen]), users[kept])


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _users(files: list[Path]) -> Iterator[tuple[Path, str, Part]]:
    """Every user with its samples; a file at a time, since as text and as lists they take many times the memory."""
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            users = [(str(user), content["user_data"][user]) for user in content["users"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise ScenarioError(
                f"{path}: not a file of LEAF ({' '.join(str(reason).split())[:120]}); it must have users and user_data"
            ) from None
        for user, samples in users:
            try:
                xs, ys = list(samples["x"]), list(samples["y"])
                if not xs or len(xs) != len(ys):
                    raise ValueError(f"{len(xs)} x and {len(ys)} y")
                yield path, user, _part(xs, ys)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ScenarioError(
                    f"{path}: the samples of user {user[:60]} cannot be used ({' '.join(str(error).split())[:120]}); x "
                    "must be equally long lists of numbers or texts, and y a class or a character for each"
                ) from None


def _part(xs: list[Any], ys: list[Any]) -> Part:
    """Images as bytes, other numbers as they are; texts as tokens, each with the one that follows as its target."""
    if isinstance(xs[0], str):
        texts = np.stack([_tokens(x + y[:1]) for x, y in zip(xs, ys, strict=True)])
        return torch.from_numpy(texts[:, :-1].copy()), torch.from_numpy(texts[:, 1:].copy())
    values = np.array(xs, dtype=np.float32)
    targets = np.array(ys)
    if values.ndim != 2 or targets.shape != (len(values),) or targets.dtype.kind not in "iu":
        raise ValueError(f"x of the shape {values.shape}, y of the shape {targets.shape} and type {targets.dtype}")
    if values.shape[1] == _SIDE**2 and values.min() >= 0 and values.max() <= 1:
        images = np.rint(255 * values).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
        return torch.from_numpy(images), torch.from_numpy(targets.astype(np.int64))
    return torch.from_numpy(values), torch.from_numpy(targets.astype(np.int64))


def _tokens(text: str) -> npt.NDArray[np.int64]:
    """Letters as LEAF's models take them: what is not among its letters counts as the last one."""
    return np.array([LETTERS.find(letter) % len(LETTERS) for letter in text], dtype=np.int64)


def _stacked(users: Iterator[tuple[Path, str, Part]], folder: Path) -> tuple[Part, npt.NDArray[np.int64]]:
    """All samples, and the user of each; one who is in several files is one user."""
    numbers: dict[str, int] = {}
    parts: list[Part] = []
    owners: list[npt.NDArray[np.int64]] = []
    for path, user, part in users:
        if parts and (part[0].shape[1:] != parts[0][0].shape[1:] or part[0].dtype != parts[0][0].dtype):
            shapes = " and ".join("x".join(map(str, one[0].shape[1:])) for one in (parts[0], part))
            raise ScenarioError(
                f"{path}: user {user[:60]} has other samples than those before ({shapes}); keep one kind"
            )
        parts.append(part)
        owners.append(np.full(len(part[0]), numbers.setdefault(user, len(numbers)), dtype=np.int64))
    if not parts:
        raise ScenarioError(f"data.folder = {folder}: its files have no users")
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    inputs, targets = (torch.cat(tensors)[torch.from_numpy(order)] for tensors in zip(*parts, strict=True))
    return (inputs, targets), owner[order]
