"""What is wrong where no plan fits the memories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsfl.planner.terms import Terms
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.units import format_bits


def memory_shortfall(problem: Problem, allow_empty_tiers: bool) -> str:
    """Name the tier that is short of memory, and by how much, for the cut vector that comes closest to fitting."""
    system = problem.system
    unlimited = Terms.from_problem(
        replace(problem, system=system.without_memory_limits()), allow_empty_tiers=allow_empty_tiers
    )
    size = problem.client_memory_bits
    hosted = np.array([c[j] for c, j in zip(system.most_hosted, system.tightest_entity, strict=True)])
    excess = hosted[:, None, None] * (
        size[:, None, :] - size[:, :, None] - system.memory_per_client_bits[:, None, None]
    )
    excess = np.where(unlimited.segments.index >= 0, excess, np.inf)
    if system.returns:  # devices hold the tail, too: one after the other, as if it were theirs from the start
        found = []
        for cut in range(1, problem.num_layers):
            own = excess.copy()
            own[0] += size[-1, -1] - size[-1, cut]
            own[-1] = np.where(np.isfinite(own[-1]) & (np.arange(len(own[0])) == cut)[:, None], -np.inf, np.inf)
            found.append(_closest(own))
        edges, worst = min(found, key=lambda one: max(one[1]))
    else:
        edges, worst = _closest(excess)
    m = int(np.argmax(worst))
    entity = system.tightest_entity[m]
    has = system.tiers[m].memory_bits[entity]
    cuts = ", ".join(map(str, edges[1:-1]))
    fewer = "a smaller batch_size" + (" or fewer micro_batches" if problem.micro_batches > 1 else "")
    return (
        f"no cut vector fits the memories: the closest, cuts ({cuts}), needs {format_bits(has + worst[m])} on entity "
        f"{entity + 1} of tier {m + 1} ({system.tiers[m].name}), which has {format_bits(has)}, so it is short of "
        f"{format_bits(max(worst[m], 0.0))}; give tiers.{system.tiers[m].name}.memory more, or {fewer}"
    )


def _closest(excess: FloatArray) -> tuple[list[int], list[float]]:
    """The cuts, from 0 to all layers, with the least largest excess (M, L+1, L+1), and that of every tier.

    A shortest path with the largest excess as its length: least[m][b] is the best for tiers up to m ending at cut b.
    """
    M, L = len(excess), excess.shape[1] - 1
    least, back = [excess[0, 0]], []
    for m in range(1, M):
        through = np.maximum(least[-1][:, None], excess[m])
        back.append(np.argmin(through, axis=0))
        least.append(through.min(axis=0))
    edges = [L]
    for step in reversed(back):
        edges.append(int(step[edges[-1]]))
    edges = [0, *reversed(edges)]
    return edges, [float(excess[m, edges[m], edges[m + 1]]) for m in range(M)]
