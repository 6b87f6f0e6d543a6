"""Modules that must know which client a sample belongs to, when an entity works on all its clients' samples at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hsfl.errors import ModelError

_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_PRIME = 1_000_003
#: A round, as a number or on the device.
Moment = TypeVar("Moment", int, torch.Tensor)
#: Modules that draw random numbers in a way that cannot be tied to a client.
_OTHER_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


class PerClientBatchNorm(_BatchNorm):
    """Batch normalisation with the statistics of each client's own mini-batch.

    The entity's running statistics move to the mean over its clients of where each alone would have moved them.
    """

    clients = 1
    parts: torch.Tensor | None = None
    """The part of each client in that mean, up to a factor; None: equal parts."""

    @classmethod
    def standing_for(cls, module: _BatchNorm) -> PerClientBatchNorm:
        """The same normalisation, with the very parameters and buffers of `module`."""
        own = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        own._parameters, own._buffers = module._parameters, module._buffers
        return own

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or (self.clients == 1 and self.momentum is not None):
            return super().forward(input)
        x = input.unflatten(0, (self.clients, -1))
        over = (1, *range(3, x.dim()))
        count = x[0].numel() // x.shape[2]
        if count < 2:
            raise ValueError(
                f"batch normalisation needs more than 1 value per channel and client, got {tuple(x.shape[1:])}"
            )
        if x.dtype in (torch.bfloat16, torch.float16):
            x = x.float()  # as torch's own: halves are too coarse for statistics
        variance, mean = torch.var_mean(x, dim=over, correction=0, keepdim=True)
        output = (x - mean) * torch.rsqrt(variance + self.eps)
        if self.affine:
            shape = (-1, *[1] * (x.dim() - 3))
            output = output * self.weight.view(shape) + self.bias.view(shape)
        if self.track_running_stats:
            assert self.running_mean is not None and self.running_var is not None
            assert self.num_batches_tracked is not None
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                # Without a momentum, the mean over all rounds; a tensor, so that a captured round counts on.
                rate = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
                self.running_mean.lerp_(self._mean(mean), rate)
                unbiased = self._mean(variance) * count / (count - 1)
                self.running_var.lerp_(unbiased, rate)
        return output.flatten(0, 1).to(input.dtype)

    def _mean(self, of_clients: torch.Tensor) -> torch.Tensor:
        rows = of_clients.view(self.clients, -1)
        return rows.mean(0) if self.parts is None else (self.parts / self.parts.sum()).to(rows.dtype) @ rows


class SeededDropout(nn.Module):
    """Dropout whose mask depends on seed, round, place in the model, client and element, and on nothing else.

    So it is the same however clients are grouped into batches, and on every device.
    """

    def __init__(self, p: float, site: int) -> None:
        super().__init__()
        self.p, self.site = p, site
        self.keys = torch.zeros(1, dtype=torch.int64)
        """(clients,): those of `client_keys` for this site and round; no buffer, for a round is no state."""
        self.chunk = 0
        """Which chunk of their mini-batches comes, where they come in chunks."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return input
        if self.p == 1:
            return input * 0
        x = input.unflatten(0, (len(self.keys), -1))
        count = x[0].numel()
        element = torch.arange(self.chunk * count, (self.chunk + 1) * count, device=x.device)
        random = _mixed(_mixed(element * _GOLDEN)[None] ^ self.keys.to(x.device)[:, None])
        keep = (random >> 40 & 0xFFFFFF) >= int(self.p * 2**24)
        return (x * keep.view(x.shape) / (1 - self.p)).flatten(0, 1)


def with_clients(layer: nn.Module, number: int, *, together: bool) -> nn.Module:
    """Replace, in place, what must know clients in layer `number` of the model; the layer or what stands for it.

    `together`: it works on the samples of several clients at once, where not every kind of chance can be told apart.
    """
    for site, (parent, name, module) in enumerate(_children(layer)):
        attention = isinstance(module, nn.MultiheadAttention) and module.dropout
        if together and (attention or isinstance(module, _OTHER_DROPOUT)):
            instead = "give it dropout = 0" if attention else "use nn.Dropout"
            raise ModelError(
                f"layer {number + 1}: {type(module).__name__} draws random numbers that cannot be told apart by "
                f'client; {instead}, or take the backend "reference" (execution.backend), which goes client by client'
            )
        replacement: nn.Module | None = None
        if isinstance(module, nn.Dropout):
            replacement = SeededDropout(module.p, 1000 * number + site)
        elif isinstance(module, _BatchNorm) and not isinstance(module, PerClientBatchNorm):
            replacement = PerClientBatchNorm.standing_for(module)
        if replacement is not None:
            replacement.train(module.training)
            if parent is None:
                layer = replacement
            else:
                setattr(parent, name, replacement)
    return layer


def seed_dropout(modules: Iterable[nn.Module], clients: Sequence[int], seed: int, round_: int, chunk: int = 0) -> None:
    """Tell the modules which clients' samples come next, in order, and in which round and chunk (counted from 0)."""
    for module in modules:
        if isinstance(module, PerClientBatchNorm):
            module.clients = len(clients)
        elif isinstance(module, SeededDropout):
            words = (torch.tensor(word, dtype=torch.int64) for word in (seed, round_, [module.site], clients))
            module.keys, module.chunk = client_keys(*words)[0], chunk


@contextmanager
def own_chance(seed: int, round_: int, client: int, layer: int, device: torch.device) -> Iterator[None]:
    """Let torch's random numbers, for modules that draw their own, follow from seed, round, client and layer alone.

    So they are the same whichever tier holds the layer, and others in every layer.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed((((seed * _PRIME + round_) * _PRIME + client) * _PRIME + layer) % 2**63)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def moment(round_: Moment, mini_batch: int, chunk: int = 0) -> Moment:
    """What chance follows from, of a chunk of a mini-batch of a round, each counted from 0: of the first one, the round
    itself."""
    return round_ + ((mini_batch << 40) + (chunk << 52))


def client_keys(seed: torch.Tensor, round_: torch.Tensor, sites: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
    """(sites, clients): the keys of dropout at some sites, for some clients, in one round; int64 on any one device."""
    key = _absorbed(_absorbed(torch.zeros_like(seed), seed), round_)
    return _absorbed(_absorbed(key, sites[:, None]), clients)


def _absorbed(key: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    return _mixed((key ^ word) * _GOLDEN + 1)


def _children(layer: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    yield None, "", layer
    for parent in list(layer.modules()):
        for name, child in list(parent._modules.items()):  # named_children leaves out a module's second name
            if child is not None:
                yield parent, name, child


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """splitmix64's finaliser, on signed integers that wrap around."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * _MIX[0]
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * _MIX[1]
    return x ^ (x >> 31 & (1 << 33) - 1)
