"""A chain computes what its model computes, shares its parameters, and says what is in the way of cutting."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hsfl.errors import ModelError
from hsfl.models import build, chain, example_input, input_shape


def names(layers: nn.Sequential) -> list[str]:
    return [name for name, _ in layers.named_children()]


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def run_in_pieces(layers: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Train over a cut before every layer: activations go forward detached, their gradients come back."""
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    for layer in layers:
        x = x.detach().requires_grad_(bool(outputs) and x.is_floating_point())
        inputs.append(x)
        outputs.append(x := layer(x))
    outputs[-1].square().sum().backward()
    for before, after in zip(reversed(outputs[:-1]), reversed(inputs[1:]), strict=True):
        before.backward(after.grad)
    return x


def assert_chain_equals_model(model: nn.Module, x: torch.Tensor) -> nn.Sequential:
    """Outputs, gradients and running statistics agree bit for bit, whole and cut everywhere."""
    reference, whole, pieces = (copy.deepcopy(model) for _ in range(3))
    layers = chain(whole, x)
    torch.manual_seed(1)
    expected = reference(x.clone())
    expected.square().sum().backward()
    torch.manual_seed(1)
    output = layers(x.clone())
    output.square().sum().backward()
    torch.manual_seed(1)
    split_output = run_in_pieces(chain(pieces, x), x.clone())
    for other, result in ((whole, output), (pieces, split_output)):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        torch.testing.assert_close(gradients(other), gradients(reference), rtol=0, atol=0)
        torch.testing.assert_close(other.state_dict(), reference.state_dict(), rtol=0, atol=0)
    return layers


class Skip(nn.Module):
    """A residual connection over two layers, dropout, a shared activation and an unused result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.first(x)))
        y = self.drop(self.act(self.inner(x)))
        _ = self.last(y)
        x = x + self.outer(y)
        return self.last(self.drop(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "shape"), [("resnet18", (3, 16, 16)), ("vit", (3, 16, 16)), ("gpt", (16,))])
def test_builtin_chain_equals_model(name: str, shape: tuple[int, ...], training: bool) -> None:
    torch.manual_seed(0)
    model = build(name, shape).double().train(training)
    x = example_input(model, shape, 2)
    if name == "gpt":
        x = torch.randint(256, (2, *shape))
    assert_chain_equals_model(model, x)


def test_skip_connection_stays_whole() -> None:
    torch.manual_seed(0)
    layers = assert_chain_equals_model(Skip().double(), torch.randn(4, 6).double())
    assert names(layers) == ["first", "inner", "last"]


@pytest.mark.parametrize("mode", [True, False])
def test_chain_follows_the_mode_after_it_was_made(mode: bool) -> None:
    model = Skip().double()
    x = torch.randn(4, 6).double()
    layers = chain(model, x)
    assert layers.training and all(layer.training for layer in layers)
    model.train(mode)
    torch.manual_seed(1)
    expected = copy.deepcopy(model)(x)
    torch.manual_seed(1)
    torch.testing.assert_close(layers.train(mode)(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "count"), [("lenet5", 5), ("vgg11", 11), ("vgg16", 16), ("resnet18", 10), ("vit", 14), ("gpt", 14)]
)
def test_layer_counts(name: str, count: int) -> None:
    model = build(name)
    assert len(chain(model, example_input(model, input_shape(name), 1))) == count


def test_parameters_are_shared_and_keys_keep_the_models_names() -> None:
    model = build("resnet18", (3, 8, 8))
    layers = chain(model, torch.randn(1, 3, 8, 8))
    state = model.state_dict(keep_vars=True)
    shared = {key.partition(".")[2]: value for key, value in layers.state_dict(keep_vars=True).items()}
    assert shared.keys() == state.keys()
    assert all(shared[key] is state[key] for key in state)


def test_sequential_is_flattened_and_normalisation_joins_the_layer_before() -> None:
    model = nn.Sequential(
        nn.Flatten(),
        nn.BatchNorm1d(4),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(), nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4))),
        nn.Dropout(0.3),
        nn.Linear(4, 4),
        nn.RMSNorm(4),
        nn.TransformerEncoderLayer(4, 2, batch_first=True),
    ).double()
    layers = assert_chain_equals_model(model, torch.randn(3, 4).double())
    assert names(layers) == ["2_0", "2_3_0", "4", "6"]
    assert "6.6.norm1.weight" in layers.state_dict()
    assert {"2_0.1.weight", "2_0.2.1.weight", "2_0.2.2.weight"} < layers.state_dict().keys()


class Opaque(nn.Module):
    """Cannot be traced; inside an nn.Sequential it need not be."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.fc(x)
        return -self.fc(x)


