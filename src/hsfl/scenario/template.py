"""Scenario files as text: every field with its documentation, set fields with their values, others commented out."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, PlainValidator
from pydantic.fields import FieldInfo

from hsfl.scenario.schema import SECTIONS, ScenarioFile, TierSection
from hsfl.scenario.toml_format import toml_value

_HEADER = """\
# A scenario of hsfl: machines, a model and a training task. hsfl plan THIS_FILE plans it,
# hsfl train THIS_FILE trains it.
# Plain numbers are SI (FLOP/s, bit/s, bits); text may carry units: "0.5 TFLOPS", "80 Mbps", "8 GB".
"""


def scenario_text(raw: Mapping[str, Any]) -> str:
    """A scenario as commented TOML; reading it gives `raw` back."""
    lines = [_HEADER]
    lines += _fields(ScenarioFile, raw, skip=SECTIONS)
    for name, section in SECTIONS.items():
        title = " ".join((section.__doc__ or "").split())
        if name == "tiers":
            for number, tier in enumerate(raw.get("tiers", []), start=1):
                lines += [
                    "",
                    *(_comment(title) if number == 1 else []),
                    "[[tiers]]",
                    *_fields(section, tier, brief=number > 1),
                ]
        else:
            absent = "" if name in raw else "# "
            lines += ["", *_comment(title), f"{absent}[{name}]", *_fields(section, raw.get(name, {}))]
    return "\n".join(lines) + "\n"


def field_reference() -> str:
    """The tables of docs/scenario.md: every field with its type, default and meaning, in Markdown."""
    parts = []
    sections: dict[str, type[BaseModel]] = {"": ScenarioFile, **SECTIONS}
    for name, section in sections.items():
        title = {"": "Top level", "tiers": "`[[tiers]]`"}.get(name, f"`[{name}]`")
        parts.append(f"## {title}\n\n{' '.join((section.__doc__ or '').split())}\n")
        parts.append("| field | default | meaning |\n|---|---|---|")
        for key, info in section.model_fields.items():
            if name or key not in SECTIONS:
                parts.append(f"| `{key}` | {_default(info)} | {(info.description or '').replace('|', chr(92) + '|')} |")
        parts.append("")
    return "\n".join(parts)


def quantity_fields() -> dict[str, list[str]]:
    """The fields of a tier that take a quantity, by the kind of its unit."""
    found: dict[str, list[str]] = {}
    for field, hint in get_type_hints(TierSection, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            for checker in getattr(part, "__metadata__", ()):
                if isinstance(checker, PlainValidator) and isinstance(checker.func, partial):
                    found.setdefault(checker.func.keywords["kind"], []).append(field)
    return found


def _fields(
    section: type[BaseModel], values: Mapping[str, Any], *, skip: Collection[str] = (), brief: bool = False
) -> list[str]:
    lines: list[str] = []
    for key, info in section.model_fields.items():
        if key in skip or (brief and key not in values):
            continue
        if not brief:
            lines += _comment(info.description or "")
        if key in values:
            lines.append(f"{key} = {toml_value(values[key])}")
        else:
            example = info.default if info.default is not None else (info.examples or ["..."])[0]
            lines.append(f"# {key} = {toml_value(example)}")
    return lines


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 108)]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return "none" if info.default is None else f"`{toml_value(info.default)}`"
