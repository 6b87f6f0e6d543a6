"""Runs with several mini-batches in a round: given, planned, interrupted, and where there can be none."""

from __future__ import annotations

import pytest

import hsfl
from hsfl.errors import ScenarioError
from hsfl.problem.plan import Plan
from hsfl.runs.preparing import prepare
from tests.runs.conftest import FIXED, results, write_tiny

#: With a target near the noise of one mini-batch, which plans see with this drift model.
PLANNED = {
    "training.micro_batches": [1, 2, 4],
    "strategy.drift": "refined",
    "convergence.rounds": 100_000,
    "stopping.rounds": 12,
}


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_a_planned_run_goes_on_to_the_bit_and_says_its_number(backend: str, tmp_path) -> None:
    changes = PLANNED | {"execution.backend": backend}
    scenario = write_tiny(tmp_path, changes)
    run = hsfl.train(scenario, out=tmp_path / "whole")
    counts = {plan.micro_batches for plan in run.plans}
    assert counts <= {1, 2, 4} and counts != {1}
    short = write_tiny(tmp_path, changes | {"stopping.rounds": 7}, "short.toml")
    hsfl.train(short, out=tmp_path / "short")
    hsfl.resume(tmp_path / "short", {"stopping.rounds": 12})
    assert results(tmp_path / "short") == results(tmp_path / "whole")


def test_both_backends_send_and_take_as_much(tmp_path) -> None:
    """A round of three mini-batches sends three times as much up and down, takes longer than one, and less than three.

    The averages, with the layers that travel, stay what they are.
    """
    runs = {}
    for count, backend in ((1, "stacked"), (3, "stacked"), (3, "reference")):
        changes = FIXED | {"training.micro_batches": count, "execution.backend": backend, "stopping.rounds": 8}
        scenario = write_tiny(tmp_path, changes, f"{count}-{backend}.toml")
        runs[count, backend] = hsfl.train(scenario, out=tmp_path / f"{count}-{backend}").metrics[-1]
    one, three, other = runs.values()
    for link, sent in one.bytes.items():
        assert three.bytes[link] == other.bytes[link] == sent * (1 if "fed" in link else 3)
    assert one.time_s < three.time_s < 3 * one.time_s and three.time_s == other.time_s
    assert three.loss == pytest.approx(other.loss, rel=1e-5) and three.loss != one.loss


@pytest.mark.parametrize("strategy", ["RMA+MS", "MA+RMS", "RMA+RMS", "RMA+AMS", "RMA+AMS-averages", "fixed"])
def test_every_strategy_plans_the_number(strategy: str, tmp_path) -> None:
    changes = PLANNED | (FIXED if strategy == "fixed" else {"strategy.name": strategy}) | {"stopping.rounds": 2}
    run = hsfl.train(write_tiny(tmp_path, changes), out=tmp_path / "run")
    assert all(plan.micro_batches in (1, 2, 4) for plan in run.plans)


def test_drift_that_knows_no_noise_plans_no_number(tmp_path) -> None:
    scenario = write_tiny(tmp_path, {"training.micro_batches": "auto"})
    with pytest.raises(ScenarioError, match=r'give a number, or strategy.drift = "refined"'):
        hsfl.train(scenario, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    hsfl.estimate(scenario, rounds=1, batches=2)  # which plans nothing


def test_a_strategy_of_ones_own_chooses_where_it_may(tmp_path) -> None:
    class Mine:
        name, replans, needs_constants = "mine", False, False

        def propose(self, problem, current, round_):
            return Plan((1, 3), (2, 2, 1), micro_batches=max(problem.micro_batch_choices))

    scenario = write_tiny(tmp_path, {"training.micro_batches": [1, 5], "stopping.rounds": 2})
    run = hsfl.train(scenario, strategy=Mine(), out=tmp_path / "run")
    assert [plan.micro_batches for plan in run.plans] == [5]


@pytest.mark.parametrize(("count", "said"), [(2, "= 2"), ("auto", '= "auto"'), ([1, 2], r"= \[1, 2\]")])
def test_machines_train_on_one(count: object, said: str, tmp_path) -> None:
    from hsfl.distributed.machines import Machines

    scenario = hsfl.load_scenario(write_tiny(tmp_path, {"training.micro_batches": count}))
    with pytest.raises(ScenarioError, match=f"training.micro_batches {said}: machines train on one mini-batch"):
        prepare(scenario, backend=Machines)


@pytest.mark.parametrize("count", [0, -1, 1.5, "many", [], [1, 1], [0], True, list(range(1, 100))])
def test_a_field_that_is_no_number_is_one_sentence(count: object, tmp_path) -> None:
    with pytest.raises(ScenarioError, match=r"training.micro_batches = .*: it should be a whole number from 1 on"):
        hsfl.load_scenario(write_tiny(tmp_path), {"training.micro_batches": count})
