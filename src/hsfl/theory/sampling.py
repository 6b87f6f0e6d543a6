"""What a random cohort of K of N clients does to gradients, where only some clients take part.

The mean gradient of a cohort differs from that of all clients by v = (N-K) / (K (N-1)) zeta^2, in the mean over
cohorts; what is left of zeta^2 lies between the clients of the cohort. Both are exact for draws without replacement.
"""

from __future__ import annotations

import numpy as np

from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.system import System


def within_cohort(system: System, dissimilarity: FloatArray) -> FloatArray:
    """(M, L): the dissimilarity between the entities of each tier as a cohort has it, from that of all clients.

    All that is between the clients of a cohort, N (K-1) / (K (N-1)) zeta_1^2, less what is between those of the same
    entity, (K - J') / K of their variance, where J' entities are expected to work. Clients of one entity are taken to
    differ as much as those of another.
    """
    if not system.sampled:
        return dissimilarity
    N, K = system.num_clients, system.participants
    total = N * (K - 1) / (K * (N - 1)) * dissimilarity[0]
    inside, together = _inside(system)
    variance = inside * np.maximum(dissimilarity[0] - dissimilarity, 0.0)
    return np.asarray(np.maximum(total - together * variance, 0.0))


def of_all_clients(system: System, measured: FloatArray) -> FloatArray:
    """(M, L): the dissimilarity of all clients, from what was measured between the entities of a cohort.

    The inverse of `within_cohort`. Of a cohort of 1 nothing can be told: as measured, 0.
    """
    N, K = system.num_clients, system.participants
    if not system.sampled or K == 1:
        return measured
    first = K * (N - 1) / (N * (K - 1)) * measured[0]
    inside, together = _inside(system)
    shared = np.divide(measured[0] - measured, inside * together, out=np.zeros_like(measured), where=together > 0)
    return np.asarray(np.maximum(first - np.maximum(shared, 0.0), 0.0))


def sampling_variance(problem: Problem) -> float:
    """sum_l v_l: how far the mean gradient of a cohort is from that of all clients, squared; 0 where all take part.

    zeta_l^2 is at most G_l^2, which stands for it where it is not known.
    """
    system, constants = problem.system, problem.constants
    if not system.sampled:
        return 0.0
    between, moment = constants.gradient_dissimilarity, constants.gradient_second_moment
    known = [row for row in (None if between is None else between[0], moment) if row is not None]
    assert known
    N, K = system.num_clients, system.participants
    return float((N - K) / (K * (N - 1)) * np.minimum.reduce(known).sum())


def _inside(system: System) -> tuple[FloatArray, FloatArray]:
    """(M, 1) each: what makes zeta_1^2 - zeta_m^2 the variance of clients of one entity, and its part in a cohort."""
    N, K, J = system.num_clients, system.participants, np.array(system.entities)[:, None]
    inside = np.divide(N, N - J, out=np.zeros(J.shape), where=N > J)
    return inside, np.where(N > J, (K - system.working[:, None]) / K, 0.0)
