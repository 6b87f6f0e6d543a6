"""Data from a user's own function: "package.module:function"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hsfl.errors import ScenarioError
from hsfl.factory import Factory

_WANTED = "return (train inputs, train targets, test inputs, test targets) as tensors, or two torch Datasets"
Part = tuple[Tensor, Tensor]


def load(spec: str, search: Path | None) -> tuple[Part, Part]:
    """The training and the test part that the function named by `spec` returns, as tensors of the types we train on.

    The module is looked for in the folder `search`, then in the working directory, then where Python looks.
    """
    field = f"data.factory = {spec}"
    factory = Factory(spec, search, field, ScenarioError)
    result = factory.call()
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
    )


def _inputs(field: str, inputs: Tensor) -> Tensor:
    if inputs.dim() < 2:
        raise ScenarioError(f"{field}: inputs have the shape {tuple(inputs.shape)}; give (samples, ...)")
    if inputs.dtype == torch.uint8 and inputs.dim() != 4:
        raise ScenarioError(
            f"{field}: uint8 inputs are images (samples, channels, height, width), not of the shape "
            f"{tuple(inputs.shape)}; give tokens as int64"
        )
    if inputs.is_floating_point() or inputs.dtype in (torch.uint8, torch.int64):
        return inputs.contiguous()
    if inputs.dtype in (torch.int8, torch.int16, torch.int32):
        return inputs.long().contiguous()
    raise ScenarioError(
        f"{field}: inputs are {inputs.dtype}; give uint8 images, floating-point numbers or int64 tokens"
    )


def _targets(field: str, targets: Tensor) -> Tensor:
    if targets.dim() < 1 or targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ScenarioError(
            f"{field}: targets are {targets.dtype} of the shape {tuple(targets.shape)}; give classes as int64, one or "
            "more per sample"
        )
    return targets.long().contiguous()


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
