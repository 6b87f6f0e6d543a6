"""The networks that only experiments train, named as factories in their scenarios."""

from __future__ import annotations

from torch import nn

from hsfl import models


def vgg16_group_norm() -> nn.Module:
    """VGG-16 with group normalisation after every convolution, which needs no statistics of a batch."""
    modules: list[nn.Module] = []
    for module in models.build("vgg16").children():
        modules.append(module)
        if isinstance(module, nn.Conv2d):
            modules.append(nn.GroupNorm(32, module.out_channels))
    return nn.Sequential(*modules)
