"""What codes of fewer bits cost in the convergence bound, where `Constants.coding_noise` is known.

Samples that cross a cut: errors of different clients and cuts are independent, so what they add to the variance of a
mini-batch gradient adds up and is divided by N, as the noise of mini-batches is. That they also make the entities of
tiers drift apart a little faster is left out.

Averages: what coding leaves unsent is added to what is sent next time, so that errors do not pile up. But between two
averages every machine works at weights that are off by what is unsent, as if it had drifted by so much: the code's
relative error times the squares of what was sent, the J_m entities' changes over I rounds, whose errors are
independent, and their mean. With g^2 = G^2 - sigma^2 for the square of the mean gradient that is

    rho gamma^2 [ (1 + 1/J_m) g^2 I^2 + 2 sigma^2 / N I ],  at I = 1 as well.

With cohorts K stands for N, and the entities that are expected to work for J_m. With several mini-batches in a round
their errors are independent too, so that N k stands for N.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hsfl.problem.codes import CODES, Code
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray

_LINKS = ("up", "down")
#: Where nothing better is known, what int4 adds: of activations, as a part of the variance of all layers' gradients,
#: and of gradients, as a part of that of the layers below the cut. Medians of benchmarks/coding.py.
USUAL_NOISE = (0.045, 0.012)


def crossing_noise(problem: Problem, link: str, code: Code) -> FloatArray:
    """(L,): what a code takes of the margin on the link ("up" or "down") over the cut after each layer.

    Nothing after the last layer, where nothing crosses.
    beta gamma / (N k) times the variance it adds; with `loss_target`, of which the noise of mini-batches is no part,
    and which takes beta for 1/gamma, 1 / (N k).
    """
    constants = problem.constants
    if constants.coding_noise is None:
        return np.zeros(problem.num_layers)
    scale = 1.0 if constants.by_loss else constants.smoothness * problem.step
    noise: FloatArray = constants.coding_noise[_LINKS.index(link), list(CODES).index(code.name)]
    return scale / (problem.system.participants * problem.micro_batches) * np.append(noise[:-1], 0.0)


def coding_noise(problem: Problem, cuts: npt.ArrayLike) -> FloatArray:
    """What the codes in force take of the margin where samples cross cuts: (...)."""
    cuts = np.asarray(cuts)
    total = np.zeros(cuts.shape[:-1])
    if problem.constants.coding_noise is None:
        return total
    for m, tier in enumerate(problem.system.tiers[:-1]):
        for link in _LINKS:
            total += crossing_noise(problem, link, getattr(tier.codes, link))[cuts[..., m] - 1]
    return total


def unsent(problem: Problem) -> FloatArray:
    """(2, M, L): the coefficients of I^2 and I of what a code of averages takes, relative to its `average_noise`."""
    constants, system = problem.constants, problem.system
    shape = (2, system.num_tiers, problem.num_layers)
    if constants.coding_noise is None:
        return np.zeros(shape)
    assert constants.gradient_second_moment is not None
    variance = problem.gradient_variance
    mean = np.maximum(constants.gradient_second_moment - constants.gradient_variance, 0.0)
    scale = 1.0 if constants.by_loss else (constants.smoothness * problem.step) ** 2
    systematic = (1 + 1 / system.working)[:, None] * mean
    random = np.broadcast_to(2 / system.participants * variance, systematic.shape)
    return np.where(system.averaged[:, None], scale * np.stack((systematic, random)), 0.0)


def usual_coding_noise(gradient_variance: FloatArray) -> FloatArray:
    """What int4 adds where it is not known: (2, L), from sigma_l^2."""
    up, down = USUAL_NOISE
    return np.stack((np.full(len(gradient_variance), up * gradient_variance.sum()), down * gradient_variance.cumsum()))


def of_all_codes(int4: FloatArray) -> FloatArray:
    """`Constants.coding_noise` from what int4 adds (2, L)."""
    parts = np.array([code.noise for code in CODES.values()]).T
    return parts[:, :, None] * int4[:, None]
