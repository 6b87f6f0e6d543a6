"""Rounds in which some clients take no part: the mean is over those who do, and whoever has none stays as it is."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import hsfl
from hsfl.engine.averaging import AveragingRule
from hsfl.engine.layer_copy import State
from hsfl.engine.reference import ReferenceBackend
from hsfl.errors import HsflError
from tests.engine.test_backends import OPTIMIZERS, RandomTree, layers
from tests.engine.test_backends import batch as batch_of

AVERAGED = {"name": "adam", "lr": 0.01}


class Story:
    """A random tree, and what happens on it: cohorts, drop-outs, averages and moves of cuts."""

    def __init__(self, seed: int, redraw: str) -> None:
        self.tree, self.redraw, self.atol = RandomTree(seed), redraw, 1e-9
        self.rng = self.tree.rng
        self.intervals = self.rng.integers(1, 5, self.tree.tiers)

    def cohort(self) -> list[int] | None:
        count = int(self.rng.integers(0, self.tree.clients + 1))
        return sorted(map(int, self.rng.permutation(self.tree.clients)[:count]))

    def told(self, backends: list[hsfl.engine.Backend], rounds: int, dropout: float = 0.3) -> Iterator[int]:
        """To all backends alike, which have the same losses: the round, after each."""
        cohort = self.cohort()
        for backend in backends:
            backend.enrol(cohort)
        for t in range(1, rounds + 1):
            present = tuple(n for n in cohort if self.rng.random() > dropout)
            inputs, targets = batch_of(self.rng, len(present))
            losses = [backend._round(inputs, targets, present) for backend in backends]
            for backend, found in zip(backends, losses, strict=True):
                backend._count(present)
                torch.testing.assert_close(found, losses[0], rtol=0, atol=self.atol)
            due = [m for m in range(self.tree.tiers) if t % self.intervals[m] == 0]
            for backend, m in itertools.product(backends, due):
                backend.average(m)
            if 0 in due or self.redraw == "round":
                cohort = self.cohort()
                for backend in backends:
                    backend.enrol(cohort)
            if self.rng.random() < 0.3:
                cuts = self.tree.cuts()
                for backend in backends:
                    backend.move(cuts)
            yield t


def assert_close(ours: State, theirs: State, atol: float) -> None:
    """Up to counters, which averages leave alone."""
    for key, value in ours.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=atol, msg=lambda m, k=key: f"{k}: {m}")


@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 10**6),
    redraw=st.sampled_from(["interval", "round"]),
    kind=st.sampled_from(["sgd", "momentum", "averaged adam", "int8"]),
    norm=st.sampled_from(["none", "batch"]),
)
def test_stacked_equals_reference_whoever_takes_part(seed: int, redraw: str, kind: str, norm: str) -> None:
    """In float64; what clients have, the virtual average and the drift, whoever is enrolled and drops out."""
    story = Story(seed, redraw)
    optimizer = {"averaged adam": AVERAGED, "int8": OPTIMIZERS["momentum"]}.get(kind) or OPTIMIZERS[kind]
    both = [
        hsfl.backend(
            name,
            layers(norm, 0.2),
            story.tree.hosts,
            [1] * (story.tree.tiers - 1),
            optimizer,
            averaging=AveragingRule(average_state=kind == "averaged adam"),
            codes=[{"average": "int8"} if max(tier) else None for tier in story.tree.hosts] if kind == "int8" else None,
            dtype=torch.float64,
            seed=seed,
            cohort=(),
        )
        for name in ("reference", "stacked")
    ]
    for _ in story.told(both, rounds=8):
        atol = 1e-9 if kind != "int8" else 1e-2  # where codes round, a last bit can become a level
        for client in range(story.tree.clients):
            ours, theirs = (backend.client_state(client) for backend in both)
            assert_close(ours, theirs, atol)
        ours, theirs = (backend.global_state() for backend in both)
        assert_close(ours, theirs, atol)
        for tier in range(story.tree.tiers):
            torch.testing.assert_close(both[0].drift(tier), both[1].drift(tier), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_entity_steps_with_the_mean_of_those_who_take_part(optimizer: str) -> None:
    """Like one that never had the others; one without any keeps every bit, and its optimiser's time goes on."""
    hosts, tree = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]], RandomTree(0)
    inputs, targets = batch_of(tree.rng, 4)

    def made(hosts: list[list[int]]) -> ReferenceBackend:
        return ReferenceBackend(layers(), hosts, [2, 3], OPTIMIZERS[optimizer], dtype=torch.float64)

    whole, part = made(hosts), made([[0, 1], [0, 0], [0, 0]])
    before = [whole._held(tier, entity) for tier, entity in ((0, 2), (0, 3), (1, 1))]
    before = [[{key: value.clone() for key, value in state.items()} for state in one] for one in before]
    for _ in range(3):
        losses = whole._round(inputs[:2], targets[:2], (0, 1))
        whole._count((0, 1))
        assert torch.equal(losses, part.step(inputs[:2], targets[:2]))
    for tier, entity in ((0, 0), (0, 1), (1, 0), (2, 0)):
        for ours, theirs in zip(whole._held(tier, entity), part._held(tier, entity), strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    for (tier, entity), states in zip(((0, 2), (0, 3), (1, 1)), before, strict=True):
        for ours, theirs in zip(whole._held(tier, entity), states, strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert [layer.steps for layer in whole.entities[tier][entity].layers] == [3] * len(
            whole.entities[tier][entity].layers
        )


@pytest.mark.parametrize("seed", [*range(5), 101])
def test_leaving_no_room_for_the_others_changes_nothing(seed: int) -> None:
    """With SGD, which keeps nothing: a backend that has rows for the cohort only, and one that has them for all."""
    story = Story(seed, "round" if seed % 2 else "interval")
    given = (layers(), story.tree.hosts, [1] * (story.tree.tiers - 1), OPTIMIZERS["sgd"])
    small = hsfl.backend("stacked", *given, dtype=torch.float64, cohort=())
    whole = hsfl.backend("stacked", *given, dtype=torch.float64)
    whole.enrol = lambda clients: None  # type: ignore[method-assign]
    fewer = False
    for _ in story.told([small, whole], rounds=12):
        ours, theirs = small.global_state(), whole.global_state()
        assert_close(ours, theirs, 1e-9)
        fewer = fewer or len(small._tiers[0].weights) < len(whole._tiers[0].weights)
    assert fewer


@pytest.mark.parametrize("backend", ["reference", "stacked"])
def test_it_is_federated_averaging_where_devices_hold_everything(backend: str) -> None:
    """Ten lines of FedAvg with partial participation: all layers on devices, a cohort for every interval."""
    clients, interval, lr = 9, 3, 0.1
    torch.manual_seed(1)
    model, rng = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), np.random.default_rng(0)
    hosts = [list(range(clients)), [0] * clients]
    ours = hsfl.backend(backend, list(model), hosts, [3], {"name": "sgd", "lr": lr}, dtype=torch.float64, cohort=())
    for _ in range(4):
        cohort = sorted(map(int, rng.permutation(clients)[:4]))
        batches = torch.randn(interval, 4, 8, 5, dtype=torch.float64), torch.randint(0, 3, (interval, 4, 8))
        ours.enrol(cohort)
        for inputs, targets in zip(*batches, strict=True):
            ours.step(inputs, targets)
        ours.average(0)
        locals_ = []
        for k in range(4):
            local = copy.deepcopy(model)
            for inputs, targets in zip(*batches, strict=True):
                loss = nn.functional.cross_entropy(local(inputs[k]), targets[k])
                for w, g in zip(local.parameters(), torch.autograd.grad(loss, list(local.parameters())), strict=True):
                    w.data -= lr * g
            locals_.append(local.state_dict())
        model.load_state_dict({key: torch.stack([one[key] for one in locals_]).mean(0) for key in locals_[0]})
        for key, value in ours.global_state().items():
            torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "stacked"])
