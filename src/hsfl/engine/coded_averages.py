"""Averages written in fewer bits, both ways: what coding leaves out is kept, and added to what is sent next time.

Sent are differences to the last average. With Q for what a codec makes of a layer's weights, written one after another:

    entity j:    q_j = Q(change_j + unsent_j);  unsent_j <- change_j + unsent_j - q_j
    fed server:  mean = rule(sum_j share_j q_j);  q = Q(mean + unsent);  unsent <- mean + unsent - q
    all:         adopt the change q: the same for all of them, to the bit

The rule is that of averages; the plain one leaves the mean as it is. Only weights are coded. Buffers, and the
optimiser's state where that is averaged too, are sent as they are: they have no last average to differ from, and of
Adam's squares the small ones, which count most, would round to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import torch

from hsfl.engine.averaging import UNSENT, Tensors
from hsfl.engine.flat_tiers import Sequences
from hsfl.engine.links import Codec
from hsfl.errors import DivergedError
from hsfl.problem.codes import Code
from hsfl.problem.topology import Clients


def send(codec: Codec, contributed: Tensors, unsent: Sequence[Tensors]) -> Tensors:
    """What arrives of what one machine sends: of each layer the changes of its weights, and then what is not coded.

    `unsent` is what the machine keeps of every layer; it is left as it is to be added next time.
    """
    rest = iter(contributed)
    arrives = [tensor for left in unsent for tensor in _send_layer(codec, list(islice(rest, len(left))), left)]
    return [*arrives, *rest]


def _send_layer(codec: Codec, changes: Tensors, unsent: Tensors) -> Tensors:
    if not changes:
        return []
    meant = torch.cat([(change + left).flatten() for change, left in zip(changes, unsent, strict=True)])
    arrives = codec.passed(meant[None])[0]
    sizes = [left.numel() for left in unsent]
    for left, rest in zip(unsent, (meant - arrives).split(sizes), strict=True):
        left.copy_(rest.view(left.shape))
    return [part.view(left.shape) for part, left in zip(arrives.split(sizes), unsent, strict=True)]


def coded_mean(
    codec: Codec,
    mean: Callable[[Tensors], Tensors],
    served: Callable[[Tensors], Tensors],
    contributed: Tensors,
    unsent: Tensors,
    server_unsent: Tensors,
    sequences: Sequences,
) -> Tensors:
    """The average as it arrives, in one row, of what all entities of a tier contribute, with a row each.

    `mean` is that of rows over the tier, and `served` what the fed server makes of that of changes. `unsent` are the
    rows of what the entities keep and `server_unsent` the row of the fed server; both are left as they are to be added
    next time.
    """
    changes, beside = contributed[: len(unsent)], contributed[len(unsent) :]
    average = [torch.zeros_like(row) for row in server_unsent]
    if changes:
        meant = sequences.joined([change + left for change, left in zip(changes, unsent, strict=True)])
        arrives = codec.passed(meant)
        sequences.spread(meant - arrives, unsent)
        sequences.spread(mean([arrives])[0], average)
        meant = sequences.joined([a + left for a, left in zip(served(average), server_unsent, strict=True)])
        arrives = codec.passed(meant)
        sequences.spread(meant - arrives, server_unsent)
        sequences.spread(arrives, average)
    return [*average, *mean(beside)]


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Waits for the device once."""
    found = [tensor.isfinite().all() for tensor in tensors]
    return not found or bool(torch.stack(found).all())


def check_unsent(slots: Iterable[Mapping[str, torch.Tensor]], clients: Sequence[Clients], code: Code) -> None:
    """DivergedError for the first entity that has left unsent what is not finite; `slots` are by "SLOT.LAYER.NAME"."""
    for of_entity, served in zip(slots, clients, strict=True):
        for key, left in of_entity.items():
            slot, layer, _ = key.split(".", 2)
            if slot == UNSENT and not all_finite([left]):
                raise DivergedError(
                    f"layer {int(layer) + 1} of client {served[0] + 1} has weights that are not finite, which an "
                    f"average in {code.name} cannot carry; lower training.learning_rate, or check the data of that "
                    "client"
                )
