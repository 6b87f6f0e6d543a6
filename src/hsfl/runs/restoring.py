"""From which checkpoint a run goes on: what each says beside its tensors is checked before any of it is used."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
from pydantic import BaseModel

from hsfl.engine.algorithm import Algorithm
from hsfl.engine.checkpoint import Checkpoint, Checkpoints, reason
from hsfl.engine.state import AlgorithmRecord
from hsfl.errors import HsflError
from hsfl.problem.codes import CODES
from hsfl.problem.plan import make_plan
from hsfl.problem.problem import Problem
from hsfl.records import RoundRecord
from hsfl.runs.resuming import check_origin
from hsfl.runs.state import OriginRecord, SessionRecord
from hsfl.runs.writing import METRICS, PLANS, RunFolder


class _Whose(BaseModel):
    """The part of a state that says whether the rest is of this run."""

    origin: OriginRecord


def go_on(
    checkpoints: Checkpoints,
    folder: RunFolder,
    algorithm: Algorithm,
    origin: OriginRecord,
    limit: float,
    warn: Callable[[str], None],
) -> tuple[SessionRecord, list[RoundRecord]] | None:
    """Take over the last checkpoint that is whole: its state and the metrics up to then; None where there is none.

    Backend, algorithm and folder are as they were then. `warn` hears of every checkpoint that is left out. HsflError if
    none is left, if the run or its scenario is another one, or if the round `limit` has passed.
    """
    seed = algorithm.backend.seed
    for found in checkpoints.whole(warn):
        try:
            check_origin(found.path, _Whose.model_validate(found.state).origin, origin, warn)
            state = SessionRecord.model_validate(found.state)
            _check(state, found.round, algorithm)
            if (odd := folder.differing(state.files)) is not None:
                warn(f"{found.path}: {folder.path / odd} lacks what was in it then, so this checkpoint is left out")
                continue
            if found.round > limit:
                raise HsflError(
                    f"{folder.path}: the run is at round {found.round} already, past {limit}; give more rounds to go on"
                )
            _take(found, state.algorithm, algorithm, seed)
            return state, folder.rewind(state.files)
        except ValueError as error:
            warn(f"{found.path}: not a checkpoint of this run ({reason(error)}), so it is left out")
    if checkpoints.found():
        raise HsflError(
            f"{checkpoints.folder}: no checkpoint is whole, so the run cannot go on; bring one back, or train again"
        )
    return None


def _check(state: SessionRecord, round_: int, algorithm: Algorithm) -> None:
    """ValueError, with the field, unless a state is one that this run can have after a round."""
    schedule, waiting, problem = state.algorithm.schedule, state.waiting, algorithm.task.problem
    try:
        make_plan(
            schedule.cuts or (),
            schedule.intervals or (),
            entities=problem.system.entities,
            num_layers=problem.num_layers,
            codes=problem.system.codes_named(schedule.codes),
            micro_batches=schedule.micro_batches,
            allow_empty_tiers=True,
            returns=problem.system.returns,
        )
    except HsflError as error:
        raise ValueError(f"algorithm.schedule: {error}") from None
    moments = [schedule.plan_round, schedule.moved_at, *schedule.interval_since, *schedule.averaged_at]
    fits = {
        "algorithm.schedule.round": schedule.round == round_,
        "algorithm.schedule": max(moments) <= round_,
        "algorithm.schedule.micro_batches": schedule.micro_batches in (None, *(problem.micro_batch_choices or ())),
        "algorithm.time_s": 0 <= state.algorithm.time_s < float("inf"),
        "algorithm.bits": state.algorithm.bits.keys() == algorithm.clock.bits.keys(),
        "waiting": waiting is None or (waiting.round == round_ and isfinite(waiting.time_s)),
        "losses": len(state.clients) == len(state.losses) == len(state.counts)
        and max(state.clients, default=0) < algorithm.backend.num_clients
        and all(map(isfinite, state.losses)),
        "wall_s": 0 <= state.wall_s < float("inf"),
        "files": state.files.keys() == {METRICS, PLANS},
    }
    for field, fit in chain(fits.items(), _fitting_constants(state.algorithm, problem)):
        if not fit:
            raise ValueError(f"{field}: does not fit the run")


def _fitting_constants(state: AlgorithmRecord, problem: Problem) -> list[tuple[str, bool]]:
    """Whether the constants have a number for every layer and tier, where any are known."""
    layers, tiers, measured = problem.num_layers, problem.system.num_tiers, state.estimate.probes > 0
    fits = [("algorithm.constants.drift", state.constants.drift == problem.constants.drift)]
    for name, shape in {
        "gradient_variance": (layers,),
        "gradient_second_moment": (layers,),
        "gradient_dissimilarity": (tiers, layers),
        "drift_correction": (tiers,),
        **({"coding_noise": (2, len(CODES), layers)} if problem.system.plans_codes else {}),
    }.items():
        known = measured or getattr(problem.constants, name) is not None
        in_estimate = name.removeprefix("drift_")
        fits += [
            (f"algorithm.constants.{name}", _shape(getattr(state.constants, name)) == (shape if known else None)),
            (
                f"algorithm.estimate.{in_estimate}",
                _shape(getattr(state.estimate, in_estimate)) == (shape if measured else (0,)),
            ),
        ]
    return fits


def _take(found: Checkpoint, state: AlgorithmRecord, algorithm: Algorithm, seed: int) -> None:
    """Make backend and algorithm what they were; ValueError where tensors and state are not of the same moment."""
    backend = algorithm.backend
    try:
        backend.load(found.tensors)
        algorithm.restore(state)
    except HsflError as error:
        raise ValueError(str(error)) from None
    if (backend.round, backend.seed, list(backend.cuts)) != (found.round, seed, state.schedule.cuts):
        raise ValueError("its tensors are of another moment than its state")


def _shape(values: Any) -> tuple[int, ...] | None:
    return None if values is None else np.shape(values)
