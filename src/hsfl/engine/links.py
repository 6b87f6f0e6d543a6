"""What a link does to what crosses it: codecs write tensors as bytes, and count the bits where they write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.codes import BF16, BLOCK, CODES, FP32, Code, GivenCodes, LinkCodes, tier_codes
from hsfl.problem.topology import Topology

Bytes = npt.NDArray[np.uint8]


def _number(value: float) -> torch.Tensor:
    """On the CPU, for any device: torch would make such a tensor of a number in every call."""
    return torch.tensor(value, dtype=torch.float32)


#: The least scale: levels of values that are zero, or nearly, are finite too.
_LEAST = 2.0**-120
#: Cuts a scale to 16 bits: then every level of up to 8 bits times its scale is exact in float32.
_SIXTEEN_BITS = torch.tensor(-(1 << 8), dtype=torch.int32)
#: Added and taken off again it leaves the nearest whole number, as torch.round does, which on the CPU splits even small
#: tensors over threads that then wait for each other.
_WHOLE = _number(1.5 * 2.0**23)


class Codec:
    """Writes values in float32, as they are there. Other codecs override all methods but `bits`.

    The first dimension of a tensor is samples. Integers, such as tokens, pass every codec as they are.
    """

    code: Code = FP32

    def encode(self, tensor: torch.Tensor) -> bytes:
        """The bytes that a link carries, in the order of the tensor's elements."""
        return tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        """The tensor that arrives: of the shape, type and place of `like`."""
        values = torch.frombuffer(bytearray(data), dtype=torch.float32)
        return values.view(like.shape).to(like)

    def passed(self, tensor: torch.Tensor) -> torch.Tensor:
        """What `decode` makes of `encode`, without writing the bytes: what backends in one process use.

        The result has the tensor's type and layout. Where rounds are captured, this is captured too. float64, which is
        for comparing backends, passes unrounded.
        """
        return tensor

    def bits(self, tensor: torch.Tensor) -> int:
        """The size of what `encode` writes."""
        return 8 * len(self.encode(tensor))


class HalfCodec(Codec):
    """Writes values in bfloat16."""

    code = BF16

    def encode(self, tensor: torch.Tensor) -> bytes:
        values = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        return values.view(torch.int16).numpy().tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        values = torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
        return values.view(like.shape).to(like)

    def passed(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(torch.bfloat16).to(tensor.dtype)


class IntegerCodec(Codec):
    """Writes every sample in b-bit integers: level times scale, between the sample's least and greatest value.

    Zero is a level, so that what is exactly 0 stays so; values are rounded to the nearest level. The arithmetic is that
    of float32. A scale has 16 significant bits, so that what has passed once passes again unchanged (in float32 and
    float64). A sample with a value that is not finite arrives as NaN.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        steps = 2**code.value_bits - 1
        # A scale that had 16 bits stays what it is: 1 / (2^b - 1) is rounded up in float32.
        self._steps, self._per_step = _number(steps), _number(1 / steps)
        # Values are divided by a little less than the scale, so that the least and the greatest level are both reached.
        self._below = _number(1 - 2.0**-16)

    def passed(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        levels, scale, _ = self._levels(tensor.detach())
        return levels.mul_(scale).to(tensor.dtype)

    def encode(self, tensor: torch.Tensor) -> bytes:
        levels, scale, lowest = (t.cpu().contiguous().view(len(tensor), -1) for t in self._levels(tensor.detach()))
        if not (finite := scale.isfinite()).all():
            sample = int(finite.logical_not().flatten().nonzero()[0])
            raise HsflError(
                f"sample {sample} of {len(tensor)} has values that are not finite, which {self.code.name} cannot write"
            )
        above = (levels - lowest).to(torch.uint8).numpy()
        head = [scale.numpy().view(np.uint8), lowest.to(torch.int32).numpy().view(np.uint8)]
        return np.concatenate((*head, _packed(above, self.code.value_bits)), axis=1).tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        rows = np.frombuffer(data, np.uint8).reshape(len(like), -1)
        scale, lowest = rows[:, :4].copy().view(np.float32), rows[:, 4:8].copy().view(np.int32)
        levels = _unpacked(rows[:, 8:], self.code.value_bits)[:, : like[0].numel()] + lowest
        return torch.from_numpy(levels.astype(np.float32) * scale).view(like.shape).to(like)

    def _levels(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Every value's level, and each sample's scale and lowest level: whole numbers, in float32."""
        x = tensor.float()
        within = tuple(range(1, x.dim()))
        low = (x.amin(within, keepdim=True) if within else x).clamp_max(0)
        high = (x.amax(within, keepdim=True) if within else x).clamp_min(0)
        scale = high.sub_(low).mul_(self._per_step).clamp_min_(_LEAST)
        scale.view(torch.int32).bitwise_and_(_SIXTEEN_BITS)
        step = scale * self._below
        lowest = low.div_(step).round_()
        levels = torch.div(x, step).add_(_WHOLE).sub_(_WHOLE).clamp_max_(lowest + self._steps)
        return levels, scale, lowest


class BlockCodec(Codec):
    """Writes rows of numbers, such as a layer's weights one after another, in b-bit integers with a scale per block.

    A level times the scale of its block of 256, which is the greatest magnitude in it over 2^(b-1) - 1: as many levels
    above zero as below, and the nearest of them. Otherwise like `IntegerCodec`; a block with a value that is not finite
    arrives as NaN.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self._greatest = 2 ** (code.value_bits - 1) - 1
        # A little more than 1 / (2^(b-1) - 1): a scale that had 16 bits stays what it is.
        self._per_step = _number((1 + 2.0**-23) / self._greatest)

    def passed(self, tensor: torch.Tensor) -> torch.Tensor:
        levels, scales = self._levels(tensor)
        values = levels.mul_(scales).flatten(1)
        return values[:, : tensor.shape[1]].to(tensor.dtype)

    def encode(self, tensor: torch.Tensor) -> bytes:
        levels, scales = (part.cpu().flatten(1) for part in self._levels(tensor))
        if not scales.isfinite().all():
            raise HsflError(f"there are values that are not finite, which {self.code.name} cannot write")
        above = (levels[:, : tensor.shape[1]] + self._greatest).to(torch.uint8).numpy()
        head = np.ascontiguousarray(scales.numpy()).view(np.uint8)
        return np.concatenate((head, _packed(above, self.code.value_bits)), axis=1).tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        rows, count = np.frombuffer(data, np.uint8).reshape(len(like), -1), like.shape[1]
        head = 4 * -(-count // BLOCK)
        scales = np.repeat(rows[:, :head].copy().view(np.float32), BLOCK, axis=1)[:, :count]
        levels = _unpacked(rows[:, head:], self.code.value_bits)[:, :count].astype(np.float32) - self._greatest
        return torch.from_numpy(levels * scales).to(like)

    def _levels(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Every value's level, (rows, blocks, 256), the last block filled up with 0, and every block's scale."""
        x = tensor.detach().float()
        if rest := -x.shape[1] % BLOCK:
            x = torch.nn.functional.pad(x, (0, rest))
        blocks = x.unflatten(1, (x.shape[1] // BLOCK, BLOCK))
        scales = blocks.abs().amax(2, keepdim=True).mul_(self._per_step).clamp_min_(_LEAST)
        scales.view(torch.int32).bitwise_and_(_SIXTEEN_BITS)
        return torch.div(blocks, scales).add_(_WHOLE).sub_(_WHOLE), scales


def _packed(numbers: Bytes, bits: int) -> Bytes:
    """Rows of numbers of 8 or 4 bits, in whole bytes."""
    if bits == 8:
        return numbers
    even = np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2)))
    return np.asarray(even[:, ::2] << 4 | even[:, 1::2])


