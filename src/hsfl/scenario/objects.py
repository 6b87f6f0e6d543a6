"""Model, data and strategy given from Python: what stands for them in a scenario, which holds text only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hsfl.factory import given_name
from hsfl.scenario.catalog import DEFAULT_INPUT_SHAPES
from hsfl.scenario.toml_format import dotted

#: The fields of [convergence] that are measured on a model, and the fields in which objects stand.
_OF_A_MODEL = (
    *("smoothness", "initial_gap", "gradient_variance", "gradient_second_moment", "gradient_dissimilarity"),
    *("coding_noise_up", "coding_noise_down"),
)
_FIELDS = {"model": "model.factory", "data": "data.factory", "strategy": "strategy.name"}


def given_fields(
    raw: Mapping[str, Any], objects: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The overrides, and what stands in a scenario for objects, in the fields that would name functions.

    A model that takes the place of another has its input shape, if none is given, but not its constants.
    """
    names: dict[str, Any] = {_FIELDS[kind]: given_name(thing) for kind, thing in objects.items()}
    model = raw.get("model")
    displaced: dict[str, Any] = {}
    if "model" in objects and isinstance(model, Mapping):
        shape = DEFAULT_INPUT_SHAPES.get(str(model.get("name")))
        if shape is not None and model.get("input_shape") is None:
            displaced["model.input_shape"] = list(shape)
        if {model.get(key) for key in ("name", "profile", "factory")} - {None, names["model.factory"]}:
            displaced |= {"model.classes": None, **{f"convergence.{name}": None for name in _OF_A_MODEL}}
    return {**displaced, **(overrides or {}), **names}


def still_named(raw: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """The objects whose place in a scenario nothing else has taken."""
    fields = dotted(raw)
    return {kind: thing for kind, thing in objects.items() if fields.get(_FIELDS[kind]) == given_name(thing)}
