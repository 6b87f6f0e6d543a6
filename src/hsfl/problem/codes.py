"""How many bits a tensor takes on a link: the sizes of what is sent, apart from those of what is held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Bits of the scale of every sample that crosses a cut; 0 where values need no scale, in averages neither."""
    noise: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    """What the code adds to the variance of gradients on a link up and on one down, as parts of what int4 adds."""
    average_noise: float = field(default=0.0, compare=False)
    """The squared error of an average, as a part of what is sent."""

    def crossing_bits(self, held_bits: FloatArray) -> FloatArray:
        """The size of a sample where it crosses a cut, given its size in memory: whole bytes, and a scale."""
        sent = self._whole_bytes(held_bits) + self.scale_bits
        return held_bits if self.value_bits == HELD_BITS else np.where(held_bits > 0, sent, 0.0)

    def averaged_bits(self, held_bits: FloatArray) -> FloatArray:
        """The size of a layer's values in an average, given their size in memory: with a scale for every block."""
        if self.value_bits == HELD_BITS:
            return held_bits
        blocks = np.ceil(held_bits / HELD_BITS / BLOCK) if self.scale_bits else 0.0
        return self._whole_bytes(held_bits) + BLOCK_SCALE_BITS * blocks

    def _whole_bytes(self, held_bits: FloatArray) -> FloatArray:
        return 8 * np.ceil(held_bits / HELD_BITS * self.value_bits / 8)


FP32, BF16 = Code("fp32", 32), Code("bf16", 16, noise=(0.02, 2e-4), average_noise=2.7e-6)
#: What a link can write, the most bits first; integers have a float32 scale and, where samples cross a cut, a 32-bit
#: zero point. Errors of gradients pass on linearly, so their variance falls with the step 1/(2^b - 1) squared; those of
#: activations flip units on and off, as many as the step is long. The rest is as benchmarks/coding.py found it.
CODES = {
    code.name: code
    for code in (
        FP32,
        BF16,
        Code("int8", 8, 64, noise=(15 / 255, (15 / 255) ** 2), average_noise=7.8e-5),
        Code("int4", 4, 64, noise=(1.0, 1.0), average_noise=2.3e-2),
    )
}
#: The word that leaves the choice among all codes to the planner.
AUTO = "auto"


@dataclass(frozen=True)
class LinkCodes:
    """The codes on the links of a tier's entities."""

    up: Code = FP32
    """The code of activations, sent to the entity above."""
    down: Code = FP32
    """The code of gradients, received from the entity above."""
    average: Code = FP32
    """The code of sub-models, to and from the fed server."""
    planned: tuple[tuple[str, tuple[Code, ...]], ...] = ()
    """The links whose code is planned, each with the codes allowed, the most bits first."""

    def allowed(self, link: str) -> tuple[Code, ...]:
        """The codes that a plan may give a link."""
        return dict(self.planned).get(link, (getattr(self, link),))

    @property
    def codes_averages(self) -> bool:
        """Whether averages are coded, or may be by another plan: then what coding leaves unsent is kept."""
        return any(code != FP32 for code in self.allowed("average"))

    def using(self, codes: Mapping[str, Code]) -> LinkCodes:
        """The same links with some codes replaced, by link; others may still be planned."""
        in_force = {link: getattr(self, link) for link in LINKS} | dict(codes)
        return LinkCodes(in_force["up"], in_force["down"], in_force["average"], self.planned)

    def only_averages(self) -> LinkCodes:
        """Those of the links to the fed server alone."""
        return LinkCodes(average=self.average, planned=tuple(own for own in self.planned if own[0] == "average"))

    def names(self) -> dict[str, str]:
        """The codes in force of the links whose code is planned."""
        return {link: getattr(self, link).name for link, _ in self.planned}


#: Links that carry every value as it is.
PLAIN = LinkCodes()
LINKS = ("up", "down", "average")
#: What a user may give a link: a code, "auto", or a list of codes to choose from.
GivenCode = str | Sequence[str]
#: The codes of a tier as a user writes them: one for all its links, or some links with one each.
GivenCodes = GivenCode | Mapping[str, GivenCode]


def checked_codes(given: object) -> GivenCodes:
    """Codes as a user writes them; ValueError says what would be right."""
    if isinstance(given, Mapping) and given:
        for link, code in given.items():
            if link not in LINKS:
                raise ValueError(f"unknown link {link!r}{nearest(str(link), LINKS)}; a tier has {', '.join(LINKS)}")
            _check_code(code, f"{code!r} is no code of {link}")
        return given
    if not isinstance(given, str | list | tuple) or not given:
        raise ValueError(
            'write one for all links, such as "int4", "auto" or ["int8", "int4"], or a table such as '
            '{ up = "int4", down = "auto" }'
        )
    _check_code(given, f"no such code{nearest(given, [*CODES, AUTO])}" if isinstance(given, str) else None)
    return given


def _check_code(given: object, wrong: str | None) -> None:
    """ValueError unless a user has given a code, "auto", or a list of codes."""
    names = [given] if isinstance(given, str) else given
    known = f"known are {', '.join(CODES)}"
    if isinstance(given, str) or not isinstance(names, list | tuple) or not names:
        known += f", and {AUTO}, which leaves the choice to the planner"
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"{wrong}; {known}")
    for name in names:
        if isinstance(given, str) and name == AUTO:
            continue
        if name == AUTO:
            raise ValueError(f"write {AUTO} alone, or only the codes to choose from")
        if not isinstance(name, str) or name not in CODES:
            raise ValueError(f"{wrong or f'{name!r} is no code to choose from'}; {known}")


def tier_codes(given: GivenCodes | LinkCodes | None, label: str, *, top: bool, entities: int) -> LinkCodes:
    """The codes of a tier's links; ScenarioError, which begins with `label`, where the tier has no such link.

    Where the planner chooses, the code of the most bits is in force until it does.
    """
    if given is None or isinstance(given, LinkCodes):
        return given or PLAIN
    try:
        given = checked_codes(given)
    except ValueError as error:
        raise ScenarioError(f"{label} = {given!r}: {error}") from None
    exist = ([] if top else ["up", "down"]) + (["average"] if entities > 1 else [])
    if not isinstance(given, Mapping):
        given = dict.fromkeys(exist, given)
    for link in given:
        if link not in exist:
            reason = "has one machine, so nothing is averaged" if link == "average" else "has no machine above it"
            shown = f'"{given[link]}"' if isinstance(given[link], str) else list(given[link])
            raise ScenarioError(f"{label}.{link} = {shown}: the tier {reason}; remove it")
    allowed = {link: _among(code) for link, code in given.items()}
    planned = tuple((link, codes) for link, codes in allowed.items() if len(codes) > 1)
    return LinkCodes(**{link: codes[0] for link, codes in allowed.items()}, planned=planned)


def _among(given: GivenCode) -> tuple[Code, ...]:
    """The codes that are allowed, the most bits first."""
    names = [given] if isinstance(given, str) else given
    return tuple(code for name, code in CODES.items() if given == AUTO or name in names)