def _unpacked(packed: Bytes, bits: int) -> Bytes:
    """The numbers of every row, and one more where the last byte was half empty."""
    return packed if bits == 8 else np.stack((packed >> 4, packed & 15), axis=-1).reshape(len(packed), -1)


#: Codecs of samples that cross a cut, by name.
CODECS: dict[str, Codec] = {"fp32": Codec(), "bf16": HalfCodec()} | {
    name: IntegerCodec(code) for name, code in CODES.items() if code.scale_bits
}
#: Codecs of averages, by name.
AVERAGE_CODECS: dict[str, Codec] = CODECS | {name: BlockCodec(CODES[name]) for name in CODES if CODES[name].scale_bits}


class CodedCut(NamedTuple):
    """A cut after so many layers, inside a machine or not, with the codecs of a link over it."""

    after: int
    up: Codec
    down: Codec

    def passed(self, activations: torch.Tensor) -> torch.Tensor:
        """What arrives above; the gradient comes back through the link down."""
        found: torch.Tensor = _Coded.apply(activations, self.up, self.down)
        return found


class _Coded(torch.autograd.Function):
    """What a link up makes of activations, and a link down of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, up: Codec, down: Codec) -> torch.Tensor:
        ctx.down = down
        return up.passed(x).view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.down.passed(gradients[0]), None, None


@dataclass(frozen=True)
class Link:
    """The codecs between an entity and the one above it, and between it and the fed server."""

    up: Codec
    down: Codec
    average: Codec
    codes_averages: bool
    """Whether averages are coded, or may be by another plan."""

    @classmethod
    def from_codes(cls, codes: LinkCodes) -> Link:
        for code in (codes.up, codes.down, codes.average):
            if code.name not in CODECS:
                raise ScenarioError(f"code {code.name!r}: there is no codec of it; known are {', '.join(CODECS)}")
        up, down, average = CODECS[codes.up.name], CODECS[codes.down.name], AVERAGE_CODECS[codes.average.name]
        return cls(up, down, average, codes.codes_averages)

    def using(self, up: str, down: str, average: str) -> Link:
        """The same link in other codes; KeyError where there is no codec of one."""
        return replace(self, up=CODECS[up], down=CODECS[down], average=AVERAGE_CODECS[average])


#: The link over a cut after the last layer: the loss is below, so what crosses in a simulation is as it was.
UNCODED = Link(CODECS["fp32"], CODECS["fp32"], AVERAGE_CODECS["fp32"], codes_averages=False)


def links(codes: str | Sequence[LinkCodes | GivenCodes] | None, topology: Topology) -> list[Link]:
    """The links of every tier, as a user names their codes; ScenarioError where they do not fit the tree."""
    each = [codes] * topology.num_tiers if codes is None or isinstance(codes, str) else list(codes)
    if len(each) != topology.num_tiers:
        raise ScenarioError(f"codes: {len(each)} are given for {topology.num_tiers} tiers; give one for each")
    found = []
    for tier, (given, entities) in enumerate(zip(each, topology.entities, strict=True)):
        label = "codes" if isinstance(codes, str) else f"codes[{tier}]"
        top = tier == topology.num_tiers - 1
        own = tier_codes(given, label, top=top, entities=entities)
        if own.planned and not isinstance(given, LinkCodes):
            raise ScenarioError(
                f"{label} = {given!r}: a backend runs codes and does not choose them; name one for each link"
            )
        found.append(Link.from_codes(own))
    return found


def coded(found: Sequence[Link], topology: Topology) -> list[bool]:
    """For every tier whether its averages are coded, now or by another plan."""
    return [bool(several) and link.codes_averages for several, link in zip(topology.averaged, found, strict=True)]
