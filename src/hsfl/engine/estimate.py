"""The convergence constants as known so far: successive probes smoothed, and corrected by the drift that is seen.

Gradients grow and shrink along the trajectory, and a client that fits its own data stops drifting: from the drift seen
before averages `Estimate` learns how much of the predicted one it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

from hsfl.engine.probe import Measurement, rounds_of_coding
from hsfl.engine.state import EstimateRecord
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import FloatArray
from hsfl.records import ConstantsRecord
from hsfl.theory.sampling import of_all_clients

#: The weight of a new probe, and of a drift that is seen, against what was known.
PROBE_WEIGHT, DRIFT_WEIGHT = 0.5, 0.7
#: How far a drift that is seen may correct the predicted one, either way.
MOST_CORRECTION = 1000.0
_SMALLEST = 1e-12
#: Training has begun to learn when the loss is at this part of the first one.
BEGUN = 0.6


@dataclass
class Estimate:
    """The constants as known so far."""

    smoothness: float = 0.0
    initial_gap: float = 0.0
    first_loss: float | None = None
    """Of the first probe."""
    first_gradients: list[list[float]] | None = None
    """Variance, and dissimilarity by tiers, of the first probe; until training has begun to learn."""
    gradient_variance: list[float] = field(default_factory=list)
    gradient_second_moment: list[float] = field(default_factory=list)
    gradient_dissimilarity: list[list[float]] = field(default_factory=list)
    correction: list[float] = field(default_factory=list)
    """Per tier: how much of the refined model's drift is seen."""
    coding_noise: list[list[list[float]]] = field(default_factory=list)
    """Empty where it is not measured."""
    probes: int = 0

    def add(self, found: Measurement) -> None:
        """Take over a probe. The loss is not smoothed: it is known well, and where it rises, it was better before."""
        weight = PROBE_WEIGHT if self.probes else 1.0
        self.initial_gap = min(self.initial_gap, found.initial_gap) if self.probes else found.initial_gap
        if self.first_loss is None:
            self.first_loss = found.initial_gap
            self.first_gradients = [list(found.gradient_variance), *map(list, found.gradient_dissimilarity)]
        elif self.initial_gap < BEGUN * self.first_loss:
            self.first_gradients = None
        self.smoothness = float(_mixed(self.smoothness, found.smoothness, weight))
        for name in ("gradient_variance", "gradient_second_moment", "gradient_dissimilarity"):
            setattr(self, name, _mixed(getattr(self, name), getattr(found, name), weight).tolist())
        if found.coding_noise is not None:
            self.coding_noise = _mixed(self.coding_noise, found.coding_noise, weight).tolist()
        self.correction = self.correction or [1.0] * len(self.gradient_dissimilarity)
        self.probes += 1

    def constants(self, problem: Problem, step: float) -> Constants:
        """For the planner, in the target and drift model of `problem`; clamped to where the bound is defined.

        What a cohort shows of its clients is scaled to all clients. The smoothness is at most 1/gamma (no limit for
        step 0), and just that where it is not measured; a dissimilarity is at least 0, all else positive.
        """
        given, dissimilarity = problem.constants, np.maximum(self.gradient_dissimilarity, 0.0)
        first = None if self.first_gradients is None else np.array(self.first_gradients)
        if first is not None:
            first[1:] = of_all_clients(problem.system, first[1:])
        return replace(
            given,
            smoothness=1 / step if np.isnan(self.smoothness) else self._clamped_smoothness(step),
            initial_gap=max(self.initial_gap, _SMALLEST),
            first_loss=self.first_loss,
            first_gradients=None if first is None else np.maximum(first, 0.0),
            gradient_variance=np.maximum(self.gradient_variance, _SMALLEST),
            gradient_second_moment=np.maximum(self.gradient_second_moment, _SMALLEST),
            gradient_dissimilarity=of_all_clients(problem.system, dissimilarity),
            drift_correction=np.array(self.correction),
            coding_noise=np.array(self.coding_noise) if self.coding_noise else given.coding_noise,
        )

    def _clamped_smoothness(self, step: float) -> float:
        return max(min(self.smoothness, 1 / step if step else np.inf), _SMALLEST)

    def observe(self, tier: int, predicted: float, measured: float, weight: float = DRIFT_WEIGHT) -> None:
        """Correct a tier's drift by one that was measured, where the refined model, as corrected so far, predicted."""
        if predicted > 0 and measured > 0:
            seen = self.correction[tier] * (measured / predicted) ** weight
            self.correction[tier] = min(max(seen, 1 / MOST_CORRECTION), MOST_CORRECTION)

    def state(self) -> EstimateRecord:
        """The estimate as a checkpoint holds it."""
        return EstimateRecord(**vars(self))

    @classmethod
    def from_state(cls, state: EstimateRecord) -> Estimate:
        return cls(**state.model_dump())


def _mixed(old: Any, new: Any, weight: float) -> FloatArray:
    new = np.asarray(new, dtype=float)
    return new if weight == 1.0 else (1 - weight) * np.asarray(old) + weight * new


def record_constants(constants: Constants) -> ConstantsRecord:
    """Plain values; NaN, for what is not known, is None."""
    found: dict[str, Any] = {}
    for name, value in vars(constants).items():
        if isinstance(value, np.ndarray):
            found[name] = value.tolist()
        else:
            found[name] = None if isinstance(value, float) and np.isnan(value) else value
    return ConstantsRecord(**found)


def recorded_constants(record: ConstantsRecord) -> Constants:
    """What `record_constants` was given."""
    values: dict[str, Any] = {}
    for name, value in record:
        values[name] = np.array(value, dtype=float) if isinstance(value, list) else value
    for name in ("smoothness", "initial_gap", "target"):
        values[name] = np.nan if values[name] is None else values[name]
    return Constants(**values)


def rounds_of_probe(problem: Problem, batches: int) -> int:
    """How many rounds a measurement of the constants is charged as: a gradient each, and two more for the smoothness
    on two of the mini-batches, which count like all of them; where codes are planned, those of a client for these. With
    several mini-batches in a round, so many fewer."""
    rounds = batches if problem.constants.by_loss else 2 * batches
    if problem.system.plans_codes:
        rounds += rounds_of_coding(problem.num_layers, problem.system.num_clients)
    return ceil(rounds / problem.micro_batches)
