"""The convergence constants, measured on the model being trained.

A probe takes a few mini-batches of every client at the virtual average w of the model and gives

    G_l^2         = max_n of the mean squared norm of layer l's mini-batch gradient
    sigma_l^2     = max_n of the mean squared distance of those to client n's mean gradient
    zeta_{m,l}^2  = sum_j N_m^j/N |g_l^j - g_l|^2 over the entities j of tier m, less the sampling noise in it
    beta          = max_n |grad f_n(w) - grad f_n(w')| / |w - w'| on the same mini-batches, w' one step further
    theta0        = the mean loss, f* taken as 0

and, where codes are planned, for either link over the cut after each layer the mean squared distance between a client's
mini-batch gradient, all layers of it, with that link coded and without: what coding adds to the variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hsfl.engine.links import CODECS, CodedCut
from hsfl.engine.sharding import Shard
from hsfl.engine.virtual_model import VirtualModel
from hsfl.problem.codes import CODES
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import Topology

#: Mini-batches of every client that the smoothness is measured on: it takes two more gradients of each.
SMOOTHNESS_BATCHES = 2
#: Mini-batches, of as many clients, that the noise of a code on a link over a cut is measured on.
_CODING_BATCHES = 2
#: What is measured of the noise of codes on links up and down. How that of activations falls with more bits depends on
#: the model; the rest follows by `Code.noise`.
MEASURED = (("int8", "int4"), ("int4",))


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one probe found; the dissimilarity may be negative, where noise was larger than what it hid."""

    smoothness: float
    """NaN where it was not measured."""
    initial_gap: float
    gradient_variance: FloatArray
    gradient_second_moment: FloatArray
    gradient_dissimilarity: FloatArray
    coding_noise: FloatArray | None = None
    """None where it was not measured."""


def measure(
    model: VirtualModel, shard: Shard, indices: torch.Tensor, step: float | None, *, coding: bool = False
) -> Measurement:
    """Measure on the samples `indices` (N, batches, b); `step` is the effective gamma, None if beta is not wanted.

    Trains nothing. Clients are taken one after the other, so the memory needed does not grow with their number; every
    process takes its own.
    """
    (N, B), weights = indices.shape[:2], shard.topology.client_weights
    tiers = [_Spread(model, shard, tier) for tier in range(shard.topology.num_tiers)]
    total = model.zeros()
    moments, variances, losses = [], [], []
    for n in shard.clients:
        mean, norms = model.zeros(), torch.zeros(model.num_layers, dtype=torch.float64, device=model.device)
        for k in range(B):
            loss, gradient = model.gradient(n, indices[n, k], key=k)
            losses.append(loss)
            norms += model.squares(gradient) / B
            torch._foreach_add_(mean, gradient, alpha=1 / B)
        moments.append(norms)
        variances.append(variance_of(norms, model.squares(mean), B))
        torch._foreach_add_(total, mean, alpha=float(weights[n]) / N)
        for tier in tiers:
            tier.add(n, mean)
    processes, here = shard.processes, float(shard.client_weights.sum()) / N
    parts = shard.topology.parts_of(shard.clients)
    of_batches = None if parts is None else np.repeat(parts / B, B)
    total = processes.sum(total)
    (variance,) = processes.sum([mean_over_clients(torch.stack(variances), parts) * here])
    (loss,) = processes.sum([mean_over_clients(torch.stack(losses), of_batches) * here])
    found = Statistics(
        loss=loss,
        variance=variance,
        greatest_variance=processes.max(torch.stack(variances).amax(0)),
        greatest_moment=processes.max(torch.stack(moments).amax(0)),
        of_entities=torch.stack([tier.mean_square() for tier in tiers]),
        overall=model.squares(total),
    )
    smoothness = float("nan") if step is None else _smoothness(model, indices, shard, total, step)
    noise = coding_noise(model, shard.topology.order, indices, shard=shard) if coding else None
    return found.measurement(shard.topology, B, smoothness, noise)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What gradients at the virtual average are like, whoever took them; squares are of norms, by layer, in float64."""

    loss: torch.Tensor
    """The mean of all mini-batches."""
    variance: torch.Tensor
    """(L,): that of a client's mini-batch gradients, the mean over clients."""
    greatest_variance: torch.Tensor
    """(L,): the greatest of any client."""
    greatest_moment: torch.Tensor
    """(L,): the mean squares of mini-batch gradients, the greatest of any client."""
    of_entities: torch.Tensor
    """(M, L): the squares of the entities' mean gradients, the mean over clients."""
    overall: torch.Tensor
    """(L,): that of the mean gradient."""

    def measurement(
        self, topology: Topology, batches: int, smoothness: float, coding_noise: FloatArray | None
    ) -> Measurement:
        """The constants, from so many mini-batches of every client."""
        # So many clients that count the same would have as much noise in their mean.
        clients = topology.num_clients**2 / float(np.square(topology.client_weights).sum())
        noise = self.variance / (clients * batches)
        entities = torch.tensor(topology.entities, dtype=torch.float64, device=noise.device)[:, None]
        return Measurement(
            smoothness=smoothness,
            initial_gap=float(self.loss),
            gradient_variance=self.greatest_variance.clamp_min(0).cpu().numpy(),
            gradient_second_moment=self.greatest_moment.cpu().numpy(),
            gradient_dissimilarity=(self.of_entities - self.overall - (entities - 1) * noise).cpu().numpy(),
            coding_noise=coding_noise,
        )


