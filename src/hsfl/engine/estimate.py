"""The convergence constants, measured on the model being trained.

A probe takes a few mini-batches of every client at the virtual average w of the model and gives

    G_l^2         = max_n of the mean squared norm of layer l's mini-batch gradient
    sigma_l^2     = max_n of the mean squared distance of those to client n's mean gradient
    zeta_{m,l}^2  = sum_j N_m^j/N |g_l^j - g_l|^2 over the entities j of tier m, less the sampling noise in it
    beta          = max_n |grad f_n(w) - grad f_n(w')| / |w - w'| on the same mini-batches, w' one step further
    theta0        = the mean loss, f* taken as 0

`Estimate` smooths successive probes, and learns from the drift seen before averages how much of the predicted one it
is: gradients grow and shrink along the trajectory, and a client that fits its own data stops drifting.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hsfl.engine.backend import Backend
from hsfl.engine.per_client import seed_dropout
from hsfl.problem.problem import Constants
from hsfl.problem.profile import FloatArray

Samples = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
#: The weight of a new probe, and of a drift that is seen, against what was known.
PROBE_WEIGHT, DRIFT_WEIGHT = 0.5, 0.7
#: How far a drift that is seen may correct the predicted one, either way.
MOST_CORRECTION = 1000.0
#: Mini-batches of every client that the smoothness is measured on: it takes two more gradients of each.
_SMOOTHNESS_BATCHES = 2
_SMALLEST = 1e-12


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one probe found; the dissimilarity may be negative, where noise was larger than what it hid."""

    smoothness: float
    initial_gap: float
    gradient_variance: FloatArray
    gradient_second_moment: FloatArray
    gradient_dissimilarity: FloatArray


def probe(backend: Backend, samples: Samples, indices: torch.Tensor, step: float) -> Measurement:
    """Measure at the virtual average; `indices` (N, batches, b) are what `samples` takes, `step` the effective gamma.

    Trains nothing. Clients are taken one after the other, so the memory needed does not grow with their number.
    """
    model = _Model(backend, samples)
    N, B = indices.shape[:2]
    order = [n for entity in backend.clients[-1] for n in entity]
    tiers = [_Spread(model, backend.hosts[m]) for m in range(backend.num_tiers)]
    total = model.zeros()
    moments, variances, losses = [], [], []
    for n in order:
        mean, norms = model.zeros(), torch.zeros(model.num_layers, dtype=torch.float64, device=backend.device)
        for k in range(B):
            loss, gradient = model.gradient(n, indices[n, k], key=k)
            losses.append(loss)
            norms += model.squares(gradient) / B
            torch._foreach_add_(mean, gradient, alpha=1 / B)
        moments.append(norms)
        variances.append((norms - model.squares(mean)) * B / (B - 1))
        torch._foreach_add_(total, mean, alpha=1 / N)
        for tier in tiers:
            tier.add(n, mean)
    overall, noise = model.squares(total), torch.stack(variances).mean(0) / (N * B)
    apart = [tier.mean_square() - overall - (tier.entities - 1) * noise for tier in tiers]
    return Measurement(
        smoothness=_smoothness(model, indices, order, total, step),
        initial_gap=float(torch.stack(losses).mean()),
        gradient_variance=torch.stack(variances).amax(0).clamp_min(0).cpu().numpy(),
        gradient_second_moment=torch.stack(moments).amax(0).cpu().numpy(),
        gradient_dissimilarity=torch.stack(apart).cpu().numpy(),
    )


