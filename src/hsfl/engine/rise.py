"""How much higher the loss is at machines that have drifted: the losses between two plans rise and fall with averages.

The loss of a round is that of the machines' own weights. After an average it is that of the mean; from there on it
rises where drift is random, about as the root of its energy, and falls where machines fit data of their own. What is
looked at is how much it changes from round to round, most of all over an average, which no slower trend hides.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hsfl.engine.state import RiseRecord
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.theory.convergence import energies

#: What is known before anything is seen: nothing, give or take so much; and how much a plan may change it. Both are in
#: units of the root of the first loss, so that the unit of a loss does not matter.
_UNSURE, _CHANGES = 0.1, 0.02
#: The fewest changes that tell anything: in fewer there are hardly any averages, and losses fall steeply at first.
_FEWEST = 48
#: The rules by which machines go on from the mean of their weights; by others an average also makes a step.
_MEANS = {"plain", "corrected", "fedprox"}
#: Rounds beyond so many after an average are taken for this one.
_FAR = 1000


class Rise:
    """Sees losses and averages; knows by how many times the root of the energy of drift the loss rises."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._variance: float | None = None
        self._energies: list[list[float]] = []
        self._since: list[int] = []
        self._last: list[float] | None = None
        self._sums: FloatArray = np.zeros((4, 4))

    @property
    def per_root(self) -> float:
        """At least 0: where losses fall with drift, they tell nothing of its noise."""
        return max(self._mean, 0.0)

    def begin(self, problem: Problem, plan: Plan) -> None:
        """A plan is in force from here on."""
        known = problem.constants.by_loss and problem.constants.gradient_dissimilarity is not None
        if not known or problem.averaging not in _MEANS:
            return
        self._energies, self._last, self._sums = _energies(problem, plan), None, np.zeros((4, 4))
        if len(self._since) != len(plan.intervals):
            self._since = [0] * len(plan.intervals)

    def see(self, loss: float | None, averaged: Collection[int]) -> None:
        """A round's mean loss, if anybody took part, and the tiers that were averaged after it."""
        if not self._energies:
            return
        root = sum(of[min(k, len(of) - 1)] for of, k in zip(self._energies, self._since, strict=True)) ** 0.5
        if self._last is not None and loss is not None:
            row = np.array((1.0, self._sums[0, 0] / 100, root - self._last[0], loss - self._last[1]))
            self._sums += np.outer(row, row)
        self._last = None if loss is None else [root, loss]
        self._since = [0 if m in averaged else k + 1 for m, k in enumerate(self._since)]

    def end(self, problem: Problem, plan: Plan | None) -> None:
        """Learn from the losses under the plan that was in force, in energies as they are known now."""
        if plan is None or (found := _slope(self._sums)) is None:
            return
        expected, known = (sum(map(np.mean, energies)) for energies in (self._energies, _energies(problem, plan)))
        slope, error = np.array(found) * (expected / known) ** 0.5
        first = problem.constants.first_loss or problem.constants.initial_gap
        variance = (_UNSURE**2 * first if self._variance is None else self._variance) + _CHANGES**2 * first
        weight = variance / (variance + error**2)
        self._mean += weight * (slope - self._mean)
        self._variance = variance * (1 - weight)
        self._sums = np.zeros((4, 4))

    def state(self) -> RiseRecord:
        """What a checkpoint holds."""
        return RiseRecord(
            mean=self._mean,
            variance=self._variance,
            energies=self._energies,
            since=self._since,
            last=self._last,
            sums=self._sums.tolist(),
        )

    def restore(self, state: RiseRecord | None) -> None:
        """Take a state back; nothing is known from before losses were looked at."""
        if state is None:
            return
        self._mean, self._variance = state.mean, state.variance
        self._energies, self._since = state.energies, state.since
        self._last, self._sums = state.last, np.array(state.sums)


def _energies(problem: Problem, plan: Plan) -> list[list[float]]:
    """By tier: the energy of drift expected so many rounds after an average, up to the next one."""
    found = energies(problem, plan.cuts, min(max(plan.intervals), _FAR))
    return [found[:interval, m].tolist() for m, interval in enumerate(plan.intervals)]


def _slope(sums: FloatArray) -> tuple[float, float] | None:
    """How losses change with the root, beside a trend in time, and the standard error; None where nothing tells it."""
    count, inner, mixed = sums[0, 0], sums[:3, :3], sums[:3, 3]
    if count < _FEWEST or np.linalg.matrix_rank(inner) < 3:
        return None
    solved = np.linalg.solve(inner, mixed)
    residual = max(float(sums[3, 3] - mixed @ solved), 0.0) / (count - 3)
    return float(solved[2]), float(np.sqrt(residual * np.linalg.inv(inner)[2, 2]))