def mean_over_clients(rows: torch.Tensor, parts: FloatArray | None) -> torch.Tensor:
    """The mean of a row for each client, each with its part; None: equal parts."""
    return rows.mean(0) if parts is None else torch.as_tensor(parts).to(rows) @ rows


def variance_of(moments: torch.Tensor, squares: torch.Tensor, batches: int) -> torch.Tensor:
    """The variance of mini-batch gradients, from their mean squares and the squares of the mean of so many."""
    return (moments - squares) * batches / (batches - 1)


#: A gradient for the noise of codes: the link (0 up, 1 down), the code on it, and the cut.
Trial = tuple[int, str, int]


def coding_noise(
    model: VirtualModel,
    order: Sequence[int],
    indices: torch.Tensor,
    codes: tuple[Sequence[str], Sequence[str]] = MEASURED,
    shard: Shard | None = None,
) -> FloatArray:
    """(2, C, L): what each of `CODES` on the links up and down over every cut adds to the variance of a gradient.

    Measured for some, the most bits first; another's follows from the first of those that err more. The work is spread
    over the clients, each with its first mini-batch, where there are several processes in its own.
    """
    apart: list[tuple[Trial, float]] = []
    for n, trials in coding_trials(model.num_layers, order, codes).items():
        if shard is not None and n not in shard.clients:
            continue
        _, clean = model.gradient(n, indices[n, 0])
        for trial in trials:
            _, coded = model.gradient(n, indices[n, 0], coded=coded_cut(trial))
            torch._foreach_sub_(coded, clean)
            apart.append((trial, float(model.squares(coded).sum())))
    noise = noise_tried(model.num_layers, apart)
    if shard is not None:
        (summed,) = shard.processes.sum([torch.from_numpy(noise).to(model.device)])
        noise = summed.cpu().numpy()
    return noise_of_codes(noise, codes)


def coding_trials(
    num_layers: int, order: Sequence[int], codes: tuple[Sequence[str], Sequence[str]] = MEASURED
) -> dict[int, list[Trial]]:
    """What every client is to try, of those that have something to."""
    each = [(link, code) for link, measured in enumerate(codes) for code in measured]
    wanted = [(link, code, cut) for cut in range(1, num_layers + 1) for link, code in each] * _CODING_BATCHES
    return {n: own for start, n in enumerate(order) if (own := wanted[start :: len(order)])}


def coded_cut(trial: Trial) -> CodedCut:
    link, code, cut = trial
    plain = CODECS["fp32"]
    return CodedCut(cut, plain, CODECS[code]) if link else CodedCut(cut, CODECS[code], plain)


