"""What is given wrongly to a backend, or a model that does not fit one, ends in a sentence, alike on both backends."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.errors import HsflError
from tests.engine.test_backends import assert_same_state

KINDS = ("reference", "stacked")
HOSTS = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
SGD = {"name": "sgd", "lr": 0.1}


def linear(*sizes: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(a, b) for a, b in pairwise(sizes)]


def make(kind: str, layers: Any = None, **options: Any) -> hsfl.engine.Backend:
    options = {"dtype": torch.float64, "optimizer": SGD, "cuts": (1, 2), "hosts": HOSTS} | options
    return hsfl.backend(kind, layers or linear(4, 5, 6, 3), **options)


def a_batch(*shape: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 4, *shape, dtype=torch.float64), torch.randint(0, classes, (3, 4))


class OneNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": "vgg16"}, "layers is a str; give the model as a list of torch modules"),
        ({"layers": []}, "layers is empty"),
        (
            {"layers": [nn.Linear(4, 4), np.ones(3), nn.Linear(4, 3)]},
            "layer 2: a model must be an nn.Module, not a value of type ndarray",
        ),
        (
            {"layers": [nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 3)]},
            "layer 2: RecursiveScriptModule is compiled",
        ),
        (
            {"layers": [nn.Linear(4, 4), nn.Linear(4, 4, device="meta"), nn.Linear(4, 3)]},
            "layer 2: weight of Linear is on the meta device",
        ),
        ({"layers": [nn.Linear(4, 4), nn.LazyLinear(4), nn.Linear(4, 3)]}, "layer 2: the shape of weight is not known"),
        ({"dtype": "float8"}, "dtype 'float8': it must be float32 or float64"),
        ({"dtype": torch.bfloat16}, "dtype torch.bfloat16: it must be float32 or float64"),
        ({"hosts": "three"}, "hosts three: give a list of whole numbers for each tier"),
        ({"averaging": "median"}, "averaging 'median': it must be one of plain, corrected, fedprox, fedavgm,"),
        (
            {"averaging": "corrected", "optimizer": {"name": "adam", "lr": 0.1}},
            'averaging "corrected": it is for sgd, with or without momentum, and not for adam',
        ),
        ({"optimizer": {"name": "adam", "lr": 0.1, "betas": (2, 3)}}, r"betas = (2, 3) must be two numbers in [0, 1)"),
        ({"optimizer": {"name": "adam", "lr": 0.1, "betas": 0.9}}, "betas = 0.9 must be two numbers"),
        ({"optimizer": {"name": "adam", "lr": 0.1, "eps": -1}}, "eps = -1 must be at least 0"),
        ({"optimizer": {"name": "sgd", "lr": "fast"}}, "lr = 'fast' must be positive and finite"),
        ({"optimizer": {"name": "sgd", "lr": float("nan")}}, "lr = nan must be positive and finite"),
    ],
)
def test_what_a_backend_is_made_of(kind: str, options: dict[str, Any], said: str) -> None:
    arguments = {"layers": linear(4, 5, 6, 3), "hosts": HOSTS, "cuts": (1, 2), "optimizer": SGD} | options
    with pytest.raises(HsflError) as caught:
        hsfl.backend(kind, **arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_one_module_at_two_places_is_refused(kind: str) -> None:
    shared = nn.Linear(4, 4)
    with pytest.raises(HsflError, match="layer 3: weight is also in layer 1, and two tiers cannot hold one tensor"):
        make(kind, [shared, nn.ReLU(), shared])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("inputs", "targets", "said"),
    [
        ("three", torch.zeros(3, 4), "inputs is a str; give a torch tensor"),
        (np.zeros((3, 4, 4)), torch.zeros(3, 4), "inputs is a ndarray; give a torch tensor"),
        (torch.zeros(3, 4, 4), [[0] * 4] * 3, "targets is a list"),
        (torch.zeros(3, 0, 4), torch.zeros(3, 0), "inputs has the shape (3, 0, 4); give a mini-batch of at least one"),
        (torch.zeros(2, 4, 4), torch.zeros(2, 4), "for each of the 3 clients: (3, samples, ...)"),
        (torch.zeros(3, 4, 4), torch.zeros(3, 5), "give one target for each sample"),
    ],
)
def test_what_a_step_is_given(kind: str, inputs: Any, targets: Any, said: str) -> None:
    backend = make(kind)
    with pytest.raises(HsflError) as caught:
        backend.step(inputs, targets)
    assert said in str(caught.value) and backend.round == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "shape", "said"),
    [
        ([nn.Linear(4, 5), nn.Linear(7, 5), nn.Linear(5, 3)], (4,), "layer 2 (Linear) fails on a batch of shape"),
        ([nn.Linear(4, 5), nn.Linear(5, 3), OneNumber()], (4,), "layer 3 (OneNumber) gives shape () for a batch of"),
        ([nn.Linear(4, 5), Pair(), nn.Linear(5, 3)], (4,), "layer 2 (Pair) gives a tuple for a batch of"),
        ([nn.Linear(4, 5), nn.Linear(5, 3), Pair()], (4,), "the model gives a tuple for targets of shape"),
        ([nn.Linear(4, 5), nn.Linear(5, 3), nn.Flatten(0)], (4,), "layer 3 (Flatten) gives shape"),
        ([nn.Linear(4, 5), nn.ReLU(), nn.Flatten(1)], (2, 4), "the model gives shape"),
    ],
)
def test_models_that_do_not_fit(kind: str, layers: list[nn.Module], shape: tuple[int, ...], said: str) -> None:
    inputs = torch.randn(3, 4, *shape, dtype=torch.float64)
    targets = torch.zeros(3, 4, 9, 9, dtype=torch.int64) if len(shape) == 2 else torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(HsflError) as caught:
        make(kind, layers).step(inputs, targets)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_norm_on_one_sample_names_the_layer(kind: str) -> None:
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]
    with pytest.raises(HsflError, match=r"layer 2 \(PerClientBatchNorm\) fails on a batch of shape .*: ValueError"):
        make(kind, layers).step(torch.randn(3, 1, 4, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_must_be_a_number_for_every_sample(kind: str) -> None:
    with pytest.raises(HsflError, match=r"the loss gives shape \(\) for \d+ samples; it must give a number for each"):
        make(kind, loss=nn.functional.cross_entropy).step(*a_batch(4))


@pytest.mark.parametrize("frozen", [(0,), (0, 1), (0, 1, 2)])
def test_frozen_layers_stay_and_the_rest_trains(frozen: tuple[int, ...]) -> None:
    layers = linear(4, 5, 6, 3)
    for number in frozen:
        layers[number].requires_grad_(False)
    both = [make(kind, layers) for kind in KINDS]
    for _ in range(2):
        for backend in both:
            backend.step(*a_batch(4))
    assert_same_state(*both)
    for number, layer in enumerate(layers):
        kept = torch.equal(both[0].client_state(0)[f"{number}.weight"], layer.weight.double())
        assert kept == (number in frozen)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_everything_gives_nothing(kind: str) -> None:
    layers = [nn.Linear(4, 5), nn.Dropout(1.0), nn.Linear(5, 3)]
    losses = make(kind, layers).step(*a_batch(4))
    assert bool(losses.isfinite().all())


class Counter(nn.Module):
    """A user's own buffers of whole numbers, with a name that means something elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.keys += 1
        return x


