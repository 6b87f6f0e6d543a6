"""Measure a scenario's convergence constants before it is planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.engine.algorithm import Algorithm
from hsfl.engine.estimate import Estimate
from hsfl.engine.probe import Measurement
from hsfl.errors import MissingExtraError
from hsfl.files import write_whole
from hsfl.problem.problem import Constants
from hsfl.runs.preparing import prepare
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import fixed

POINTS = 3
_PER_LAYER = ("gradient_variance", "gradient_second_moment", "gradient_dissimilarity")


def measure_constants(scenario: Scenario, rounds: int, batches: int, data_folder: Path | None) -> Constants:
    """The largest of what is found at the start, in the middle and at the end of a short synchronised training."""
    tiers = len(scenario.tier_names)
    prepared = prepare(scenario, fixed(range(1, tiers), [1] * tiers), data_folder)
    # Probes need no machines, so memory limits do not matter here.
    free = replace(prepared.task.problem, system=prepared.task.problem.system.without_memory_limits())
    task = replace(prepared.task, problem=free, conditions=lambda round_, time_s: free.system)
    algorithm = Algorithm(prepared.backend, task)
    found: list[Measurement] = []
    for point in range(POINTS):
        for _ in algorithm.advance(round(rounds * point / (POINTS - 1)) - algorithm.round):
            pass
        algorithm.gather()
        found.append(prepared.backend.probe(batches, free.step, coding=free.system.plans_codes))
    coded = ["coding_noise"] if free.system.plans_codes else []
    estimate = Estimate()
    estimate.add(
        Measurement(
            max(m.smoothness for m in found),
            found[0].initial_gap,
            *(np.max([getattr(m, name) for m in found], axis=0) for name in (*_PER_LAYER, *coded)),
        )
    )
    return estimate.constants(free, step=0.0)


def as_fields(constants: Constants, tiers: int | None = None) -> dict[str, Any]:
    """The fields of [convergence] that were measured, to four digits; of so many tiers, where a tail is one more."""
    numbers = {"smoothness": constants.smoothness, "initial_gap": constants.initial_gap}
    arrays = {name: getattr(constants, name).tolist() for name in _PER_LAYER}
    arrays["gradient_dissimilarity"] = arrays["gradient_dissimilarity"][:tiers]
    if constants.coding_noise is not None:
        arrays |= zip(("coding_noise_up", "coding_noise_down"), constants.coding_noise[:, -1].tolist(), strict=True)
    return {key: _rounded(value) for key, value in (numbers | arrays).items()}


def write_constants(path: Path, constants: Constants) -> None:
    """Put the measured constants into a scenario file; everything else in it stays as it is."""
    try:
        import tomlkit
    except ModuleNotFoundError:
        raise MissingExtraError("Writing constants into a scenario", "torch") from None
    path = path.resolve()  # a link stays one
    text = path.read_bytes().decode("utf-8-sig")
    document: Any = tomlkit.parse(text)
    section = document.setdefault("convergence", tomlkit.table())
    # Comments at the end of a section are the next one's, so new fields go before them.
    body: list[Any] = section.value.body
    comments: list[Any] = []
    while isinstance(section, tomlkit.items.Table) and body and body[-1][0] is None:
        comments.insert(0, body.pop())
    for key, value in as_fields(constants, len(document.get("tiers", ())) or None).items():
        section[key] = value
    body.extend(comments)
    changed = tomlkit.dumps(document).replace("\r\n", "\n")
    write_whole(path, changed.replace("\n", "\r\n" if "\r\n" in text else "\n").encode(), replace=True)


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else float(f"{value:.4g}")
