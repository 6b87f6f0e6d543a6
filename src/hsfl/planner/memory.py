"""What is wrong where no plan fits the memories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsfl.planner.terms import Terms
from hsfl.problem.problem import Problem
from hsfl.problem.units import format_bits


def memory_shortfall(problem: Problem, allow_empty_tiers: bool) -> str:
    """Name the tier that is short of memory, and by how much, for the cut vector that comes closest to fitting."""
    system, M = problem.system, problem.system.num_tiers
    unlimited = Terms.from_problem(
        replace(problem, system=system.without_memory_limits()), allow_empty_tiers=allow_empty_tiers
    )
    size = problem.client_memory_bits
    hosted = np.array([c[j] for c, j in zip(system.most_hosted, system.tightest_entity, strict=True)])
    excess = hosted[:, None, None] * (
        size[:, None, :] - size[:, :, None] - system.memory_per_client_bits[:, None, None]
    )
    excess = np.where(unlimited.segments.index >= 0, excess, np.inf)
    # A shortest path with the largest excess as its length: least[m][b] is the best for tiers up to m ending at cut b.
    least, back = [excess[0, 0]], []
    for m in range(1, M):
        through = np.maximum(least[-1][:, None], excess[m])
        back.append(np.argmin(through, axis=0))
        least.append(through.min(axis=0))
    edges = [problem.num_layers]
    for step in reversed(back):
        edges.append(int(step[edges[-1]]))
    edges = [0, *reversed(edges)]
    worst = [excess[m, edges[m], edges[m + 1]] for m in range(M)]
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
