"""What a model gives: one tensor or, at the top, several in a tuple, a list or a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors(outputs: Any) -> list[torch.Tensor]:
    """All of them, in order."""
    return pytree.tree_leaves(outputs)


def each(function: Callable[..., torch.Tensor], *outputs: Any) -> Any:
    """The same with every tensor changed; of several outputs of one form, with tensors made of all of theirs."""
    return pytree.tree_map(function, *outputs)


def joined(parts: Sequence[Any]) -> Any:
    """The outputs of several batches as those of one."""
    return each(lambda *same: torch.cat(same), *parts) if len(parts) > 1 else parts[0]


def leaves(outputs: Any) -> tuple[Any, list[torch.Tensor]]:
    """Outputs apart from what computed them, and their tensors that have a gradient: all of numbers with a point."""
    apart = each(lambda x: x.detach().requires_grad_(x.is_floating_point()), outputs)
    return apart, [x for x in tensors(apart) if x.requires_grad]


def gradients(loss: torch.Tensor, of: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of a loss; 0 for what it does not use."""
    found = torch.autograd.grad(loss, of, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(of, found, strict=True)]
