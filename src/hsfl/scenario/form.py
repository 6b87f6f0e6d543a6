"""The fields of a scenario that one turns to see what a plan does: what they say, their kinds, limits and meaning.

All of it is read off the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hsfl.problem.codes import AUTO, CODES
from hsfl.problem.units import LARGEST, SMALLEST
from hsfl.scenario.quantity import parse_quantity
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.schema import SECTIONS, ScenarioFile
from hsfl.scenario.template import quantity_fields
from hsfl.scenario.toml_format import toml_value

#: The fields of every section, in the order in which they are shown.
TURNED = {
    "training": ("batch_size", "micro_batches", "chunks", "learning_rate", "optimizer", "averaging", "labels"),
    "participation": ("cohort",),
    "convergence": ("target", "rounds", "slack", "smoothness", "initial_gap", "drift"),
    "tiers": (
        "entities",
        "compute",
        "memory",
        "uplink",
        "downlink",
        "fed_uplink",
        "fed_downlink",
        "code",
    ),
}
_POWERS = ("1", "2", "4", "8", "16")
#: What is offered for fields that take other things, too.
_OFFERED = {"code": (*CODES, AUTO), "micro_batches": (*_POWERS, AUTO), "chunks": _POWERS}
#: A longer list is shown but not turned.
_MANY = 64


@dataclass(frozen=True)
class FormField:
    """A field as a person sees it; `low` and `high` are the schema's limits, None where there are none."""

    path: str
    """The field as --set takes it."""
    group: str
    """The section, or the name of the tier."""
    name: str
    kind: str
    """A kind of quantity ("compute", "rate", "size"), "number", "whole" or "choice"."""
    text: str
    """What the scenario says, as one would write it; empty where it says nothing."""
    default: str
    """What holds where the scenario says nothing, or an example."""
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    form: str = "value"
    """How a quantity is written: "value", "list", "uniform", "normal" or "lognormal"."""
    numbers: tuple[float, ...] = ()
    """The numbers of the field in SI units; empty where there is none to turn."""
    required: bool = False


def form(scenario: Scenario) -> list[FormField]:
    """Every field that can be turned, section by section and tier by tier from the devices up."""
    return list(_fields(scenario.raw))


def may_turn(scenario: Scenario, path: str) -> bool:
    """Whether a path names a field that can be turned, set or not."""
    section, _, rest = path.partition(".")
    if section == "tiers":
        tier, _, rest = rest.rpartition(".")
        if tier not in [t.name for t in scenario.spec.tiers]:
            return False
    return rest in TURNED.get(section, ())


def _fields(raw: Mapping[str, Any]) -> Iterator[FormField]:
    tiers, returns = raw["tiers"], raw.get("training", {}).get("labels") == "devices"
    for m, tier in enumerate(tiers):
        for name in TURNED["tiers"]:
            if m == len(tiers) - 1 and name in ("uplink", "downlink"):
                continue
            if name.startswith("fed_") and tier.get("entities") == 1 and name not in tier:
                continue
            if name == "code" and m == len(tiers) - 1 and tier.get("entities") == 1 and not returns:
                continue
            yield _field(f"tiers.{tier['name']}.{name}", tier["name"], "TierSection", name, tier)
    for section in ("training", "participation", "convergence"):
        kind = SECTIONS[section].__name__
        values = raw.get(section, {})
        for name in TURNED[section]:
            if name in ("target", "rounds") and name not in values and _other(name, values):
                continue
            if name == "slack" and "rounds" not in values:
                continue
            yield _field(f"{section}.{name}", section, kind, name, values)


def _other(name: str, values: Mapping[str, Any]) -> bool:
    """Whether the target is given by another field than this one; where it is by none, rounds are asked for."""
    return "target" in values or name == "target"


def _field(path: str, group: str, section: str, name: str, values: Mapping[str, Any]) -> FormField:
    schema = _schema()[section][name]
    value = values.get(name)
    kinds = _kinds()
    common: dict[str, Any] = {
        "path": path,
        "group": group,
        "name": name,
        "text": _text(value),
        "default": _text(schema.get("default") or (schema.get("examples") or [""])[0]),
        "description": schema.get("description", ""),
        "required": "default" not in schema,
    }
    if name in kinds and section == "TierSection":
        quantity = None if value is None else parse_quantity(value, kinds[name])
        turned = quantity is not None and len(quantity.numbers) <= _MANY
        return FormField(
            **common,
            kind=kinds[name],
            low=SMALLEST,
            high=LARGEST,
            form="value" if quantity is None else quantity.form,
            numbers=quantity.numbers if quantity is not None and turned else (),
        )
    if isinstance(value, float):  # where whole numbers may stand too, such as a share for a number of clients
        schema = schema | next((kind for kind in schema.get("anyOf", []) if kind.get("type") == "number"), {})
    choices = tuple(schema.get("enum", _OFFERED.get(name, ())))
    if choices:
        own = () if value is None or _text(value) in choices else (_text(value),)
        common["default"] = _text(schema.get("default") or ("fp32" if name == "code" else "paper"))
        return FormField(**common, kind="choice", choices=(*choices, *own))
    return FormField(
        **common,
        kind="whole" if schema.get("type") == "integer" else "number",
        low=schema.get("exclusiveMinimum", schema.get("minimum")),
        high=schema.get("exclusiveMaximum", schema.get("maximum")),
        numbers=() if value is None else (float(value),),
    )


@cache
def _kinds() -> dict[str, str]:
    """The kind of every field of a tier that is a quantity."""
    return {field: kind for kind, fields in quantity_fields().items() for field in fields}


@cache
def _schema() -> dict[str, dict[str, dict[str, Any]]]:
    """The fields of every section by name, as JSON Schema has them; what may be absent is described by the rest."""
    sections = ScenarioFile.model_json_schema()["$defs"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for section, schema in sections.items():
        fields = {}
        for name, field in schema["properties"].items():
            given: dict[str, Any] = next((kind for kind in field.get("anyOf", []) if kind.get("type") != "null"), {})
            fields[name] = given | field
        found[section] = fields
    return found


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else toml_value(value)
