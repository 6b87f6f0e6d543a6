"""Profiles: counted by hand where that is possible, and the same as the shipped ones everywhere."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from torch import nn

from hsfl.errors import ModelError
from hsfl.models import NAMES, build, example_input, input_shape, peak_flops, profile, time_layers
from hsfl.problem.profile import OPTIONAL_COLUMNS, LayerProfile
from hsfl.scenario.catalog import DEFAULT_INPUT_SHAPES
from hsfl.scenario.schema import ModelSection

SHIPPED = sorted(file.name for file in (files("hsfl") / "catalog" / "profiles").iterdir() if file.name.endswith(".csv"))


def test_every_builtin_has_a_shipped_profile() -> None:
    wanted = [(name, input_shape(name)) for name in NAMES] + [("vgg11", (1, 32, 32)), ("vgg16", (1, 32, 32))]
    assert sorted(f"{name}-{'x'.join(map(str, shape))}.csv" for name, shape in wanted) == SHIPPED


@pytest.mark.parametrize("file", SHIPPED)
def test_shipped_profile_equals_a_measurement(file: str) -> None:
    name, _, sizes = file.removesuffix(".csv").partition("-")
    shape = tuple(map(int, sizes.split("x")))
    shipped = LayerProfile.from_csv(files("hsfl") / "catalog" / "profiles" / file)
    measured = profile(build(name, shape), shape)
    costs = replace(shipped, **{c: None for c in OPTIONAL_COLUMNS if c.startswith("gradient_")})
    assert measured.to_csv() == costs.to_csv()


def test_planning_knows_every_built_in_model_and_its_shape() -> None:
    """Planning has a list of its own, because it must not import torch."""
    assert {name: input_shape(name) for name in NAMES} == DEFAULT_INPUT_SHAPES
    described = ModelSection.model_fields["name"].description or ""
    assert all(name in described for name in NAMES)


def test_lenet5_by_hand() -> None:
    measured = profile(build("lenet5"), (1, 28, 28), "adam")
    assert measured.names == ("conv1", "conv2", "fc1", "fc2", "fc3")
    forward = [
        2 * 6 * 28 * 28 * 1 * 5 * 5,  # 2 FLOPs per multiply-add x output channels x pixels x input channels x kernel
        2 * 16 * 10 * 10 * 6 * 5 * 5,
        2 * 400 * 120,
        2 * 120 * 84,
        2 * 84 * 10,
    ]
    outputs = [6 * 14 * 14, 16 * 5 * 5, 120, 84, 10]
    parameters = [6 * 25 + 6, 16 * 6 * 25 + 16, 400 * 120 + 120, 120 * 84 + 84, 84 * 10 + 10]
    assert measured.forward_flops.tolist() == forward
    # A gradient for the weights and one for the input, each as costly as the forward pass; conv1's input needs none.
    assert measured.backward_flops.tolist() == [forward[0], *(2 * flops for flops in forward[1:])]
    assert measured.activation_bits.tolist() == [32 * n for n in outputs]
    assert measured.gradient_bits.tolist() == [32 * n for n in outputs]
    assert measured.parameter_bits.tolist() == [32 * n for n in parameters]
    assert measured.optimizer_bits.tolist() == [2 * 32 * n for n in parameters]


def test_attention_by_hand() -> None:
    """All heads together: queries, keys and values, the two products with the context, the output projection."""
    context, width = 128, 256
    measured = profile(build("gpt"), (context,))
    forward = 2 * context * width * 3 * width + 2 * (2 * context * context * width) + 2 * context * width * width
    assert measured.forward_flops[1] == forward
    assert measured.backward_flops[1] == 2 * forward
    assert measured.forward_flops[0] == measured.backward_flops[0] == 0


class Frozen(nn.Module):
    """Frozen weights, running statistics, a tied weight, a buffer and, at the end, a result without a gradient."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, bias=False).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8, bias=False)
        self.third = nn.Linear(8, 8, bias=False)
        self.third.weight = self.second.weight
        self.register_buffer("table", torch.zeros(3), persistent=False)
        self.last = nn.Linear(8, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.third(self.second(self.norm(self.first(x)))) + self.table.sum()
        return self.last(x).argmax(1)


def test_what_counts_as_state_and_gradient() -> None:
    measured = profile(Frozen().double(), (4,), "momentum")
    assert measured.names == ("first", "second", "last")
    assert measured.parameter_bits.tolist() == [64 * (32 + 4 * 8), 64 * 64, 64 * 18]
    assert measured.optimizer_bits.tolist() == [64 * 16, 64 * 64, 0]
    assert measured.buffer_bits.tolist() == [64 * 16, 0, 0]
    assert measured.activation_bits.tolist() == [64 * 8, 64 * 8, 64]
    assert measured.gradient_bits.tolist() == [64 * 8, 64 * 8, 0]
    assert measured.forward_flops.tolist() == [64, 256, 32]
    assert measured.backward_flops.tolist() == [0, 512, 0]


def test_profile_leaves_the_model_and_the_random_state_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).eval()
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    random, kernels = torch.get_rng_state(), torch.backends.mkldnn.enabled
    profile(model, (4,))
    time_layers(model, (4,), batch_size=3, repeats=1)
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.backends.mkldnn.enabled == kernels
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_input_type_follows_the_model() -> None:
    assert example_input(build("gpt"), (128,), 2).dtype == torch.int64
    assert example_input(nn.Linear(4, 2).double(), (4,), 3).dtype == torch.float64
    assert example_input(nn.Linear(4, 2), (5,), 3).shape == (3, 5)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("lenet5", (3, 28, 28), ["shape 3x28x28", "at conv1 "]),
        ("lenet5", (1, 32, 32), ["shape 1x32x32", "at fc1 "]),
        ("resnet18", (32, 32), ["shape 32x32", "at stem "]),
        ("gpt", (200,), ["shape 200", "self.position"]),
        ("vit", (3, 0, 32), ["3x0x32", "below 1"]),
    ],
)
def test_wrong_input_shape_names_the_layer(name: str, shape: tuple[int, ...], said: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        profile(build(name), shape)
    assert [part for part in said if part not in str(caught.value)] == []


def test_wrong_arguments() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    with pytest.raises(ModelError, match="unknown optimizer 'lion'; known are sgd, momentum, adam, adamw"):
        profile(model, (4,), "lion")
    with pytest.raises(ModelError, match="at least 1, not 0 and 3"):
        time_layers(model, (4,), 0, 3)
    with pytest.raises(
        ModelError, match="layer 0 cannot be trained on inputs of shape 1x4: Expected more than 1 value"
    ):
        time_layers(model, (4,), 1, 1)


def test_timings() -> None:
    seconds = time_layers(build("lenet5"), (1, 28, 28), batch_size=8, repeats=3)
    assert seconds.shape == (5, 2) and np.all(seconds > 0) and np.all(seconds < 1)


def test_peak_flops_is_a_rate_of_this_machine() -> None:
    assert 1e8 < peak_flops(size=512, repeats=2) < 1e15
