"""A user's own modules, run: what goes wrong in them is one sentence that names the layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hsfl.engine.outputs import tensors
from hsfl.errors import HsflError, ModelError, raised


def run_layer(number: int, module: nn.Module, inputs: torch.Tensor, *, several: bool = False) -> Any:
    """What a layer makes of a batch; ModelError, with the layer counted from 1, where it fails.

    That is one tensor or, where `several` may be, tensors in a tuple, a list or a dictionary; a row for every sample.
    """
    try:
        outputs = module(inputs)
    except (HsflError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"layer {number + 1} ({type(module).__name__}) fails on a batch of shape {tuple(inputs.shape)}: "
            f"{raised(error)}; check that it takes what the layer before gives, and the batch size"
        ) from error
    found = tensors(outputs) if several else [outputs]
    for one in found or [outputs]:
        if not isinstance(one, torch.Tensor) or one.dim() < 1 or len(one) != len(inputs):
            given = f"shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else f"a {type(one).__name__}"
            wanted = "tensors" if several else "one tensor (several only from the last layer, in the top tier)"
            raise ModelError(
                f"layer {number + 1} ({type(module).__name__}) gives {given} for a batch of {len(inputs)} samples; it "
                f"must give {wanted} with a row for each of them"
            )
    return outputs
