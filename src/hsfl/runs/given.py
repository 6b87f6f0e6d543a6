"""Models, data, strategies, losses and metrics given from Python, as a run folder keeps them: by their source."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

#: The files of a run folder that hold them.
GIVEN_FILES = {kind: f"given_{kind}.py" for kind in ("model", "data", "strategy", "loss", "metrics")}
_LINES = 200


def given_sources(objects: Mapping[str, Any]) -> dict[str, bytes]:
    """The files for objects, None where there are none, by name. They are for people: nothing runs them."""
    found = {}
    for kind, thing in objects.items():
        parts = [thing] if kind != "metrics" else list(thing.values() if isinstance(thing, Mapping) else thing or [])
        texts = [given_source(kind, part) for part in parts if part is not None]
        if texts:
            found[GIVEN_FILES[kind]] = "\n".join(texts).encode(errors="replace")
    return found


def given_source(kind: str, thing: Any) -> str:
    """The source of a function, a class or an object's class, where it can be had; else a sentence, and its text."""
    itself = inspect.isroutine(thing) or isinstance(thing, type)
    what = thing if itself else type(thing)
    lines = [f"# The {kind} of this run, given from Python: {_described(thing, itself)}"]
    try:
        if _module(what).partition(".")[0] in ("builtins", "torch", "functools"):
            raise TypeError  # nobody's own
        lines += [textwrap.dedent(inspect.getsource(what)).rstrip()]
    except (OSError, TypeError):  # typed at a prompt, or compiled
        lines.append("# Its source cannot be had.")
    return "\n".join(lines) + "\n"


def _described(thing: Any, itself: bool) -> str:
    """What it is: a name, the shapes of tensors, or its text, as lines of a comment."""
    if itself:
        return f"{_module(thing)}.{thing.__qualname__}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {', '.join(_part(part) for part in thing)}"
    text = repr(thing).splitlines()
    shown = text[:_LINES] + ([f"({len(text) - _LINES} more lines)"] if len(text) > _LINES else [])
    return "\n# ".join([f"an object of {type(thing).__module__}.{type(thing).__qualname__}", *shown])


def _module(what: Any) -> str:
    """The module of a function or class; what is compiled may have none."""
    return getattr(what, "__module__", None) or "builtins"


def _part(part: Any) -> str:
    shape = getattr(part, "shape", None)
    if shape is not None:
        kind = str(getattr(part, "dtype", "")).removeprefix("torch.")
        return f"{type(part).__name__} {'x'.join(map(str, shape))} {kind}"
    return f"{type(part).__module__}.{type(part).__qualname__}"
