"""Whether a model can be trained apart by client: one round of both backends on it, before any other.

`stacked` runs the samples of an entity's clients through a layer together, `reference` one client after the other. A
layer that mixes the samples of a batch, or draws random numbers, gives other results together than apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from hsfl.engine.backend import Backend
from hsfl.engine.losses import Loss, cross_entropy
from hsfl.engine.outputs import each, joined, tensors
from hsfl.engine.per_client import seed_dropout, with_clients
from hsfl.engine.reference import ReferenceBackend
from hsfl.engine.running import run_layer
from hsfl.engine.stacked import StackedBackend
from hsfl.errors import ModelError

#: Two clients on one machine in both tiers, so that every layer works on both.
_HOSTS = [[0, 0], [0, 0]]
#: The largest difference in a weight's update, as a part of the largest update, that is rounding.
_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-7}


def check_by_client(
    layers: Sequence[nn.Module],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    device: torch.device,
    *,
    together: bool,
    loss: Loss = cross_entropy,
) -> None:
    """Train a round on (2, b, ...) samples; ModelError says what would go wrong, or differ, in training.

    `together`: the clients' samples are to be worked on together, as `stacked` does it.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if not together:
            _updates(ReferenceBackend, layers, inputs, targets, device, torch.float32, loss)
            return

        def differ(dtype: torch.dtype) -> bool:
            one, other = (
                _updates(kind, layers, inputs, targets, device, dtype, loss)
                for kind in (ReferenceBackend, StackedBackend)
            )
            return _apart(one, other) > _ROUNDING[dtype]

        if not differ(torch.float32):
            return
        with suppress(ModelError):  # a model that knows float32 only
            if not differ(torch.float64):  # so it was rounding
                return
        raise ModelError(_reason(layers, inputs, device))


def check_in_chunks(
    layers: Sequence[nn.Module],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    device: torch.device,
    *,
    loss: Loss = cross_entropy,
) -> None:
    """Train a round on (2, 2, ...) samples, whole and in chunks; ModelError where something else is learnt."""

    def differ(dtype: torch.dtype) -> bool:
        whole, apart = (
            _updates(ReferenceBackend, layers, inputs, targets, device, dtype, loss, chunks=chunks) for chunks in (1, 2)
        )
        return _apart(whole, apart) > _ROUNDING[dtype]

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if not differ(torch.float32):
            return
        with suppress(ModelError):  # a model that knows float32 only
            if not differ(torch.float64):
                return
    raise ModelError(
        "training.chunks: the model learns something else from a mini-batch in chunks than from a whole one, for a "
        "layer mixes the samples that it is given at once, or draws random numbers other than by nn.Dropout; remove "
        "chunks, or use training.micro_batches with a smaller training.batch_size"
    )


def _updates(
    kind: type[Backend],
    layers: Sequence[nn.Module],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
    loss: Loss,
    chunks: int = 1,
) -> dict[str, torch.Tensor]:
    """How a round changes every weight and buffer, by name, and the losses."""
    rule = {"name": "sgd", "lr": 1.0}
    backend = kind(layers, _HOSTS, (1,), rule, loss=loss, device=device, dtype=dtype, capture=False, chunks=chunks)
    before = {key: value.clone() for key, value in backend.global_state().items()}
    torch.manual_seed(1)
    losses = backend.step(inputs, targets)
    found = {key: value - before[key] for key, value in backend.global_state().items() if value.is_floating_point()}
    return found | {"losses": losses}


def _apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference, as a part of the largest number."""
    largest = max((float(value.abs().max()) for value in one.values() if value.numel()), default=0.0)
    difference = max((float((one[k] - other[k]).abs().max()) for k in one if one[k].numel()), default=0.0)
    return difference / largest if largest else difference


def _reason(layers: Sequence[nn.Module], inputs: torch.Tensor, device: torch.device) -> str:
    """The first layer that gives other results for two clients together than apart, and why."""
    clients, x = len(inputs), inputs.to(device).flatten(0, 1)
    remedy = 'train with execution.backend = "reference", which takes the clients one by one'
    for number, template in enumerate(layers):
        layer = with_clients(copy.deepcopy(template), number, together=True).to(device).train()

        def run(parts: Sequence[torch.Tensor], members: Sequence[Sequence[int]], seed: int, layer=layer, n=number):  # type: ignore[no-untyped-def]
            torch.manual_seed(seed)
            outputs = []
            for part, group in zip(parts, members, strict=True):
                twin = copy.deepcopy(layer)
                seed_dropout(twin.modules(), group, 0, 0)
                found = run_layer(n, twin, part, several=n == len(layers) - 1)
                outputs.append(each(torch.Tensor.detach, found))
            return joined(outputs)

        name = f"layer {number + 1} ({type(template).__name__})"
        everyone = list(range(clients))
        whole = run([x], [everyone], 1)
        again = run([x], [everyone], 2)
        if not all(map(torch.equal, tensors(whole), tensors(again))):
            return f"{name} draws random numbers that cannot be told apart by client; use nn.Dropout, or {remedy}"
        apart = run(x.chunk(clients), [[n] for n in everyone], 1)
        pairs = zip(map(torch.Tensor.float, tensors(whole)), map(torch.Tensor.float, tensors(apart)), strict=True)
        if any((one - other).abs().max() > _ROUNDING[torch.float32] * (1 + other.abs().max()) for one, other in pairs):
            return (
                f"{name} mixes the samples of its batch, as batch statistics do, so that clients who share a machine "
                f"would see each other's data; use nn.BatchNorm or a normalisation of single samples, or {remedy}"
            )
        x = apart
    return f"the model, or its loss, is another when the samples of several clients are worked on together; {remedy}"
