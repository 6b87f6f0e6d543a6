"""The types of a scenario's fields: quantities with units, numbers within limits, text that people see; sections."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, PlainValidator, Tag

from hsfl.problem.codes import GivenCodes, checked_codes
from hsfl.problem.units import LARGEST, SMALLEST, parse
from hsfl.scenario.quantity import Quantity, parse_quantity

Compute = Annotated[Quantity, PlainValidator(partial(parse_quantity, kind="compute"))]
Rate = Annotated[Quantity, PlainValidator(partial(parse_quantity, kind="rate"))]
Size = Annotated[Quantity, PlainValidator(partial(parse_quantity, kind="size"))]
Positive = Annotated[float, Field(gt=0, ge=SMALLEST, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Round = Annotated[int, Field(ge=1, le=10**9)]
Duration = Annotated[float, PlainValidator(partial(parse, kind="duration"))]
Codes = Annotated[GivenCodes, PlainValidator(checked_codes)]
PerLayer = Annotated[list[NotNegative], Field(min_length=1)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that cannot be printed; write plain text in one line")
    return text


#: Text that people see.
Line = Annotated[str, AfterValidator(_printable)]


def _named_or_own(text: str, names: tuple[str, ...]) -> str:
    if text not in names and ":" not in text:
        raise ValueError(f'it must be one of {", ".join(names)}, or your own: "package.module:function"')
    return text


def named_or_own(*names: str) -> AfterValidator:
    """The type of a field that holds one of these names, or names a function of the user's own."""
    return AfterValidator(partial(_named_or_own, names=names))


def _one_list_or_many(value: object) -> str:
    return "per tier" if isinstance(value, list) and value and isinstance(value[0], list) else "per layer"


#: A list, or one list per tier; errors are those of the form that was meant.
PerLayerOrTier = Annotated[
    Annotated[PerLayer, Tag("per layer")] | Annotated[list[PerLayer], Tag("per tier")], Discriminator(_one_list_or_many)
]


def _number_or_share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("it should be a whole number of clients, or a share of them such as 0.1")
    if not (value >= 1 if isinstance(value, int) else 0 < value < 1):
        raise ValueError("it should be at least 1 client, or a share between 0 and 1 such as 0.1; leave it out for all")
    return value


#: So many clients, or a share of all; a share of 1.0 would be read as one client by many, and is refused.
NumberOrShare = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)], BeforeValidator(_number_or_share)
]


#: The numbers of mini-batches that "auto" chooses from.
AUTO_MICRO_BATCHES = tuple(range(1, 17))
_MOST_MICRO_BATCHES = 10**6


def _number_or_choices(value: object) -> object:
    given = value if isinstance(value, list) else [value]
    whole = all(isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= _MOST_MICRO_BATCHES for one in given)
    if value != "auto" and not (whole and 1 <= len(set(given)) == len(given) <= 64):
        raise ValueError('it should be a whole number from 1 on, "auto", or a list to choose from, such as [1, 2, 4]')
    return value


#: So many mini-batches, or a number to be chosen: any that is useful, or one of a list.
MicroBatches = Annotated[int | Literal["auto"] | list[int], BeforeValidator(_number_or_choices)]


class Section(BaseModel):
    """A section of the file: known fields of the right types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
