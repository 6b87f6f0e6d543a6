"""From which checkpoint a run goes on: what each says beside its tensors is checked before any of it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hsfl.engine.algorithm import Algorithm
from hsfl.engine.checkpoint import Checkpoint, Checkpoints, reason
from hsfl.errors import HsflError
from hsfl.problem.plan import make_plan
from hsfl.runs.resuming import check_origin
from hsfl.runs.writing import METRICS, PLANS, Mark, RunFolder

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Plain(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Origin(_Plain):
    """What `runs.resuming.origin` says."""

    run: str
    hsfl: str
    fields: dict[str, Any]
    files: dict[str, str]


class _Whose(BaseModel):
    model_config = ConfigDict(strict=True)

    origin: _Origin


class _Progress(_Plain):
    round: Count
    plan: Annotated[list[list[int]], Field(min_length=2, max_length=2)]
    plan_round: Count
    interval_since: list[Count]
    averaged: list[Count]
    moved: Count


class _Estimate(_Plain):
    smoothness: float
    initial_gap: float
    gradient_variance: list[float]
    gradient_second_moment: list[float]
    gradient_dissimilarity: list[list[float]]
    correction: list[float]
    probes: Count


class _Constants(_Plain):
    smoothness: float | None
    initial_gap: float | None
    target: float | None
    gradient_variance: list[float]
    gradient_second_moment: list[float] | None
    gradient_dissimilarity: list[list[float]] | None
    drift: str
    drift_correction: list[float] | None


class _Waiting(_Plain):
    round: Count
    time_s: Seconds
    loss: Number
    bytes: dict[str, Count]
    drift: dict[str, dict[str, Number]] = {}


class _Saved(_Plain):
    origin: _Origin
    progress: _Progress
    time_s: Seconds
    bits: dict[str, Count]
    estimate: _Estimate
    constants: _Constants
    waiting: _Waiting | None
    losses: list[Number]
    summed: Count
    wall_s: Seconds
    files: dict[str, Annotated[Mark, Field(strict=False)]]


def go_on(
    checkpoints: Checkpoints,
    folder: RunFolder,
    algorithm: Algorithm,
    origin: Mapping[str, Any],
    limit: float,
    warn: Callable[[str], None],
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Take over the last checkpoint that is whole: its state and the metrics up to then; None where there is none.

    Backend, algorithm and folder are as they were then. `warn` hears of every checkpoint that is left out. HsflError if
    none is left, if the run or its scenario is another one, or if the round `limit` has passed.
    """
    seed = algorithm.backend.seed
    for found in checkpoints.whole(warn):
        try:
            whose = _Whose.model_validate(found.state).model_dump()
            check_origin(found.path, whose["origin"], origin, warn)
            _check(found, algorithm)
            if (odd := folder.differing(found.state["files"])) is not None:
                warn(f"{found.path}: {folder.path / odd} lacks what was in it then, so this checkpoint is left out")
                continue
            if found.round > limit:
                raise HsflError(
                    f"{folder.path}: the run is at round {found.round} already, past {limit}; give more rounds to go on"
                )
            _take(found, algorithm, seed)
            return found.state, folder.rewind(found.state["files"])
        except ValueError as error:
            warn(f"{found.path}: not a checkpoint of this run ({reason(error)}), so it is left out")
    if checkpoints.found():
        raise HsflError(
            f"{checkpoints.folder}: no checkpoint is whole, so the run cannot go on; bring one back, or train again"
        )
    return None


def _check(found: Checkpoint, algorithm: Algorithm) -> None:
    """ValueError, with the field, unless a state is one of this run."""
    saved = _Saved.model_validate(found.state)
    progress, estimate, constants = saved.progress, saved.estimate, saved.constants
    problem = algorithm.task.problem
    layers, tiers = problem.num_layers, problem.system.num_tiers
    try:
        make_plan(*progress.plan, entities=problem.system.entities, num_layers=layers, allow_empty_tiers=True)
    except HsflError as error:
        raise ValueError(f"progress.plan: {error}") from None
    moments = [progress.plan_round, progress.moved, *progress.interval_since, *progress.averaged]
    known = estimate.probes > 0
    fits = {
        "progress.round": progress.round == found.round,
        "progress": max(moments) <= found.round,
        "progress.interval_since": len(progress.interval_since) == tiers,
        "progress.averaged": len(progress.averaged) == tiers,
        "bits": saved.bits.keys() == algorithm.clock.bits.keys(),
        "constants.drift": constants.drift == problem.constants.drift,
        "waiting.round": saved.waiting is None or saved.waiting.round == found.round,
        "losses": len(saved.losses) == algorithm.backend.num_clients,
        "files": saved.files.keys() == {METRICS, PLANS} and all(size >= 0 for size, _ in saved.files.values()),
    }
    shapes = {
        "gradient_variance": (layers,),
        "gradient_second_moment": (layers,),
        "gradient_dissimilarity": (tiers, layers),
        "drift_correction": (tiers,),
    }
    for name, shape in shapes.items():
        there = known or getattr(problem.constants, name) is not None
        fits[f"constants.{name}"] = _shape(getattr(constants, name)) == (shape if there else None)
        field = name.removeprefix("drift_")
        fits[f"estimate.{field}"] = _shape(getattr(estimate, field)) == (shape if known else (0,))
    if wrong := [field for field, fit in fits.items() if not fit]:
        raise ValueError(f"{wrong[0]}: does not fit the run")


def _take(found: Checkpoint, algorithm: Algorithm, seed: int) -> None:
    """Go on from a checkpoint whose state is known to be one of this run; ValueError if it cannot be."""
    backend = algorithm.backend
    try:
        backend.load(found.tensors)
        algorithm.restore(found.state)
    except (HsflError, LookupError, TypeError, ValueError) as error:
        raise ValueError(str(error)) from None
    plan = algorithm.progress.plan
    if plan is None or (backend.round, backend.seed, tuple(backend.cuts)) != (found.round, seed, plan.cuts):
        raise ValueError("its tensors are of another moment than its state")


def _shape(values: Any) -> tuple[int, ...] | None:
    return None if values is None else np.shape(values)
