"""Plans of one's own: checked like everything else a user writes."""

from __future__ import annotations

import numpy as np
import pytest

import hsfl
from hsfl.problem.plan import NEVER, Plan, make_plan
from hsfl.problem.topology import tier_layers
from tests.scenario.scenarios import load

SHAPE = {"entities": (6, 2, 1), "num_layers": 5}


@pytest.mark.parametrize(
    ("cuts", "intervals", "expected"),
    [
        ([1, 2], [1, 1, 1], Plan((1, 2), (1, 1, 1))),
        ((3, 4), (7, 3, 9), Plan((3, 4), (7, 3, 1))),  # the single cloud is always in step
        (np.array([1, 4]), np.array([2, 3, 1]), Plan((1, 4), (2, 3, 1))),
        ([1, 2], [NEVER, NEVER, NEVER], Plan((1, 2), (NEVER, NEVER, 1))),
        (iter([1, 2]), iter([1, 1, 1]), Plan((1, 2), (1, 1, 1))),
    ],
)
def test_a_valid_plan(cuts, intervals, expected):
    plan = make_plan(cuts, intervals, **SHAPE)
    assert plan == expected
    assert all(type(v) is int for v in (*plan.cuts, *plan.intervals))


@pytest.mark.parametrize("cuts", [[1, 1], [2, 5], [5, 5], [1, 5]])
def test_empty_tiers_only_on_request(cuts):
    with pytest.raises(hsfl.HsflError, match="cuts"):
        make_plan(cuts, [1, 1, 1], **SHAPE)
    assert make_plan(cuts, [1, 1, 1], **SHAPE, allow_empty_tiers=True).cuts == tuple(cuts)


@pytest.mark.parametrize(
    ("cuts", "intervals", "says"),
    [
        ([1], [1, 1, 1], "cuts [1]: 2 whole numbers"),
        ([1, 2, 3], [1, 1, 1], "cuts [1, 2, 3]: 2 whole numbers"),
        ([], [1, 1, 1], "cuts []"),
        ([1, 2], [1, 1], "intervals [1, 1]: 3 whole numbers"),
        ([0, 2], [1, 1, 1], "between 1 and 4"),
        ([1, 5], [1, 1, 1], "between 1 and 4"),
        ([3, 2], [1, 1, 1], "rising"),
        ([2, 2], [1, 1, 1], "rising"),
        ([-1, 2], [1, 1, 1], "between 1 and 4"),
        ([1.5, 2], [1, 1, 1], "whole numbers"),
        ([True, 2], [1, 1, 1], "whole numbers"),
        (["a", "b"], [1, 1, 1], "whole numbers"),
        ([None, 2], [1, 1, 1], "whole numbers"),
        ([float("nan"), 2], [1, 1, 1], "whole numbers"),
        ([1, float("inf")], [1, 1, 1], "whole numbers"),
        ([[1], [2]], [1, 1, 1], "whole numbers"),
        ([1, 2], [0, 1, 1], "from 1 to"),
        ([1, 2], [1, -3, 1], "from 1 to"),
        ([1, 2], [NEVER + 1, 1, 1], "from 1 to"),
        ([1, 2], [1.5, 1, 1], "whole numbers"),
    ],
    ids=str,
)
def test_a_bad_plan_is_refused_in_one_sentence(tmp_path, cuts, intervals, says):
    with pytest.raises(hsfl.HsflError) as caught:
        hsfl.evaluate(load(tmp_path), cuts, intervals)
    message = str(caught.value)
    assert says in message and "\n" not in message and "scenario.toml" in message


def test_every_layer_is_somewhere():
    for cuts in ((1, 2), (2, 4), (3, 3), (1, 5)):
        layers = tier_layers(cuts, 5)
        assert [layer for tier in layers for layer in tier] == list(range(5))
        assert [len(tier) for tier in layers] == [cuts[0], cuts[1] - cuts[0], 5 - cuts[1]]


def test_a_plan_that_misses_the_target_is_evaluated_and_says_so(tmp_path):
    found = hsfl.evaluate(load(tmp_path), [1, 2], [NEVER, NEVER, 1])
    assert not found.reaches_target and found.rounds is None and found.objective_s == float("inf")
    assert found.to_dict()["objective_s"] is None and found.to_dict()["rounds"] is None
    assert found.split_latency_s > 0


def test_a_plan_that_does_not_fit_is_evaluated_and_says_so(tmp_path):
    found = hsfl.evaluate(load(tmp_path, {"tiers.1.memory": "1 kB"}), [1, 2], [1, 1, 1])
    assert not found.fits_memory and found.tiers_over_memory == (1,)
    assert found.reaches_target
