"""What training minimises by default: the cross entropy of classes, and how many of them are right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from hsfl.errors import ModelError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean loss over all targets: one class per image, per token of a text, or per pixel."""
    return functional.cross_entropy(classes_last(outputs, targets).flatten(0, -2), targets.flatten())


def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor, clients: int) -> torch.Tensor:
    """(clients,): the mean loss of each client, whose samples are next to each other."""
    scores = classes_last(outputs, targets).flatten(0, -2)
    return functional.cross_entropy(scores, targets.flatten(), reduction="none").view(clients, -1).mean(1)


def correct(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How many targets have the highest output of all classes; 0 where targets are no classes of the outputs."""
    if targets.is_floating_point() or _class_axis(outputs, targets) is None:
        return torch.zeros((), dtype=torch.int64, device=outputs.device)
    return (classes_last(outputs, targets).argmax(-1) == targets).sum()


def classes_last(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The outputs with the axis of the classes at the end: (b, C), (b, length, C), (b, height, width, C)."""
    axis = _class_axis(outputs, targets)
    if axis is None:
        raise ModelError(
            f"the model gives {_shape(outputs)} for targets of {_shape(targets)}; cross entropy needs one more axis in "
            "the outputs than in the targets, with a value for each class: the last one, or the one after the samples"
        )
    return outputs.movedim(axis, -1)


def _class_axis(outputs: torch.Tensor, targets: torch.Tensor) -> int | None:
    """The axis of `outputs` that `targets` lacks: the last or, as images have it, the second."""
    if outputs.dim() != targets.dim() + 1:
        return None
    last = outputs.shape[:-1] == targets.shape
    second = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    if second and (outputs.dim() > 3 or not last):  # where both fit, images have their classes second, texts last
        return 1
    return outputs.dim() - 1 if last else None


def targets_of(outputs: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """The shape of the targets of one sample that fit some outputs, and the number of classes."""
    axis = 1 if outputs.dim() > 3 else outputs.dim() - 1
    shape = tuple(outputs.shape)
    return shape[1:axis] + shape[axis + 1 :], shape[axis]


def _shape(tensor: torch.Tensor) -> str:
    return f"shape ({', '.join(map(str, tensor.shape))})"
