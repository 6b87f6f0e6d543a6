"""Quantities: one value, one per entity, or a distribution, all in SI units."""

from __future__ import annotations

import numpy as np
import pytest

from hsfl.scenario.quantity import Quantity, parse_quantity


@pytest.mark.parametrize(
    ("value", "kind", "form", "numbers"),
    [
        ("80 Mbps", "rate", "value", [8e7]),
        (5, "compute", "value", [5.0]),
        (["1 GB", 16, "2 Mbit"], "size", "list", [8e9, 16.0, 2e6]),
        ({"uniform": ["1 Mbps", 2e6]}, "rate", "uniform", [1e6, 2e6]),
        ({"uniform": [3, 3]}, "rate", "uniform", [3.0, 3.0]),
        ({"normal": ["4 TFLOPS", "1 TFLOPS"]}, "compute", "normal", [4e12, 1e12]),
        ({"lognormal": ["4 TFLOPS", 0.5]}, "compute", "lognormal", [4e12, 0.5]),
        ({"lognormal": ["4 TFLOPS", 10]}, "compute", "lognormal", [4e12, 10.0]),
    ],
)
def test_parse(value, kind, form, numbers):
    quantity = parse_quantity(value, kind)
    assert quantity.form == form
    assert list(quantity.numbers) == numbers
    assert parse_quantity(quantity, kind) is quantity


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "an empty list"),
        ({}, "not a known distribution"),
        ({"unifrom": [1, 2]}, "not a known distribution"),
        ({"uniform": [1, 2], "normal": [1, 2]}, "not a known distribution"),
        ({"uniform": 3}, "uniform takes two numbers"),
        ({"uniform": [1]}, "uniform takes two numbers"),
        ({"normal": [1, 2, 3]}, "normal takes two numbers"),
        ({"normal": {"mean": 1}}, "normal takes two numbers"),
        ({"uniform": [2, 1]}, "swap them"),
        ({"uniform": [0, 1]}, "positive and finite"),
        ({"normal": [1, 0]}, "positive and finite"),
        ({"normal": [-1, 1]}, "positive and finite"),
        ({"lognormal": [1, 10.5]}, "at most 10"),
        ({"lognormal": [1, "1 Mbps"]}, "plain number"),
        ([1, "x"], "80 Mbps"),
        ([1, [2]], "80 Mbps"),
        ([1, True], "80 Mbps"),
        ("x", "80 Mbps"),
    ],
)
def test_parse_says_what_would_be_right(value, says):
    with pytest.raises(ValueError, match=says):
        parse_quantity(value, "rate")


def draw(quantity: Quantity, count: int, seed: int = 0) -> np.ndarray:
    return quantity.draw(count, np.random.default_rng(seed))


def test_a_value_is_the_same_for_all_and_a_list_is_taken_as_it_is():
    assert draw(Quantity("value", (7.0,)), 3).tolist() == [7.0, 7.0, 7.0]
    assert draw(Quantity("list", (3.0, 1.0, 2.0)), 3).tolist() == [3.0, 1.0, 2.0]


def test_uniform_stays_in_range_and_fills_it():
    drawn = draw(Quantity("uniform", (5.0, 9.0)), 20_000)
    assert drawn.min() >= 5 and drawn.max() <= 9
    assert np.histogram(drawn, bins=8, range=(5, 9))[0] == pytest.approx(np.full(8, 2500), rel=0.1)


def test_normal_is_normal_and_never_below_zero():
    narrow = draw(Quantity("normal", (100.0, 5.0)), 20_000)
    assert narrow.mean() == pytest.approx(100, rel=0.01) and narrow.std() == pytest.approx(5, rel=0.03)
    wide = draw(Quantity("normal", (1.0, 10.0)), 20_000)
    assert wide.min() > 0
    # The mean of a normal above 0: mean + deviation * density(-0.1) / (1 - distribution(-0.1)).
    assert wide.mean() == pytest.approx(1 + 10 * 0.39695 / 0.53983, rel=0.03)


def test_lognormal_has_the_median_and_the_sigma_of_the_natural_logarithm():
    drawn = draw(Quantity("lognormal", (50.0, 0.4)), 20_000)
    assert drawn.min() > 0
    assert np.median(drawn) == pytest.approx(50, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.4, rel=0.03)


@pytest.mark.parametrize(
    "quantity",
    [
        Quantity("value", (7.0,)),
        Quantity("uniform", (1.0, 2.0)),
        Quantity("lognormal", (1.0, 2.0)),
        Quantity("normal", (100.0, 1.0)),
        Quantity("normal", (1.0, 1.0)),  # one in six is drawn again
    ],
    ids=lambda q: f"{q.form}{q.numbers}",
)
def test_a_longer_draw_starts_with_the_shorter_one(quantity):
    assert draw(quantity, 500)[:50].tolist() == draw(quantity, 50).tolist()


def test_draws_follow_the_generator():
    quantity = Quantity("uniform", (1.0, 2.0))
    assert draw(quantity, 9, seed=1).tolist() == draw(quantity, 9, seed=1).tolist()
    assert not set(draw(quantity, 9, seed=1)) & set(draw(quantity, 9, seed=2))
