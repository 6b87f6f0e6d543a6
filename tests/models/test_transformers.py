"""torch's stacks of transformer blocks are cut between their blocks, or a sentence says what is in the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hsfl.errors import ModelError
from hsfl.models import chain, profile
from tests.models.test_chain import assert_chain_equals_model, names

WIDTH, LENGTH, BLOCKS = 8, 5, 3


def block(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, **options)


def encoder(norm: bool = False, blocks: int = BLOCKS, **options: Any) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(
        block(**options), blocks, nn.LayerNorm(WIDTH) if norm else None, enable_nested_tensor=False
    )


class Classifier(nn.Module):
    """A stack of blocks between an embedding and a head, called with `arguments` beside its input."""

    def __init__(self, stack: nn.Module, **arguments: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.stack = stack
        self.head = nn.Linear(WIDTH, 3)
        self.arguments = arguments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stack(self.embed(x), **self.arguments)
        return self.head(x.mean(1))


MODELS: dict[str, tuple[Callable[..., nn.Module], list[str]]] = {
    "the whole model": (encoder, ["layers_0", "layers_1", "layers_2"]),
    "in a sequential": (
        lambda **options: nn.Sequential(nn.Linear(WIDTH, WIDTH), encoder(**options), nn.Linear(WIDTH, 2)),
        ["0", "1_layers_0", "1_layers_1", "1_layers_2", "2"],
    ),
    "in a model": (
        lambda **options: Classifier(encoder(**options)),
        ["embed", "stack_layers_0", "stack_layers_1", "stack_layers_2", "head"],
    ),
    "told that there is no mask": (
        lambda **options: Classifier(encoder(**options), mask=None, src_key_padding_mask=None, is_causal=False),
        ["embed", "stack_layers_0", "stack_layers_1", "stack_layers_2", "head"],
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.0}, {"dropout": 0.3, "norm": True}, {"dropout": 0.0, "norm": True, "norm_first": True}],
    ids=["plain", "dropout and norm", "norm first"],
)
@pytest.mark.parametrize("place", MODELS)
def test_an_encoder_is_cut_between_its_blocks(place: str, options: dict[str, Any], training: bool) -> None:
    make, cuts = MODELS[place]
    torch.manual_seed(0)
    model = make(**options).double().train(training)
    x = torch.randn(2, LENGTH, WIDTH).double()
    layers = assert_chain_equals_model(model, x)
    assert names(layers) == cuts
    with torch.no_grad():  # where blocks take a faster path when they are evaluated
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        torch.testing.assert_close(layers(x), expected, rtol=0, atol=0)


def test_a_profile_has_a_row_for_every_block() -> None:
    measured = profile(Classifier(encoder(dropout=0.0)), (LENGTH, WIDTH))
    products = 4 * LENGTH * WIDTH**2 + 2 * LENGTH**2 * WIDTH + 2 * LENGTH * WIDTH * 16
    assert measured.names == tuple(MODELS["in a model"][1])
    assert measured.forward_flops[1:4].tolist() == [2 * products] * BLOCKS
    assert measured.backward_flops[1:4].tolist() == [4 * products] * BLOCKS
    assert measured.activation_bits[1:4].tolist() == [32 * LENGTH * WIDTH, 32 * LENGTH * WIDTH, 32 * WIDTH]


def with_hook() -> nn.Module:
    stack = encoder()
    stack.register_forward_hook(lambda module, inputs, output: 2 * output)
    return Classifier(stack)


class Recalling(Classifier):
    """A decoder whose memory is what it starts from."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        return self.head(self.stack(x, x).mean(1))


def decoder() -> nn.TransformerDecoder:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True), BLOCKS)


CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Classifier(encoder(), mask=CAUSAL), "the 3 blocks of this nn.TransformerEncoder"),
        (lambda: Classifier(encoder(), mask=CAUSAL, is_causal=True), "the 3 blocks of this nn.TransformerEncoder"),
        (with_hook, "the 3 blocks of this nn.TransformerEncoder"),
        (lambda: Recalling(decoder()), "the 3 blocks of this nn.TransformerDecoder"),
    ],
    ids=["mask", "causal", "hook", "memory"],
)
def test_a_stack_that_cannot_be_cut_is_one_layer_and_the_remedy_is_said(
    make: Callable[[], nn.Module], said: str
) -> None:
    with pytest.warns(UserWarning, match=r"^\w+: stack stays one layer") as caught:
        layers = assert_chain_equals_model(make().double().eval(), torch.randn(2, LENGTH, WIDTH).double())
    assert names(layers) == ["embed", "stack", "head"]
    message = str(caught[0].message)
    assert said in message and "nn.Sequential of modules of your own" in message and "\n" not in message


class Causal(nn.Module):
    """The remedy: a block that makes its mask itself."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block(dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.block(x, src_mask=mask, is_causal=True)


@pytest.mark.filterwarnings("error")
def test_the_remedy_works() -> None:
    model = Classifier(nn.Sequential(*(Causal() for _ in range(BLOCKS)))).double()
    layers = assert_chain_equals_model(model, torch.randn(2, LENGTH, WIDTH).double())
    assert names(layers) == ["embed", "stack_0_block", "stack_1_block", "stack_2_block", "head"]


def test_nothing_is_said_of_a_stack_of_one_block() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers = chain(Classifier(encoder(blocks=1), mask=CAUSAL).double(), torch.ones(2, LENGTH, WIDTH).double())
    assert names(layers) == ["embed", "stack", "head"]


class OnlyStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x, mask=torch.zeros(LENGTH, LENGTH))


def test_a_model_that_is_nothing_but_such_a_stack_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^OnlyStack cannot be cut into layers: stack stays one layer, since a mask"):
        chain(OnlyStack(), torch.ones(2, LENGTH, WIDTH))


class Own(nn.TransformerEncoder):
    """A subclass that computes what it inherits."""


class Twice(nn.TransformerEncoder):
    """A subclass with a forward pass of its own, which is what counts."""

    def forward(self, src: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        for layer in self.layers:
            src = 2 * layer(src)
        return src


@pytest.mark.parametrize("kind", [Own, Twice])
def test_subclasses(kind: type[nn.TransformerEncoder]) -> None:
    model = Classifier(kind(block(dropout=0.0), BLOCKS, enable_nested_tensor=False)).double()
    layers = assert_chain_equals_model(model, torch.randn(2, LENGTH, WIDTH).double())
    assert names(layers) == MODELS["in a model"][1]
