"""Data from tables with named columns: data sets of Hugging Face's `datasets`, or dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hsfl.errors import ScenarioError
from hsfl.scenario.data_section import ColumnsSection

#: What a test part may be called, the best name first.
_TESTS = ("test", "validation", "valid")


class Table(NamedTuple):
    """The columns that training needs."""

    inputs: Tensor
    targets: Tensor
    clients: npt.NDArray[np.int64] | None
    """Whose each sample is, numbered in the order in which names first appear."""


def is_split(result: object) -> bool:
    """Whether something is a table for training and one for testing, by name, such as a `DatasetDict`."""
    return isinstance(result, Mapping) and "train" in result


def read_split(split: Mapping[str, Any], columns: ColumnsSection, field: str) -> tuple[Table, Table]:
    """The training and the test table; ScenarioError, which begins with `field`, says what is missing."""
    test = next((name for name in _TESTS if name in split), None)
    if test is None:
        raise ScenarioError(
            f"{field} returned parts called {', '.join(map(str, split))}; it needs train, and test or validation"
        )
    train = _read(split["train"], columns, f"{field}: train")
    return train, _read(split[test], columns.model_copy(update={"client": None}), f"{field}: {test}")


def _read(table: Any, columns: ColumnsSection, field: str) -> Table:
    wanted = [name for name in (columns.inputs, columns.targets, columns.client) if name is not None]
    names = getattr(table, "column_names", None)
    if names is None:
        names = list(table) if isinstance(table, Mapping) else None
    if not isinstance(names, Sequence):
        raise ScenarioError(
            f"{field} is a {type(table).__name__}; give a data set with columns, or a dictionary of them"
        )
    for key, name in columns.model_dump(exclude_none=True).items():
        if name not in names:
            raise ScenarioError(
                f"{field} has no column {name!r}, but {', '.join(map(str, names))}; name the right one in "
                f"data.columns.{key}"
            )
    if not isinstance(table, Mapping):  # a data set of `datasets`: decoded, images with their channels first
        table = table.select_columns(wanted).with_format("torch")[:]
    inputs, targets = (_tensor(table[name], name, field) for name in (columns.inputs, columns.targets))
    owners = None if columns.client is None else _numbered(table[columns.client])
    return Table(inputs, targets, owners)


def _tensor(values: Any, name: str, field: str) -> Tensor:
    try:
        if isinstance(values, Tensor):
            return values
        if isinstance(values, np.ndarray):
            return torch.from_numpy(values)
        return torch.stack([torch.as_tensor(value) for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise ScenarioError(
            f"{field}: the column {name} cannot be stacked ({reason}); it must have numbers or arrays of one shape"
        ) from None


def _numbered(values: Any) -> npt.NDArray[np.int64]:
    numbers: dict[object, int] = {}
    each = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    return np.array([numbers.setdefault(value, len(numbers)) for value in each], dtype=np.int64)
