"""Corrected averages: the rule of its text on both backends, and what is known of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.engine.averaging import RULES, AveragingRule, Held
from hsfl.errors import ScenarioError
from hsfl.problem.problem import AVERAGING_KEEPS
from tests.engine.test_averaging import assert_same_last
from tests.engine.test_backends import OPTIMIZERS, RandomTree, assert_same_state, batch, layers, swap_through_files
from tests.engine.test_speed_paths import assert_equal, everything

KINDS = ("reference", "stacked")
#: Three devices and one beside each other at the edge, and two entities at the top.
UNEQUAL = [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [0, 0, 0, 0, 1]]


def make(kind: str, optimizer: str = "momentum", hosts=UNEQUAL, cuts=(1, 3), norm="none", **options):
    options = {"dtype": torch.float64, "averaging": "corrected"} | options
    return hsfl.backend(kind, layers(norm), hosts, cuts, OPTIMIZERS[optimizer], **options)


def variates(backend: hsfl.engine.Backend) -> dict[str, list[tuple[float, torch.Tensor]]]:
    """By "TIER.LAYER.NAME": the variates of a tier's entities, each with its share of the clients."""
    found: dict[str, list[tuple[float, torch.Tensor]]] = {}
    for tier, entity in backend.topology.each_entity():
        for key, value in backend._held(tier, entity)[1].items():
            if key.startswith("variate."):
                place = key.replace("variate", str(tier), 1)
                found.setdefault(place, []).append((float(backend.topology.shares[tier][entity]), value))
    return found


