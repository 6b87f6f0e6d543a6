"""FLOPs against closed formulas: two per multiply-add of a product whose factors are counted by hand.

In `profile` the first layer computes no gradient for its input, and every later layer computes one. So each module is
measured twice, as the first layer of a model and as the second, after a cheap layer that keeps the shape.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hsfl.models import profile


class Scale(nn.Module):
    """A weight layer that keeps any shape, of which no product is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.sum()


def flops(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[float, float, float]:
    """FLOPs for one sample: the forward pass, the backward pass as the first layer, the backward pass as the second."""
    first = profile(nn.Sequential(module, Scale()).to(dtype), shape)
    second = profile(nn.Sequential(Scale(), module).to(dtype), shape)
    assert len(first.names) == len(second.names) == 2
    assert first.forward_flops[0] == second.forward_flops[1]
    return float(first.forward_flops[0]), float(first.backward_flops[0]), float(second.backward_flops[1])


CONVOLUTIONS: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, Any], tuple[int, ...], int]] = {
    # kind, (inputs, outputs, kernel), options, one sample, multiply-adds:
    # output channels x input channels of a group x kernel x positions of the output
    "dense 1d": (nn.Conv1d, (3, 8, 5), {}, (3, 20), 8 * 3 * 5 * 16),
    "dense 2d": (nn.Conv2d, (3, 8, 3), {}, (3, 10, 12), 8 * 3 * 9 * 8 * 10),
    "dense 3d": (nn.Conv3d, (2, 4, 3), {}, (2, 5, 6, 7), 4 * 2 * 27 * 3 * 4 * 5),
    "pointwise": (nn.Conv2d, (16, 32, 1), {}, (16, 7, 7), 32 * 16 * 49),
    "strided": (nn.Conv2d, (3, 8, 3), {"stride": 2}, (3, 11, 9), 8 * 3 * 9 * 5 * 4),
    "padded": (nn.Conv2d, (3, 8, 3), {"padding": 1}, (3, 10, 12), 8 * 3 * 9 * 10 * 12),
    "same": (nn.Conv2d, (3, 8, 5), {"padding": "same"}, (3, 10, 12), 8 * 3 * 25 * 10 * 12),
    "dilated": (nn.Conv2d, (3, 8, 3), {"dilation": 3}, (3, 10, 12), 8 * 3 * 9 * 4 * 6),
    "without bias": (nn.Conv2d, (3, 8, 3), {"bias": False}, (3, 10, 12), 8 * 3 * 9 * 8 * 10),
    "grouped 1d": (nn.Conv1d, (6, 9, 5), {"groups": 3}, (6, 20), 9 * 2 * 5 * 16),
    "grouped 2d": (nn.Conv2d, (8, 12, 3), {"groups": 4, "stride": 2, "padding": 1}, (8, 9, 9), 12 * 2 * 9 * 5 * 5),
    "grouped 3d": (nn.Conv3d, (4, 6, 3), {"groups": 2}, (4, 5, 6, 7), 6 * 2 * 27 * 3 * 4 * 5),
    "depthwise 1d": (nn.Conv1d, (8, 8, 3), {"groups": 8, "padding": 1}, (8, 20), 8 * 3 * 20),
    "depthwise 2d": (nn.Conv2d, (64, 64, 3), {"groups": 64, "padding": 1}, (64, 8, 8), 64 * 9 * 64),
    "depthwise 3d": (nn.Conv3d, (4, 4, 3), {"groups": 4, "padding": 1}, (4, 5, 6, 7), 4 * 27 * 5 * 6 * 7),
    "depthwise with two outputs per channel": (nn.Conv2d, (8, 16, 3), {"groups": 8}, (8, 8, 8), 16 * 9 * 36),
    # input channels x output channels of a group x kernel x positions of the input
    "transposed 1d": (nn.ConvTranspose1d, (6, 4, 5), {"stride": 3}, (6, 10), 6 * 4 * 5 * 10),
    "transposed 2d": (
        nn.ConvTranspose2d,
        (6, 4, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
        (6, 5, 7),
        6 * 4 * 9 * 5 * 7,
    ),
    "transposed 3d": (nn.ConvTranspose3d, (2, 4, 2), {"stride": 2}, (2, 3, 4, 5), 2 * 4 * 8 * 3 * 4 * 5),
    "grouped transposed 1d": (nn.ConvTranspose1d, (6, 9, 5), {"groups": 3}, (6, 10), 6 * 3 * 5 * 10),
    "grouped transposed 2d": (
        nn.ConvTranspose2d,
        (8, 12, 3),
        {"groups": 4, "stride": 2, "dilation": 2},
        (8, 5, 7),
        8 * 3 * 9 * 5 * 7,
    ),
    "depthwise transposed 2d": (nn.ConvTranspose2d, (16, 16, 2), {"groups": 16, "stride": 2}, (16, 4, 4), 16 * 4 * 16),
    "depthwise transposed 3d": (nn.ConvTranspose3d, (4, 4, 2), {"groups": 4}, (4, 3, 4, 5), 4 * 8 * 3 * 4 * 5),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    kind, sizes, options, shape, products = CONVOLUTIONS[name]
    assert flops(kind(*sizes, **options), shape) == (2 * products, 2 * products, 4 * products)


def test_a_frozen_convolution_computes_the_gradient_of_its_input_alone() -> None:
    layer = nn.Conv2d(8, 8, 3, groups=8).requires_grad_(False)
    products = 8 * 9 * 6 * 6
    assert flops(layer, (8, 8, 8)) == (2 * products, 0, 2 * products)


def test_a_depthwise_separable_block() -> None:
    """The block of MobileNet: a depthwise 3x3 convolution with stride 2, then a pointwise one."""
    block = nn.Sequential(
        nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        nn.Conv2d(32, 64, 1, bias=False),
        nn.BatchNorm2d(64),
    )
    measured = profile(nn.Sequential(Scale(), block), (32, 16, 16))
    products = [0, 32 * 9 * 8 * 8, 64 * 32 * 8 * 8]
    assert measured.forward_flops.tolist() == [2 * n for n in products]
    assert measured.backward_flops.tolist() == [4 * n for n in products]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(), (5,), (5, 3)])
