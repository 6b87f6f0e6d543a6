"""Refuse in one sentence what is no model, no batch of inputs or no shape of a sample."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

import torch
from torch import nn

from hsfl.errors import ModelError


def check_model(model: object) -> None:
    """Refuse anything but an nn.Module in Python whose parameters and buffers have values."""
    if isinstance(model, type):
        raise ModelError(f"a model must be an nn.Module, not the class {model.__name__}; give an instance of the class")
    if not isinstance(model, nn.Module):
        raise ModelError(f"a model must be an nn.Module, not a value of type {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise ModelError(
            f"{type(model).__name__} is compiled, and only Python can be cut into layers; give the nn.Module that "
            "torch.jit or torch.compile was given"
        )
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise ModelError(
                f"{name} of {type(model).__name__} is on the meta device and has no values; build the model on the CPU"
            )


def check_example(example: object) -> None:
    """Refuse anything but a tensor that holds a batch of at least one input."""
    if not isinstance(example, torch.Tensor):
        raise ModelError(
            f"an example must be a tensor that holds a batch of inputs, not a value of type {type(example).__name__}"
        )
    if not example.ndim or not len(example):
        raise ModelError(
            f"an example must hold a batch of at least one input, unlike a tensor of shape {tuple(example.shape)}"
        )


def whole_sizes(input_shape: object) -> tuple[int, ...]:
    """The shape of a sample as a tuple; a shape that does not consist of whole numbers is refused."""
    try:
        return tuple(map(operator.index, input_shape))  # type: ignore[call-overload]
    except TypeError:
        raise ModelError(f"input_shape must be whole numbers such as (3, 32, 32), not {input_shape!r}") from None


def times(shape: Iterable[int]) -> str:
    """A shape as people write it, such as 3x32x32."""
    return "x".join(map(str, shape))
