"""Tensors as messages: dtype, shape, memory order and little-endian bytes, checked before anything is allocated.

The memory order is part of the numbers: kernels sum in the order in which values lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod

import numpy as np
import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.engine.links import Codec
from hsfl.errors import HsflError
from hsfl.problem.codes import FP32

_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
assert sys.byteorder == "little"


class WireError(HsflError):
    """A peer sent what it may not send."""


def pack(into: wire.Tensor, tensor: torch.Tensor, codec: Codec | None = None) -> None:
    """Write a tensor into a message, in place: protobuf copies what is given to it.

    A codec writes floating-point numbers in its own way.
    """
    tensor = tensor.detach()
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride()[axis], axis))
    into.dtype = _NAMES[tensor.dtype]
    into.shape.extend(tensor.shape)
    into.order.extend(order)
    if codec is not None and codec.code != FP32 and tensor.is_floating_point():
        into.code, into.data = codec.code.name, codec.encode(tensor)
    else:
        flat = tensor.cpu().permute(order).contiguous().flatten()
        into.data = flat.view(torch.uint8).numpy().tobytes()


def unpacked(message: wire.Tensor, like: torch.Tensor, codec: Codec | None = None) -> torch.Tensor:
    """The tensor of a message, which must have the dtype and shape of `like` and be written by `codec`.

    WireError otherwise, before memory is taken. `like` may be a tensor on the device "meta".
    """
    shape, order, data = tuple(message.shape), tuple(message.order), message.data
    if message.dtype != _NAMES[like.dtype] or shape != tuple(like.shape):
        raise WireError(
            f"a tensor of {message.dtype[:20]} {_text(shape)}, expected {_NAMES[like.dtype]} {_text(like.shape)}"
        )
    if sorted(order) != list(range(len(shape))):
        raise WireError(f"a tensor of {len(shape)} axes with the memory order {_text(order)}")
    coded = codec is not None and codec.code != FP32 and like.is_floating_point()
    if message.code != (codec.code.name if coded and codec else ""):
        raise WireError(f"a tensor written as {message.code[:20] or 'it is'!r}, which is not the code of this link")
    if coded:
        assert codec is not None
        if len(data) != coded_size(codec, shape):
            raise WireError(f"{len(data)} bytes for a tensor of {_text(shape)} in {codec.code.name}")
        values = codec.decode(data, torch.empty(shape, dtype=like.dtype))
        return values.permute(order).contiguous().permute(_inverse(order))
    size = prod(shape) * like.dtype.itemsize
    if len(data) != size:
        raise WireError(f"{len(data)} bytes for a tensor of {_text(shape)}, expected {size}")
    found = torch.empty([shape[axis] for axis in order], dtype=like.dtype)
    found.flatten().view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)
    return found.permute(_inverse(order))


@cache
def coded_size(codec: Codec, shape: tuple[int, ...]) -> int:
    """The bytes that a codec writes for a tensor of this shape."""
    return len(codec.encode(torch.zeros(shape)))


def pack_by_name(into: wire.Tensors, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        into.names.append(name)
        pack(into.values.add(), tensor)


def unpacked_by_name(message: wire.Tensors, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a message, which must be those of `like`, in any order; WireError otherwise."""
    if len(message.names) != len(message.values) or sorted(message.names) != sorted(like):
        odd = next(iter(set(message.names) ^ set(like)), "one twice")
        raise WireError(f"tensors of other names than expected ({odd[:60]})")
    return {name: unpacked(value, like[name]) for name, value in zip(message.names, message.values, strict=True)}


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _text(numbers: Iterable[int]) -> str:
    return f"({', '.join(map(str, list(numbers)[:8]))})"
