"""Other values of the constants of planning, to see what they are worth: --constant AHEAD=1000, say."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from hsfl.strategies import named
from hsfl.theory import convergence

_MODULES = (convergence, named)


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--constant",
        nargs="+",
        type=_constant,
        default=[],
        metavar="NAME=VALUE",
        help="another value of a constant of hsfl.theory.convergence or hsfl.strategies.named, such as AGAIN=0",
    )


def use(constants: Iterable[tuple[str, float]]) -> None:
    """Set them in this process."""
    for name, value in constants:
        for module in _MODULES:
            if hasattr(module, name):
                setattr(module, name, type(getattr(module, name))(value))


def _constant(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if not name.isupper() or not any(isinstance(getattr(module, name, None), float | int) for module in _MODULES):
        raise argparse.ArgumentTypeError(f"{name}: there is no such constant of planning")
    return name, float(value)
