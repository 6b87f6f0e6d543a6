"""Clients that count by their samples, in every mean over clients; and those that count the same, as ever."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hsfl
from hsfl.errors import ScenarioError
from hsfl.problem.topology import Topology
from tests.engine.sharded_process import SomeData
from tests.engine.test_averaging import assert_same_last
from tests.engine.test_backends import OPTIMIZERS, RandomTree, assert_same_state, batch, layers, swap_through_files
from tests.engine.test_speed_paths import assert_equal, everything

KINDS = ("reference", "stacked")


@pytest.mark.parametrize("kind", KINDS)
def test_federated_averaging_by_samples(kind: str) -> None:
    """Against FedAvg in ten lines: clients with whole models, averaged with weights n_k / n (McMahan et al., 2017)."""
    samples, lr = [10, 1, 4], 0.1
    rng, share = np.random.default_rng(0), [count / sum(samples) for count in samples]
    rounds = [batch(rng, 3) for _ in range(6)]
    model = nn.Sequential(*layers())
    x = nn.utils.parameters_to_vector(model.parameters()).detach()
    for start in (0, 3):
        ends = []
        for n in range(3):
            own = copy.deepcopy(model)
            nn.utils.vector_to_parameters(x.clone(), own.parameters())
            sgd = torch.optim.SGD(own.parameters(), lr=lr)
            for inputs, targets in rounds[start : start + 3]:
                sgd.zero_grad()
                nn.functional.cross_entropy(own(inputs[n]), targets[n]).backward()
                sgd.step()
            ends.append(nn.utils.parameters_to_vector(own.parameters()).detach())
        x = sum(weight * end for weight, end in zip(share, ends, strict=True))
    options = {"dtype": torch.float64, "weights": samples}
    backend = hsfl.backend(kind, layers(), [[0, 1, 2], [0] * 3], (5,), {"name": "sgd", "lr": lr}, **options)
    for t, (inputs, targets) in enumerate(rounds, start=1):
        backend.step(inputs, targets)
        if t % 3 == 0:
            backend.average(0)
    found = torch.cat([value.flatten() for value in backend.client_state(1).values()])
    torch.testing.assert_close(found, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_with_the_weighted_mean_gradient(kind: str) -> None:
    """Of an entity with two clients, which count 3 to 1."""
    inputs, targets = batch(np.random.default_rng(1), 2)
    backend = hsfl.backend(
        kind, layers(), [[0, 1], [0, 0]], (1,), {"name": "sgd", "lr": 0.1}, dtype=torch.float64, weights=[3, 1]
    )
    backend.step(inputs, targets)
    model = nn.Sequential(*layers())
    losses = [nn.functional.cross_entropy(model(inputs[n]), targets[n]) for n in (0, 1)]
    (0.75 * losses[0] + 0.25 * losses[1]).backward()
    expected = [(p - 0.1 * p.grad).detach() for p in model[1:].parameters() if p.grad is not None]
    found = [value for key, value in backend.client_state(0).items() if not key.startswith("0.")]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    own = layers()[0][0].weight  # a device's own step is its own, whatever it counts
    assert (backend.client_state(1)["0.0.weight"] - own).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("seed", "optimizer", "rest"),
    [
        (0, "momentum", {}),
        (1, "adamw", {"model": ("group", 0.3)}),
        (2, "momentum", {"averaging": "corrected"}),
        (3, "sgd", {"averaging": "fedadam", "codes": "int8"}),
        (4, "momentum", {"codes": "bf16"}),
        (5, "sgd", {}),
        (101, "momentum", {"averaging": "corrected", "codes": "bf16"}),
    ],
)
def test_stacked_equals_reference(seed: int, optimizer: str, rest: dict[str, Any], tmp_path: Path) -> None:
    """Random trees and weights, intervals, moves, codes, batch normalisation, measurements, and through files."""
    tree, rest = RandomTree(seed), dict(rest)
    weights = tree.rng.integers(1, 50, tree.clients)
    options = {"dtype": torch.float64, "weights": weights, "data": SomeData(tree.clients)} | rest
    model, cuts = layers(*options.pop("model", ("batch", 0.0))), tree.cuts()
    both = [hsfl.backend(kind, model, tree.hosts, cuts, OPTIMIZERS[optimizer], **options) for kind in KINDS]
    for t in tree.train_alike(both, rounds=7, moves=(2, 4, 5)):
        if t == 5:
            swap_through_files(both, tmp_path)
        assert_same_state(*both)
        assert_same_last(*both)
        for tier in range(tree.tiers):
            ours, theirs = (backend.drift(tier) for backend in both)
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-15)
    ours, theirs = (backend.global_state() for backend in both)
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9)
    one, other = (vars(backend.probe(2, 0.1)) for backend in both)
    for name, value in one.items():
        if value is not None:
            np.testing.assert_allclose(other[name], value, rtol=1e-6, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_are_none_to_the_bit(kind: str) -> None:
    hosts, rng = [[0, 1, 2, 3], [0, 0, 0, 1], [0] * 4], np.random.default_rng(2)
    one, other = (
        hsfl.backend(kind, layers("batch"), hosts, (1, 3), OPTIMIZERS["momentum"], weights=weights, data=SomeData(4))
        for weights in (None, [7, 7, 7, 7])
    )
    for _ in range(3):
        inputs, targets = batch(rng, 4)
        assert torch.equal(one.step(inputs.float(), targets), other.step(inputs.float(), targets))
        for backend in (one, other):
            backend.average(0)
    assert_equal(everything(one), everything(other))


def test_a_measurement_counts_as_clients_do() -> None:
    """The loss is the weighted mean of the clients', and so is the gradient that the smoothness is measured along."""
    weights, data = [1, 2, 5], SomeData(3)
    options = {"dtype": torch.float64, "data": data}
    hosts = [[0, 1, 2], [0] * 3]
    weighted = hsfl.backend("stacked", layers(), hosts, (2,), OPTIMIZERS["sgd"], weights=weights, **options)
    draws = data.probe_draws(0, 2)
    model = nn.Sequential(*layers()).requires_grad_(False)
    losses = [
        np.mean(
            [float(nn.functional.cross_entropy(model(x), y)) for x, y in (data.samples(draws[n, k]) for k in (0, 1))]
        )
        for n in range(3)
    ]
    assert weighted.probe(2).initial_gap == pytest.approx(np.average(losses, weights=weights), rel=1e-9)


