"""The networks that only experiments train, named as factories in their scenarios."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from hsfl import models
from hsfl.models.zoo import Shape


def _normalised(name: str, norm: Callable[[int], nn.Module], shape: Shape | None = None) -> nn.Module:
    """A built-in model with a normalisation after every convolution."""
    modules: list[nn.Module] = []
    for module in models.build(name, shape).children():
        modules.append(module)
        if isinstance(module, nn.Conv2d):
            modules.append(norm(module.out_channels))
    return nn.Sequential(*modules)


def vgg16_group_norm() -> nn.Module:
    """VGG-16 with group normalisation, which needs no statistics of a batch."""
    return _normalised("vgg16", lambda channels: nn.GroupNorm(32, channels))


def vgg16_batch_norm() -> nn.Module:
    """VGG-16 with batch normalisation, by the statistics of each client's own mini-batch."""
    return _normalised("vgg16", nn.BatchNorm2d)


def lenet5_batch_norm() -> nn.Module:
    """LeNet-5 with batch normalisation, by the statistics of each client's own mini-batch."""
    return _normalised("lenet5", nn.BatchNorm2d)


def rgb_lenet5_batch_norm() -> nn.Module:
    """The same for images of CIFAR-10."""
    return _normalised("lenet5", nn.BatchNorm2d, (3, 32, 32))