def test_an_average_weighs_rounds(backend: str) -> None:
    """Who took part in two rounds of three counts twice as much as who did in one, and who never did not at all."""
    hosts = [[0, 1, 2], [0, 0, 0]]
    ours = hsfl.backend(backend, layers(), hosts, [5], OPTIMIZERS["sgd"], dtype=torch.float64)
    rng = RandomTree(0).rng
    for present in ((0,), (0, 2), ()):
        ours._round(*batch_of(rng, len(present)), present)
        ours._count(present)
    own = [ours.client_state(n) for n in range(3)]
    ours.average(0)
    for key, value in ours.client_state(1).items():
        torch.testing.assert_close(value, 2 / 3 * own[0][key] + 1 / 3 * own[2][key], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "stacked"])
def test_a_saved_cohort_goes_on_to_the_bit(backend: str, tmp_path: Path) -> None:
    """Saved and loaded after every round by one that takes over, whoever was enrolled."""
    stories = [Story(5, "round"), Story(5, "round")]

    def made() -> hsfl.engine.Backend:
        tree = stories[0].tree
        given = (layers("batch", 0.2), tree.hosts, [1] * (tree.tiers - 1), OPTIMIZERS["momentum"])
        return hsfl.backend(backend, *given, dtype=torch.float64, cohort=())

    straight, resumed = [made()], [made()]
    for t, _ in zip(stories[0].told(straight, rounds=8), stories[1].told(resumed, rounds=8), strict=True):
        resumed[0].save(tmp_path / str(t))
        resumed[0] = made()
        resumed[0].load(tmp_path / str(t))
        for client in range(stories[0].tree.clients):
            ours, theirs = (one[0].client_state(client) for one in (straight, resumed))
            assert not [(t, key) for key, value in ours.items() if not torch.equal(value, theirs[key])]


def test_who_is_not_enrolled_cannot_take_part() -> None:
    backend = hsfl.backend("stacked", layers(), [[0, 1, 2], [0, 0, 0]], [2], OPTIMIZERS["sgd"], cohort=(0, 2))
    with pytest.raises(HsflError, match=r"client 1: it is none of those who are enrolled, \[0, 2\]"):
        backend.train_round([1])
    with pytest.raises(HsflError, match=r"clients \[2, 0\]: name each of them once, in order"):
        backend.enrol([2, 0])
    with pytest.raises(HsflError, match=r"client 3: there are 3, counted from 0 to 2"):
        backend.enrol([3])
