"""The profile of a model that a scenario names or that was given: built and measured, which needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hsfl.problem.profile import LayerProfile
from hsfl.scenario.catalog import CLASSES
from hsfl.scenario.schema import ModelSection


def profile_model(model: ModelSection, folder: Path | None, given: Any = None) -> LayerProfile:
    """The profile of a model that has none in a file, or was given: build it and measure it, which needs torch."""
    from hsfl import models

    if model.factory is not None:
        assert model.input_shape is not None
        return models.profile(models.load_factory(model.factory, folder, given), tuple(model.input_shape))
    assert model.name is not None
    shape = tuple(model.input_shape or models.input_shape(model.name))
    return models.profile(models.build(model.name, shape, model.classes or CLASSES), shape)