@dataclass
class Estimate:
    """The constants as known so far."""

    smoothness: float = 0.0
    initial_gap: float = 0.0
    gradient_variance: list[float] = field(default_factory=list)
    gradient_second_moment: list[float] = field(default_factory=list)
    gradient_dissimilarity: list[list[float]] = field(default_factory=list)
    correction: list[float] = field(default_factory=list)
    """Per tier: how much of the refined model's drift is seen."""
    probes: int = 0

    def add(self, found: Measurement) -> None:
        """Take over a probe. The loss is not smoothed: it is known well, and it falls."""
        weight = PROBE_WEIGHT if self.probes else 1.0
        self.initial_gap = found.initial_gap
        self.smoothness = float(_mixed(self.smoothness, found.smoothness, weight))
        for name in ("gradient_variance", "gradient_second_moment", "gradient_dissimilarity"):
            setattr(self, name, _mixed(getattr(self, name), getattr(found, name), weight).tolist())
        self.correction = self.correction or [1.0] * len(self.gradient_dissimilarity)
        self.probes += 1

    def constants(self, given: Constants, step: float) -> Constants:
        """For the planner, in the target and drift model of `given`; clamped to where the bound is defined.

        The smoothness is at most 1/gamma (no limit for step 0), a dissimilarity at least 0, all else positive.
        """
        return replace(
            given,
            smoothness=max(min(self.smoothness, 1 / step if step else np.inf), _SMALLEST),
            initial_gap=max(self.initial_gap, _SMALLEST),
            gradient_variance=np.maximum(self.gradient_variance, _SMALLEST),
            gradient_second_moment=np.maximum(self.gradient_second_moment, _SMALLEST),
            gradient_dissimilarity=np.maximum(self.gradient_dissimilarity, 0.0),
            drift_correction=np.array(self.correction),
        )

    def observe(self, tier: int, predicted: float, measured: float, weight: float = DRIFT_WEIGHT) -> None:
        """Correct a tier's drift by one that was measured, where the refined model, as corrected so far, predicted."""
        if predicted > 0 and measured > 0:
            seen = self.correction[tier] * (measured / predicted) ** weight
            self.correction[tier] = min(max(seen, 1 / MOST_CORRECTION), MOST_CORRECTION)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Model:
    """The virtual average as one model, and its gradients by layer."""

    def __init__(self, backend: Backend, samples: Samples) -> None:
        self.backend, self.samples = backend, samples
        layers = nn.ModuleList(copy.deepcopy(backend.layers)).train()
        layers.load_state_dict(backend.global_state())
        self.layers, self.num_layers = layers, len(layers)
        self.modules = list(layers.modules())
        self.parameters: list[torch.Tensor] = [p for p in layers.parameters() if p.requires_grad]
        number = [i for i, layer in enumerate(layers) for p in layer.parameters() if p.requires_grad]
        self.layer_of = torch.tensor(number, device=backend.device)

    def gradient(self, client: int, indices: torch.Tensor, key: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Loss and gradient on some samples of a client; dropout is that of `key`."""
        inputs, targets = self.samples(indices)
        seed_dropout(self.modules, [client], self.backend.seed, key)
        with self.backend._arithmetic():
            x = inputs
            for layer in self.layers:
                x = layer(x)
            loss = self.backend.loss(x.to(self.backend.dtype), targets)
            found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.parameters, strict=True)]
        return loss.detach(), gradient

    def zeros(self) -> list[torch.Tensor]:
        return [torch.zeros_like(p) for p in self.parameters]

    def squares(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """(L,): the squared norm by layer, in float64."""
        norms = torch.stack(torch._foreach_norm(tensors)).double().square()
        return torch.zeros(self.num_layers, dtype=torch.float64, device=norms.device).index_add_(
            0, self.layer_of, norms
        )


class _Spread:
    """The entities of a tier: sum_j N_m^j/N |g^j|^2, one entity at a time; its clients must come one after another."""

    def __init__(self, model: _Model, hosts: list[int]) -> None:
        self.model, self.hosts = model, hosts
        self.entities, self.share = max(hosts) + 1, [hosts.count(j) / len(hosts) for j in range(max(hosts) + 1)]
        self.current = -1
        self.sum = model.zeros()
        self.squares = torch.zeros(model.num_layers, dtype=torch.float64, device=model.layer_of.device)

    def add(self, client: int, mean: list[torch.Tensor]) -> None:
        if self.hosts[client] != self.current:
            self._close()
            self.current = self.hosts[client]
        torch._foreach_add_(self.sum, mean, alpha=1 / (self.share[self.current] * len(self.hosts)))

    def mean_square(self) -> torch.Tensor:
        self._close()
        return self.squares

    def _close(self) -> None:
        if self.current >= 0:
            self.squares += self.share[self.current] * self.model.squares(self.sum)
            torch._foreach_zero_(self.sum)


def _smoothness(
    model: _Model, indices: torch.Tensor, order: list[int], gradient: list[torch.Tensor], step: float
) -> float:
    """beta between the weights and one step along the mean gradient; 0 where that gradient is."""
    length = step * torch.stack(torch._foreach_norm(gradient)).double().norm()
    if not float(length) > 0:
        return 0.0
    there = _Model(model.backend, model.samples)
    with torch.no_grad():
        torch._foreach_add_(there.parameters, gradient, alpha=-step)
    largest = torch.zeros((), dtype=torch.float64, device=model.layer_of.device)
    for n in order:
        chosen = indices[n, :_SMOOTHNESS_BATCHES].flatten()
        here = model.gradient(n, chosen)[1]
        torch._foreach_sub_(here, there.gradient(n, chosen)[1])
        largest = torch.maximum(largest, torch.stack(torch._foreach_norm(here)).double().norm())
    return float(largest / length)


def _mixed(old: Any, new: Any, weight: float) -> FloatArray:
    new = np.asarray(new, dtype=float)
    return new if weight == 1.0 else (1 - weight) * np.asarray(old) + weight * new
