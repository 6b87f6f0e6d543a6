"""Forecasts against what happened, by runs that are made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsfl.experiments import forecasts
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Result
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import QUICK
from hsfl.experiments.store import content
from hsfl.records import Environment, PlanRecord, RoundRecord, Summary
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario
from hsfl.theory.latency import round_latency

SETTINGS = Settings(QUICK, seeds=(0,))
ROUNDS = 500
FALLING = 2.3 / (1 + np.arange(ROUNDS) / 30)
PLATEAU = np.concatenate((np.full(200, 2.3), FALLING[: ROUNDS - 200]))


def run(losses: np.ndarray, scenario: Scenario, times: float = 1.0) -> Run:
    """With one plan, whose rounds take so many times what they should."""
    cuts, intervals = [1, 3], [2, 4, 1]
    pace = times * float(round_latency(scenario.training_problem, cuts, intervals))
    metrics = [RoundRecord(round=r, time_s=r * pace, loss=float(loss)) for r, loss in enumerate(losses, 1)]
    plans = [PlanRecord(round=0, cuts=cuts, intervals=intervals, layers=5)]
    start = RoundRecord(round=0, time_s=0.0)
    return Run(Path("x"), {}, "", Environment(), [start, *metrics], plans, None, Summary(ended="rounds"))


def shown(of: dict[str, list[np.ndarray]], times: float = 1.0) -> Result:
    """Losses by partition, taken in turn by the runs of each."""
    wanted, taken, found = forecasts.runs(SETTINGS), {"iid": 0, "shards": 0}, {}
    for key, scenario in wanted.items():
        given = of[key[1]]
        found[key] = run(given[taken[key[1]] % len(given)], scenario, times)
        taken[key[1]] += 1
    return forecasts.forecast(SETTINGS, found)


def test_no_run_counts_twice():
    wanted = forecasts.runs(SETTINGS)
    assert len({content(scenario) for scenario in wanted.values()}) == len(wanted)
    assert {key[1] for key in wanted} == {"iid", "shards"}
    assert any(key[2] == "planned, corrected, coded" for key in wanted) and any(key[2] == "full sync" for key in wanted)


def test_a_claim_holds_where_losses_follow_the_law_and_not_on_a_plateau():
    iid, shards = shown({"iid": [FALLING], "shards": [PLATEAU]}).claims
    assert (
        "IID" in iid.what and iid.verdict == HOLDS and iid.measured.startswith("100 % in rounds and 100 % in seconds")
    )
    assert shards.verdict == FAILS and "0 % in rounds" in shards.measured


def test_a_claim_holds_in_part_where_some_do():
    assert shown({"iid": [FALLING], "shards": [FALLING, PLATEAU, FALLING]}).claims[1].verdict == IN_PART


def test_seconds_count_too():
    claim = shown({"iid": [FALLING], "shards": [FALLING]}, times=2.0).claims[0]
    assert claim.verdict == FAILS and claim.measured.startswith("100 % in rounds and 0 % in seconds")


def test_the_table_says_what_was_made_when():
    result = shown({"iid": [FALLING], "shards": [PLATEAU]})
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    early = next(row for row in rows if row["partition"] == "non-IID" and row["said at (% of the run)"] == 20)
    assert early["loss then"] == pytest.approx(2.3) and early["none made"] == early["forecasts"] > 0
    assert early["median"] is None and early["in the range given (%)"] is None
    late = next(row for row in rows if row["partition"] == "non-IID" and row["said at (% of the run)"] == 80)
    assert late["none made"] == 0 and 2 / 3 < late["median"] < 1.5
    assert len(result.panels) == 3


def test_a_run_that_learns_nothing_more_is_asked_for_nothing():
    flat = np.concatenate((FALLING[:50], np.full(ROUNDS - 50, FALLING[49])))
    flat[40] = 0.01  # as low as never again
    flat[:10] = 0.01
    scenario = next(iter(forecasts.runs(SETTINGS).values()))
    assert forecasts.said(run(flat, scenario), scenario) == []
    soon_over = forecasts.said(run(FALLING[:2], scenario), scenario)  # it diverged
    assert all(one.rounds == np.inf and not one.in_range for one in soon_over)
