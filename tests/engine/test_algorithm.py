"""Rounds, averages, plans and moves happen when they should, on both backends alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hsfl.engine.algorithm import Algorithm
from hsfl.engine.stacked import StackedBackend
from hsfl.engine.state import AlgorithmRecord
from hsfl.errors import DivergedError, InfeasibleError
from hsfl.problem.plan import Plan
from hsfl.records import PlanRecord, RoundRecord
from hsfl.theory.convergence import predicted_drift
from hsfl.theory.latency import aggregation_latency, split_latency
from tests.engine.task import Given, algorithm, small_problem


def averages(records: list[RoundRecord | PlanRecord]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in rounds_of(records):
        assert list(record.drift) == record.averaged
        for tier in record.averaged:
            found.setdefault(tier, []).append(record.round)
    return found


def rounds_of(records: list[RoundRecord | PlanRecord]) -> list[RoundRecord]:
    return [r for r in records if isinstance(r, RoundRecord)]


def plans_of(records: list[RoundRecord | PlanRecord]) -> list[PlanRecord]:
    return [r for r in records if isinstance(r, PlanRecord)]


def test_averages_count_from_the_last_change_of_their_interval() -> None:
    """Tier 2 changes its interval after round 10 and counts anew; tier 1 keeps it and goes on counting."""
    strategy = Given([Plan((1, 2), (4, 5, 1)), Plan((1, 2), (4, 3, 1))])
    trained = algorithm(strategy, replan_every=10)
    records = list(trained.advance(24))
    assert averages(records) == {"tier1": [4, 8, 12, 16, 20, 24], "tier2": [5, 10, 13, 16, 19, 22]}
    assert [r for r, _ in strategy.asked] == [0, 10, 20]


def test_a_plan_waits_until_every_tier_was_averaged() -> None:
    strategy = Given([Plan((1, 2), (2, 7, 1))])
    list(algorithm(strategy, replan_every=1).advance(30))
    assert [r for r, _ in strategy.asked] == [0, 7, 14, 21, 28]
    strategy = Given([Plan((1, 2), (2, 10**9, 1))])
    list(algorithm(strategy, replan_every=1).advance(30))
    assert [r for r, _ in strategy.asked] == [0]


@pytest.mark.parametrize(("replans", "every"), [(False, 1), (True, 0)])
def test_fixed_strategies_are_asked_once(replans: bool, every: int) -> None:
    strategy = Given([Plan((1, 2), (1, 1, 1))], replans=replans)
    list(algorithm(strategy, replan_every=every).advance(8))
    assert len(strategy.asked) == 1


def test_the_clock_is_charged_for_rounds_averages_moves_and_probes() -> None:
    plans = [Plan((1, 2), (2, 3, 1)), Plan((2, 3), (2, 3, 1))]
    strategy = Given(plans)
    trained = algorithm(strategy, replan_every=6, probe_batches=3)
    records = list(trained.advance(12))
    problem = trained.task.problem
    split = [float(split_latency(problem, p.cuts)) for p in plans]
    fed = [aggregation_latency(problem, p.cuts) for p in plans]
    expected = sum((6 + 2 * 3) * s for s in split) + sum(3 * f[0] + 2 * f[1] for f in fed)
    sizes, tiers = problem.profile.parameter_bits + problem.profile.optimizer_bits, problem.system.tiers
    expected += sizes[1] / tiers[0].downlink_bps.min() + sizes[2] / tiers[1].downlink_bps.min()
    assert records[-1].time_s == pytest.approx(float(expected))
    assert trained.backend.cuts == (2, 3)
    assert [r.cuts for r in plans_of(records)] == [[1, 2], [2, 3]]


def test_backends_train_alike_through_plans_and_moves() -> None:
    plans = [Plan((1, 2), (2, 3, 1)), Plan((2, 3), (3, 1, 1)), Plan((1, 3), (1, 2, 1))]
    both = [algorithm(Given(plans), iid=False, backend=b, replan_every=4) for b in ("reference", "stacked")]
    ours, theirs = (list(a.advance(20)) for a in both)
    assert [type(r) for r in ours] == [type(r) for r in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for key, value in one:
            if key in ("loss", "losses", "time_s"):
                assert value == pytest.approx(getattr(other, key), rel=1e-9)
            elif key not in ("drift", "constants"):
                assert value == getattr(other, key)
    assert averages(ours) == averages(theirs)
    for one, other in zip(rounds_of(ours), rounds_of(theirs), strict=True):
        for tier in one.drift:
            assert one.drift[tier].model_dump() == pytest.approx(other.drift[tier].model_dump(), rel=1e-6)


def test_a_run_cut_in_two_equals_one(tmp_path: Path) -> None:
    """With the state through JSON and the tensors through a file."""

    def fresh() -> Algorithm:
        return algorithm(
            Given([Plan((1, 2), (2, 3, 1)), Plan((2, 3), (2, 1, 1))]), iid=False, replan_every=5, probe_batches=2
        )

    whole = list(fresh().advance(20))
    first = fresh()
    records = list(first.advance(9))
    state = AlgorithmRecord.model_validate_json(first.state().model_dump_json())
    second = fresh()
    second.task.strategy.asked = list(first.task.strategy.asked)  # the strategy of the test remembers
    first.backend.save(tmp_path / "tensors")
    second.backend.load(tmp_path / "tensors")
    second.restore(state)
    assert records + list(second.advance(11)) == whole


def test_drift_is_logged_beside_both_predictions() -> None:
    trained = algorithm(Given([Plan((1, 3), (5, 4, 1))]), iid=False, replan_every=0)
    records = rounds_of(list(trained.advance(5)))
    seen = records[-1].drift["tier1"]
    assert seen.rounds == 5 and seen.measured > 0
    asked = trained.task.strategy.asked[0][1]
    models = {name: value[0] for name, value in predicted_drift(asked, (1, 3), 5).items()}
    assert seen.paper == pytest.approx(models["paper"])
    # tier 1 was not averaged before, so nothing has corrected its prediction yet
    assert seen.refined == pytest.approx(models["refined"])
    assert trained.estimate.correction[0] != 1.0 != trained.estimate.correction[1]


def test_an_infeasible_new_plan_keeps_the_last() -> None:
    class Choosy(Given):
        def propose(self, problem, current, round_):  # type: ignore[no-untyped-def]
            if current is not None:
                raise InfeasibleError("no plan")
            return super().propose(problem, current, round_)

    records = list(algorithm(Choosy([Plan((1, 2), (2, 2, 1))]), replan_every=4).advance(8))
    plans = plans_of(records)
    assert [p.kept for p in plans] == [None, "no plan"] and plans[1].intervals == [2, 2, 1]


def test_a_loss_that_is_no_number_names_round_and_client() -> None:
    trained = algorithm(Given([Plan((1, 2), (1, 1, 1))], replans=False), problem=small_problem(learning_rate=0.1))
    list(trained.advance(3))
    with torch.no_grad():
        trained.backend.data.train[0][trained.backend.data.sampler.draw(3, 1)[0, 2].ravel()] = float("nan")
    with pytest.raises(DivergedError, match=r"round 4: the loss of client 3 is nan; lower training.learning_rate"):
        list(trained.advance(5))


@pytest.mark.parametrize("ahead", [False, True])
def test_weights_that_an_average_cannot_carry_name_layer_and_client(ahead: bool, monkeypatch) -> None:
    """Also where results come later, and the losses of all clients are no numbers by then."""
    monkeypatch.setattr(StackedBackend, "runs_ahead", ahead)
    trained = algorithm(Given([Plan((1, 2), (2, 2, 1))], replans=False), codes=["fp32", {"average": "int8"}, "fp32"])
    list(trained.advance(3))
    with torch.no_grad():
        trained.backend._held(1, 0)[0]["1.0.bias"][2] = float("inf")
        served = trained.backend.topology.clients[1][0][0]
    trained.backend.average(1) if ahead else None
    with pytest.raises(DivergedError, match=f"layer 2 of client {served + 1} has weights that are not finite"):
        list(trained.advance(5)) if ahead else trained.backend.average(1)


def test_time_and_interruption_end_a_block_after_a_round() -> None:
    trained = algorithm(Given([Plan((1, 2), (1, 1, 1))], replans=False))
    one = rounds_of(list(trained.advance(1)))[0].time_s
    list(trained.advance(100, until_time_s=3.5 * one))
    assert trained.round == 4
    answers = iter([False, False, True])
    list(trained.advance(100, interrupted=lambda: next(answers)))
    assert trained.round == 6


def test_which_samples_a_client_draws_depends_on_nothing_else() -> None:
    one, other = (
        algorithm(Given([plan], replans=False)) for plan in (Plan((1, 2), (1, 1, 1)), Plan((2, 3), (7, 3, 1)))
    )
    np.testing.assert_array_equal(one.backend.data.sampler.draw(5, 3), other.backend.data.sampler.draw(5, 3))
