"""Profile a model: count what each layer costs (FLOPs and bits, the same everywhere) or time it on this machine."""

from __future__ import annotations

import copy
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from hsfl.errors import ModelError
from hsfl.models.chain import chain
from hsfl.models.checks import check_model, times, whole_sizes
from hsfl.models.flops import flop_counter, unfused
from hsfl.models.trace import undisturbed
from hsfl.problem.profile import OPTIMIZER_STATE_COPIES, LayerProfile

#: Samples in the counted batch; one would be too few for batch normalisation.
_BATCH = 2

Meter = TypeVar("Meter")


def profile(model: nn.Module, input_shape: tuple[int, ...], optimizer: str = "sgd") -> LayerProfile:
    """Count what each layer of `model` costs in training for one sample of `input_shape`.

    Counted are the FLOPs of matrix products and convolutions, two per multiply-add; the first layer's backward pass
    computes no gradient for the input data. The model and the random state stay as they are.
    """
    if optimizer not in OPTIMIZER_STATE_COPIES:
        raise ModelError(f"unknown optimizer {optimizer!r}; known are {', '.join(OPTIMIZER_STATE_COPIES)}")
    copies = OPTIMIZER_STATE_COPIES[optimizer]
    rows = []
    with torch.random.fork_rng(devices=[]), unfused():
        layers, example = _prepare(model, input_shape, _BATCH)
        for layer, outputs, forward, backward in _passes(layers, example, flop_counter):
            state = {id(t): t for t in layer.state_dict(keep_vars=True).values() if t.is_floating_point()}
            rows.append(
                (
                    forward.get_total_flops() / _BATCH,
                    backward.get_total_flops() / _BATCH,
                    sum(map(_bits, outputs)) / _BATCH,
                    sum(_bits(output) for output in outputs if output.requires_grad) / _BATCH,
                    sum(map(_bits, state.values())),
                    copies * sum(_bits(p) for p in layer.parameters() if p.requires_grad),
                    sum(_bits(t) for t in state.values() if not isinstance(t, nn.Parameter)),
                )
            )
    names = tuple(name for name, _ in layers.named_children())
    *costs, buffers = np.array(rows, dtype=np.float64).T
    return replace(LayerProfile(names, *costs), buffer_bits=buffers if buffers.any() else None)


def time_layers(
    model: nn.Module, input_shape: tuple[int, ...], batch_size: int, repeats: int = 5
) -> npt.NDArray[np.float64]:
    """Seconds that one batch takes on this machine's CPU: a row per layer, with the forward and the backward pass.

    Each entry is the median of `repeats` runs after a warm-up run. The model and the random state stay as they are.
    """
    if batch_size < 1 or repeats < 1:
        raise ModelError(f"timing needs a batch size and repeats of at least 1, not {batch_size} and {repeats}")
    runs = []
    with torch.random.fork_rng(devices=[]):
        layers, example = _prepare(model, input_shape, batch_size)
        for _ in range(1 + repeats):
            layers.zero_grad(set_to_none=True)
            passes = _passes(layers, example, _Stopwatch)
            runs.append([(forward.seconds, backward.seconds) for _, _, forward, backward in passes])
    medians: npt.NDArray[np.float64] = np.median(np.array(runs[1:]), axis=0)
    return medians


def peak_flops(size: int = 2048, repeats: int = 5) -> float:
    """FLOP/s of this machine's CPU on a large float32 matrix product, the rate that real layers stay below."""
    matrix = torch.ones(size, size)
    seconds = []
    for _ in range(1 + repeats):
        with _Stopwatch() as watch:
            torch.mm(matrix, matrix)
        seconds.append(watch.seconds)
    return 2 * size**3 / min(seconds[1:])


def example_input(model: nn.Module, input_shape: tuple[int, ...], batch: int) -> torch.Tensor:
    """A batch that `model` can read: random numbers, or tokens where an embedding looks the input up."""
    check_model(model)
    shape = (batch, *whole_sizes(input_shape))
    if min(shape) < 1:
        raise ModelError(f"input_shape must have no size below 1, unlike {times(shape[1:])}")
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    with undisturbed(model):
        numbers = _random(shape).to(weight)
        try:
            model(numbers)
        except Exception as error:
            calls = {(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)}
            if calls & {(functional.__file__, name) for name in ("embedding", "embedding_bag")}:
                return torch.zeros_like(numbers, dtype=torch.int64)
    return numbers


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    """Random numbers of a shape; a shape too large for this machine's memory is refused."""
    try:
        # A system that lends more memory than it has would end the process, without a word, once the memory is used.
        if torch.float32.itemsize * math.prod(shape) > _memory_bytes():
            raise MemoryError
        return torch.randn(shape)
    except (MemoryError, OverflowError, RuntimeError, TypeError):  # torch has one error for each way to be too large
        raise ModelError(
            f"input_shape {times(shape[1:])} is too large: {shape[0]} samples do not fit into this machine's memory; "
            "give the shape of one sample"
        ) from None


def _memory_bytes() -> float:
    """The size of this machine's memory; infinity where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def _prepare(model: nn.Module, input_shape: tuple[int, ...], batch: int) -> tuple[nn.Sequential, torch.Tensor]:
    """The chain of a copy of `model`, on the CPU and in training mode, and a batch that the chain can read."""
    check_model(model)
    model = copy.deepcopy(model).cpu()
    example = example_input(model, input_shape, batch)
    return chain(model, example).train(), example


def _passes(
    layers: nn.Sequential, example: torch.Tensor, meter: Callable[[], AbstractContextManager[Meter]]
) -> Iterator[tuple[nn.Module, list[torch.Tensor], Meter, Meter]]:
    """Each layer with its outputs, of which the last one may have several, and the metered forward and backward pass.

    As if a cut preceded every layer.
    """
    value = example
    for index, (name, layer) in enumerate(layers.named_children()):
        value = value.detach().requires_grad_(index > 0 and value.is_floating_point())
        try:
            with meter() as forward:
                found = layer(value)
            outputs = tree_leaves(found)
            trained = [output for output in outputs if output.requires_grad]
            gradients = [torch.ones_like(output) for output in trained]
            with meter() as backward:
                if trained:
                    torch.autograd.backward(trained, gradients)
        except (RuntimeError, ValueError) as error:
            shape = times(value.shape)
            reason = " ".join(str(error).split()).rstrip(".")
            raise ModelError(f"layer {name} cannot be trained on inputs of shape {shape}: {reason}") from None
        yield layer, outputs, forward, backward
        value = found


class _Stopwatch:
    seconds = 0.0

    def __enter__(self) -> _Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start


def _bits(tensor: torch.Tensor) -> int:
    return 8 * tensor.element_size() * tensor.numel()
