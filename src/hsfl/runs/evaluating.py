"""An evaluation as a round's record has it."""

from __future__ import annotations

from math import isfinite
from typing import Any

from hsfl.engine import Backend
from hsfl.errors import DivergedError
from hsfl.records import SpreadRecord
from hsfl.runs.preparing import Prepared


def evaluation(prepared: Prepared, round_: int) -> dict[str, Any]:
    """Fields of the record: on the test data, where there are any, and on what clients held out."""
    check_weights(prepared.backend, round_)
    update: dict[str, Any] = {}
    if prepared.evaluates:
        found = prepared.backend.evaluate()
        if not isfinite(found["loss"]):
            raise DivergedError(f"round {round_}: the test loss is {found['loss']}; lower training.learning_rate")
        known = {name: value if isfinite(value) else None for name, value in found.items()}
        update |= {"test_loss": known.pop("loss"), "accuracy": known.pop("accuracy", None), "metrics": known}
    if prepared.held is not None:
        kinds = {"global": False} | ({"own": True} if prepared.evaluates_clients else {})
        update["clients"] = {
            kind: _spreads(prepared.backend.evaluate_clients(prepared.held, own=own)) for kind, own in kinds.items()
        }
    return update


def _spreads(found: dict[str, list[float]]) -> dict[str, SpreadRecord]:
    spreads = {name: SpreadRecord.of(values) for name, values in found.items()}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def check_weights(backend: Backend, round_: int) -> None:
    """DivergedError, rather than a checkpoint or an evaluation that is worth nothing."""
    if (client := backend.not_finite()) is not None:
        backend.check_sent()
        raise DivergedError(
            f"round {round_}: the weights of client {client + 1} are not finite; lower training.learning_rate, or "
            "check the data of that client"
        )
