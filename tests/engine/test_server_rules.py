"""FedProx, FedAvgM, FedAdam and its kin: the updates of their papers, on both backends, wherever averages go."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.engine.averaging import (
    RULES,
    AveragingRule,
    ProximalRule,
    ServerAdagradRule,
    ServerAdamRule,
    ServerMomentumRule,
    ServerYogiRule,
)
from tests.engine.test_averaging import assert_same_last
from tests.engine.test_backends import OPTIMIZERS, RandomTree, assert_same_state, batch, layers, swap_through_files
from tests.engine.test_speed_paths import assert_equal, everything

KINDS = ("reference", "stacked")
CLIENTS, INTERVAL, LR = 3, 4, 0.1
Server = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def averaged_by_hand(rounds: list, server: Server, proximal: float = 0.0) -> torch.Tensor:
    """Federated averaging in ten lines: clients that train whole models, and a server that is given mean changes.

    x <- server(x, D) with D = mean_i (x_i - x), where x_i is x after the steps of client i on
    f_i(w) + proximal/2 |w - x|^2.
    """
    model = nn.Sequential(*layers())
    x = nn.utils.parameters_to_vector(model.parameters()).detach()
    for start in range(0, len(rounds), INTERVAL):
        ends = []
        for n in range(CLIENTS):
            own = copy.deepcopy(model)
            nn.utils.vector_to_parameters(x.clone(), own.parameters())
            sgd = torch.optim.SGD(own.parameters(), lr=LR)
            for inputs, targets in rounds[start : start + INTERVAL]:
                sgd.zero_grad()
                away = nn.utils.parameters_to_vector(own.parameters()) - x
                (
                    nn.functional.cross_entropy(own(inputs[n]), targets[n]) + proximal / 2 * away.square().sum()
                ).backward()
                sgd.step()
            ends.append(nn.utils.parameters_to_vector(own.parameters()).detach())
        x = server(x, torch.stack(ends).mean(0) - x)
    return x


class Adaptive:
    """Algorithm 2 of Reddi et al. (2021), line by line; v_{-1} = tau^2."""

    def __init__(self, kind: str, eta: float, betas: tuple[float, float], tau: float) -> None:
        self.kind, self.eta, self.betas, self.tau = kind, eta, betas, tau
        self.m = torch.zeros((), dtype=torch.float64)
        self.v = torch.full((), tau**2, dtype=torch.float64)

    def __call__(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1) * delta
        if self.kind == "fedadagrad":
            self.v = self.v + delta**2
        elif self.kind == "fedyogi":
            self.v = self.v - (1 - b2) * delta**2 * torch.sign(self.v - delta**2)
        else:
            self.v = b2 * self.v + (1 - b2) * delta**2
        return x + self.eta * self.m / (self.v.sqrt() + self.tau)


class Momentum:
    """FedAvgM of Hsu et al. (2019): v <- beta v + D, x <- x + eta v."""

    v = torch.tensor(0.0)

    def __call__(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        self.v = 0.7 * self.v + delta
        return x + 0.8 * self.v


ADAPTIVE = {"learning_rate": 0.05, "betas": (0.8, 0.95), "tau": 0.02}
CASES: dict[str, tuple[AveragingRule, Callable[[], Server], float]] = {
    "fedprox": (ProximalRule(0.3), lambda: lambda x, delta: x + delta, 0.3),
    "fedavgm": (ServerMomentumRule(0.8, 0.7), Momentum, 0.0),
    "fedadam": (ServerAdamRule(**ADAPTIVE), lambda: Adaptive("fedadam", *ADAPTIVE.values()), 0.0),
    "fedyogi": (ServerYogiRule(**ADAPTIVE), lambda: Adaptive("fedyogi", *ADAPTIVE.values()), 0.0),
    "fedadagrad": (ServerAdagradRule(**ADAPTIVE), lambda: Adaptive("fedadagrad", *ADAPTIVE.values()), 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_update_is_that_of_the_paper(name: str, kind: str) -> None:
    """Devices with the whole model are clients of federated averaging."""
    rule, server, proximal = CASES[name]
    assert type(rule) is RULES[name]
    rng = np.random.default_rng(0)
    rounds = [batch(rng, CLIENTS) for _ in range(3 * INTERVAL)]
    hosts, sgd = [list(range(CLIENTS)), [0] * CLIENTS], {"name": "sgd", "lr": LR}
    backend = hsfl.backend(kind, layers(), hosts, (5,), sgd, dtype=torch.float64, averaging=rule)
    plain = hsfl.backend(kind, layers(), hosts, (5,), sgd, dtype=torch.float64)
    for t, (inputs, targets) in enumerate(rounds, start=1):
        for one in (backend, plain):
            one.step(inputs, targets)
            if t % INTERVAL == 0:
                one.average(0)
    found, theirs = (torch.cat([v.flatten() for v in one.global_state().values()]) for one in (backend, plain))
    torch.testing.assert_close(found, averaged_by_hand(rounds, server(), proximal), rtol=0, atol=1e-12)
    assert (found - theirs).abs().max() > 1e-3  # the rule does something


@pytest.mark.parametrize(
    ("seed", "name", "optimizer", "code"),
    [
        (0, "fedadam", "sgd", None),
        (1, "fedadam", "momentum", "int8"),
        (2, "fedavgm", "adam", None),
        (3, "fedavgm", "momentum", "int4"),
        (4, "fedyogi", "momentum", None),
        (5, "fedprox", "momentum", "int8"),
        (6, "fedprox", "adamw", None),
        (102, "fedadam", "momentum", "int8"),
    ],
)
def test_stacked_equals_reference(seed: int, name: str, optimizer: str, code: str | None, tmp_path: Path) -> None:
    """Random trees, intervals, moves of cuts up and down, coded averages, batch normalisation, and through files."""
    tree = RandomTree(seed)
    codes = [{"average": code} if code and max(row) else "fp32" for row in tree.hosts]
    options = {"dtype": torch.float64, "averaging": name, "codes": codes}
    cuts = tree.cuts()
    # Before batch normalisation biases have no gradient but rounding, of which Adam makes steps.
    model = layers("group" if optimizer == "adamw" else "batch")
    both = [hsfl.backend(kind, model, tree.hosts, cuts, OPTIMIZERS[optimizer], **options) for kind in KINDS]
    for t in tree.train_alike(both, rounds=8, moves=(2, 4, 5)):
        if t == 6:
            swap_through_files(both, tmp_path)
        assert_same_state(*both)
        assert_same_last(*both)
        ours, theirs = (everything(backend) for backend in both)
        assert ours.keys() == theirs.keys()
        for key in ours:
            torch.testing.assert_close(
                ours[key], theirs[key], rtol=0, atol=1e-9, msg=lambda text, k=key: f"{k}: {text}"
            )
    kept = {key.split(".")[0] for key in everything(both[0])} - {"state", "slot", "last", "unsent"}
    assert kept == set(RULES[name].server_slots)  # once for all, with the fed server


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_what_the_server_keeps_stays_with_a_layer(kind: str, name: str) -> None:
    """To another tier with several machines; a layer of one machine begins anew."""
    hosts = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    backend = hsfl.backend(kind, layers(), hosts, (2, 3), OPTIMIZERS["sgd"], dtype=torch.float64, averaging=name)
    backend.step(*batch(np.random.default_rng(0), 3))
    backend.average(0)
    slot, key = RULES[name].server_slots[0], "1.0.weight"
    before = backend._of_server(0, slot)[0][key].clone()
    assert before.any()
    backend.move((1, 3))
    assert torch.equal(backend._of_server(1, slot)[0][key], before)
    assert key not in backend._of_server(0, slot)[0]
    backend.move((1, 1))
    assert not backend._of_server(2, slot)
    backend.move((2, 3))
    assert not backend._of_server(0, slot)[0][key].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_goes_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    rng, hosts = np.random.default_rng(1), [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]
    options = {"dtype": torch.float64, "averaging": "fedadam"}
    straight, resumed = (
        hsfl.backend(kind, layers(), hosts, (2, 3), OPTIMIZERS["momentum"], **options) for _ in range(2)
    )
    for t in range(6):
        inputs, targets = batch(rng, 4)
        if t == 3:
            straight.save(tmp_path / "file")
            resumed.load(tmp_path / "file")
        for backend in (straight, resumed)[: 1 + (t > 2)]:
            backend.step(inputs, targets)
            for tier in range(2):
                backend.average(tier)
    assert_equal(everything(straight), everything(resumed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_does_nothing_is_plain(kind: str) -> None:
    """A step of 1 without momentum, and a pull of 0."""
    rng, hosts = np.random.default_rng(2), [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]
    rules = ("plain", ServerMomentumRule(1.0, 0.0), ProximalRule(0.0))
    made = [
        hsfl.backend(kind, layers("batch"), hosts, (1, 3), OPTIMIZERS["momentum"], dtype=torch.float64, averaging=rule)
        for rule in rules
    ]
    for t in range(1, 7):
        inputs, targets = batch(rng, 4)
        for backend in made:
            backend.step(inputs, targets)
            if t % 2 == 0:
                backend.average(0)
                backend.average(1)
    for other in made[1:]:
        assert_same_state(made[0], other)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedprox"])
def test_averaging_twice_changes_nothing(name: str) -> None:
    hosts = [[0, 1, 2], [0, 0, 0]]
    backend = hsfl.backend("stacked", layers(), hosts, (3,), OPTIMIZERS["sgd"], dtype=torch.float64, averaging=name)
    backend.average(0)
    backend.step(*batch(np.random.default_rng(3), 3))
    backend.average(0)
    before = everything(backend)
    backend.average(0)
    for key, value in everything(backend).items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=1e-14)
