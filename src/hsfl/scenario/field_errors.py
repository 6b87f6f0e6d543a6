"""From a failed check of a scenario to one sentence for the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hsfl.errors import nearest
from hsfl.scenario.schema import SECTIONS, ScenarioFile, nested
from hsfl.scenario.toml_format import toml_value


def first_problem(error: ValidationError, raw: Mapping[str, Any]) -> str:
    """One sentence for the most telling error: a misspelt field before the missing one it was meant to be."""
    errors = error.errors(include_url=False)
    problem = min(errors, key=lambda e: 0 if e["type"] == "extra_forbidden" else 1)
    loc = tuple(k for k in problem["loc"] if not _is_union_tag(k))
    field, kind = _path(loc, raw), problem["type"]
    if kind == "extra_forbidden":
        known = list(_section_at(loc[:-1]).model_fields)
        return f"unknown field {field}{_meant(str(loc[-1]), known)}; known here are {', '.join(known)}"
    if kind == "missing":
        described = _describe(loc)
        return f"{field} is missing; add it{f' ({described})' if described else ''}"
    message = _words(problem)
    if kind == "model_type" and isinstance(problem["input"], str) and "name" in _section_at(loc).model_fields:
        message = f"write it as a section: [{field}] with name = {_short(problem['input'])}"
    return f"{field} = {_short(problem['input'])}: {message}"


def value_problem(error: BaseException | None) -> str | None:
    """The value of an option, and what would be right; None if the error is not one of a value."""
    if not isinstance(error, ValidationError):
        return None
    problem = error.errors(include_url=False)[0]
    return f"{problem['input']}: {_words(problem)}"


def _words(problem: Any) -> str:
    """What would be right."""
    if problem["type"] in _IN_WORDS:
        return _IN_WORDS[problem["type"]].format(**problem.get("ctx", {}))
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


#: Kinds of error that pydantic words for programmers.
_IN_WORDS = {
    "model_type": "write it as a section with fields",
    "dict_type": "write it as a section with fields",
    "too_short": "it needs at least {min_length} of them, not {actual_length}",
    "too_long": "it takes at most {max_length} of them, not {actual_length}",
    "string_pattern_mismatch": "use letters, digits, blanks, _ and -, and start with a letter or a digit",
    "int_type": "it should be a whole number",
    "int_parsing": "it should be a whole number",
    "float_parsing": "it should be a number",
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


def _section_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The section that a location lies in, or is."""
    section: type[BaseModel] = ScenarioFile
    for key in loc:
        field = section.model_fields.get(str(key))
        section = (SECTIONS.get(str(key)) if section is ScenarioFile else nested(field)) or section
    return section


def _describe(loc: tuple[int | str, ...]) -> str:
    info = _section_at(loc[:-1]).model_fields.get(str(loc[-1]))
    return (info.description or "").rstrip(".") if info else ""


def _meant(name: str, known: list[str]) -> str:
    """A hint at the field that was meant: of the same name in another section, or of a similar one in this."""
    others = {section: kind for section, kind in SECTIONS.items() if section != "tiers"}
    elsewhere = [f"{section}.{name}" for section, kind in others.items() if name in kind.model_fields]
    if name in others:
        elsewhere.append(f"{name}.name" if "name" in others[name].model_fields else f"the section [{name}]")
    return f" (did you mean {' or '.join(elsewhere)}?)" if elsewhere else nearest(name, known)


def _short(value: Any) -> str:
    text = toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."
