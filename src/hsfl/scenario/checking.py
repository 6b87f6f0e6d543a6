"""What a scenario file says, checked: ScenarioError names the first field that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from hsfl.errors import ScenarioError
from hsfl.problem.profile import LayerProfile
from hsfl.problem.topology import tiers_text, with_tail
from hsfl.scenario.field_errors import first_problem
from hsfl.scenario.schema import ScenarioFile
from hsfl.scenario.toml_format import toml_value


def checked_spec(raw: Mapping[str, Any], source: str) -> ScenarioFile:
    """The fields, typed; `source` begins the sentence about what is wrong."""
    try:
        spec = _typed(raw, source)
    except RecursionError:  # from the check, or from putting the value into the sentence about it
        raise ScenarioError(f"{source}: a value is nested too deeply; a scenario needs three levels") from None
    chosen = [k for k in ("name", "profile", "factory") if getattr(spec.model, k) is not None]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none of them"
        raise ScenarioError(f"{source}: model has {given}; give exactly one of name, profile and factory")
    if spec.model.classes is not None and spec.model.name is None:
        raise ScenarioError(f"{source}: model.classes = {spec.model.classes}: only with name; remove it")
    if spec.model.factory is not None and spec.model.input_shape is None:
        raise ScenarioError(
            f"{source}: model.input_shape is missing; a factory needs it, such as input_shape = [3, 32, 32]"
        )
    training = spec.training
    for field in ("micro_batches", "chunks") if training.labels == "devices" else ():
        if (given := getattr(training, field)) != 1:
            raise ScenarioError(
                f'{source}: training.{field} = {toml_value(given)}: with labels = "devices" a round has one mini-batch '
                "in one piece, for a device's first and last layers cannot work on several at once; remove one of them"
            )
    if training.batch_size % training.chunks:
        raise ScenarioError(
            f"{source}: training.chunks = {training.chunks}: a mini-batch of training.batch_size = "
            f"{training.batch_size} samples cannot be divided into so many equal parts; give a divisor of it"
        )
    names = tier_names(spec)
    if repeated := [n for n in names if names.count(n) > 1]:
        raise ScenarioError(
            f"{source}: tiers.name = {toml_value(repeated[0])} is used twice; give every tier its own name"
        )
    return spec


def check_chunks(spec: ScenarioFile, profile: LayerProfile, source: str) -> None:
    """ScenarioError where a built-in model cannot take mini-batches in chunks."""
    if spec.training.chunks > 1 and spec.model.name is not None and profile.buffer_bits is not None:
        for name in (name for name, bits in zip(profile.names, profile.buffer_bits, strict=True) if bits):
            raise ScenarioError(
                f"{source}: training.chunks = {spec.training.chunks}: layer {name} of {spec.model.name} has batch "
                "normalisation, whose statistics are those of what it is given at once; remove chunks, or use "
                "training.micro_batches with a smaller training.batch_size"
            )


def check_averaging(spec: ScenarioFile, source: str) -> None:
    """ScenarioError where averages are asked for beside what excludes them."""
    training = spec.training
    if (misplaced := training.misplaced_setting()) is not None:
        raise ScenarioError(f"{source}: {misplaced}")
    if training.averaging != "corrected":
        return
    if training.optimizer not in ("sgd", "momentum"):
        raise ScenarioError(
            f'{source}: training.averaging = "corrected" with training.optimizer = '
            f'{toml_value(training.optimizer)}: only with "sgd" and "momentum"; change one of them'
        )
    if spec.participation.model_fields_set:
        raise ScenarioError(
            f'{source}: training.averaging = "corrected": it takes for granted that everybody takes part; '
            'write "plain", or remove the section participation'
        )
    if training.average_optimizer:
        raise ScenarioError(
            f'{source}: training.average_optimizer = true with training.averaging = "corrected", whose '
            "momentum is common to all machines without being sent; remove average_optimizer"
        )


def tier_names(spec: ScenarioFile) -> list[str]:
    """The tiers of a plan by name: those of the file and, where labels stay on the devices, their tail."""
    names = [tier.name for tier in spec.tiers]
    return with_tail(names) if spec.training.labels == "devices" else names


def listed_tiers(spec: ScenarioFile) -> str:
    """How many tiers a plan has, in words."""
    return tiers_text(len(tier_names(spec)), returns=spec.training.labels == "devices")


def _typed(raw: Mapping[str, Any], source: str) -> ScenarioFile:
    try:
        return ScenarioFile.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError(f"{source}: {first_problem(error, raw)}") from None
