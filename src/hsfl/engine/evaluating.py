"""Loss and accuracy of a model on test data, taken in batches and waited for once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from hsfl.engine.losses import Loss, correct
from hsfl.engine.precision import arithmetic, casts
from hsfl.engine.running import run_layer
from hsfl.engine.training_data import Batch
from hsfl.errors import HsflError


def in_batches(data: Batch | Iterable[Batch], batch_size: int) -> Iterable[Batch]:
    """A pair of inputs and targets in batches of so many; batches as they are."""
    if isinstance(data, torch.Tensor):
        raise HsflError("evaluate takes one pair: evaluate((inputs, targets)), or batches of such pairs")
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], torch.Tensor):
        inputs, targets = data
        return zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
    return data


def evaluated(
    layers: Iterable[nn.Module],
    batches: Iterable[Batch],
    loss: Loss,
    prepare: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    precision: str,
) -> dict[str, float]:
    """`loss` and `accuracy` over all samples; `prepare` makes of a batch's inputs what the first layer takes."""
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    count = labels = 0
    with arithmetic(device, precision), casts(device, precision):
        for inputs, targets in batches:
            x, targets = prepare(inputs), targets.to(device)
            for number, layer in enumerate(layers):
                x = run_layer(number, layer, x)
            mean = loss(x.to(dtype), targets).double() * len(targets)
            sums += torch.stack((mean, correct(x, targets).double()))
            count, labels = count + len(targets), labels + targets.numel()
    if not count:
        raise HsflError("evaluate: there are no samples; give at least one")
    total, right = sums.tolist()
    return {"loss": total / count, "accuracy": right / labels}
