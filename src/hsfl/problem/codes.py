"""How many bits a tensor takes on a link: the sizes of what is sent, apart from those of what is held in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hsfl.errors import ScenarioError, nearest
from hsfl.problem.profile import FloatArray

#: Bits of a value as it is held, and as a profile counts it.
HELD_BITS = 32
#: Bits of the scale of every block of an average, and how many values share one.
BLOCK_SCALE_BITS, BLOCK = 32, 256


@dataclass(frozen=True)
class Code:
    """A way to write tensors: so many bits for every value, and for the scale that values share."""

    name: str
    value_bits: int
    scale_bits: int = 0
    """Of every sample that crosses a cut; 0: values need no scale, in averages neither."""

    def crossing_bits(self, held_bits: FloatArray) -> FloatArray:
        """What a sample that takes so many bits in memory takes where it crosses a cut: whole bytes, and a scale."""
        sent = self._whole_bytes(held_bits) + self.scale_bits
        return held_bits if self.value_bits == HELD_BITS else np.where(held_bits > 0, sent, 0.0)

    def averaged_bits(self, held_bits: FloatArray) -> FloatArray:
        """What a layer's values that take so many bits in memory take in an average: with a scale for every block."""
        if self.value_bits == HELD_BITS:
            return held_bits
        blocks = np.ceil(held_bits / HELD_BITS / BLOCK) if self.scale_bits else 0.0
        return self._whole_bytes(held_bits) + BLOCK_SCALE_BITS * blocks

    def _whole_bytes(self, held_bits: FloatArray) -> FloatArray:
        return 8 * np.ceil(held_bits / HELD_BITS * self.value_bits / 8)


FP32, BF16 = Code("fp32", 32), Code("bf16", 16)
#: What a link can write; integers have a float32 scale and, where samples cross a cut, a 32-bit zero point.
CODES = {code.name: code for code in (FP32, BF16, Code("int8", 8, 64), Code("int4", 4, 64))}


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
LINKS = ("up", "down", "average")
#: The codes of a tier as a user writes them: one for all its links, or some links with one each.
GivenCodes = str | Mapping[str, str]


def checked_codes(given: object) -> GivenCodes:
    """Codes as a user writes them; ValueError says what would be right."""
    form = 'write one for all links, such as "int4", or a table such as { up = "int4", down = "int8" }'
    if isinstance(given, str):
        if given not in CODES:
            raise ValueError(f"no such code{nearest(given, CODES)}; known are {', '.join(CODES)}")
        return given
    if not isinstance(given, Mapping) or not given:
        raise ValueError(form)
    for link, name in given.items():
        if link not in LINKS:
            raise ValueError(f"unknown link {link!r}{nearest(str(link), LINKS)}; a tier has {', '.join(LINKS)}")
        if not isinstance(name, str) or name not in CODES:
            raise ValueError(f"{name!r} is no code of {link}; known are {', '.join(CODES)}")
    return given


def tier_codes(given: GivenCodes | LinkCodes | None, label: str, *, top: bool, entities: int) -> LinkCodes:
    """The codes of a tier's links; ScenarioError, which begins with `label`, where the tier has no such link."""
    if given is None or isinstance(given, LinkCodes):
        return given or PLAIN
    try:
        given = checked_codes(given)
    except ValueError as error:
        raise ScenarioError(f"{label} = {given!r}: {error}") from None
    exist = ([] if top else ["up", "down"]) + (["average"] if entities > 1 else [])
    if isinstance(given, str):
        given = dict.fromkeys(exist, given)
    for link in given:
        if link not in exist:
            reason = "has one machine, so nothing is averaged" if link == "average" else "has no machine above it"
            raise ScenarioError(f'{label}.{link} = "{given[link]}": the tier {reason}; remove it')
    return LinkCodes(**{link: CODES[name] for link, name in given.items()})