@pytest.mark.parametrize("kind", KINDS)
def test_a_users_own_buffer_moves_with_its_layer(kind: str) -> None:
    layers = [nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 6), Counter()), nn.Linear(6, 3)]
    backend = make(kind, layers)
    for _ in range(5):
        backend.step(*a_batch(4))
    backend.move((2, 2))
    assert [int(backend.client_state(n)["1.1.keys"]) for n in range(3)] == [5, 5, 5]
    assert int(backend.global_state()["1.1.keys"]) == 5


class Tied(nn.Module):
    """One matrix used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(torch.tanh(self.there(x)))


def test_weights_tied_inside_a_layer_stay_tied(tmp_path) -> None:
    """Through steps, averages, moves and files, as in a model that is trained in one piece."""
    torch.manual_seed(3)
    layers = [nn.Linear(4, 5), Tied(), nn.Linear(5, 3)]
    both = [make(kind, layers) for kind in KINDS]
    plain = copy.deepcopy(nn.Sequential(*layers)).double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for t in range(4):
        inputs, targets = a_batch(4)
        for backend in both:
            backend.step(inputs, targets)
            for tier in range(3):
                backend.average(tier)
            if t == 1:
                backend.move((2, 2))
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(inputs.flatten(0, 1)), targets.flatten()).backward()
        optimizer.step()
    both[1].save(tmp_path / "file")
    again = make("stacked", layers)
    again.load(tmp_path / "file")
    for backend in (*both, again):
        for state in (backend.global_state(), backend.client_state(2)):
            assert torch.equal(state["1.there.weight"], state["1.back.weight"])
            torch.testing.assert_close(state["1.back.weight"], plain[1].there.weight, rtol=0, atol=1e-10)


def test_torchs_default_type_does_not_matter() -> None:
    inputs, targets = a_batch(4)
    plain = make("stacked", dtype=torch.float32).step(inputs.float(), targets)
    torch.set_default_dtype(torch.float64)
    try:
        layers = [layer.float() for layer in linear(4, 5, 6, 3)]
        found = {kind: make(kind, layers, dtype="float32").step(inputs, targets) for kind in KINDS}
    finally:
        torch.set_default_dtype(torch.float32)
    assert {losses.dtype for losses in found.values()} == {torch.float32}
    assert plain.dtype == torch.float32
    torch.testing.assert_close(found["reference"], found["stacked"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_only_given_batches_can_be_trained_on(kind: str) -> None:
    with pytest.raises(HsflError, match="made without data; give it data, or call step"):
        make(kind).train_round()


@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_cannot_be(kind: str) -> None:
    backend = make(kind)
    for tier in (3, -1):
        with pytest.raises(HsflError, match=f"tier {tier}: there are 3, counted from 0 to 2"):
            backend.average(tier)
    with pytest.raises(HsflError, match="evaluate takes one pair"):
        backend.evaluate(*a_batch(4))
    for clients in ([2, 0], [1, 1]):
        with pytest.raises(HsflError, match=r"clients \[.*\]: name each of them once, in order"):
            backend.train_round(clients)
    with pytest.raises(HsflError, match=r"client 3: it is none of those who are enrolled, \[0, 1, 2\]"):
        backend.train_round([0, 3])


@pytest.mark.parametrize(
    ("layer", "instead"),
    [
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), "give it dropout = 0"),
        (nn.Dropout1d(0.5), "use nn.Dropout"),
    ],
)
def test_chance_of_torchs_own_trains_client_by_client(layer: nn.Module, instead: str) -> None:
    """Refused where clients are worked on together, reproducible where they are not."""
    layers = [nn.Linear(4, 4), layer, nn.Sequential(nn.Flatten(), nn.Linear(20, 3))]
    with pytest.raises(HsflError, match=f"layer 2: .* draws random numbers .*; {instead}, or take the backend"):
        make("stacked", layers)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))
        backend = make("reference", layers, seed=seed)
        found.append([backend.step(*a_batch(5, 4)) for _ in range(2)][-1])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
