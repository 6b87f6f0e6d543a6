"""From a failed check of a scenario to one sentence for the person who wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hsfl.problem.notation import toml_value
from hsfl.problem.schema import ScenarioFile, TierSection


def first_problem(error: ValidationError, raw: Mapping[str, Any]) -> str:
    """One sentence for the most telling error: a misspelt field before the missing one it was meant to be."""
    errors = error.errors(include_url=False)
    problem = min(errors, key=lambda e: 0 if e["type"] == "extra_forbidden" else 1)
    loc = tuple(k for k in problem["loc"] if not _is_union_tag(k))
    field, kind = _path(loc, raw), problem["type"]
    if kind == "extra_forbidden":
        known = list(_section_at(loc[:-1]).model_fields)
        return f"unknown field {field}{nearest(str(loc[-1]), known)}; known here are {', '.join(known)}"
    if kind == "missing":
        described = _describe(loc)
        return f"{field} is missing; add it{f' ({described})' if described else ''}"
    if kind in _IN_WORDS:
        message = _IN_WORDS[kind].format(**problem.get("ctx", {}))
    else:
        message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    return f"{field} = {_short(problem['input'])}: {message}"


#: Kinds of error that pydantic words for programmers.
_IN_WORDS = {
    "model_type": "write it as a section with fields",
    "dict_type": "write it as a section with fields",
    "too_short": "it needs at least {min_length} of them, not {actual_length}",
    "too_long": "it takes at most {max_length} of them, not {actual_length}",
    "string_pattern_mismatch": "use letters, digits, blanks, _ and -, and start with a letter or a digit",
    "int_type": "it should be a whole number",
    "int_from_float": "it should be a whole number",
    "float_type": "it should be a number",
    "string_type": "it should be text",
    "list_type": "it should be a list",
    "string_too_short": "it needs at least {min_length} character",
}


def _is_union_tag(key: int | str) -> bool:
    """pydantic adds the alternative it tried to the location of an error."""
    return key in ("per layer", "per tier")


def _path(loc: Iterable[int | str], raw: Mapping[str, Any]) -> str:
    """The field as the user writes it: tiers by name, entries of lists from 1."""
    parts: list[str] = []
    node: Any = raw
    for key in loc:
        node = node[key] if _has(node, key) else None
        if isinstance(key, int):
            name = node.get("name") if isinstance(node, dict) else None
            if parts == ["tiers"] and isinstance(name, str) and name.strip():
                parts.append(name)
            else:
                parts[-1] += f"[{key + 1}]"
        else:
            parts.append(key)
    return ".".join(parts) or "the file"


def _has(node: Any, key: int | str) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)


def _section_at(loc: Iterable[int | str]) -> type[BaseModel]:
    section: type[BaseModel] = ScenarioFile
    for key in loc:
        if key == "tiers":
            section = TierSection
        elif isinstance(key, str):
            kind = section.model_fields[key].annotation
            section = next(k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, BaseModel))
    return section


def _describe(loc: tuple[int | str, ...]) -> str:
    info = _section_at(loc[:-1]).model_fields.get(str(loc[-1]))
    return (info.description or "").rstrip(".") if info else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the most similar known word, in parentheses, or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]}?)" if match else ""


def _short(value: Any) -> str:
    text = toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."
