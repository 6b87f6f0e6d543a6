"""The errors a user can cause: each is one sentence that names what is wrong and what would be right."""

import difflib
from collections.abc import Iterable


class HsflError(Exception):
    """Base of every error hsfl raises on purpose; the command prints it and exits with code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # one line, whatever the values in it hold


class ScenarioError(HsflError):
    """The scenario, a profile or an argument is not valid."""


class InfeasibleError(HsflError):
    """The input is valid, but no plan can satisfy it."""


class ModelError(HsflError):
    """A model cannot be built, chained into layers or profiled."""


class MissingExtraError(HsflError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional dependency: run pip install 'hsfl[{extra}]', or '.[{extra}]' in a checkout"
        )


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the most similar known word, in parentheses, or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]}?)" if match else ""
