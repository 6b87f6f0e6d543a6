"""How many bits a tensor takes on a link: the sizes of what is sent, apart from those of what is held in memory."""

from __future__ import annotations

from dataclasses import dataclass

from hsfl.problem.profile import FloatArray

#: Bits of a value as it is held, and as a profile counts it.
HELD_BITS = 32


@dataclass(frozen=True)
class Code:
    """A way to write tensors: so many bits for every value."""

    name: str
    value_bits: float

    def sent_bits(self, held_bits: FloatArray) -> FloatArray:
        """What a tensor that takes so many bits in memory takes on the link."""
        return held_bits * (self.value_bits / HELD_BITS)


FP32 = Code("fp32", 32.0)


@dataclass(frozen=True)
class LinkCodes:
    """The codes on the links of a tier's entities."""

    up: Code = FP32
    """The code of activations, sent to the entity above."""
    down: Code = FP32
    """The code of gradients, received from the entity above."""
    average: Code = FP32
    """The code of sub-models, to and from the fed server."""


#: Every value as it is.
PLAIN = LinkCodes()
