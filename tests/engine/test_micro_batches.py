"""Several mini-batches in a round: gradients are accumulated, and everything else is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.data import Sampler
from hsfl.engine.clock import SimulatedClock
from hsfl.errors import HsflError, InfeasibleError, ScenarioError
from hsfl.problem.plan import Plan
from hsfl.theory.latency import split_latency
from tests.engine.task import BATCH as TASK_BATCH
from tests.engine.task import Given, algorithm, small_problem
from tests.engine.test_backends import (
    BATCH,
    OPTIMIZERS,
    RandomTree,
    assert_same_state,
    batch,
    layers,
    swap_through_files,
)
from tests.engine.test_speed_paths import KINDS, assert_equal, cuda, everything, make

HOSTS = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("seed", "count", "model", "optimizer", "rest"),
    [
        (0, 2, ("batch", 0.0), "momentum", {}),
        (1, 4, ("group", 0.3), "adamw", {}),
        (2, 2, ("batch", 0.2), "sgd", {"codes": "int4"}),
        (3, 4, ("none", 0.3), "momentum", {"averaging": "corrected", "codes": "int8"}),
        (4, 2, ("batch", 0.0), "adam", {"weighted": True}),
        (5, 2, ("none", 0.0), "sgd", {"averaging": "fedadam", "weighted": True}),
    ],
)
def test_stacked_equals_reference(
    seed: int, count: int, model: tuple[str, float], optimizer: str, rest: dict[str, Any], tmp_path
) -> None:
    """Random trees, cuts that move, clipped steps, through files, and other numbers of mini-batches, in float64."""
    tree, rest = RandomTree(seed), dict(rest)
    if rest.pop("weighted", False):
        rest["weights"] = [1 + n**2 for n in range(tree.clients)]
    options = {"dtype": torch.float64, "seed": seed, "micro_batches": count} | rest
    cuts, settings = tree.cuts(), OPTIMIZERS[optimizer] | {"clip": 0.5}
    both = [hsfl.backend(kind, layers(*model), tree.hosts, cuts, settings, **options) for kind in KINDS]
    for t in tree.train_alike(both, rounds=8, moves=(2, 5)):
        if t == 3:
            swap_through_files(both, tmp_path)
        if t in (4, 6):
            for backend in both:
                backend.rebatch(1 if t == 6 else 6 - count)
    assert_same_state(*both)


@pytest.mark.parametrize(
    ("seed", "count", "chunks", "model", "rest"),
    [
        (0, 1, 2, ("group", 0.3), {"codes": "int4"}),
        (1, 2, 2, ("none", 0.3), {"averaging": "corrected", "codes": "int8"}),
        (2, 1, 4, ("none", 0.2), {}),
    ],
)
def test_chunks_are_the_whole(
    seed: int, count: int, chunks: int, model: tuple[str, float], rest: dict[str, Any]
) -> None:
    """The reference takes mini-batches apart, stacked does not: chance falls on the same samples, too."""
    tree, settings = RandomTree(seed), OPTIMIZERS["momentum"] | {"clip": 0.5}
    options = {"dtype": torch.float64, "seed": seed, "micro_batches": count} | rest
    cuts = tree.cuts()
    both = [hsfl.backend(kind, layers(*model), tree.hosts, cuts, settings, chunks=chunks, **options) for kind in KINDS]
    for _ in tree.train_alike(both, rounds=6, moves=(2, 4)):
        pass
    assert_same_state(*both)


@pytest.mark.parametrize("kind", KINDS)
def test_cohorts_train_alike_with_several(kind: str) -> None:
    """Some clients, others later: the numbers of the other backend, which `step` leaves no choice of."""
    rng, both = np.random.default_rng(2), []
    given = [batch(rng, 2) for _ in range(4)]
    for one in (kind, "reference"):
        backend = hsfl.backend(
            one, layers("batch"), HOSTS, (1, 3), OPTIMIZERS["sgd"], dtype=torch.float64, micro_batches=2, cohort=[0, 2]
        )
        for t, (inputs, targets) in enumerate(given):
            backend.step(inputs, targets)
            if t == 1:
                backend.average(0)
                backend.enrol([1, 2])
        both.append(backend)
    assert_same_state(*both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["none", "group"])
def test_so_many_mini_batches_are_one_large_one(kind: str, norm: str) -> None:
    """Where nothing depends on the mini-batch but the mean gradient, and it is then clipped."""
    settings = OPTIMIZERS["momentum"] | {"clip": 0.3}
    one, four = (
        hsfl.backend(kind, layers(norm), HOSTS, (1, 3), settings, dtype=torch.float64, micro_batches=k) for k in (1, 4)
    )
    rng = np.random.default_rng(0)
    for t in range(4):
        inputs, targets = batch(rng, 4)
        torch.testing.assert_close(one.step(inputs, targets), four.step(inputs, targets), rtol=0, atol=1e-12)
        for backend in (one, four) if t % 2 else ():
            backend.average(t // 2)
    assert_same_state(one, four)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_is_torch_that_accumulates_gradients(kind: str) -> None:
    """Batch norm sees one mini-batch at a time, and its statistics move on with each."""
    backend = hsfl.backend(
        kind, layers("batch"), [[0], [0]], (2,), OPTIMIZERS["momentum"], dtype=torch.float64, micro_batches=2
    )
    model = nn.Sequential(*layers("batch")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    rng = np.random.default_rng(1)
    for _ in range(3):
        inputs, targets = batch(rng, 1)
        (loss,) = backend.step(inputs, targets)
        optimizer.zero_grad()
        halves = zip(inputs[0].split(BATCH // 2), targets[0].split(BATCH // 2), strict=True)
        losses = [nn.functional.cross_entropy(model(x), y) / 2 for x, y in halves]
        for half in losses:
            half.backward()
        optimizer.step()
        torch.testing.assert_close(loss, sum(losses).detach(), rtol=0, atol=1e-12)
    for key, value in backend.client_state(0).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_another_in_every_mini_batch_and_the_first_is_as_ever(kind: str) -> None:
    still = {"name": "sgd", "lr": 1e-12}
    inputs, targets = batch(np.random.default_rng(5), 4)
    made = {
        k: hsfl.backend(kind, layers("none", 0.5), HOSTS, (1, 3), still, dtype=torch.float64, seed=7, micro_batches=k)
        for k in (1, 2)
    }
    first = made[1].step(inputs, targets)
    both = made[2].step(inputs.repeat(1, 2, 1, 1, 1), targets.repeat(1, 2))
    second = 2 * both - first
    assert (first - second).abs().min() > 1e-4
    assert (made[1].step(inputs, targets) - second).abs().min() > 1e-4  # nor is it that of the next round


def test_draws_are_those_of_a_larger_mini_batch() -> None:
    """A function of seed, client, round and number alone: whatever was drawn before."""
    parts = [np.arange(13), np.arange(13, 40)]
    several, larger = Sampler(parts, 4, 3, ("flip",)), Sampler(parts, 12, 3, ("flip",))
    several.draw(0, 5)
    assert np.array_equal(several.draw(7, 3, micro_batches=3), larger.draw(7, 3))
    assert np.array_equal(several.draw(2, 1, [1], 3), larger.draw(2, 1, [1]))


@pytest.mark.parametrize("count", [0, 1.5, True, "auto"])
def test_a_number_that_is_none(count: object) -> None:
    with pytest.raises(ScenarioError, match=r"micro_batches .*: it must be a whole number from 1 on"):
        make(micro_batches=count)


def test_samples_that_do_not_make_so_many() -> None:
    with pytest.raises(HsflError, match=r"with micro_batches = 3 give every client a multiple of .* samples"):
        make(micro_batches=3).step(*batch(np.random.default_rng(0), 4))


@cuda
def test_captured_rounds_have_several() -> None:
    data = batch(np.random.default_rng(0), 4)
    captured, eager = (make(device="cuda", capture=c, micro_batches=2) for c in (None, False))
    for backend in (captured, eager):
        for count in (2, 2, 4, 2):
            backend.rebatch(count)
            backend.step(*data)
    assert len(captured._recorded) == 2 and not eager._recorded
    for key, value in everything(captured).items():
        torch.testing.assert_close(value, everything(eager)[key], rtol=0, atol=1e-9)


# --- while training ---


def switching() -> tuple[Any, Given]:
    problem = replace(small_problem(), micro_batch_choices=(1, 2, 3))
    plans = [Plan((1, 2), (2, 2, 1), micro_batches=3), Plan((1, 3), (2, 1, 1), micro_batches=2)]
    return problem, Given(plans)


@pytest.mark.parametrize("backend", KINDS)
def test_clock_traffic_and_records_follow_the_plan(backend: str) -> None:
    problem, strategy = switching()
    run = algorithm(strategy, problem=problem, replan_every=4, backend=backend)
    seen, bits, time_s = [], {}, 0.0
    for record in run.advance(10):
        if hasattr(record, "cuts"):
            plan = strategy.plans[min(len(seen), 1)]
            assert record.micro_batches == plan.micro_batches == run.backend.micro_batches
            seen.append(record)
            bits, time_s = dict(run.clock.bits), run.clock.time_s
            continue
        with_number = problem.with_micro_batches(plan.micro_batches)
        for m, cut in enumerate(plan.cuts):
            name, held = problem.system.tiers[m].name, problem.profile.activation_bits[cut - 1]
            sent = problem.system.num_clients * plan.micro_batches * TASK_BATCH * held
            assert run.clock.bits[f"{name}.up"] - bits[f"{name}.up"] == pytest.approx(round(sent), abs=1)
        if not record.averaged:
            took = run.clock.time_s - time_s
            assert took == pytest.approx(float(split_latency(with_number, plan.cuts)), rel=1e-9)
        bits, time_s = dict(run.clock.bits), run.clock.time_s
    assert len(seen) == 3
    assert [p.micro_batches for _, p in strategy.asked] == [1, 3, 2]  # the number in force


@pytest.mark.parametrize("backend", KINDS)
def test_a_restored_algorithm_goes_on_with_its_number(backend: str, tmp_path) -> None:
    def begun():
        problem, strategy = switching()
        return algorithm(strategy, problem=problem, replan_every=4, backend=backend)

    whole, first, second = begun(), begun(), begun()
    expected = list(whole.advance(10))
    begin = list(first.advance(6))
    first.backend.save(tmp_path / "tensors")
    state = first.state()
    second.task.strategy.asked.extend(first.task.strategy.asked)
    second.backend.load(tmp_path / "tensors")
    second.restore(type(state).model_validate_json(state.model_dump_json()))
    assert second.backend.micro_batches == second.problem.micro_batches == 2
    assert [*begin, *second.advance(4)] == expected
    assert_equal(everything(whole.backend), everything(second.backend))


def test_what_a_strategy_may_propose() -> None:
    problem, _ = switching()
    wrong = Given([Plan((1, 2), (1, 1, 1), micro_batches=4)])
    with pytest.raises(ScenarioError, match="strategy given: micro_batches 4 is none of those"):
        list(algorithm(wrong, problem=problem).advance(1))
    given = Given([Plan((1, 2), (1, 1, 1), micro_batches=2)])
    with pytest.raises(ScenarioError, match="strategy given: micro_batches 2 is none of those"):
        list(algorithm(given, problem=small_problem()).advance(1))
    tiers = tuple(replace(t, memory_bits=np.full(t.entities, np.inf)) for t in problem.system.tiers)
    held = 2.5 * problem.batch_size * (problem.profile.activation_bits + problem.profile.gradient_bits)[0]
    held += problem.profile.parameter_bits[0]
    system = replace(problem.system, tiers=(replace(tiers[0], memory_bits=np.full(6, held)), *tiers[1:]))
    tight = replace(problem, system=system)
    list(algorithm(given, problem=tight).advance(1))
    with pytest.raises(InfeasibleError, match="more memory than tier tier1 has"):
        list(algorithm(Given([Plan((1, 2), (1, 1, 1), micro_batches=3)]), problem=tight).advance(1))


def test_the_clock_of_some_clients_and_of_who_is_late() -> None:
    """The slowest of those who take part, and when the last mini-batch of each is at the top."""
    problem = replace(small_problem(), micro_batches=3)
    clock, cuts = SimulatedClock(problem), (1, 2)
    each = clock.round_s(cuts)
    clock.split(cuts, clients=(1, 4))
    assert clock.time_s == pytest.approx(max(each[1], each[4]), rel=1e-12)
    one = SimulatedClock(replace(problem, micro_batches=1))
    assert (clock.arrival_s(cuts, (0, 3)) > one.arrival_s(cuts, (0, 3))).all()
    assert (clock.arrival_s(cuts, (0, 3)) < 3 * one.arrival_s(cuts, (0, 3))).all()
    assert sum(clock.slowest_parts(cuts).values()) == pytest.approx(each.max(), rel=1e-12)
