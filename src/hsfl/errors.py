"""The errors a user can cause: each is one sentence that names what is wrong and what would be right."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: What steers a terminal rather than being shown: C0 and C1 codes, ESC among them, and what reverses text.
_STEERING = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {code: "\ufffd" for code in _STEERING if chr(code) not in "\n\t"}
_HSFL = Path(__file__).parent
_LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
#: Where nobody has code of their own.
_NOT_THEIRS = [_HSFL, *(folder / "torch" for folder in _LIBRARIES[2:])]


class HsflError(Exception):
    """Base of every error hsfl raises on purpose; the command prints it and exits with code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))  # one line, whatever the values in it hold


class ScenarioError(HsflError):
    """The scenario, a profile or an argument is not valid."""


class InfeasibleError(HsflError):
    """The input is valid, but no plan can satisfy it."""


class DivergedError(HsflError):
    """Training arrived at numbers that are not finite."""


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


def printable(text: str) -> str:
    """The text with a mark instead of every character that would steer a terminal; lines and tabs stay."""
    return text.translate(_SHOWN)


def raised(error: BaseException) -> str:
    """An error in a user's own code, for a sentence about it: "KeyError ('x') in task.py, line 12"."""
    reason = " ".join(str(error).split()).rstrip(".") or "no message"
    place = where(error)
    return f"{type(error).__name__} ({reason}){f' in {place}' if place else ''}"


def where(error: BaseException) -> str:
    """The innermost line of the user's own code that an error went through: "task.py, line 12", or nothing.

    Their own is neither of hsfl nor of an installed package; if there is no such line, it is the first one outside
    hsfl and torch, for their code may be installed too.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return _place(error.filename, error.lineno)
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [(file, line) for file, line in lines if not file.startswith("<") and not _within(file, _NOT_THEIRS)]
    own = [(file, line) for file, line in outside if not _within(file, _LIBRARIES)]
    return _place(*(own[-1:] or outside[:1])[0]) if outside else ""


def _within(file: str, folders: list[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _place(file: str, line: int | None) -> str:
    """Relative to the working directory where it lies below that."""
    path = Path(file)
    with suppress(OSError, ValueError):  # it lies elsewhere, or the working directory is gone
        path = path.relative_to(Path.cwd())
    return f"{path}, line {line}"
