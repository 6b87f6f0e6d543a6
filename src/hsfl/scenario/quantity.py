"""A quantity of every entity of a tier, as a scenario writes it: one value, a list, or a distribution to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.problem import units
from hsfl.problem.profile import FloatArray

_FORMS = (
    "a value, a list with one per entity, or { uniform = [low, high] }, { normal = [mean, deviation] } or "
    "{ lognormal = [median, sigma] }"
)


@dataclass(frozen=True)
class Quantity:
    """`form` is "value", "list", "uniform", "normal" or "lognormal"; the numbers are in SI units."""

    form: str
    numbers: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """One number per entity; normal draws are repeated until positive. A larger tier begins with the same."""
        if self.form == "list":
            return np.array(self.numbers)
        if self.form == "value":
            return np.full(count, self.numbers[0])
        first, second = self.numbers
        if self.form == "uniform":
            return rng.uniform(first, second, count)
        if self.form == "lognormal":
            return first * np.exp(second * rng.standard_normal(count))
        values = rng.normal(first, second, count)
        while (bad := values <= 0).any():
            (again,) = rng.spawn(1)
            values = np.where(bad, again.normal(first, second, count), values)
        return values


def parse_quantity(value: Any, kind: str) -> Quantity:
    """Read a quantity of a kind of `units`; ValueError says what would be right."""
    if isinstance(value, Quantity):
        return value
    if isinstance(value, list):
        if not value:
            raise ValueError(f"an empty list; write {_FORMS}")
        return Quantity("list", tuple(units.parse(v, kind) for v in value))
    if not isinstance(value, dict):
        return Quantity("value", (units.parse(value, kind),))
    if len(value) != 1 or (form := next(iter(value))) not in ("uniform", "normal", "lognormal"):
        raise ValueError(f"not a known distribution; write {_FORMS}")
    numbers = value[form]
    if not isinstance(numbers, list) or len(numbers) != 2:
        raise ValueError(f"{form} takes two numbers; write {_FORMS}")
    first = units.parse(numbers[0], kind)
    second = units.parse(numbers[1], "number" if form == "lognormal" else kind)
    if form == "uniform" and second < first:
        raise ValueError("the low end of uniform is above the high end; swap them")
    if form == "lognormal" and second > 10:
        raise ValueError("the sigma of lognormal is that of the natural logarithm; write at most 10")
    return Quantity(form, (first, second))
