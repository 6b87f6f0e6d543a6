"""Data from a user's own function, "package.module:function", or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor

from hsfl.data.columns import is_split, read_split
from hsfl.errors import ScenarioError
from hsfl.factory import Factory, source
from hsfl.scenario.data_section import ColumnsSection

_WANTED = (
    "return (train inputs, train targets, test inputs, test targets) as tensors, two torch Datasets, or a dictionary "
    "with a data set of columns for train and one for test"
)
_WANTED_PART = "return (inputs, targets) as tensors, or a torch Dataset"
Part = tuple[Tensor, Tensor]
Indices = npt.NDArray[np.int64]


def load(
    spec: str, search: Path | None, columns: ColumnsSection, given: Any = None
) -> tuple[Part, Part, Indices | None]:
    """The training and the test part that the function named by `spec` returns, as tensors of the types we train on.

    And whose each training sample is, where a column says it. The module is looked for in the folder `search`, then in
    the working directory, then where Python looks. `given` is taken instead: such a function, or what it would return.
    """
    field = f"data.factory = {spec}"
    factory = source(spec, search, field, ScenarioError, given)
    result, users = factory.call(), None
    if is_split(result):
        with factory.importing():
            train, test = read_split(result, columns, field)
        result, users = [train.inputs, train.targets, test.inputs, test.targets], train.clients
    if not isinstance(result, tuple | list) or len(result) not in (2, 4):
        found = f"a {type(result).__name__}"
        if isinstance(result, tuple | list):
            found += f" of {len(result)}"
        raise ScenarioError(f"{field} returned {found}; {_WANTED}")
    if len(result) == 2:
        with factory.importing():
            result = [tensor for part in result for tensor in _stack(factory, part)]
    for value in result:
        if not isinstance(value, Tensor):
            raise ScenarioError(f"{field} returned a {type(value).__name__} among the four; {_WANTED}")
    inputs, targets, test_inputs, test_targets = (value.detach().cpu() for value in result)
    return (
        (_inputs(field, inputs), _targets(field, targets)),
        (_inputs(field, test_inputs), _targets(field, test_targets)),
        users,
    )


def load_part(where: str, search: Path | None, folder: Path | None, field: str) -> Part:
    """Inputs and targets from a file in `folder`, or from a function, looked for as `load` does."""
    if where.endswith((".npz", ".safetensors")):
        inputs, targets = _from_file((folder or Path()) / where, field)
    elif ":" in where:
        factory = Factory(where, search, field, ScenarioError)
        result = factory.call()
        if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)):
            if isinstance(result, tuple | list) or not hasattr(result, "__getitem__"):
                raise ScenarioError(f"{field} returned a {type(result).__name__}; {_WANTED_PART}")
            with factory.importing():
                result = _stack(factory, result)
        if not isinstance(result[1], Tensor):
            raise ScenarioError(f"{field} returned a {type(result[1]).__name__} for the targets; {_WANTED_PART}")
        inputs, targets = (value.detach().cpu() for value in result)
    else:
        raise ScenarioError(f"{field}: give a .npz or .safetensors file, or package.module:function")
    return _inputs(field, inputs), _targets(field, targets)


def _from_file(path: Path, field: str) -> Part:
    """The tensors named inputs and targets."""
    try:
        if path.suffix == ".npz":
            if path.is_file() and not is_zipfile(path):
                raise ValueError("it is no .npz file")
            with np.load(path, allow_pickle=False) as arrays:
                found = {name: torch.from_numpy(arrays[name]) for name in arrays.files if name in ("inputs", "targets")}
        else:
            found = load_file(path)
    except OSError as error:
        raise ScenarioError(f"{field}: cannot be read ({error.strerror or error}); give a file that exists") from None
    except Exception as error:  # a damaged file raises whatever its reader stumbles over
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ScenarioError(f"{field}: cannot be read ({reason}); write it again") from None
    for name in ("inputs", "targets"):
        if name not in found:
            raise ScenarioError(f"{field}: it has no array called {name}; it must have inputs and targets")
    return found["inputs"], found["targets"]


def _inputs(field: str, inputs: Tensor) -> Tensor:
    if inputs.dim() < 2:
        raise ScenarioError(f"{field}: inputs have the shape {tuple(inputs.shape)}; give (samples, ...)")
    if inputs.dtype == torch.uint8 and inputs.dim() != 4:
        raise ScenarioError(
            f"{field}: uint8 inputs are images (samples, channels, height, width), not of the shape "
            f"{tuple(inputs.shape)}; give images an axis of channels, and tokens as int64"
        )
    if inputs.is_floating_point() or inputs.dtype in (torch.uint8, torch.int64):
        return inputs.contiguous()
    if inputs.dtype in (torch.int8, torch.int16, torch.int32):
        return inputs.long().contiguous()
    raise ScenarioError(
        f"{field}: inputs are {inputs.dtype}; give uint8 images, floating-point numbers or int64 tokens"
    )


def _targets(field: str, targets: Tensor) -> Tensor:
    if targets.dim() < 1 or targets.is_complex() or targets.dtype == torch.bool:
        raise ScenarioError(
            f"{field}: targets are {targets.dtype} of the shape {tuple(targets.shape)}; give classes as int64 or "
            "numbers as float32, one or more per sample"
        )
    return (targets.float() if targets.is_floating_point() else targets.long()).contiguous()


def _stack(factory: Factory, data: Any) -> tuple[Tensor, Tensor]:
    """All items of a torch Dataset, or of anything with a length and (input, target) items."""
    try:
        items = [data[index] for index in range(len(data))]
    except (Exception, SystemExit) as error:
        raise factory.failed(f"reading the items of its {type(data).__name__}", error) from error
    if not items:
        raise ScenarioError(f"{factory.label}: its {type(data).__name__} has no items; give at least one")
    try:
        inputs, targets = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in items), strict=True)
        return torch.stack(inputs), torch.stack(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ScenarioError(
            f"{factory.label}: the items of its {type(data).__name__} cannot be stacked ({reason}); each must be "
            "(input, target), as tensors or arrays of one shape"
        ) from None
