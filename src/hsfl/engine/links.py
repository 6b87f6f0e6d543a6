"""What a link does to what crosses it: codecs write tensors as bytes, and count the bits where they write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hsfl.problem.codes import FP32, Code, LinkCodes


class Codec:
    """Writes values in float32, as they are there. Other codecs override all methods but `bits`."""

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

        float64, which is for comparing backends, passes unrounded.
        """
        return tensor

    def bits(self, tensor: torch.Tensor) -> int:
        """The size of what `encode` writes."""
        return 8 * len(self.encode(tensor))


CODECS: dict[str, Codec] = {"fp32": Codec()}


@dataclass(frozen=True)
class Link:
    """The codecs between an entity and the one above it, and between it and the fed server."""

    up: Codec
    down: Codec
    average: Codec

    @classmethod
    def from_codes(cls, codes: LinkCodes) -> Link:
        return cls(*(CODECS[code.name] for code in (codes.up, codes.down, codes.average)))
