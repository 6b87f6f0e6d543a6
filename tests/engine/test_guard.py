"""Intervals that do harm are shortened between plans, and only then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from hsfl.engine.algorithm import Algorithm
from hsfl.engine.guard import Guard
from hsfl.engine.state import AlgorithmRecord
from hsfl.problem.plan import Plan
from hsfl.records import PlanRecord
from hsfl.theory.convergence import loss_target
from tests.engine.task import Given, algorithm, small_problem


@dataclass
class Guarded(Given):
    guarded: bool = True


def trained(intervals: tuple[int, ...], learning_rate: float, *, guarded: bool = True, iid: bool = False) -> Algorithm:
    """One plan, never asked again, weighed against the loss."""
    problem = small_problem(learning_rate)
    problem = replace(problem, constants=replace(problem.constants, drift="energy"))
    return algorithm(
        Guarded([Plan((1, 3), intervals)], guarded=guarded),
        problem=problem,
        iid=iid,
        replan_every=0,
        with_target=lambda p: replace(p, constants=replace(p.constants, target=loss_target(p))),
    )


def plans(records: list[object]) -> list[PlanRecord]:
    return [record for record in records if isinstance(record, PlanRecord)]


def test_too_much_drift_halves_the_intervals_until_it_is_little() -> None:
    made = plans(list(trained((32, 32, 1), 1.5).advance(200)))
    assert len(made) > 1
    for before, after in pairwise(made):
        assert after.intervals == [max(1, i // 2) for i in before.intervals] and after.cuts == before.cuts
        assert after.shortened is not None and "margin" in after.shortened and after.constants is None
    assert made[0].shortened is None and made[-1].intervals != [1, 1, 1]


@pytest.mark.parametrize("case", ["little drift", "not guarded"])
def test_else_plans_stay(case: str) -> None:
    rate = 0.02 if case == "little drift" else 2.0
    made = plans(list(trained((8, 8, 1), rate, guarded=case != "not guarded").advance(100)))
    assert len(made) == 1


def test_a_loss_that_rises_is_an_alarm_once() -> None:
    """Only losses after an average of the tier that is averaged most rarely count: here those of every fourth round."""
    problem = small_problem()
    problem = replace(problem, constants=replace(problem.constants, drift="energy", target=1e9))
    plan, guard = Plan((1, 2), (2, 4, 1)), Guard()

    def interval(after_average: float, later: float) -> None:
        guard.see(after_average, [], plan)
        guard.see(later, [0], plan)
        guard.see(later, [], plan)
        guard.see(later, [0, 1], plan)
        guard.look(problem, plan, 8)

    for loss in [2.0] * 10 + [1.0] * 40 + [1.3] * 20:
        interval(loss, 0.1)
        assert guard.alarm is None
    for _ in range(20):
        interval(0.9, 5.0)
        assert guard.alarm is None
    for _ in range(3):
        interval(2.5, 0.1)
    assert guard.alarm is not None and guard.alarm.startswith("the loss rose from 0.9")
    assert guard.shortened(plan) == Plan((1, 2), (1, 2, 1)) and guard.alarm is None
    interval(2.5, 0.1)
    assert guard.alarm is None  # what it rose to is where it starts from now
    guard.look(problem, Plan((1, 2), (1, 1, 1)), 8)
    assert guard.alarm is None  # nothing is left to shorten


def test_an_alarm_survives_a_checkpoint(tmp_path: Path) -> None:
    whole, first, second = (trained((16, 16, 1), 4.0) for _ in range(3))
    expected = list(whole.advance(80))
    records = list(first.advance(16))
    assert first.guard.alarm is not None
    state = AlgorithmRecord.model_validate_json(first.state().model_dump_json())
    first.backend.save(tmp_path / "tensors")
    second.backend.load(tmp_path / "tensors")
    second.restore(state)
    assert records + list(second.advance(64)) == expected
