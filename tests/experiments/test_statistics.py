"""What is read off runs, by hand."""

from __future__ import annotations

from math import inf

import pytest

from hsfl.experiments.motivation import _turns, falling
from hsfl.experiments.result import FAILS, HOLDS, IN_PART
from hsfl.experiments.statistics import (
    Ratio,
    Spread,
    ahead,
    converged,
    end_s,
    evaluations,
    final_accuracy,
    has_learnt,
    over_seeds,
    slowdown,
    target_of,
    time_to,
    up_to,
)
from hsfl.experiments.store import DIVERGED
from hsfl.runs.reading import total_bytes
from tests.experiments.curves import run


def test_final_accuracy_is_the_mean_of_the_last_five() -> None:
    assert final_accuracy(run([0.9, 0.1, 0.2, 0.3, 0.4, 0.5])) == pytest.approx(0.3)


def test_time_to_a_target_is_when_the_mean_of_three_evaluations_is_there() -> None:
    curve = run([0.6, 0.1, 0.5, 0.4, 0.6, 0.8], pace=2.0)
    assert time_to(curve, 0.1) == 20  # fewer at the beginning; what an untrained model has does not count
    assert time_to(curve, 0.3) == 40
    assert time_to(curve, 0.5) == 80
    assert time_to(curve, 0.6) == 100
    assert time_to(curve, 0.61) == inf
    assert time_to(curve, 0.5, "round") == 40


def test_convergence_is_where_ten_evaluations_gain_less_than_the_fiftieth_of_a_point() -> None:
    rising = [0.01 * k for k in range(30)]
    assert not converged(run(rising)).reached
    assert converged(run(rising)).time_s == 290
    flat = converged(run([*rising, *[0.29] * 40]))
    assert flat.reached
    # The mean of the last 10 is 0.29 from evaluation 39 on; that of the 10 before gains until 48, by less from 49.
    assert flat.time_s == 490 - 10 and flat.accuracy == pytest.approx(0.29)


def test_a_run_that_diverged_goes_on_as_the_untrained_model() -> None:
    broken = run([0.1, 0.4], pace=3.0, ended=DIVERGED, rounds=50)
    assert [line.round for line in evaluations(broken)] == [0, 10, 20, 30, 40, 50]
    assert [line.accuracy for line in evaluations(broken)] == [0.1, 0.4, 0.1, 0.1, 0.1, 0.1]
    assert total_bytes(evaluations(broken)[-1]) == 50
    assert end_s(broken) == 150 and time_to(broken, 0.4) == 30 and time_to(broken, 0.5) == inf
    long = converged(run([0.1, 0.4], pace=3.0, ended=DIVERGED, rounds=1000))
    assert not long.reached and long.time_s == 3000 and long.accuracy == pytest.approx(0.1)


def test_ratios_are_by_seed_and_a_run_that_never_arrives_counts_with_its_end() -> None:
    fast, slow, never = run([0, 0.9, 0.9]), run([0, 0.9, 0.9], pace=4.0), run([0, 0.1, 0.2], pace=4.0)
    assert slowdown([slow, slow], [fast, fast], 0.9) == Ratio((4.0, 4.0), 0)
    missed = slowdown([slow, never], [fast, fast], 0.9)
    assert missed == Ratio((4.0, 8.0), 1)
    assert missed.text() == "more than 5.7x (4.0 to 8.0)"
    assert slowdown([never], [fast], 0.9).text() == "never, so more than 8.0x"
    assert slowdown([fast], [never], 0.9).text() == "target missed"
    assert slowdown([slow, never], [fast], 0.9) == Ratio((4.0,), 0)  # the first seed, which both have
    assert slowdown([slow, never], [fast, fast], 0.9, "round") == Ratio((1.0, 2.0), 1)


def test_few_seeds_may_not_tell() -> None:
    ratios = [(2.0, 2.1), (0.40, 0.41), (0.5, 3.0), (5.0,), (0.0, 2.0), (0.0,)]
    assert [Ratio(values, 0).surely_more for values in ratios] == [True, False, None, None, False, None]
    bounds = [(2.0, 2.1), (0.40, 0.41)]
    assert [Ratio(values, 2).surely_more for values in bounds] == [True, None]
    spreads = [(2.0, 2.1), (-1.0, -1.0), (0.0, 0.0), (-1.0, 3.0), (5.0,)]
    assert [Spread(values).surely_more for values in spreads] == [True, False, False, None, None]
    assert Ratio((1.0, 1.21), 0).text(2) == "1.10x (1.00 to 1.21)"


def test_spreads_say_how_often_there_was_nothing() -> None:
    assert Spread((1.0, 2.0, 6.0)).text() == "3.0 (1.0 to 6.0)"
    assert Spread((2.0,)).text(0) == "2"
    assert Spread((2.0, inf)).text() == "never in 1 of 2"
    assert Spread((inf,)).text() == "never"
    assert (Spread((2.0, inf)).missed, Spread((2.0,)).missed) == (1, 0)


def test_points_ahead_are_by_seed_and_have_a_sign() -> None:
    low, high = run([0.1] * 6), run([0.3] * 6)
    assert ahead([high, low], [low, high]).values == pytest.approx((20.0, -20.0))
    assert ahead([high, low], [low, high]).text(1, "+") == "+0.0 (-20.0 to +20.0)"
    assert ahead([high], [low, high]).values == pytest.approx((20.0,))  # the first seed, which both have


def test_the_first_rounds_of_a_run_are_a_run() -> None:
    whole = run([0.1, 0.2, 0.3, 0.4])
    first = up_to(whole, 20)
    assert [line.round for line in first.metrics] == [0, 10, 20] and time_to(first, 0.4) == inf
    broken = up_to(run([0.1, 0.4], ended=DIVERGED, rounds=80), 30)
    assert [line.round for line in evaluations(broken)] == [0, 10, 20, 30]


def test_a_target_allows_a_quarter_more_error_rounded_down() -> None:
    assert target_of([run([0.813] * 6), run([0.823] * 6)]) == 0.77  # 1 - 1.25 * 0.182 = 0.7725
    assert target_of([run([0.84] * 6)]) == 0.80  # not 0.79, by rounding
    assert target_of([run([0.987] * 6)]) == 0.98


def test_a_run_has_learnt_that_ends_above_its_beginning() -> None:
    assert has_learnt(run([0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]))
    assert not has_learnt(run([0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.14]))
    assert not has_learnt(run([0.1, 0.9], ended=DIVERGED, rounds=100))


def test_curves_over_seeds_are_means_with_a_band() -> None:
    series = over_seeds("both", [run([0.0, 0.2]), run([0.0, 0.4], pace=3.0)], lambda line: float(line.time_s))  # type: ignore[arg-type]
    assert list(series.x) == [0, 20]
    assert series.y == pytest.approx([0, 30])
    assert series.low == pytest.approx([0, 20]) and series.high == pytest.approx([0, 40])
    assert over_seeds("one", [run([0.0, 0.2])], lambda line: 0.0).low == ()


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([80, 70, 60], HOLDS), ([80, 80.3, 60], HOLDS), ([80, 85, 60], IN_PART), ([80, 80, 80], FAILS), ([60, 80], FAILS)],
)
def test_falling_with_depth(values: list[float], verdict: str) -> None:
    assert falling(values) == verdict


def test_turns_are_changes_of_direction() -> None:
    assert [_turns(v) for v in ([1, 2, 3], [1, 3, 2], [3, 1, 2, 2, 1], [1, 1, 1])] == [0, 1, 2, 0]
