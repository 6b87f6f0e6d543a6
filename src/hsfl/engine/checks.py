"""What a backend is given, checked: a sentence now instead of a traceback in the first round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from hsfl.errors import HsflError, ModelError, ScenarioError
from hsfl.models.checks import check_model
from hsfl.problem.topology import Topology

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def checked_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """float32 or float64, as torch has them or by name."""
    found = _DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ScenarioError(f"dtype {dtype!r}: it must be {' or '.join(_DTYPES)}; precision has bf16")
    return found


def checked_layers(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules that can be copied, moved and trained one by one; ModelError names the first that cannot."""
    if isinstance(layers, str | bytes) or not isinstance(layers, Iterable):
        raise ModelError(f"layers is a {type(layers).__name__}; give the model as a list of torch modules")
    found = list(layers)
    if not found:
        raise ModelError("layers is empty; give the model as a list of at least one torch module")
    first_use: dict[int, str] = {}
    for number, layer in enumerate(found, start=1):
        try:
            check_model(layer)
        except ModelError as error:
            raise ModelError(f"layer {number}: {error}") from None
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if is_lazy(tensor):
                raise ModelError(
                    f"layer {number}: the shape of {name} is not known yet; run the model on a batch first"
                )
            if (before := first_use.setdefault(id(tensor), f"layer {number}")) != f"layer {number}":
                raise ModelError(
                    f"layer {number}: {name} is also in {before}, and two tiers cannot hold one tensor; give each "
                    "layer its own"
                )
    return found


def checked_cuts(cuts: Sequence[int], topology: Topology, layers: int) -> tuple[int, ...]:
    """Cuts of so many layers for the tiers of a tree; ScenarioError where they are none."""
    cuts, tiers = tuple(int(c) for c in cuts), topology.num_tiers
    if len(cuts) != tiers - 1:
        raise ScenarioError(f"cuts {list(cuts)}: {tiers} tiers need {tiers - 1} cuts")
    last = layers - 1 if topology.returns else layers  # labels stay with at least one layer
    if list(cuts) != sorted(cuts) or cuts[0] < 1 or cuts[-1] > last:
        raise ScenarioError(f"cuts {list(cuts)}: they must not fall and lie between 1 and {last}")
    return cuts


def checked_clients(clients: Sequence[int], among: Sequence[int]) -> tuple[int, ...]:
    """Those who take part, perhaps none; HsflError unless they are some of those that may, in order."""
    given = tuple(int(n) for n in clients)
    if any(a >= b for a, b in pairwise(given)):
        raise HsflError(f"clients {_some(given)}: name each of them once, in order")
    if isinstance(among, range):
        odd = next((n for n in given if n not in among), None)
        if odd is not None:
            raise HsflError(f"client {odd}: there are {len(among)}, counted from 0 to {len(among) - 1}")
    elif odd_ones := sorted(set(given) - set(among)):
        raise HsflError(f"client {odd_ones[0]}: it is none of those who are enrolled, {_some(among)}")
    return given


def _some(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:8]))
    return f"[{shown}{', ...' if len(clients) > 8 else ''}]"


def checked_count(count: int, name: str = "micro_batches") -> int:
    """So many mini-batches in a round, or of what the name says; ScenarioError where that is no number of them."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ScenarioError(f"{name} {count!r}: it must be a whole number from 1 on")
    return count


def check_statistics(layers: Sequence[nn.Module], chunks: int) -> None:
    """ScenarioError where mini-batches in chunks would have other statistics than whole ones."""
    for number, layer in enumerate(layers if chunks > 1 else (), 1):
        if any(isinstance(module, _BatchNorm) for module in layer.modules()):
            raise ScenarioError(
                f"chunks = {chunks}: layer {number} has batch normalisation, whose statistics are those of what it is "
                "given at once; use a normalisation of single samples, or micro_batches with a smaller batch_size"
            )


def checked_batch(
    inputs: torch.Tensor, targets: torch.Tensor, clients: int, micro_batches: int = 1, chunks: int = 1
) -> None:
    """HsflError unless there is a mini-batch for every client, or so many of the same size, in so many equal chunks."""
    for name, value in (("inputs", inputs), ("targets", targets)):
        if not isinstance(value, torch.Tensor):
            raise HsflError(f"{name} is a {type(value).__name__}; give a torch tensor with a mini-batch per client")
        if value.dim() < 2 or len(value) != clients or not value.shape[1]:
            raise HsflError(
                f"{name} has the shape {_shape(value.shape)}; give a mini-batch of at least one sample for each of the "
                f"{clients} clients: ({clients}, samples, ...)"
            )
    if inputs.shape[:2] != targets.shape[:2]:
        raise HsflError(
            f"inputs has the shape {_shape(inputs.shape)} and targets {_shape(targets.shape)}; give one target for "
            "each sample"
        )
    if inputs.shape[1] % (micro_batches * chunks):
        of_chunks = f" and chunks = {chunks}" if chunks > 1 else ""
        raise HsflError(
            f"inputs has the shape {_shape(inputs.shape)}; with micro_batches = {micro_batches}{of_chunks} give every "
            f"client a multiple of {micro_batches * chunks} samples"
        )


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"
