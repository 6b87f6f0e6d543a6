"""Fields varied: what is written means what it says, and points are the same every time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsfl.errors import ScenarioError
from hsfl.scenario.varying import Range, drawn, grid, parsed, point_name, varied


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.batch_size=8,16", [8, 16]),
        ("tiers.device.uplink=10 Mbps,20 Mbps", ["10 Mbps", "20 Mbps"]),
        ('tiers.device.uplink="10 Mbps", "20 Mbps"', ["10 Mbps", "20 Mbps"]),
        ("strategy.intervals=[1, 1, 1],[5, 5, 1]", [[1, 1, 1], [5, 5, 1]]),
        ("tiers.a.compute={ uniform = [1, 2] },'3 GFLOPS'", [{"uniform": [1, 2]}, "3 GFLOPS"]),
        ("model.profile=../a.csv", ["../a.csv"]),
        ("training.momentum=0..0.9", Range(0, 0.9, False, False)),
        ("training.batch_size=4..64", Range(4, 64, False, True)),
        ("training.learning_rate=log:1e-3..1e-1", Range(1e-3, 1e-1, True, False)),
        ("tiers.device.uplink=log:5..50 Mbps", Range(5, 50, True, False, "Mbps")),
    ],
)  # fmt: skip
def test_values_and_ranges(text: str, values: object) -> None:
    field, found = parsed(text)
    assert field == text.partition("=")[0] and found == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training.batch_size", "write FIELD=A,B,C"),
        ("=1,2", "write FIELD=A,B,C"),
        ("training.momentum=0.9..0.1", "0.9 is not below 0.1"),
        ("training.learning_rate=log:0..1", "0 has no logarithm"),
        ("training.learning_rate=log:a..b", "both ends of the range as numbers"),
        ("tiers.device.uplink=5 Mbps..1 Gbps", "Mbps and Gbps; write both ends of the range in one unit"),
    ],
)
def test_what_is_no_range_is_said(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"^--vary") as error:
        parsed(text)
    assert said in str(error.value)


def test_a_grid_has_every_combination_once() -> None:
    assert grid(varied({"a": [1, 2, 1], "b": "x,y"})) == [
        {"a": a, "b": b} for a in (1, 2) for b in ("x", "y")
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="a: a range has no end of values; draw from it with --random N"):
        grid(varied({"a": "1..2"}))
    with pytest.raises(ScenarioError, match="a: there is no value"):
        varied({"a": []})
    with pytest.raises(ScenarioError, match="a = 3: give a list of values"):
        varied({"a": 3})


@given(seed=st.integers(0, 100), few=st.integers(1, 8), more=st.integers(0, 8))
def test_draws_are_within_their_ranges_and_grow_without_changing(seed: int, few: int, more: int) -> None:
    fields = varied({"a": "log:0.001..10", "b": "3..5", "c": ["x", "y"], "d": "1..2 s"})
    points = drawn(fields, few + more, seed)
    assert points[: len(drawn(fields, few, seed))] == drawn(fields, few, seed)
    for point in points:
        assert 0.001 <= point["a"] <= 10 and point["b"] in (3, 4, 5) and point["c"] in ("x", "y")
        assert 1 <= float(point["d"].removesuffix(" s")) <= 2
    alone = drawn({"a": fields["a"]}, few, seed)
    assert [point["a"] for point in alone] == [point["a"] for point in drawn(fields, few, seed)]


@given(st.floats(0, 1), st.integers(1, 50), st.integers(1, 50), st.booleans())
def test_whole_ranges_have_both_ends(share: float, low: int, span: int, log: bool) -> None:
    whole = Range(low, low + span, log, True)
    assert low <= whole.at(share) <= low + span and isinstance(whole.at(share), int)
    assert whole.at(0.0) == low and whole.at(1.0) == low + span
    middle = Range(0.01, 100, True, False).at(0.5)
    assert math.isclose(middle, 1.0)


def test_names_of_points_are_names_of_folders() -> None:
    assert point_name({"training.learning_rate": 0.1, "tiers.device.uplink": "20 Mbps"}) == (
        "learning_rate=0.1,device.uplink=20Mbps"
    )
    assert point_name({"seed": 1, "training.seed": 2}) == "seed=1,training.seed=2"
    assert point_name({"a": "../x/y"}) == "a=..-x-y" and len(point_name({"a": "x" * 300})) <= 100
    assert point_name({"a": "x" * 300}) != point_name({"a": "x" * 301})
