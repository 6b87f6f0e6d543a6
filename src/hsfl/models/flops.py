"""Count the FLOPs of matrix products and convolutions, two per multiply-add, whatever kernels torch would choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

_Shape = Sequence[int]


def flop_counter() -> FlopCounterMode:
    """A context that counts the FLOPs of the operations run inside, on the CPU; `get_total_flops` gives the number.

    Convolutions are counted here and not by torch, whose formula for the gradient of a convolution's weights takes
    every group to have all channels.
    """
    formulas = {
        torch.ops.aten.convolution: _convolution,
        torch.ops.aten.convolution_backward: _convolution_backward,
    }
    return FlopCounterMode(display=False, custom_mapping=formulas)


@contextmanager
def unfused() -> Iterator[None]:
    """Run attention and recurrent layers as separate matrix products.

    Fused kernels are counted in other ways or not at all, and which of them torch picks depends on its version, the
    machine and the floating-point type.
    """
    mkldnn: Any = torch.backends.mkldnn
    enabled = mkldnn.enabled
    try:
        mkldnn.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mkldnn.enabled = enabled


def _convolution(
    samples: _Shape,
    weight: _Shape,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    *_: Any,
    out_shape: _Shape,
) -> int:
    """FLOPs of a convolution: each weight is multiplied once per sample and position, on padding too.

    The positions are the output's, or the input's where the convolution is transposed. The weights of a group reach
    only the channels of that group, so the number of weights has the division by groups in it.
    """
    positions = samples if transposed else out_shape
    return 2 * samples[0] * prod(weight) * prod(positions[2:])


def _convolution_backward(gradient: _Shape, samples: _Shape, weight: _Shape, *options: Any, out_shape: Any) -> int:
    """FLOPs of a convolution's gradients: the input's gradient and the weights' each cost a forward pass."""
    *_, (of_input, of_weight, _of_bias) = options
    return (of_input + of_weight) * _convolution(samples, weight, *options, out_shape=gradient)
