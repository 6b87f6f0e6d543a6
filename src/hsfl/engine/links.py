"""What a link does to what crosses it: codecs write tensors as bytes, and count the bits where they write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.codes import BF16, CUT_CODES, FP32, Code, GivenCodes, LinkCodes, tier_codes
from hsfl.problem.topology import Topology

Bytes = npt.NDArray[np.uint8]


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

        Of the tensor's type and layout. Where rounds are captured this is captured too. float64, which is for comparing
        backends, passes unrounded.
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
    of float32. A scale has 16 significant bits: then every level times its scale is exact, and what has passed once
    passes again unchanged (in float32 and float64). A sample with a value that is not finite arrives as NaN.
    """

    #: The least scale: levels of samples that are zero, or nearly, are finite too.
    _LEAST = 2.0**-120

    def __init__(self, code: Code) -> None:
        self.code = code
        steps = 2**code.value_bits - 1
        # Tensors, on the CPU for any device: torch would make one of a number in every call.
        self._steps, self._per_step = _number(steps), _number(1 / steps)
        # Cuts a scale to 16 bits. One that had no more stays what it is: 1 / (2^b - 1) is rounded up in float32.
        self._sixteen_bits = torch.tensor(-(1 << 8), dtype=torch.int32)
        # Values are divided by a little less than the scale, so that the least and the greatest level are both reached.
        self._below = _number(1 - 2.0**-16)
        # Added and taken off again it leaves the nearest whole number, as torch.round does, which on the CPU splits
        # even small tensors over threads that then wait for each other.
        self._whole = _number(1.5 * 2.0**23)

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
        return np.concatenate((*head, self._packed(above)), axis=1).tobytes()

    def decode(self, data: bytes, like: torch.Tensor) -> torch.Tensor:
        rows = np.frombuffer(data, np.uint8).reshape(len(like), -1)
        scale, lowest = rows[:, :4].copy().view(np.float32), rows[:, 4:8].copy().view(np.int32)
        levels = self._unpacked(rows[:, 8:], like[0].numel()) + lowest
        return torch.from_numpy(levels.astype(np.float32) * scale).view(like.shape).to(like)

    def _levels(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Every value's level, and each sample's scale and lowest level: whole numbers, in float32."""
        x = tensor.float()
        within = tuple(range(1, x.dim()))
        low = (x.amin(within, keepdim=True) if within else x).clamp_max(0)
        high = (x.amax(within, keepdim=True) if within else x).clamp_min(0)
        scale = high.sub_(low).mul_(self._per_step).clamp_min_(self._LEAST)
        scale.view(torch.int32).bitwise_and_(self._sixteen_bits)
        step = scale * self._below
        lowest = low.div_(step).round_()
        levels = torch.div(x, step).add_(self._whole).sub_(self._whole).clamp_max_(lowest + self._steps)
        return levels, scale, lowest

    def _packed(self, numbers: Bytes) -> Bytes:
        """Rows of numbers, b bits each one after another, in whole bytes."""
        bits = np.unpackbits(numbers[..., None], axis=-1)[..., 8 - self.code.value_bits :]
        return np.packbits(bits.reshape(len(numbers), -1), axis=-1)

    def _unpacked(self, packed: Bytes, count: int) -> Bytes:
        """So many numbers of every row."""
        bits = np.unpackbits(packed, axis=-1, count=count * self.code.value_bits)
        bits = bits.reshape(len(packed), count, self.code.value_bits)
        return np.packbits(np.pad(bits, ((0, 0), (0, 0), (8 - self.code.value_bits, 0))), axis=-1)[..., 0]


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


CODECS: dict[str, Codec] = {"fp32": Codec(), "bf16": HalfCodec()} | {
    name: IntegerCodec(code) for name, code in CUT_CODES.items() if code.scale_bits
}


@dataclass(frozen=True)
class Link:
    """The codecs between an entity and the one above it, and between it and the fed server."""

    up: Codec
    down: Codec
    average: Codec

    @classmethod
    def from_codes(cls, codes: LinkCodes) -> Link:
        for code in (codes.up, codes.down, codes.average):
            if code.name not in CODECS:
                raise ScenarioError(f"code {code.name!r}: there is no codec of it; known are {', '.join(CODECS)}")
        return cls(*(CODECS[code.name] for code in (codes.up, codes.down, codes.average)))


def links(codes: str | Sequence[LinkCodes | GivenCodes] | None, topology: Topology) -> list[Link]:
    """The links of every tier, as a user names their codes; ScenarioError where they do not fit the tree."""
    each = [codes] * topology.num_tiers if codes is None or isinstance(codes, str) else list(codes)
    if len(each) != topology.num_tiers:
        raise ScenarioError(f"codes: {len(each)} are given for {topology.num_tiers} tiers; give one for each")
    found = []
    for tier, (given, entities) in enumerate(zip(each, topology.entities, strict=True)):
        label = "codes" if isinstance(codes, str) else f"codes[{tier}]"
        written = tier_codes(given, label, top=tier == topology.num_tiers - 1, entities=entities)
        if entities > 1 and written.average != FP32:
            raise ScenarioError(
                f'{label}: averages cannot be trained in {written.average.name} yet; write average = "fp32"'
            )
        found.append(Link.from_codes(written))
    return found