def test_children_of_a_sequential_are_taken_as_they_are() -> None:
    assert names(chain(nn.Sequential(nn.Linear(4, 4), Opaque(), nn.Linear(4, 4)), torch.ones(1, 4))) == ["0", "1", "2"]


def test_module_called_twice_in_a_sequential_ties_what_lies_between() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.ReLU(), nn.Linear(4, 4), shared, nn.Linear(4, 4)).double()
    assert names(assert_chain_equals_model(model, torch.randn(2, 4).double())) == ["0", "1", "5"]


@pytest.mark.parametrize("nested", [False, True])
def test_module_at_two_places_of_a_sequential_is_named_at_both(nested: bool) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 4), shared)
    places = "at 0 and at 3"
    if nested:
        model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), nn.Sequential(nn.ReLU(), shared))
        places = "at 0.0 and at 1.1"
    with pytest.raises(ModelError, match=f"^Sequential cannot be cut .* is used {places}; untie it"):
        chain(model, torch.ones(2, 4))


class TiedInside(nn.Module):
    """One weight used twice, which no cut can part as it lies in one module of an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(4, 4, bias=False)
        self.back = nn.Linear(4, 4, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.there(x).relu())


def test_weights_tied_inside_a_layer_do_not_matter() -> None:
    model = nn.Sequential(nn.Linear(4, 4), TiedInside(), nn.Linear(4, 2)).double()
    assert names(assert_chain_equals_model(model, torch.randn(3, 4).double())) == ["0", "1", "2"]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)


class Flattened(TwoLayers):
    """One result per token: the batch is still the first dimension, with the tokens of a sample side by side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).flatten(0, 1)


def test_results_may_come_per_token() -> None:
    assert names(assert_chain_equals_model(Flattened().double(), torch.randn(2, 3, 4).double())) == ["first", "second"]


class RootMeanSquare(nn.Module):
    """A normalisation written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class Bare(nn.Module):
    """Parameters and buffers used directly, in place and with values from the input's shape; constants of each kind."""

    calls: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(5, 4))
        self.embed = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.norm = RootMeanSquare(4)
        self.append = nn.Linear(4, 4)
        self.factor = torch.tensor(0.5, dtype=torch.float64)
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float = 2.0, *, flags: tuple[int, ...] = (1,)) -> torch.Tensor:
        batch, length, _ = x.shape
        assert length <= 5, "too long"
        x = self.embed(x)
        x += self.position[:length]
        self.calls.add_(1)
        x = self.mask[:length, :length] @ x + torch.arange(length, device=x.device)[:, None]
        x = x.reshape(batch, length, -1)
        x = functional.linear(x, self.weight.t().contiguous()) * self.factor * scale
        x.relu_()
        x = self.norm(x) + torch.tensor([1.0, 2.0, 3.0, float(flags[0])], dtype=x.dtype)
        return self.append(x)


def test_parameters_buffers_and_constants_outside_modules() -> None:
    torch.manual_seed(0)
    model = Bare().double()
    x = torch.randn(2, 3, 4).double()
    before = {*vars(model)}
    layers = assert_chain_equals_model(model, x)
    assert names(layers) == ["embed", "weight", "append_2"]
    assert model.calls == 0 and {*vars(model)} == before
    state = {key.partition(".")[2] for key in layers.state_dict()}
    assert state == model.state_dict().keys()
    stored = io.BytesIO()
    torch.save(layers, stored)
    stored.seek(0)
    copies = [copy.deepcopy(layers), torch.load(stored, weights_only=False)]
    expected = [layers(x), layers(x)]
    for other in copies:
        torch.testing.assert_close([other(x), other(x)], expected, rtol=0, atol=0)
        torch.testing.assert_close(other.state_dict(), layers.state_dict(), rtol=0, atol=0)


class InPlace(nn.Module):
    """Its second weight layer writes to its input, which autograd forbids for a tensor that came over a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.add_(x.detach().clone() @ self.weight)
        return self.last(x)


def test_no_cut_before_a_layer_that_writes_to_its_input() -> None:
    layers = assert_chain_equals_model(InPlace().double(), torch.randn(2, 4).double())
    assert names(layers) == ["first", "last"]


class Gate(nn.Module):
    """Without weights there is nothing to cut inside, so its branches need no tracing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5) if self.training and x.sum() != 0 else x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.gate = Gate()
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.gate(self.first(x)))


