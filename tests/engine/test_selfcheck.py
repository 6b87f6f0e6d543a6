"""Models that cannot be trained apart by client are told before training begins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hsfl
from hsfl.engine.selfcheck import check_by_client
from hsfl.errors import ModelError
from hsfl.models import build, chain

CPU = torch.device("cpu")


class OverTheBatch(nn.Module):
    """Normalises with the statistics of all samples it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class OnlyFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.float(), self.inner.weight, self.inner.bias)


def around(layer: nn.Module) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 6), nn.Sequential(layer, nn.Linear(6, 5)), nn.Linear(5, 3)]


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 2, 4), torch.randint(0, 3, (2, 2))


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (OverTheBatch(), r"layer 2 \(Sequential\) mixes the samples of its batch, as batch statistics do"),
        (Noisy(), r"layer 2 \(Sequential\) draws random numbers that cannot be told apart by client; use nn.Dropout"),
    ],
)
def test_what_differs_together_is_named(layer: nn.Module, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_by_client(around(layer), *samples(), CPU, together=True)
    check_by_client(around(layer), *samples(), CPU, together=False)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Dropout(0.5), nn.Tanh(), OnlyFloat32()])
def test_what_can_be_told_apart_passes(layer: nn.Module) -> None:
    layers, (inputs, labels) = around(layer), samples()
    before = torch.get_rng_state()
    check_by_client(layers, inputs, labels, CPU, together=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("resnet18", (3, 16, 16)), ("vit", (3, 16, 16))])
def test_built_in_models_pass(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    inputs = torch.randn(2, 2, *shape)
    check_by_client(list(chain(build(name, shape), inputs[0])), inputs, torch.zeros(2, 2).long(), CPU, together=True)


def test_texts_pass() -> None:
    tokens = torch.randint(0, 256, (2, 2, 12))
    check_by_client(list(chain(build("gpt", (12,)), tokens[0])), tokens, tokens, CPU, together=True)


def test_chance_on_the_reference_follows_from_seed_round_and_client() -> None:
    """However clients are grouped, and whatever else draws random numbers."""
    inputs, targets = torch.randn(4, 3, 4, dtype=torch.float64), torch.zeros(4, 3).long()
    found = []
    for hosts in ([[0, 1, 2, 3], [0, 0, 0, 0]], [[0, 1, 2, 3], [0, 0, 1, 1]]):
        torch.manual_seed(len(found))
        backend = hsfl.backend(
            "reference", around(Noisy()), hosts, (1,), {"name": "sgd", "lr": 1e-9}, dtype="float64", seed=5
        )
        found.append(torch.stack([backend.step(inputs, targets) for _ in range(2)]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    assert (found[0][0] - found[0][1]).abs().min() > 1e-4


def test_chance_does_not_depend_on_the_cuts_and_differs_by_layer() -> None:
    seen: dict[int, list[torch.Tensor]] = {}

    class Heard(nn.Module):
        def __init__(self, cut: int) -> None:
            super().__init__()
            self.cut = cut

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn_like(x)
            seen.setdefault(self.cut, []).append(noise)
            return x + noise

    inputs, targets = torch.randn(2, 3, 4), torch.zeros(2, 3).long()
    for cut in (1, 2):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(4, 4), Heard(cut)), nn.Sequential(nn.Linear(4, 4), Heard(cut))]
        backend = hsfl.backend("reference", layers, [[0, 1], [0, 0]], (cut,), {"name": "sgd", "lr": 0.1}, seed=5)
        backend.step(inputs, targets)
    ours, theirs = (sorted(noise.sum().item() for noise in noises) for noises in seen.values())
    assert ours == theirs and len(set(ours)) == 4
