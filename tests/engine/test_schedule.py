"""When tiers are averaged and plans are due, without training anything."""

from __future__ import annotations

from dataclasses import MISSING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.engine.algorithm import Task
from hsfl.engine.clock import SimulatedClock
from hsfl.engine.schedule import Schedule
from hsfl.errors import HsflError
from hsfl.problem.plan import Plan
from hsfl.problem.topology import Topology
from hsfl.strategies import fixed
from tests.engine.task import CLIENTS, small_problem

TREE = Topology.from_hosts([[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_averages_against_a_loop(parts: list[tuple[int, int, int]]) -> None:
    """Plans with two intervals, each in force for some rounds: every average and what is said about it."""
    schedule = Schedule(TREE, fixed((1, 2), (1, 1, 1)), 0)
    counted, last = [0, 0], [0, 0]
    before: Plan | None = None
    moved = 0
    for number, (one, two, rounds) in enumerate(parts):
        plan = Plan((1, 2 + number % 2), (one, two, 1))
        schedule.adopt(plan)
        moved = schedule.round if before is None or before.cuts != plan.cuts else moved
        for m in range(2):
            if before is None or before.intervals[m] != plan.intervals[m]:
                counted[m] = 0
        before = plan
        for _ in range(rounds):
            due = schedule.finish_round()
            expected = []
            for m in range(2):
                counted[m] += 1
                if counted[m] % plan.intervals[m] == 0:
                    expected.append((m, schedule.round - last[m], last[m] < moved))
                    last[m] = schedule.round
            assert [(a.tier, a.rounds, a.moved) for a in due] == expected


def test_a_state_goes_on_where_it_was() -> None:
    one = Schedule(TREE, fixed((1, 2), (3, 2, 1)), 0)
    one.adopt(Plan((1, 2), (3, 2, 1)))
    for _ in range(7):
        one.finish_round()
    other = Schedule(TREE, fixed((1, 2), (3, 2, 1)), 0)
    other.restore(one.state())
    for _ in range(9):
        assert one.finish_round() == other.finish_round()
    assert one.state() == other.state()
    small = Schedule(Topology.from_hosts([[0, 1], [0, 0]]), fixed((1,), (1, 1)), 0)
    with pytest.raises(HsflError, match="the schedule is one of 3 tiers; here are 2"):
        small.restore(one.state())


def test_how_often_to_plan_has_one_default() -> None:
    assert Task.__dataclass_fields__["replan_every"].default is MISSING


def test_everyone_takes_part() -> None:
    problem = small_problem()
    schedule = Schedule(problem.system.topology, fixed((1, 2), (1, 1, 1)), 0)
    assert schedule.participants(SimulatedClock(problem)).clients == tuple(range(CLIENTS))


def test_the_tree_from_both_sides() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        parents = [np.sort(np.append(np.arange(4), rng.integers(0, 4, 5))), np.array([0, 0, 1, 1])]
        tree = Topology.from_parents(9, parents)
        again = Topology.from_hosts([row.tolist() for row in tree.hosts])
        assert tree.entities == again.entities == (9, 4, 2)
        assert [s.sum() for s in tree.shares] == pytest.approx([1, 1, 1])
        for tier, groups in enumerate(tree.clients):
            assert sorted(n for group in groups for n in group) == list(range(9))
            for entity, group in enumerate(groups):
                assert {int(tree.hosts[tier][n]) for n in group} == {entity}
        assert sorted(tree.order) == list(range(9))
        np.testing.assert_allclose(tree.part(2, 1).sum(axis=1), 1.0)
        for entity, group in enumerate(tree.clients[2]):
            hosted = np.bincount([tree.hosts[1][n] for n in group], minlength=4) / len(group)
            np.testing.assert_allclose(tree.part(2, 1)[entity], hosted)