@pytest.mark.parametrize("training", [True, False])
def test_modules_without_weights_are_taken_as_they_are(training: bool) -> None:
    assert_chain_equals_model(Gated().double().train(training), torch.randn(2, 4).double())


def test_chain_leaves_the_model_and_the_random_state_alone() -> None:
    model = nn.Sequential(build("resnet18", (3, 8, 8)), nn.Dropout(), nn.Linear(10, 2))
    model.get_submodule("0.norm").eval()
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    torch.manual_seed(3)
    random = torch.get_rng_state()
    chain(model, torch.ones(2, 3, 8, 8))
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "norm": lambda: nn.LayerNorm(4),
    "relu": lambda: nn.ReLU(),
    "drop": lambda: nn.Dropout(0.5),
    "residual": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)),
}


class Stack(nn.Module):
    """A random stack of plain and residual blocks."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.blocks = nn.ModuleList(BLOCKS[kind]() for kind in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            x = x + block(x) if kind == "residual" else block(x)
        return x


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=8))
def test_random_stacks(kinds: list[str]) -> None:
    torch.manual_seed(0)
    kinds = ["linear", *kinds, "linear"]
    layers = assert_chain_equals_model(Stack(kinds).double(), torch.randn(3, 4).double())
    assert len(layers) == sum(kind in ("linear", "residual") for kind in kinds)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.body = Opaque()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.head(x))


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in x:
            x = x + self.cell(row)
        return x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(4, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.token(x)))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        for block in self.blocks:
            x = mask @ block(x)
        return x


class Sized(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        x = self.second(self.first(x.flatten(0, 1)))
        return x.unflatten(0, (batch, -1))


class SharedBuffer(TwoLayers):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x * self.scale)) * self.scale


class Modal(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.dropout(self.first(x), 0.1, self.training))


class Noisy(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + torch.randn(4))


class Paired(TwoLayers):
    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + other)


class Total(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).sum()


class Mean(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).mean(0)


class Transposed(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).t()


class ForTwo(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).reshape(2, 4))


class Plural(TwoLayers):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.second(self.first(x))


@pytest.mark.parametrize(
    ("model", "example", "said"),
    [
        (Branching(), torch.ones(2, 4), ["`if x.sum() > 0:` (test_chain.py:", "in body", "branches", "nn.Sequential"]),
        (Looping(), torch.ones(2, 4), ["`for row in x:`", "loops", "nn.Sequential"]),
        (
            Tied(),
            torch.zeros(2, 3, dtype=torch.int64),
            ["parameter token.weight", "at token in", "at head in", "untie"],
        ),
        (Masked(), torch.ones(2, 4, 4), ["`mask = torch.tril(", "`x = mask @ block(x)`", "inside each block"]),
        (Sized(), torch.ones(2, 3, 4), ["`batch = x.shape[0]`", "not a tensor", "read it from"]),
        (SharedBuffer(), torch.ones(2, 4), ["buffer scale", "a buffer of its own"]),
        (Modal(), torch.ones(2, 4), ["functional.dropout(", "self.training", "nn.Dropout"]),
        (Noisy(), torch.ones(2, 4), ["torch.randn(4)", "chance"]),
        (Paired(), torch.ones(2, 4), ["2 inputs (x, other)", "inside forward"]),
        (Plural(), torch.ones(2, 4), ["still needed at the output"]),
        (Total(), torch.ones(2, 4), ["returns a single number for a batch of 2", "batch as the first dimension"]),
        (Mean(), torch.ones(2, 4), ["shape 4 for a batch of 2 and 4 for one of 4", "batch as the first dimension"]),
        (
            Transposed(),
            torch.ones(1, 4),
            ["shape 4x1 for a batch of 1 and 4x2 for one of 2", "batch as the first dimension"],
        ),
        (ForTwo(), torch.ones(2, 4), ["takes a batch of 2 but not one of 4", "any number"]),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), ["only weight layer is '0'"]),
        (nn.Sequential(nn.ReLU()), torch.ones(2, 4), ["no weight layer"]),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)), torch.ones(2, 4), ["parameter 0.weight", "run the model"]),
        (Skip(), torch.ones(2, 5), ["samples of shape 5 ", "first in", "give the shape"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_in_the_way(model: nn.Module, example: torch.Tensor, said: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        chain(model, example)
    message = str(caught.value)
    assert message.startswith(f"{type(model).__name__} ") and "\n" not in message
    assert [part for part in said if part not in message] == []
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
