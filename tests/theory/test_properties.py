"""What must hold for every problem: the paper's insights and the symmetries of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.planner.exact import ExactSolver
from hsfl.planner.slowest import slowest_clients
from hsfl.problem.problem import Problem
from hsfl.problem.system import System, Tier
from hsfl.theory.convergence import bound, drift, rounds_needed
from hsfl.theory.latency import split_latency
from tests.zoo import cut_vectors, random_problem

seeds = st.integers(0, 2**32 - 1)
drifts = st.sampled_from(["paper", "refined", "energy"])


def any_problem(seed: int, drift: str) -> Problem:
    rng = np.random.default_rng(seed)
    tiers = int(rng.integers(2, 5))
    return random_problem(
        rng,
        num_tiers=tiers,
        num_layers=int(rng.integers(tiers, 9)),
        num_clients=int(rng.integers(4, 12)),
        drift=drift,
        single_top=bool(rng.integers(2)),
    )


@given(seeds, drifts)
@settings(max_examples=60, deadline=None)
def test_insight_1_shorter_intervals_need_fewer_rounds(seed: int, drift_model: str) -> None:
    problem = any_problem(seed, drift_model)
    rng = np.random.default_rng(seed)
    cuts = rng.choice(cut_vectors(problem, False))
    longer = rng.integers(2, 6, problem.system.num_tiers)
    shorter = longer - rng.integers(0, 2, problem.system.num_tiers)
    assert rounds_needed(problem, cuts, shorter) <= rounds_needed(problem, cuts, longer)
    assert bound(problem, 100, cuts, shorter) <= bound(problem, 100, cuts, longer)


@given(seeds, drifts)
@settings(max_examples=60, deadline=None)
def test_insight_2_a_tier_with_one_entity_does_not_drift(seed: int, drift_model: str) -> None:
    problem = any_problem(seed, drift_model)
    cuts = np.random.default_rng(seed).choice(cut_vectors(problem, False))
    terms = drift(problem, cuts, np.full(problem.system.num_tiers, 4))
    assert ((terms > 0) == problem.system.averaged).all()


@given(seeds, drifts)
@settings(max_examples=40, deadline=None)
def test_numbering_of_clients_does_not_matter(seed: int, drift_model: str) -> None:
    problem = any_problem(seed, drift_model)
    order = np.random.default_rng(seed).permutation(problem.system.num_clients)
    device, *rest = problem.system.tiers
    fields = (
        "compute_flops",
        "memory_bits",
        "uplink_bps",
        "downlink_bps",
        "fed_uplink_bps",
        "fed_downlink_bps",
        "parents",
    )
    shuffled = replace(device, **{f: getattr(device, f)[order] for f in fields})
    other = replace(problem, system=System((shuffled, *rest)))
    cuts = cut_vectors(problem, False)
    assert split_latency(other, cuts) == pytest.approx(split_latency(problem, cuts), rel=1e-12)
    ours, theirs = ExactSolver(problem).solve(), ExactSolver(other).solve()
    assert ours.plan == theirs.plan and ours.ratio == pytest.approx(theirs.ratio, rel=1e-12)


@given(seeds, st.sampled_from([1e-3, 8.0, 1e6]))
@settings(max_examples=40, deadline=None)
def test_units_do_not_matter(seed: int, scale: float) -> None:
    """FLOPs and FLOP/s, bits and bit/s, measured in another unit: the same plan in the same time."""
    problem = any_problem(seed, "paper")
    fields = [f for f in Tier.__dataclass_fields__ if f not in ("name", "parents", "codes")]
    tiers = [replace(t, **{f: scale * getattr(t, f) for f in fields}) for t in problem.system.tiers]
    profile = problem.profile
    columns = (
        "forward_flops",
        "backward_flops",
        "activation_bits",
        "gradient_bits",
        "parameter_bits",
        "optimizer_bits",
    )
    scaled = replace(profile, **{c: scale * getattr(profile, c) for c in columns})
    other = replace(problem, system=System(tuple(tiers)), profile=scaled)
    ours, theirs = ExactSolver(problem).solve(), ExactSolver(other).solve()
    assert ours.plan == theirs.plan and ours.ratio == pytest.approx(theirs.ratio, rel=1e-9)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_a_dominated_client_changes_nothing(seed: int) -> None:
    """One more device, no slower in anything than the first, on an entity of its own in every tier below the top.

    The top grows by a client's share, and the gradients carry no noise, so that no one else is affected.
    """
    problem = any_problem(seed, "paper")
    if problem.system.entities[-1] > 1:
        return
    problem = replace(
        problem, constants=replace(problem.constants, gradient_variance=0 * problem.constants.gradient_variance)
    )
    N = problem.system.num_clients
    hosts = [h[0] for h in problem.system.hosts]
    tiers = []
    for m, tier in enumerate(problem.system.tiers):
        if m == problem.system.num_tiers - 1:
            tiers.append(replace(tier, compute_flops=tier.compute_flops * (N + 1) / N))
            continue
        above = problem.system.tiers[m + 1]
        own = above.entities if m + 1 < problem.system.num_tiers - 1 else 0
        rates = {
            f: np.append(getattr(tier, f), 2 * getattr(tier, f)[hosts[m]])
            for f in (
                "compute_flops",
                "memory_bits",
                "uplink_bps",
                "downlink_bps",
                "fed_uplink_bps",
                "fed_downlink_bps",
            )
        }
        assert tier.parents is not None
        tiers.append(replace(tier, **rates, parents=np.append(tier.parents, own)))
    grown = replace(problem, system=System(tuple(tiers)))
    if (grown.system.averaged != problem.system.averaged).any():
        return  # the new entity made a single one two
    cuts = cut_vectors(problem, False)
    assert split_latency(grown, cuts) == pytest.approx(split_latency(problem, cuts), rel=1e-12)
    assert ExactSolver(grown).solve().plan == ExactSolver(problem).solve().plan


@given(seeds, st.integers(65, 400), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_slowest_clients_keep_the_maximum_of_every_demand(seed: int, clients: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    slowness = rng.choice([rng.random((rows, clients)), rng.integers(1, 4, (rows, clients)).astype(float)])
    kept = slowest_clients(slowness)
    assert len(set(kept.tolist())) == len(kept)
    demand = rng.random((50, rows)) * rng.integers(0, 2, (50, rows))
    assert (demand @ slowness).max(axis=1) == pytest.approx((demand @ slowness[:, kept]).max(axis=1), rel=1e-12)