def flat(named: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().flatten().clone() for value in named.values()])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("seed", [*range(5), 101])
def test_stacked_equals_reference(seed: int, optimizer: str, tmp_path) -> None:
    """Random trees, also with several top entities, unequal clients, intervals, moves of cuts, and through a file."""
    tree = RandomTree(seed)
    cuts = tree.cuts()
    both = [make(kind, optimizer, tree.hosts, cuts, "batch") for kind in KINDS]
    for t in tree.train_alike(both, rounds=12, moves=(3, 5, 9)):
        if t == 7:
            swap_through_files(both, tmp_path)
        assert_same_state(*both)
        assert_same_last(*both)
        ours, theirs = (variates(backend) for backend in both)
        assert ours.keys() == theirs.keys()
        for key, of_tier in ours.items():
            for (_, one), (_, other) in zip(of_tier, theirs[key], strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_average_by_hand(kind: str, momentum: float) -> None:
    """Two entities of 3 clients and 1, three rounds: variates, momentum and weights are those of the formulas."""
    rounds, lr, hosts = 3, 0.05, [[0, 0, 0, 1], [0, 0, 0, 0]]
    optimizer = {"name": "sgd", "lr": lr, "momentum": momentum, "weight_decay": 0.01}
    backend = hsfl.backend(kind, layers(), hosts, (2,), optimizer, dtype=torch.float64, averaging="corrected")
    rng = np.random.default_rng(0)
    steps = sum((1 - momentum**i) / (1 - momentum) for i in range(1, rounds + 1))
    last = backend._held(0, 0)[0]["0.0.weight"].detach().clone()
    variate, parts = [torch.zeros_like(last), torch.zeros_like(last)], []
    before = [torch.zeros(0), torch.zeros(0)]
    for number in range(3):
        for _ in range(rounds):
            backend.step(*batch(rng, 4))
        held = [flat(backend._held(0, j)[0]) for j in (0, 1)]
        own = [backend._held(0, j)[0]["0.0.weight"].detach().clone() for j in (0, 1)]
        mean = 0.75 * own[0] + 0.25 * own[1]
        backend.average(0)
        cosine = 0.5
        if number:  # over all weights of both entities
            middle = 0.75 * held[0] + 0.25 * held[1]
            found = [h - (w - middle) / (lr * steps) for h, w in zip(before, held, strict=True)]
            yh, yy, hh = (
                sum(share * float(a @ b) for share, a, b in zip((0.75, 0.25), *pair, strict=True))
                for pair in ((found, before), (found, found), (before, before))
            )
            cosine = max(yh / (yy * hh) ** 0.5, 0.0)
        part = max(cosine / (cosine + (1 - cosine) / 8), 0.02)
        parts.append(part)
        for j in (0, 1):
            state, slots = backend._held(0, j)
            variate[j] = part * (variate[j] - (own[j] - mean) / (lr * steps))
            before[j] = flat({key: value for key, value in slots.items() if key.startswith("variate.")})
            torch.testing.assert_close(state["0.0.weight"], mean, rtol=0, atol=1e-12)
            torch.testing.assert_close(slots["variate.0.0.weight"], variate[j], rtol=0, atol=1e-9)
            assert ("momentum.0.0.weight" in slots) == (momentum > 0)
            if momentum:
                common = (last - mean) / (lr * rounds)
                torch.testing.assert_close(slots["momentum.0.0.weight"], common, rtol=0, atol=1e-9)
        assert variate[0].abs().max() > 1e-5
        last = mean
    assert parts[0] == pytest.approx(8 / 9) and all(part != parts[0] for part in parts[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_subtracts_the_variate(kind: str) -> None:
    """v <- mu v + (g - h) + decay w, so that a variate of h moves the weights by lr h."""
    one, other = make(kind), make(kind)
    given = torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other._held(0, 1)[1]["variate.0.0.weight"].copy_(given)
    inputs, targets = batch(np.random.default_rng(0), 5)
    for backend in (one, other):
        backend.step(inputs, targets)
    apart = other.client_state(1)["0.0.weight"] - one.client_state(1)["0.0.weight"]
    torch.testing.assert_close(apart, 0.05 * given, rtol=0, atol=1e-12)
    assert torch.equal(other.client_state(0)["0.0.weight"], one.client_state(0)["0.0.weight"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_averaging_every_round_is_full_synchronisation(kind: str, optimizer: str) -> None:
    """With the optimiser's state averaged too: the common momentum is then the mean of the momenta."""
    corrected, plain = make(kind, optimizer), make(kind, optimizer, averaging=AveragingRule(average_state=True))
    rng = np.random.default_rng(1)
    for t in range(10):
        inputs, targets = batch(rng, 5)
        ours, theirs = (backend.step(inputs, targets) for backend in (corrected, plain))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        for tier, backend in itertools.product(range(3), (corrected, plain)):
            backend.average(tier)
        if t == 5:
            for backend in (corrected, plain):
                backend.move((2, 4))
        assert_same_state(corrected, plain)
    assert max(float(h.abs().max()) for of_tier in variates(corrected).values() for _, h in of_tier) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_identical_clients_have_nothing_to_correct(kind: str, optimizer: str) -> None:
    """Variates stay 0; without momentum training is that of plain averages, whatever the interval."""
    corrected, plain = make(kind, optimizer), make(kind, optimizer, averaging="plain")
    rng = np.random.default_rng(2)
    for t in range(1, 9):
        inputs, targets = (same.expand(5, *same.shape[1:]) for same in batch(rng, 1))
        for backend in (corrected, plain):
            backend.step(inputs, targets)
            if t % 3 == 0:
                for tier in range(3):
                    backend.average(tier)
        assert max(float(h.abs().max()) for of_tier in variates(corrected).values() for _, h in of_tier) < 1e-11
        if optimizer == "sgd" or t <= 3:
            assert_same_state(corrected, plain)


class Shift(nn.Module):
    """Adds its parameter to one coordinate of the input."""

    def __init__(self, coordinate: int) -> None:
        super().__init__()
        self.shift, self.coordinate = nn.Parameter(torch.zeros(1, dtype=torch.float64)), coordinate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift * nn.functional.one_hot(torch.tensor(self.coordinate), x.shape[-1])


def parabola(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """sum over coordinates of a/2 (w - b)^2; a target is (a, b)."""
    curvature, optimum = targets.unbind(-1)
    return (0.5 * curvature * (outputs - optimum).square()).sum(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", [{"name": "sgd", "lr": 0.05}, {"name": "sgd", "lr": 0.02, "momentum": 0.8}])
def test_the_optimum_of_the_mean_is_reached(kind: str, optimizer: dict[str, Any]) -> None:
    """Clients with other optima and other curvatures, five rounds from average to average: sum a b / sum a is known.

    Plain averages stop elsewhere: the pull of a steep client fades within an interval, that of a flat one does not.
    """
    curvature = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 2.0], [0.3, 0.6, 5.0], [2.0, 0.2, 1.0], [0.8, 2.0, 0.4]])
    optimum = torch.tensor([[1.0, -2.0, 3.0], [-3.0, 0.5, 1.0], [5.0, 4.0, -1.0], [0.0, 2.0, -2.0], [2.0, -5.0, 6.0]])
    curvature, optimum = curvature.double(), optimum.double()
    inputs, targets = torch.zeros(5, 1, 3, dtype=torch.float64), torch.stack((curvature, optimum), -1)[:, None]
    known = (curvature * optimum).sum(0) / curvature.sum(0)
    errors = {}
    for averaging in ("plain", "corrected"):
        backend = hsfl.backend(
            kind,
            [Shift(0), Shift(1), Shift(2)],
            UNEQUAL,
            (1, 2),
            optimizer,
            loss=parabola,
            dtype=torch.float64,
            averaging=averaging,
        )
        for t in range(1, 401):
            backend.step(inputs, targets)
            if t % 5 == 0:
                for tier in range(3):
                    backend.average(tier)
        found = torch.stack([backend.global_state()[f"{layer}.shift"] for layer in range(3)]).flatten()
        errors[averaging] = (found - known).abs()
    assert errors["corrected"].max() < 1e-9
    assert errors["plain"].min() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("apart", "low", "high"), [(0.0, 0.0199, 0.35), (1.0, 0.9, 1.0)])
def test_variates_hold_what_lasts_and_little_noise(kind: str, apart: float, low: float, high: float) -> None:
    """Gradients are the clients' own, which last, and noise: with noise alone variates are a small part of it."""
    size, interval, lr = 400, 4, 0.05
    own = apart * torch.randn(8, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(1)
    backend = hsfl.backend(
        kind,
        [nn.Linear(size, 1, bias=False).double(), nn.Identity()],
        [list(range(8)), [0] * 8],
        (1,),
        {"name": "sgd", "lr": lr},
        loss=lambda outputs, targets: outputs.flatten(),  # its gradient is the input
        dtype=torch.float64,
        averaging="corrected",
    )
    parts = []
    for t in range(1, 25):
        if t % interval == 1:
            seen = torch.zeros(8, size, dtype=torch.float64)
        noise = 0.3 * torch.randn(8, size, dtype=torch.float64, generator=rng)
        seen += (own + noise - (own + noise).mean(0)) / interval
        backend.step((own + noise)[:, None], torch.zeros(8, 1, dtype=torch.float64))
        if t % interval == 0:
            backend.average(0)
            held = torch.stack([backend._held(0, j)[1]["variate.0.weight"].flatten() for j in range(8)])
            parts.append(float(held.norm() / seen.norm()))
            torch.testing.assert_close(held, parts[-1] * seen, rtol=0, atol=1e-9)  # a part of y, the same for all
    assert parts[0] == pytest.approx(0.5 / (0.5 + 0.5 / 8))
    assert low <= min(parts[1:]) and max(parts[1:]) <= high


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_variates_keep_a_mean_of_zero(kind: str, dtype: torch.dtype, limit: float) -> None:
    """Nothing is sent to keep it so: unequal clients, tiers averaged at different times, moves, 60 averages each."""
    backend = make(kind, dtype=dtype)
    rng = np.random.default_rng(3)
    rounds = [batch(rng, 5) for _ in range(6)]
    for t in range(1, 121):
        inputs, targets = rounds[t % 6]
        backend.step(inputs.to(dtype), targets)
        for tier, interval in enumerate((2, 3, 1)):
            if t % interval == 0:
                backend.average(tier)
        if t % 10 == 0:
            backend.move([(1, 3), (2, 4), (3, 3), (1, 5)][t // 10 % 4])
    largest = 0.0
    for of_tier in variates(backend).values():
        mean = sum(share * h.double() for share, h in of_tier)
        largest = max(largest, *(float(h.abs().max()) for _, h in of_tier))
        assert mean.abs().max() < limit * max(1.0, largest)
    assert largest > 0.1


@pytest.mark.parametrize(("kind", "other"), list(itertools.product(KINDS, KINDS)))
def test_files_go_on_to_the_bit(kind: str, other: str, tmp_path) -> None:
    """Also after a move, when layers of a tier were last averaged at different times."""
    rng = np.random.default_rng(4)
    rounds = [batch(rng, 5) for _ in range(8)]
    straight = make(kind)
    for t, (inputs, targets) in enumerate(rounds[:4], start=1):
        straight.step(inputs, targets)
        if t == 2:
            straight.average(0)
    straight.move((2, 4))
    straight.save(tmp_path / "file")
    resumed = make(other)
    resumed.load(tmp_path / "file")
    assert_equal(everything(straight), everything(resumed))
    assert resumed.attendance.averaged_at == straight.attendance.averaged_at == [2, 0, 0, 0, 0]
    for inputs, targets in rounds[4:]:
        for backend in (straight, resumed):
            backend.step(inputs, targets)
            backend.average(0)
            backend.average(1)
    if kind == other:
        assert_equal(everything(straight), everything(resumed))
    assert_same_state(straight, resumed)
    assert_same_last(straight, resumed)
    resumed.save(tmp_path / "again")
    make(kind).load(tmp_path / "again")


def test_files_hold_the_last_average_once_and_nothing_for_tiers_of_one(tmp_path) -> None:
    from safetensors.torch import load_file

    make("reference", hosts=[[0, 1, 2], [0, 0, 1], [0, 0, 0]]).save(tmp_path / "file")
    keys = load_file(tmp_path / "file").keys()
    assert [key for key in keys if key.startswith("last.0.")] == ["last.0.0.0.bias", "last.0.0.0.weight"]
    assert {key.split(".")[1] for key in keys if "variate" in key or key.startswith("last")} == {"0", "1"}


class Recorder(AveragingRule):
    """Says how many rounds lay between averages, and how many weights had changed."""

    uses_last = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def adopt(self, held: Held, average: list[torch.Tensor], rounds: int) -> None:
        self.seen.append((rounds, sum(int(mean.count_nonzero()) for mean in average)))
        super().adopt(held, average, rounds)


def linear(*sizes: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(a, b, bias=False).double() for a, b in itertools.pairwise(sizes)]


def test_a_moved_layer_keeps_its_age_and_what_was_last_in_common() -> None:
    """Per layer, in the entity's own list as in the rows of a tier, of which a move makes groups."""
    hosts = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    for kind in KINDS:
        rule = Recorder()
        backend = hsfl.backend(
            kind, linear(4, 2, 3, 5, 3), hosts, (1, 3), {"name": "sgd", "lr": 0.1}, averaging=rule, dtype=torch.float64
        )
        rng = torch.Generator().manual_seed(1)

        def train(rounds: int, backend=backend, rng=rng) -> None:
            for _ in range(rounds):
                inputs = torch.randn(3, 4, 4, dtype=torch.float64, generator=rng)
                backend.step(inputs, torch.randint(0, 3, (3, 4), generator=rng))

        train(2)
        backend.average(0)  # layer 1, 2 rounds after the start
        common = backend._last(0)[0]["0.weight"].clone()
        train(3)
        weights = backend.client_state(0)["3.weight"]
        initial = backend._last(1)[0]["2.weight"].clone()
        backend.move((1, 4))  # layer 4 leaves the only machine at the top
        assert torch.equal(backend._last(1)[0]["3.weight"], weights)
        train(1)
        backend.move((2, 4))
        train(1)
        assert torch.equal(backend._last(0)[0]["0.weight"], common)
        assert torch.equal(backend._last(1)[0]["2.weight"], initial)
        backend.average(0)  # layer 1 after 5 rounds, layer 2 after 7
        backend.average(1)  # layer 3 after 7 rounds, layer 4 after the 2 since it left the top
        assert torch.equal(backend._last(1)[0]["2.weight"], backend.client_state(2)["2.weight"])
        backend.average(1)
        backend.average(2)  # no layer is there, and one machine
        seen = list(dict.fromkeys(rule.seen))  # a reference entity adopts for itself
        assert seen == [(2, 8), (5, 8), (7, 6), (7, 15), (2, 15), (0, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_averaging_twice_or_before_training_changes_nothing(kind: str) -> None:
    backend = make(kind)
    for tier in range(3):
        backend.average(tier)
    assert all(not h.any() for of_tier in variates(backend).values() for _, h in of_tier)
    backend.step(*batch(np.random.default_rng(5), 5))
    backend.average(0)
    before = everything(backend)
    backend.average(0)
    for key, value in everything(backend).items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_and_layers_without_any(kind: str) -> None:
    parts = [*layers()[:3], nn.Tanh(), *layers()[3:]]
    parts[0][0].weight.requires_grad_(False)
    for parameter in parts[1].parameters():
        parameter.requires_grad_(False)
    backend = hsfl.backend(
        kind, parts, UNEQUAL, (2, 4), OPTIMIZERS["momentum"], dtype=torch.float64, averaging="corrected"
    )
    rng = np.random.default_rng(6)
    for t in range(1, 7):
        backend.step(*batch(rng, 5))
        if t % 2 == 0:
            for tier in range(3):
                backend.average(tier)
    state = backend.client_state(4)
    assert torch.equal(state["0.0.weight"], parts[0][0].weight.detach())
    assert not torch.equal(state["0.0.bias"], parts[0][0].bias.detach())


def test_a_rule_serves_several_backends() -> None:
    """Each with its own optimiser."""
    rule = Recorder()
    one, other = (make("stacked", optimizer, averaging=rule) for optimizer in ("sgd", "momentum"))
    assert (one.averaging.optimizer.lr, other.averaging.optimizer.lr) == (0.1, 0.05)
    assert not hasattr(rule, "optimizer")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_is_one_sentence(kind: str, optimizer: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make(kind, optimizer)
    assert str(caught.value) == (
        f'averaging "corrected": it is for sgd, with or without momentum, and not for {optimizer}; take averaging '
        '"plain" or the optimizer sgd'
    )


@pytest.mark.parametrize("name", RULES)
def test_the_planner_counts_what_a_rule_keeps(name: str) -> None:
    assert AVERAGING_KEEPS[name] == {*RULES[name].slots, *(["last"] if RULES[name].uses_last else [])}


def test_plain_averages_keep_nothing_more() -> None:
    backend = make("stacked", averaging="plain")
    assert all(tier.last is None and list(tier.slots) == ["momentum"] for tier in backend._tiers)
    corrected = make("stacked", hosts=[[0, 1, 2], [0, 0, 1], [0, 0, 0]])
    assert [list(tier.slots) for tier in corrected._tiers] == [["momentum", "variate"]] * 2 + [["momentum"]]
    assert [None if t.last is None else len(t.last) for t in corrected._tiers] == [1, 1, None]
