"""The plans a good one is compared with."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import hsfl
from hsfl.planner.baselines import alternatives, fastest_round_cuts, one_tier_less, random_cuts, random_intervals
from hsfl.planner.terms import Terms
from hsfl.problem.plan import NEVER
from hsfl.theory.latency import split_latency
from tests.zoo import random_problem


def test_ams_equals_enumeration() -> None:
    for seed in range(20):
        problem = random_problem(
            np.random.default_rng(seed), num_tiers=3, num_layers=8, num_clients=9, memory=seed % 2 == 1
        )
        allowed = [
            c
            for c in combinations(range(1, 8), 2)
            if (Terms.from_problem(problem).segments.index[[0, 1, 2], [0, *c], [*c, 8]] >= 0).all()
        ]
        assert fastest_round_cuts(problem) == min(allowed, key=lambda c: float(split_latency(problem, c)))


def test_random_intervals_are_uniform_from_1_to_25() -> None:
    problem = hsfl.load_scenario("paper").problem
    rng = np.random.default_rng(0)
    drawn = np.array([random_intervals(problem, rng) for _ in range(5000)])
    assert (drawn[:, 2] == 1).all()
    counts = np.bincount(drawn[:, 0], minlength=26)[1:]
    assert len(counts) == 25 and counts.min() > 140 and counts.max() < 260


def test_random_cuts_are_uniform_over_3_to_14() -> None:
    """The paper's range for its 16 layers: 12 places, 66 pairs."""
    segments = Terms.from_problem(hsfl.load_scenario("paper").problem).segments
    rng = np.random.default_rng(0)
    drawn = [random_cuts(segments, rng) for _ in range(6600)]
    counts = {c: drawn.count(c) for c in set(drawn)}
    assert set(counts) == set(combinations(range(3, 15), 2))
    assert min(counts.values()) > 60 and max(counts.values()) < 150


@pytest.mark.parametrize("name", ["paper", "client-edge", "four-tier", "tight-memory"])
def test_nothing_of_the_same_kind_beats_the_plan(name: str) -> None:
    scenario = hsfl.load_scenario(name)
    result = hsfl.plan(scenario)
    found = {a.name: a for a in alternatives(scenario.problem, result.plan)}
    for alternative in found.values():
        if alternative.name.startswith(("no ", "4 ")) or alternative.evaluation is None:
            continue  # another system, a tier that only relays, or machines that work at the same time
        assert alternative.evaluation.objective_s >= result.objective_s * (1 - 1e-12)
        assert alternative.evaluation.fits_memory
    psl = found["PSL"].evaluation
    assert psl is not None and NEVER in psl.plan.intervals and not psl.reaches_target


def test_random_alternatives_are_reproducible() -> None:
    scenario = hsfl.load_scenario("paper")
    plan = hsfl.plan(scenario).plan
    once, again = ([a.evaluation.plan for a in hsfl.compare(scenario, plan) if a.evaluation] for _ in range(2))
    assert once == again


def test_chunks_are_compared_where_there_can_be_any() -> None:
    """The plan for them is the plan of a scenario that has them."""
    four = "training.chunks"
    for changes in ({}, {"participation.cohort": 5}, {"tiers.*.code": "int8"}):
        scenario = hsfl.load_scenario("paper", changes)
        result = hsfl.plan(scenario)
        *_, last = alternatives(scenario.problem, result.plan)
        planned = hsfl.plan(hsfl.load_scenario("paper", changes | {four: 4}))
        assert last.name == "4 chunks" and last.evaluation is not None and last.evaluation.chunks == 4
        assert last.evaluation.objective_s == pytest.approx(planned.objective_s, rel=1e-9)
        assert planned.objective_s < result.objective_s
    names = {}
    for name, changes in {
        "in chunks": ("paper", {four: 2}),
        "batch normalisation": ("four-tier", {}),
        "no four equal ones": ("paper", {"training.batch_size": 18}),
        "labels on devices": ("mnist-mini", {"training.labels": "devices"}),
    }.values():
        scenario = hsfl.load_scenario(name, changes)
        names |= {a.name: a for a in alternatives(scenario.problem, hsfl.plan(scenario).plan)}
    assert "full sync" in names and "4 chunks" not in names


def test_one_tier_less() -> None:
    problem = hsfl.load_scenario("paper").problem
    edge, cloud = one_tier_less(problem)
    assert edge.evaluation is not None and edge.evaluation.plan.cuts[0] == edge.evaluation.plan.cuts[1]
    assert cloud.evaluation is not None and len(cloud.evaluation.plan.cuts) == 1
    client_edge = hsfl.plan("client-edge")
    assert cloud.evaluation.objective_s == pytest.approx(client_edge.objective_s, rel=1e-12)
