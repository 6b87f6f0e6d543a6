"""What training minimises and what evaluations count: a number for every sample. The losses by name are torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from hsfl.engine.outputs import each
from hsfl.errors import HsflError, ModelError, raised
from hsfl.problem.topology import FloatArray

#: Takes what the model gives for some samples, and their targets; a number for each, (samples,) or (samples, ...).
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Metric = Loss


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One class per image, per token of a text, or per pixel."""
    scores = classes_last(outputs, targets).flatten(0, -2)
    return functional.cross_entropy(scores, targets.flatten(), reduction="none").view(targets.shape)


def mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, _alike("mse", outputs, targets), reduction="none")


def l1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(outputs, _alike("l1", outputs, targets), reduction="none")


def bce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The binary cross entropy of scores, before any sigmoid, and targets from 0 to 1."""
    targets = _alike("bce", outputs, targets).to(outputs.dtype)  # classes 0 and 1 may be whole numbers
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether the highest output of all classes is the target's."""
    return classes_last(outputs, targets).argmax(-1) == targets


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "l1": l1, "bce": bce}
METRICS: dict[str, Metric] = {"accuracy": accuracy, "mse": mse, "l1": l1}


def mean_loss(losses: torch.Tensor, parts: FloatArray | None) -> float:
    """The mean over clients, each with its part; None: equal parts."""
    return float(losses.mean() if parts is None else torch.as_tensor(parts).to(losses) @ losses)


def usual_metrics(loss: Loss) -> Mapping[str, Metric]:
    """What is counted beside a loss unless something else is asked for."""
    return {"accuracy": accuracy} if loss is cross_entropy else {}


def by_sample(
    function: Loss, outputs: Any, targets: torch.Tensor, dtype: torch.dtype, what: str = "the loss"
) -> torch.Tensor:
    """(samples, numbers): what a loss or a metric gives; ModelError where that is not a number for every sample.

    It is given what has a point, in outputs and targets, in `dtype`.
    """

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    outputs, targets = each(cast, outputs), cast(targets)
    try:
        found = function(outputs, targets)
    except (HsflError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"{what} fails on targets of {_shape(targets)}: {raised(error)}; check that it takes what the model gives "
            "and what the data have"
        ) from error
    if not isinstance(found, torch.Tensor) or found.dim() < 1 or len(found) != len(targets):
        given = _shape(found) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        raise ModelError(
            f'{what} gives {given} for {len(targets)} samples; it must give a number for each: reduction="none" in '
            "torch's losses"
        )
    return found.reshape(len(targets), -1)


def classes_last(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The outputs with the axis of the classes at the end: (b, C), (b, length, C), (b, height, width, C)."""
    axis = _class_axis(outputs, targets) if isinstance(outputs, torch.Tensor) else None
    if axis is None:
        raise ModelError(
            f"the model gives {_shape(outputs)} for targets of {_shape(targets)}; cross entropy needs one more axis in "
            "the outputs than in the targets, with a value for each class: the last one, or the one after the samples"
        )
    return outputs.movedim(axis, -1)


def are_classes(outputs: Any, targets: torch.Tensor) -> bool:
    """Whether targets are numbers of classes that the outputs have scores of."""
    if targets.is_floating_point() or not isinstance(outputs, torch.Tensor):
        return False
    return _class_axis(outputs, targets) is not None


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


def _alike(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The targets, if they have the shape of the outputs: torch would stretch one to the other."""
    if not isinstance(outputs, torch.Tensor) or outputs.shape != targets.shape:
        raise ModelError(
            f"the model gives {_shape(outputs)} for targets of {_shape(targets)}; {name} needs a target for every "
            "output"
        )
    return targets


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"shape ({', '.join(map(str, value.shape))})"