@given(st.lists(st.integers(1, 100), min_size=4, max_size=9), st.integers(0, 1000))
def test_shares_and_parts_are_those_of_samples(samples: list[int], seed: int) -> None:
    """Of every entity, and of the entities of one tier among the clients of another's; they add up."""
    rng = np.random.default_rng(seed)
    middle = np.sort(rng.integers(0, 3, len(samples)))
    hosts = [np.arange(len(samples)), np.unique(middle, return_inverse=True)[1], np.zeros(len(samples), dtype=int)]
    tree = Topology.from_hosts([row.tolist() for row in hosts]).weighted(samples)
    given = np.array(samples)
    for tier, row in enumerate(hosts):
        expected = [given[row == j].sum() / given.sum() for j in range(row.max() + 1)]
        np.testing.assert_allclose(tree.shares[tier], expected, rtol=1e-12)
    part = tree.part(1, 0)
    np.testing.assert_allclose(part.sum(axis=1), 1)
    assert part[hosts[1][0], 0] == pytest.approx(given[0] / given[hosts[1] == hosts[1][0]].sum())


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 0], [1, 2, -3], [1, 2, float("nan")]])
def test_weights_that_are_none_are_one_sentence(weights: list[float]) -> None:
    with pytest.raises(ScenarioError, match=r"weights: give .* 3 clients.* positive and finite"):
        hsfl.backend("stacked", layers(), [[0, 1, 2], [0] * 3], (1,), OPTIMIZERS["sgd"], weights=weights)