def test_linear(rows: tuple[int, ...], bias: bool) -> None:
    products = torch.Size(rows).numel() * 6 * 7
    assert flops(nn.Linear(6, 7, bias=bias), (*rows, 6)) == (2 * products, 2 * products, 4 * products)


@pytest.mark.parametrize("bag", [False, True])
def test_embeddings_cost_nothing(bag: bool) -> None:
    table = nn.EmbeddingBag(10, 6) if bag else nn.Embedding(10, 6)
    measured = profile(nn.Sequential(table, nn.Linear(6, 7)), (5,))
    assert (measured.forward_flops[0], measured.backward_flops[0]) == (0, 0)


class DotProduct(nn.Module):
    """Attention of the input to itself, in heads, without weights beside the one that makes it a layer."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scale(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return functional.scaled_dot_product_attention(x, x, x, is_causal=self.causal).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_dot_product_attention(dtype: torch.dtype, causal: bool) -> None:
    """The products of queries with keys and of weights with values, for every pair of positions, masked or not.

    Each product has two gradients, and as the scale has one, so have queries, keys and values of a first layer.
    """
    length, width = 9, 12
    products = 2 * length * length * width
    assert flops(DotProduct(3, causal), (length, width), dtype) == (2 * products, 4 * products, 4 * products)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention of the input to itself."""

    def __init__(self, width: int, heads: int, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=self.weights)[0]


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention(weights: bool) -> None:
    """Queries, keys and values, the two products of attention, the projection of the output.

    As a first layer it computes no gradient for what queries, keys and values are made of.
    """
    length, width = 9, 12
    made, attended, projected = 3 * length * width**2, 2 * length**2 * width, length * width**2
    products = made + attended + projected
    expected = (2 * products, 2 * (2 * products - made), 4 * products)
    assert flops(SelfAttention(width, 3, weights), (length, width)) == expected


def test_a_transformer_layer() -> None:
    length, width, wide = 9, 12, 20
    products = 4 * length * width**2 + 2 * length**2 * width + 2 * length * width * wide
    layer = nn.TransformerEncoderLayer(width, 3, wide, dropout=0.0, batch_first=True)
    measured = profile(nn.Sequential(Scale(), layer), (length, width))
    assert (measured.forward_flops[1], measured.backward_flops[1]) == (2 * products, 4 * products)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer at every time."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers(kind: type[nn.RNNBase], gates: int, dtype: torch.dtype) -> None:
    """At every time each gate multiplies the input and the state before; no gradient reaches the first state."""
    length, inputs, hidden = 5, 6, 7
    read, kept = length * gates * inputs * hidden, gates * hidden * hidden
    products = read + length * kept
    measured = flops(Recurrent(kind(inputs, hidden, batch_first=True)), (length, inputs), dtype)
    assert measured == (2 * products, 2 * (2 * products - read - kept), 2 * (2 * products - kept))
