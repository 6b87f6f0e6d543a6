"""Machines that change while training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsfl.errors import ScenarioError
from hsfl.runs.profiling import profile_model
from hsfl.scenario.draw import LINKS
from hsfl.scenario.dynamics import Conditions
from hsfl.scenario.scenario import Scenario, scenario_from_dict
from tests.scenario.scenarios import changed


def scenario(folder: Path, **dynamics: object) -> Scenario:
    raw = changed({"tiers.0.uplink": {"uniform": ["10 Mbps", "20 Mbps"]}, "tiers.0.compute": {"uniform": [1e9, 2e9]}})
    return scenario_from_dict(raw | ({"dynamics": dynamics} if dynamics else {}), "test", folder, profile_model)


def test_without_dynamics_nothing_changes(tmp_path: Path) -> None:
    made = scenario(tmp_path)
    conditions = Conditions(made)
    assert conditions.at(0, 0.0) is conditions.at(10**6, 1e9) is made.system


def test_redrawn_links_follow_the_seed_and_leave_the_rest(tmp_path: Path) -> None:
    made = scenario(tmp_path, redraw_every=10)
    conditions = Conditions(made)
    first, second, third = (conditions.at(t, 0.0) for t in (9, 10, 25))
    assert first is made.system
    for field in ("compute_flops", "memory_bits", "parents"):
        np.testing.assert_array_equal(getattr(first.tiers[0], field), getattr(second.tiers[0], field))
    assert (first.tiers[0].uplink_bps != second.tiers[0].uplink_bps).all()
    assert (second.tiers[0].uplink_bps != third.tiers[0].uplink_bps).all()
    assert (second.tiers[0].uplink_bps >= 10e6).all() and (second.tiers[0].uplink_bps <= 20e6).all()
    again = Conditions(scenario(tmp_path, redraw_every=10)).at(19, 0.0)
    np.testing.assert_array_equal(again.tiers[0].uplink_bps, second.tiers[0].uplink_bps)
    assert conditions.at(11, 0.0) is conditions.at(19, 5.0)


def test_a_trace_multiplies_from_its_time_on(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "time_s,tier,field,factor\n60,device,uplink,0.5\n10,device,uplink,0.1\n60,edge,compute,2\n"
    )
    made = scenario(tmp_path, trace="t.csv")
    conditions, base = Conditions(made), made.system
    assert conditions.at(0, 9.99) is base
    np.testing.assert_allclose(conditions.at(0, 10.0).tiers[0].uplink_bps, 0.1 * base.tiers[0].uplink_bps)
    later = conditions.at(0, 1e9)
    np.testing.assert_allclose(later.tiers[0].uplink_bps, 0.5 * base.tiers[0].uplink_bps)
    np.testing.assert_allclose(later.tiers[1].compute_flops, 2 * base.tiers[1].compute_flops)
    for field in (f"{link}_bps" for link in LINKS if link != "uplink"):
        np.testing.assert_array_equal(getattr(later.tiers[0], field), getattr(base.tiers[0], field))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time_s,tier,factor\n1,device,2\n", "first line must be time_s,tier,field,factor"),
        ("time_s,tier,field,factor\n1,device,uplink\n", "line 2: it has 3 fields"),
        ("time_s,tier,field,factor\n1,devise,uplink,2\n", "did you mean device"),
        ("time_s,tier,field,factor\n1,device,speed,2\n", "must be one of compute, uplink"),
        ("time_s,tier,field,factor\n1,device,uplink,0\n", "factor = '0' must be a number"),
        ("time_s,tier,field,factor\nsoon,device,uplink,1\n", "time_s = 'soon' must be a number"),
        ("time_s,tier,field,factor\n-1,device,uplink,1\n", "time_s = '-1' must be a number of at least 0"),
        (None, "cannot be read"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ScenarioError, match=says):
        Conditions(scenario(tmp_path, trace="t.csv"))
