"""Tensors as messages: dtype, shape, memory order and little-endian bytes, checked against what is expected.

The memory order is part of the numbers: kernels sum in the order in which values lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

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


class Packed(NamedTuple):
    """A tensor on its way: what it is, and its bytes, as they lie in memory where nothing codes them."""

    about: wire.Tensor
    data: memoryview


Named = tuple[Sequence[str], Sequence[Packed]]
"""Tensors and their names."""


def pack(tensor: torch.Tensor, codec: Codec | None = None) -> Packed:
    """A tensor as it is sent; a codec writes floating-point numbers in its own way.

    Its memory is not copied where it need not be: it stays as it is until the command that it belongs to is done.
    """
    tensor = tensor.detach()
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride()[axis], axis))
    about = wire.Tensor(dtype=_NAMES[tensor.dtype], shape=tensor.shape, order=order)
    if codec is not None and codec.code != FP32 and tensor.is_floating_point():
        about.code, data = codec.code.name, memoryview(codec.encode(tensor))
    else:
        flat = tensor.cpu().permute(order).contiguous().flatten()
        data = flat.view(torch.uint8).numpy().data
    about.size = len(data)
    return Packed(about, data)


def check_declared(about: wire.Tensor) -> None:
    """WireError unless a tensor's size is that of its type and shape, as far as these tell: before it is received."""
    if about.dtype not in _DTYPES:
        raise WireError(f"a tensor of {about.dtype[:20]!r}")
    size = prod(about.shape) * _DTYPES[about.dtype].itemsize
    if not about.code and about.size != size:
        raise WireError(f"{about.size} bytes for a tensor of {_text(about.shape)}, expected {size}")


def unpacked(given: Packed, like: torch.Tensor, codec: Codec | None = None) -> torch.Tensor:
    """The tensor that was packed, which must have the dtype and shape of `like` and be written by `codec`.

    WireError otherwise. `like` may be a tensor on the device "meta". What no codec has written lies where it was
    received.
    """
    about, data = given
    shape, order = tuple(about.shape), tuple(about.order)
    if about.dtype != _NAMES[like.dtype] or shape != tuple(like.shape):
        raise WireError(
            f"a tensor of {about.dtype[:20]} {_text(shape)}, expected {_NAMES[like.dtype]} {_text(like.shape)}"
        )
    if sorted(order) != list(range(len(shape))):
        raise WireError(f"a tensor of {len(shape)} axes with the memory order {_text(order)}")
    coded = codec is not None and codec.code != FP32 and like.is_floating_point()
    if about.code != (codec.code.name if coded and codec else ""):
        raise WireError(f"a tensor written as {about.code[:20] or 'it is'!r}, which is not the code of this link")
    if coded:
        assert codec is not None
        if len(data) != coded_size(codec, shape):
            raise WireError(f"{len(data)} bytes for a tensor of {_text(shape)} in {codec.code.name}")
        values = codec.decode(bytes(data), torch.empty(shape, dtype=like.dtype))
        return values.permute(order).contiguous().permute(_inverse(order))
    size = prod(shape) * like.dtype.itemsize
    if len(data) != size:
        raise WireError(f"{len(data)} bytes for a tensor of {_text(shape)}, expected {size}")
    flat = torch.frombuffer(data, dtype=like.dtype) if size else torch.empty(0, dtype=like.dtype)
    return flat.view([shape[axis] for axis in order]).permute(_inverse(order))


@cache
def coded_size(codec: Codec, shape: tuple[int, ...]) -> int:
    """The bytes that a codec writes for a tensor of this shape."""
    return len(codec.encode(torch.zeros(shape)))


def pack_by_name(tensors: Mapping[str, torch.Tensor]) -> Named:
    return list(tensors), [pack(tensor) for tensor in tensors.values()]


def unpacked_by_name(given: Named, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that were packed, which must be those of `like`, in any order; WireError otherwise."""
    names, tensors = given
    if len(names) != len(tensors) or sorted(names) != sorted(like):
        odd = next(iter(set(names) ^ set(like)), "one twice")
        raise WireError(f"tensors of other names than expected ({odd[:60]})")
    return {name: unpacked(value, like[name]) for name, value in zip(names, tensors, strict=True)}


def check_count(tensors: Sequence[Packed], count: int) -> None:
    if len(tensors) != count:
        raise WireError(f"{len(tensors)} tensors, expected {count}")


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _text(numbers: Iterable[int]) -> str:
    return f"({', '.join(map(str, list(numbers)[:8]))})"
