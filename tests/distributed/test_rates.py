"""Rates as machines measure them: of links whatever their clocks say, of machines by what they had to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hsfl
from hsfl.distributed.places import Places
from hsfl.distributed.rates import LinkMeter, Measured, work_of
from hsfl.theory.latency import round_parts


@given(
    rate=st.floats(1e5, 1e9),
    offset=st.floats(-1e4, 1e4),
    gaps=st.lists(st.floats(0, 2), min_size=20, max_size=40),
    sizes=st.lists(st.integers(20_000, 2_000_000), min_size=20, max_size=40),
)
def test_a_link_has_its_rate_however_clocks_differ(
    rate: float, offset: float, gaps: list[float], sizes: list[int]
) -> None:
    """Messages one after another, some before the one before has arrived; small ones between them."""
    meter, now, free = LinkMeter(), 1000.0, 0.0
    for gap, size in zip(gaps, sizes, strict=False):
        free = max(free, now) + 8 * 100 / rate
        meter.see(100, now, free + offset)
        waited, free = max(free, now) - now, max(free, now) + 8 * size / rate
        way = meter.see(size, now, free + offset)
        assert way == pytest.approx(waited + 8 * (size - 100) / rate, rel=1e-3, abs=1e-6)
        now += gap
    assert meter.bps == pytest.approx(rate, rel=0.02)


def test_nothing_is_said_before_it_is_known() -> None:
    meter = LinkMeter()
    assert meter.see(10**6, 0.0, 1.0) == 0  # nothing small to compare it with
    assert meter.bps is None


def test_machines_as_measured_take_what_was_measured() -> None:
    scenario = hsfl.load_scenario("mnist-mini")
    problem, cuts = scenario.bare_problem, (2, 3)
    places = Places(problem.system.topology, [tier.name for tier in problem.system.tiers])
    work = work_of(problem, places, cuts)
    assert work_of(replace(problem, chunks=4), places, cuts) == pytest.approx(work)
    measured = Measured()
    measured.see({"sensor-3": 0.5, "gateway-1": 0.0}, {"sensor-3>gateway-1": 1e6, "fed>sensor-1": 2e6}, work)
    parent = places.parent("sensor-3")
    measured.see({"sensor-3": 0.5}, {f"sensor-3>{parent}": 1e6, f"{parent}>sensor-3": 3e6}, work)
    system = measured.system(problem.system, places)
    given = problem.system.tiers[0]
    found = system.tiers[0]
    assert (found.uplink_bps[2], found.downlink_bps[2], found.fed_downlink_bps[0]) == (1e6, 3e6, 2e6)
    others = [n for n in range(20) if n != 2]
    for field in ("compute_flops", "uplink_bps", "downlink_bps"):
        assert np.array_equal(getattr(found, field)[others], getattr(given, field)[others])
    parts = round_parts(replace(problem, system=system), cuts)
    assert parts.compute_s[2, 0] == pytest.approx(0.5)  # what it took is what is planned
