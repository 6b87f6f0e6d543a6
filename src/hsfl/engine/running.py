"""A user's own modules, run: what goes wrong in them is one sentence that names the layer."""

from __future__ import annotations

import torch
from torch import nn

from hsfl.errors import HsflError, ModelError


def run_layer(number: int, module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """What a layer makes of a batch; ModelError, with the layer counted from 1, where it fails."""
    try:
        outputs = module(inputs)
    except (HsflError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or "no message"
        raise ModelError(
            f"layer {number + 1} ({type(module).__name__}) raised {type(error).__name__} on a batch of shape "
            f"{tuple(inputs.shape)} ({reason}); check that it takes what the layer before gives, and the batch size"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.dim() < 1 or len(outputs) != len(inputs):
        given = f"shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
        raise ModelError(
            f"layer {number + 1} ({type(module).__name__}) gives {given} for a batch of {len(inputs)} samples; it must "
            "give one tensor with a row for each of them"
        )
    return outputs


def scalar_loss(loss: torch.Tensor) -> torch.Tensor:
    """A loss as training takes it: one number."""
    if not isinstance(loss, torch.Tensor) or loss.dim():
        given = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise ModelError(f"the loss gives {given}; it must give the mean over its samples, a tensor with one number")
    return loss