def noise_tried(num_layers: int, apart: Iterable[tuple[Trial, float]]) -> FloatArray:
    """(2, C, L): the noise of the codes that were tried, from how far gradients were apart in each trial, squared."""
    names, noise = list(CODES), np.zeros((2, len(CODES), num_layers))
    for (link, code, cut), squared in apart:
        noise[link, names.index(code), cut - 1] += squared / _CODING_BATCHES
    return noise


def noise_of_codes(noise: FloatArray, codes: tuple[Sequence[str], Sequence[str]] = MEASURED) -> FloatArray:
    """(2, C, L): that of all codes, from that of those that were tried."""
    names = list(CODES)
    for link, measured in enumerate(codes):
        for k, name in enumerate(names):
            like = next(CODES[other] for other in measured if CODES[other].noise[link] >= CODES[name].noise[link])
            noise[link, k] = noise[link, names.index(like.name)] * (CODES[name].noise[link] / like.noise[link])
    return noise


def rounds_of_coding(layers: int, clients: int) -> int:
    """How many gradients the busiest client takes for the noise of codes."""
    return 1 + -(-sum(map(len, MEASURED)) * layers * _CODING_BATCHES // clients)


class _Spread:
    """The entities of a tier: sum_j N_m^j/N |g^j|^2, one entity at a time; its clients must come one after another."""

    def __init__(self, model: VirtualModel, shard: Shard, tier: int) -> None:
        self.model, self.shard, self.tier, self.hosts = model, shard, tier, shard.topology.hosts[tier].tolist()
        self.share, self.entities = shard.topology.shares[tier].tolist(), shard.topology.entities[tier]
        self.weights, self.current = shard.topology.client_weights.tolist(), -1
        self.sum = model.zeros()
        self.squares = torch.zeros(model.num_layers, dtype=torch.float64, device=model.layer_of.device)
        self.shared: dict[int, list[torch.Tensor] | None] = dict.fromkeys(shard.shared(tier))
        """Entities with clients in several processes, and what those here make of their gradient."""

    def add(self, client: int, mean: list[torch.Tensor]) -> None:
        if self.hosts[client] != self.current:
            self._close()
            self.current = self.hosts[client]
        part = self.weights[client] / (self.share[self.current] * len(self.hosts))
        torch._foreach_add_(self.sum, mean, alpha=part)

    def mean_square(self) -> torch.Tensor:
        self._close()
        processes = self.shard.processes
        for entity, here in self.shared.items():
            whole = processes.sum(here or self.model.zeros())
            if self.shard.owner(self.tier, entity) == processes.rank:
                self.squares += self.share[entity] * self.model.squares(whole)
        return processes.sum([self.squares])[0]

    def _close(self) -> None:
        if self.current in self.shared:
            self.shared[self.current], self.sum = self.sum, self.model.zeros()
        elif self.current >= 0:
            self.squares += self.share[self.current] * self.model.squares(self.sum)
            torch._foreach_zero_(self.sum)


def _smoothness(
    model: VirtualModel, indices: torch.Tensor, shard: Shard, gradient: list[torch.Tensor], step: float
) -> float:
    """beta between the weights and one step along the mean gradient; 0 where that gradient is."""
    length = step * torch.stack(torch._foreach_norm(gradient)).double().norm()
    if not float(length) > 0:
        return 0.0
    there = model.copy()
    with torch.no_grad():
        torch._foreach_add_(there.parameters, gradient, alpha=-step)
    largest = torch.zeros((), dtype=torch.float64, device=model.layer_of.device)
    for n in shard.clients:
        chosen = indices[n, :SMOOTHNESS_BATCHES].flatten()
        here = model.gradient(n, chosen)[1]
        torch._foreach_sub_(here, there.gradient(n, chosen)[1])
        largest = torch.maximum(largest, torch.stack(torch._foreach_norm(here)).double().norm())
    return float(shard.processes.max(largest) / length)
