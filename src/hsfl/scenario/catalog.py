"""What comes with hsfl: built-in scenarios, and the layer profiles of built-in models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files

from hsfl.problem.profile import LayerProfile

CATALOG = files("hsfl") / "catalog"
#: The shape of one sample that each built-in model takes by default.
DEFAULT_INPUT_SHAPES = {
    "vgg11": (3, 32, 32),
    "vgg16": (3, 32, 32),
    "lenet5": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "vit": (3, 32, 32),
    "gpt": (128,),
}
#: How many sizes the shape of one sample may have, and how many numbers the sample.
_MAX_SIZES, _MAX_NUMBERS = 8, 100_000_000


def scenario_names() -> list[str]:
    """The names of the built-in scenarios."""
    return sorted(p.name.removesuffix(".toml") for p in (CATALOG / "scenarios").iterdir() if p.name.endswith(".toml"))


def checked_shape(shape: Sequence[int]) -> Sequence[int]:
    """The shape of one sample, if it can be one; ValueError says what a shape must be like."""
    if not 1 <= len(shape) <= _MAX_SIZES or min(shape) < 1 or math.prod(shape) > _MAX_NUMBERS:
        raise ValueError(
            f"write 1 to {_MAX_SIZES} whole numbers of at least 1, such as 3, 32, 32; their product, the numbers in a "
            f"sample, is at most {_MAX_NUMBERS:,}"
        )
    return shape


#: How many classes a built-in model tells apart unless a scenario says otherwise.
CLASSES = 10


def shipped_profile(name: str, input_shape: Sequence[int] | None = None) -> LayerProfile | None:
    """The profile of a built-in model that comes with hsfl, if there is one for the shape of its samples."""
    shape = input_shape or DEFAULT_INPUT_SHAPES[name]
    path = CATALOG / "profiles" / f"{name}-{'x'.join(map(str, shape))}.csv"
    return LayerProfile.from_csv(path) if path.is_file() else None
