"""Who is drawn, who fails, and what the clock makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.engine.clock import SimulatedClock
from hsfl.engine.participation import Availability, Participation
from hsfl.engine.schedule import Schedule
from hsfl.errors import HsflError
from hsfl.problem.plan import Plan
from hsfl.strategies import fixed
from hsfl.theory.latency import arrival_latency, averaged_bits, round_parts
from tests.engine.task import small_problem

CUTS = (1, 3)


def seconds() -> np.ndarray:
    raise AssertionError("nobody asked for speeds")


@given(st.integers(1, 50), st.integers(0, 2**40), st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_a_cohort_is_so_many_of_those_who_are_there(clients: int, seed: int, round_: int, data: st.DataObject) -> None:
    cohort = data.draw(st.integers(1, clients))
    gone = data.draw(st.sets(st.integers(0, clients - 1), max_size=clients - 1))
    trace = Availability(np.zeros(len(gone)), np.array(sorted(gone), dtype=int), np.zeros(len(gone), dtype=bool))
    rules = Participation(clients, seed, cohort=cohort, availability=trace)
    drawn = rules.chosen(round_, 0.0, seconds)
    assert list(drawn) == sorted(set(drawn)) and not gone & set(drawn)
    assert len(drawn) == min(cohort, clients - len(gone))
    assert drawn == Participation(clients, seed, cohort=cohort, availability=trace).chosen(round_, 0.0, seconds)


def test_everybody_is_drawn_alike_and_by_speed_in_proportion() -> None:
    """One of four in 4000 rounds; by speed, with rounds that take 1, 2, 3 and 6 s: 6 : 3 : 2 : 1."""
    takes = np.array([1.0, 2.0, 3.0, 6.0])
    for by_speed, wanted in ((False, np.full(4, 0.25)), (True, np.array([6, 3, 2, 1]) / 12)):
        rules = Participation(4, 1, cohort=1, by_speed=by_speed)
        drawn = [rules.chosen(t, 0.0, lambda: takes)[0] for t in range(4000)]
        np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, wanted, atol=0.03)
    # Of two, one after the other, the slowest is the first, or the second of those left.
    pairs = [Participation(4, 2, cohort=2, by_speed=True).chosen(t, 0.0, lambda: takes) for t in range(4000)]
    share = (1 / takes) / (1 / takes).sum()
    second = sum(share[i] * share[3] / (1 - share[i]) for i in range(3))
    assert np.mean([3 in pair for pair in pairs]) == pytest.approx(share[3] + second, abs=0.03)


def test_failures_by_chance_and_by_a_trace() -> None:
    rules = Participation(10, 3, dropout=0.3)
    failing = [rules.failing(t, tuple(range(10))) for t in range(2000)]
    assert np.mean([len(one) for one in failing]) == pytest.approx(3.0, abs=0.1)
    assert failing[7] == rules.failing(7, tuple(range(10)))
    traced = Participation(10, failures={2: frozenset({1, 9})})
    assert [sorted(traced.failing(t, (0, 1, 2))) for t in range(3)] == [[], [1], []]


def test_who_is_away_comes_back_in_time_or_never() -> None:
    trace = Availability(np.array([1.0, 1.0, 5.0]), np.array([0, 1, 1]), np.array([False, False, True]))
    rules = Participation(2, availability=trace)
    assert rules.chosen(0, 0.9, seconds) == (0, 1) and rules.chosen(0, 1.0, seconds) == ()
    assert rules.comes_back_s(1.0) == 4.0 and rules.chosen(0, 5.0, seconds) == (1,)
    with pytest.raises(HsflError, match="nobody is available after 6 s; let somebody come back, or stop before that"):
        rules.comes_back_s(6.0)


def made(rules: Participation, intervals: tuple[int, ...] = (2, 3, 1)) -> tuple[Schedule, SimulatedClock]:
    problem = small_problem()
    schedule = Schedule(problem.system.topology, fixed(CUTS, intervals), 0, participation=rules)
    schedule.adopt(Plan(CUTS, intervals))
    return schedule, SimulatedClock(problem)


@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans(), st.floats(0, 0.6))
@settings(max_examples=60, deadline=None)
def test_the_clock_counts_those_who_took_part(seed: int, cohort: int, every_round: bool, dropout: float) -> None:
    """Against loops: seconds of the slowest, bits of each, who sends to averages and who fetches them."""
    rules = Participation(6, seed, cohort=cohort, every_round=every_round, dropout=dropout)
    schedule, clock = made(rules)
    problem, system = clock.problem, clock.problem.system
    takes = round_parts(problem, CUTS).total_s
    bits, hosts = averaged_bits(problem, CUTS), system.hosts
    has: list[set[int]] = [set(range(count)) for count in system.entities]
    trained: list[set[int]] = [set() for _ in system.entities]
    schedule.gather(clock)
    for t in range(1, 13):
        before, sent = clock.time_s, dict(clock.bits)
        old, present = schedule.cohort, schedule.participants(clock)
        due = schedule.finish_round(present.clients)
        clock.split(CUTS, clients=present.clients, least_s=present.waited_s)
        slowest = max(takes[n] for n in (present.clients or old))
        assert clock.time_s - before == pytest.approx(slowest)
        name = system.tiers[0].name
        up = len(present.clients) * problem.batch_size * problem.uplink_bits[0, CUTS[0] - 1]
        assert clock.bits[f"{name}.up"] - sent[f"{name}.up"] == pytest.approx(up, abs=1)
        for n in present.clients:
            for m, row in enumerate(hosts):
                trained[m].add(int(row[n]))
        gathered = schedule.gather(clock)
        assert gathered == (every_round or 0 in [average.tier for average in due])
        wanted = [{int(row[n]) for n in schedule.cohort} for row in hosts]
        expected, before = 0.0, clock.time_s
        for average in due:
            m, tier = average.tier, system.tiers[average.tier]
            exchange = schedule.exchange(m)
            if not trained[m]:
                assert exchange is None
                continue
            assert set(exchange.senders) == trained[m] and set(exchange.receivers) == wanted[m]
            clock.average(CUTS, m, exchange.senders, exchange.receivers)
            expected += bits[m] / min(tier.fed_uplink_bps[j] for j in trained[m])
            expected += bits[m] / min(tier.fed_downlink_bps[j] for j in wanted[m])
            trained[m], has[m] = set(), set(wanted[m])
        for exchange in schedule.joining() if gathered else ():
            m, tier = exchange.tier, system.tiers[exchange.tier]
            missing = wanted[m] - has[m]
            assert set(exchange.receivers) == missing and not exchange.senders
            clock.average(CUTS, m, exchange.senders, exchange.receivers)
            expected += bits[m] / min(tier.fed_downlink_bps[j] for j in missing)
            has[m] |= missing
        assert clock.time_s - before == pytest.approx(expected)
        assert all(need <= own for need, own in zip(wanted, has, strict=True))
        assert t == schedule.round


@given(st.integers(0, 10**6), st.floats(0.2, 1.5))
@settings(max_examples=30, deadline=None)
def test_a_deadline_leaves_out_who_is_late(seed: int, part: float) -> None:
    schedule, clock = made(Participation(6, seed))
    arrive = arrival_latency(clock.problem, CUTS)
    deadline = float(part * arrive.max())
    schedule, clock = made(Participation(6, seed, deadline_s=deadline))
    present = schedule.participants(clock)
    assert present.clients == tuple(np.flatnonzero(arrive <= deadline))
    assert sorted((*present.clients, *present.late)) == list(range(6))
    takes = clock.round_s(CUTS)
    clock.split(CUTS, clients=present.clients, least_s=present.waited_s)
    assert clock.time_s >= deadline if present.late else clock.time_s == pytest.approx(takes.max())
    assert (arrive < takes).all()


def test_the_schedule_goes_on_from_its_record() -> None:
    rules = Participation(6, 4, cohort=2, dropout=0.3)
    (straight, clock), (resumed, _) = made(rules), made(rules)
    straight.gather(clock)
    for _ in range(9):
        resumed.restore(type(straight.state()).model_validate_json(straight.state().model_dump_json()))
        assert resumed.state() == straight.state()
        assert resumed.participants(clock) == straight.participants(clock)
        for average in straight.finish_round(straight.participants(clock).clients):
            straight.gather(clock)
            straight.exchange(average.tier)
        straight.gather(clock)
        straight.joining()
