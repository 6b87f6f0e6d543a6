"""What is no model, no batch of inputs or no shape of a sample is refused in one sentence, by every function alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hsfl.errors import ModelError
from hsfl.models import chain, example_input, profile, time_layers

X = torch.ones(2, 4)


def model(device: str = "cpu") -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4, device=device), nn.ReLU(), nn.Linear(4, 4, device=device))


def refused(call: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def with_meta_buffer() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.register_buffer("running_mean", torch.zeros(4, device="meta"))
    return nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: "x", "a model must be an nn.Module, not a value of type str"),
        (lambda: None, "a model must be an nn.Module, not a value of type NoneType"),
        (lambda: model().state_dict(), "a model must be an nn.Module, not a value of type OrderedDict"),
        (lambda: nn.Linear, "not the class Linear; give an instance"),
        (lambda: torch.jit.script(model()), "ScriptModule is compiled, and only Python can be cut into layers; give"),
        (lambda: torch.jit.trace(model(), X), "TracedModule is compiled, and only Python can be cut into layers; give"),
        (lambda: torch.compile(model()), "OptimizedModule is compiled"),
        (lambda: model("meta"), "0.weight of Sequential is on the meta device and has no values; build"),
        (with_meta_buffer, "1.running_mean of Sequential is on the meta device"),
    ],
    ids=["text", "nothing", "state dict", "class", "script", "jit trace", "compiled", "meta", "meta buffer"],
)
def test_what_is_no_model(make: Callable[[], Any], said: str) -> None:
    given = make()
    messages = [
        refused(chain, given, X),
        refused(profile, given, (4,)),
        refused(time_layers, given, (4,), 2),
        refused(example_input, given, (4,), 2),
    ]
    assert len({*messages}) == 1 and said in messages[0]


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_inside_a_model_is_one_layer() -> None:
    whole = Holder(torch.jit.script(model()))
    layers = chain(whole, X)
    assert [name for name, _ in layers.named_children()] == ["first", "inner"]
    torch.testing.assert_close(layers(X), whole(X), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("a text", "a tensor that holds a batch of inputs, not a value of type str"),
        (np.ones((2, 4)), "not a value of type ndarray"),
        ([[1.0, 2.0, 3.0, 4.0]], "not a value of type list"),
        (None, "not a value of type NoneType"),
        (torch.tensor(3.0), "at least one input, unlike a tensor of shape ()"),
        (torch.ones(0, 4), "at least one input, unlike a tensor of shape (0, 4)"),
    ],
    ids=["text", "array", "list", "nothing", "number", "empty"],
)
def test_what_is_no_batch(example: Any, said: str) -> None:
    assert said in refused(chain, model(), example)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([3, 10**6, 10**6], "input_shape 3x1000000x1000000 is too large: 2 samples do not fit"),
        ((3, 10**12, 10**12), "input_shape 3x1000000000000x1000000000000 is too large"),
        ((3, 2**62, 1), "is too large"),
        ((10**30,), "is too large"),
        ((3, 0, 4), "input_shape must have no size below 1, unlike 3x0x4"),
        ((-4,), "input_shape must have no size below 1, unlike -4"),
        ("3,32,32", "input_shape must be whole numbers such as (3, 32, 32), not '3,32,32'"),
        (784, "input_shape must be whole numbers such as (3, 32, 32), not 784"),
        ((3.5, 4), "not (3.5, 4)"),
        (("4",), "not ('4',)"),
        (None, "not None"),
    ],
)
def test_what_is_no_shape(shape: Any, said: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    messages = [refused(profile, network, shape), refused(example_input, network, shape, 2)]
    assert len({*messages}) == 1 and said in messages[0]


def test_numbers_of_numpy_are_whole_numbers() -> None:
    assert example_input(model(), (np.int64(4),), 3).shape == (3, 4)
