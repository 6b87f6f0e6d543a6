"""The planning problem: a system, a model's profile and the convergence constants, in SI units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hsfl.problem.codes import Code
from hsfl.problem.plan import Plan
from hsfl.problem.profile import FloatArray, LayerProfile, freeze
from hsfl.problem.system import System

T = TypeVar("T")

#: What each rule of averages keeps on a machine, a copy of the parameters each.
AVERAGING_KEEPS: dict[str, set[str]] = {
    "plain": set(),
    "corrected": {"variate", "last"},
    **{rule: {"last"} for rule in ("fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad")},
}


@dataclass(frozen=True, eq=False)
class Constants:
    """What the convergence bound needs to know of the training task."""

    smoothness: float
    """beta: how fast gradients change at most, per change of the weights."""
    initial_gap: float
    """theta0 = f(w0) - f*: how far the loss begins above its least value."""
    target: float
    """epsilon: the mean squared gradient norm to reach."""
    gradient_variance: FloatArray
    """sigma_l^2: the variance of each layer's mini-batch gradient, (L,)."""
    gradient_second_moment: FloatArray | None
    """G_l^2: the mean squared norm of each layer's mini-batch gradient, (L,); needed by the paper's drift model."""
    gradient_dissimilarity: FloatArray | None
    """zeta_{m,l}^2 between the entities of each tier, (M, L); needed by the refined drift model."""
    drift: str
    """The drift model: "paper", "refined" or "energy"."""
    drift_correction: FloatArray | None = None
    """(M,): how much of the refined model's drift is seen in training; None is all of it."""
    intervals_in_force: FloatArray | None = None
    """(M,): the intervals near which the drift has to be right where it is no quadratic; None before the first plan."""
    first_loss: float | None = None
    """theta0 as it was before training; None where that is not known."""
    first_gradients: FloatArray | None = None
    """(1 + M, L): sigma_l^2 and zeta_{m,l}^2 as they were before training, until it has begun to learn; then None."""
    rise: float = 0.0
    """By how many times the root of its energy, |w_j - w|^2 / 2 gamma, random drift raises the loss of machines."""
    samples_per_client: float | None = None
    """How many samples clients train on, each for itself: the harmonic mean; None where that is not known."""
    coding_noise: FloatArray | None = None
    """(2, C, L): what each of `CODES` on the link up, and down, over the cut after each layer adds to the variance of a
    mini-batch gradient, summed over layers. None where codes cost nothing; known where codes are planned."""

    def __post_init__(self) -> None:
        freeze(self)

    def __repr__(self) -> str:
        numbers = f"smoothness {self.smoothness:.4g}, initial gap {self.initial_gap:.4g}, target {self.target:.4g}"
        return f"<Constants: {numbers}, {len(self.gradient_variance)} layers, {self.drift} drift>"

    def with_dissimilarity_times(self, factor: float) -> Constants:
        """The same constants with so many times the dissimilarity, now and before training."""
        between, first = self.gradient_dissimilarity, self.first_gradients
        return replace(
            self,
            gradient_dissimilarity=None if between is None else factor * between,
            first_gradients=None if first is None else np.vstack([first[:1], factor * first[1:]]),
        )

    @property
    def by_loss(self) -> bool:
        """Whether drift is weighed against the loss of the moment: then plans need neither a target nor beta."""
        return self.drift == "energy"


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything a planner is given."""

    name: str
    system: System
    profile: LayerProfile
    constants: Constants
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    seed: int = 0
    average_optimizer: bool = False
    """Whether the optimiser's state travels and is averaged with the parameters."""
    averaging: str = "plain"
    """The rule of averages."""
    micro_batches: int = 1
    """k: the mini-batches of every client in a round, whose gradients are accumulated; pipelined through the tiers."""
    micro_batch_choices: tuple[int, ...] | None = None
    """The numbers that a planner may choose from; None where the number is given."""
    chunks: int = 1
    """In how many parts a mini-batch goes through the tiers; its gradient is their mean, so only time depends on it."""

    def __repr__(self) -> str:
        return f"<Problem {self.name}: {len(self.profile)} layers over {self.system.names}>"

    @property
    def step(self) -> float:
        """gamma: the effective step of an update, learning_rate / (1 - momentum)."""
        return self.learning_rate / (1 - self.momentum)

    def with_step(self, step: float) -> Problem:
        """The same problem at another effective step."""
        return replace(self, learning_rate=step * (1 - self.momentum))

    def as_planned(self, plan: Plan) -> Problem:
        """The same problem with the codes and the number of mini-batches of a plan, where it has any."""
        system = self.system.with_codes(plan.codes)
        found = self if system is self.system else replace(self, system=system)
        return found if plan.micro_batches is None else found.with_micro_batches(plan.micro_batches)

    def with_micro_batches(self, count: int) -> Problem:
        """The same problem with so many mini-batches in a round."""
        return self if count == self.micro_batches else replace(self, micro_batches=count)

    @property
    def chunks_per_round(self) -> int:
        """How many chunks of every client go through the tiers one after the other."""
        return self.micro_batches * self.chunks

    @property
    def chunk_samples(self) -> int:
        """The samples of a chunk."""
        return self.batch_size // self.chunks

    def without_top_tier(self) -> Problem:
        """The same problem for the system whose second highest tier is the top."""
        zeta, correction = self.constants.gradient_dissimilarity, self.constants.drift_correction
        in_force, first = self.constants.intervals_in_force, self.constants.first_gradients
        top = len(self.system.tree) - 1
        constants = replace(
            self.constants,
            gradient_dissimilarity=None if zeta is None else np.delete(zeta, top, axis=0),
            drift_correction=None if correction is None else np.delete(correction, top),
            intervals_in_force=None if in_force is None else np.delete(in_force, top),
            first_gradients=None if first is None else np.delete(first, 1 + top, axis=0),
        )
        return replace(self, system=self.system.without_top_tier(), constants=constants)

    @property
    def num_layers(self) -> int:
        return len(self.profile)

    @cached_property
    def work_flops(self) -> FloatArray:
        """(L+1,): FLOPs of the first l layers for one chunk, forward and backward (W_l = rho_l + varpi_l)."""
        return cumulative(self.chunk_samples * (self.profile.forward_flops + self.profile.backward_flops))

    @property
    def gradient_variance(self) -> FloatArray:
        """(L,): the variance of what a client steps with, the mean of k mini-batch gradients: sigma_l^2 / k."""
        return self.constants.gradient_variance / self.micro_batches

    @cached_property
    def uplink_bits(self) -> FloatArray:
        """(M-1, L): what each tier sends up for one sample, if the layer is its last: the activation, coded."""
        return np.stack([self.crossing_bits("up", tier.codes.up) for tier in self.system.tiers[:-1]])

    @cached_property
    def downlink_bits(self) -> FloatArray:
        """(M-1, L): what comes down to each tier for one sample, if the layer is its last: the gradient, coded."""
        return np.stack([self.crossing_bits("down", tier.codes.down) for tier in self.system.tiers[:-1]])

    def crossing_bits(self, link: str, code: Code) -> FloatArray:
        """(L,): what crosses a link, "up" or "down", in a given code for one sample if the cut lies after the layer.

        Nothing crosses a cut after the last layer: no layer lies above, so the loss is computed below.
        """
        profile = self.profile
        bits = code.crossing_bits(profile.activation_bits if link == "up" else profile.gradient_bits)
        return np.append(bits[:-1], 0.0)

    @cached_property
    def averaged_bits(self) -> FloatArray:
        """(M, L+1): what an average moves of the first l layers in each tier: parameters, coded; buffers, and optimiser
        state if that is averaged too, as they are."""
        return np.stack([self.averaged_bits_in(tier.codes.average) for tier in self.system.tiers])

    def averaged_bits_in(self, code: Code) -> FloatArray:
        """(L+1,): what an average in a given code moves of the first l layers."""
        profile = self.profile
        buffers: FloatArray | float = 0.0 if profile.buffer_bits is None else profile.buffer_bits
        state = profile.optimizer_bits if self.average_optimizer else 0.0
        return cumulative(code.averaged_bits(profile.parameter_bits - buffers) + buffers + state)

    @cached_property
    def averaging_copies(self) -> npt.NDArray[np.int64]:
        """(M,): how many copies of the parameters averages keep on each machine of a tier.

        These are the rule's own copies; where the tier's averages are coded, one of what coding has left unsent; and
        where any tier's are, one of what was last in common, because a layer may move there. A tier of one machine has
        none.
        """
        averaged = self.system.averaged
        coded = averaged & [tier.codes.codes_averages for tier in self.system.tiers]
        keeps = AVERAGING_KEEPS[self.averaging] | ({"last"} if coded.any() else set())
        return np.where(averaged, len(keeps) + coded, 0)

    @cached_property
    def client_memory_bits(self) -> FloatArray:
        """(M, L+1): bits the first l layers occupy in each tier for one client, however few of them a link carries.

        Unlike the paper's C5 the activations of the whole mini-batch count, and those of all mini-batches of a round: a
        real device has to hold them. So does what averages keep in tiers with several entities.
        """
        profile = self.profile
        activations = self.micro_batches * self.batch_size * (profile.activation_bits + profile.gradient_bits)
        kept = self.averaging_copies[:, None] * profile.parameter_bits
        return cumulative(activations + profile.optimizer_bits + profile.parameter_bits + kept)


def cumulative(per_layer: FloatArray) -> FloatArray:
    """Sums over the first l layers, l = 0..L, along the last axis: (..., L+1)."""
    sums = np.zeros((*per_layer.shape[:-1], per_layer.shape[-1] + 1))
    np.cumsum(per_layer, axis=-1, out=sums[..., 1:])
    return sums


def once(function: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """A function of a problem, which never changes: computed once for each, and kept as long as the problem is."""
    name = f"_once_{function.__name__}"

    @wraps(function)
    def kept(problem: Problem) -> T:
        known: dict[str, T] = vars(problem)
        if name not in known:
            known[name] = function(problem)
        return known[name]

    return kept
