"""The models that come with hsfl, and those that a user's own factory builds."""

from __future__ import annotations

import copy
import difflib
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hsfl.errors import ModelError
from hsfl.factory import source
from hsfl.models.checks import times, whole_sizes

Shape = tuple[int, ...]

_VGG_CONVOLUTIONS = {
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg16": ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}


def build(name: str, input_shape: Shape | None = None, classes: int = 10) -> nn.Module:
    """A new built-in model for samples of `input_shape`, by default the model's own shape.

    Images are (channels, height, width). For `gpt` the shape is (context,) and `classes` has no effect, since a
    `gpt` predicts bytes. Initial weights follow torch's random state.
    """
    default, make = _entry(name)
    shape = default if input_shape is None else whole_sizes(input_shape)
    if len(shape) != len(default) or min(shape) < 1:
        raise ModelError(f"{name} takes samples like {times(default)}, not {times(shape) or 'an empty shape'}")
    if not isinstance(classes, int) or classes < 1:
        raise ModelError(f"{name} tells a whole number of classes apart, at least 1, not {classes!r}")
    try:
        return make(shape, classes)
    except (RuntimeError, MemoryError, OverflowError, TypeError):  # torch has one error for each way to be too large
        raise ModelError(
            f"{name} for samples of {times(shape)} and {classes} classes does not fit into this machine's memory; "
            "give smaller sizes"
        ) from None


def input_shape(name: str) -> Shape:
    """The shape of one sample that a built-in model takes by default."""
    return _entry(name)[0]


def vgg(name: str, shape: Shape, classes: int) -> nn.Sequential:
    """VGG without normalisation: 3x3 convolutions in five pooled stages, then three fully connected layers."""
    channels, height, width = shape
    if min(height, width) < 32:
        raise ModelError(f"{name} halves an image five times and needs at least 32x32 pixels, not {height}x{width}")
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    number = 0
    for stage, outputs in enumerate(_VGG_CONVOLUTIONS[name], start=1):
        for features in outputs:
            number += 1
            modules[f"conv{number}"] = nn.Conv2d(channels, features, 3, padding=1)
            modules[f"conv{number}_relu"] = nn.ReLU()
            channels = features
        modules[f"pool{stage}"] = nn.MaxPool2d(2)
    modules["flatten"] = nn.Flatten()
    modules["fc1"] = nn.Linear(channels * (height // 32) * (width // 32), 4096)
    modules["fc1_relu"] = nn.ReLU()
    modules["fc2"] = nn.Linear(4096, 4096)
    modules["fc2_relu"] = nn.ReLU()
    modules["fc3"] = logits = nn.Linear(4096, classes)
    model = nn.Sequential(modules)
    model.apply(_kaiming)
    nn.init.normal_(logits.weight, std=0.01)  # training starts near a loss of log(classes)
    return model


def lenet5(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling; the first convolution pads 28x28 images to the original 32x32."""
    channels, height, width = shape
    if min(height, width) < 12:
        raise ModelError(f"lenet5 needs at least 12x12 pixels, not {height}x{width}")
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=2),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2), 120),
            fc1_relu=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            fc2_relu=nn.ReLU(),
            fc3=nn.Linear(84, classes),
        )
    )


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        result: torch.Tensor = self.relu(y + self.shortcut(x))
        return result


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3x3 stem without stride or pooling."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(
            *(ResidualBlock(inputs, outputs, outputs // inputs) for inputs, outputs in itertools.pairwise(widths))
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        self.apply(_kaiming)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.relu(self.norm(self.stem(x))))
        logits: torch.Tensor = self.fc(self.pool(x).flatten(1))
        return logits


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: torch.Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result


class TransformerBlock(nn.Module):
    """Attention, then a four times wider MLP; each of the two normalises its input and adds its output to the input."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(expand=nn.Linear(width, 4 * width), gelu=nn.GELU(), shrink=nn.Linear(4 * width, width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class VisionTransformer(nn.Module):
    """A small vision transformer that classifies an image by the class token's final state."""

    def __init__(self, shape: Shape, classes: int, *, patch: int = 4, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        channels, height, columns = shape
        if height % patch or columns % patch:
            raise ModelError(f"vit needs a height and a width that are multiples of {patch}, not {height}x{columns}")
        self.patch = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + (height // patch) * (columns // patch), width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads=3, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.apply(_small_normal)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.position)
        logits: torch.Tensor = self.head(self.norm(x)[:, 0])
        return logits


class GPT(nn.Module):
    """A small causal transformer over bytes: int64 tokens (batch, context) to logits (batch, context, 256)."""

    def __init__(self, context: int, *, vocabulary: int = 256, width: int = 256, depth: int = 6) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads=8, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_small_normal)
        nn.init.normal_(self.position, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "shrink.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        x = self.blocks(x + self.position[: x.shape[1]])
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def _kaiming(module: nn.Module) -> None:
    """Keep the variance of activations through ReLU layers, so that a deep network without normalisation trains."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


_ZOO: dict[str, tuple[Shape, Callable[[Shape, int], nn.Module]]] = {
    "lenet5": ((1, 28, 28), lenet5),
    "vgg11": ((3, 32, 32), partial(vgg, "vgg11")),
    "vgg16": ((3, 32, 32), partial(vgg, "vgg16")),
    "resnet18": ((3, 32, 32), ResNet18),
    "vit": ((3, 32, 32), VisionTransformer),
    "gpt": ((128,), lambda shape, classes: GPT(shape[0])),
}

#: The built-in models.
NAMES = tuple(_ZOO)


def _entry(name: str) -> tuple[Shape, Callable[[Shape, int], nn.Module]]:
    try:
        return _ZOO[name]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"built in are {', '.join(NAMES)}"
        raise ModelError(f"no built-in model {name!r}: {hint}") from None


def load_factory(spec: str, search: Path | None, given: Any = None) -> nn.Module:
    """The model that the factory named "package.module:function" returns; `search` is a folder to look in.

    `given` is taken instead: a function that returns a model, or a model, of which this is a copy.
    """
    model = source(spec, search, spec, ModelError, given).call()
    if model is given and isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec} returned a {type(model).__name__}; a factory must return an nn.Module")
    return model
