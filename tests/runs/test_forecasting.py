"""Training until a loss, and what is said on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hsfl
from hsfl.problem.units import format_seconds
from hsfl.records import ForecastRecord
from hsfl.report.forecasts import forecasts
from hsfl.report.words import forecast_text
from hsfl.runs.forecasting import forecast
from hsfl.theory.forecast import recent_losses
from hsfl.theory.latency import round_latency
from tests.runs.conftest import FIXED, results

#: Machines that stay as they are, and a model that learns for long.
LONG = FIXED | {"stopping.rounds": 400, "training.learning_rate": 0.02, "execution.checkpoint_every": 30}


def losses(run: hsfl.Run) -> list[float]:
    return [line.loss for line in run.metrics if line.loss is not None]


def test_training_ends_at_the_loss_and_says_before_when_that_will_be(tiny, tmp_path):
    scenario = hsfl.load_scenario(tiny(LONG | {"stopping.until_loss": 0.6}))
    run = hsfl.train(scenario, out=tmp_path / "run")
    assert run.summary.ended == "loss" and run.summary.rounds < 400
    recent = recent_losses(losses(run))
    evaluated = [line.round for line in run.evaluations() if line.round > 0]
    assert recent[-1] <= 0.6 < min(recent[round_ - 1] for round_ in evaluated[:-1])
    assert run.metrics[0].forecast is None is run.metrics[-1].forecast
    assert all(line.forecast is None or line.accuracy is not None for line in run.metrics)
    said = [line.forecast for line in run.metrics if line.forecast is not None]
    assert len(said) > 5 and all(f.loss == 0.6 for f in said)
    for f in said:
        assert f.rounds is None or (1 <= f.low <= f.rounds and (f.high is None or f.rounds <= f.high))


def test_seconds_are_rounds_at_the_pace_of_the_plan(tiny, tmp_path):
    still = {"dynamics": {}, "stopping.until_loss": 0.3, "stopping.rounds": 200}
    scenario = hsfl.load_scenario(tiny(LONG | still))
    run = hsfl.train(scenario, out=tmp_path / "run")
    pace = float(round_latency(scenario.training_problem, (1, 3), (2, 4, 1)))
    said = [line.forecast for line in run.metrics if line.forecast is not None and line.forecast.rounds is not None]
    assert said
    for f in said:
        assert f.seconds == pytest.approx(f.rounds * pace)
    whole = (run.metrics[-1].time_s - run.metrics[-101].time_s) / 100
    assert pace == pytest.approx(whole, rel=1e-6)


def test_plans_say_it_too(tiny, tmp_path):
    run = hsfl.train(tiny({"stopping.rounds": 150, "stopping.until_loss": 0.3}), out=tmp_path / "run")
    assert run.plans[0].forecast is None  # nothing was seen yet
    assert any(plan.forecast is not None for plan in run.plans[1:])


def test_without_a_loss_nothing_is_said(tiny, tmp_path):
    run = hsfl.train(tiny(LONG | {"stopping.rounds": 60}), out=tmp_path / "run")
    assert all(record.forecast is None for record in (*run.metrics, *run.plans))
    assert forecasts(run) == []


def test_a_resumed_run_says_what_one_that_never_stopped_says(tiny, tmp_path, command):
    changes = {"stopping.until_loss": 0.3, "execution.checkpoint_every": 30}
    whole = hsfl.train(tiny(changes | {"stopping.rounds": 120}), out=tmp_path / "whole")
    hsfl.train(tiny(changes | {"stopping.rounds": 61}), out=tmp_path / "parts")
    assert command("train", "--resume", "parts", "--rounds", 120).code == 0
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    assert any(line.forecast for line in whole.metrics if line.round > 61)


def test_a_run_that_goes_on_may_have_another_loss(tiny, tmp_path, command):
    run = hsfl.train(tiny(LONG | {"stopping.until_loss": 0.9}), out=tmp_path / "run")
    assert run.summary.ended == "loss"
    assert command("train", "--resume", "run").code == 0  # nothing is left to do
    assert hsfl.Run.load(run.folder).summary.rounds == run.summary.rounds
    assert command("train", "--resume", "run", "--until-loss", 0.7).code == 0
    longer = hsfl.Run.load(run.folder)
    assert longer.summary.ended == "loss" and longer.summary.rounds > run.summary.rounds
    assert {f.loss for _, f in forecasts(longer)} == {0.7}


def test_what_is_recorded_is_whole_rounds_and_nothing_once_it_is_reached():
    falling = [2.3 / (1 + round_ / 40) for round_ in range(200)]
    said = forecast(falling, 0.2, round_s=0.5)
    assert said is not None and said.rounds is not None and said.seconds == said.rounds * 0.5
    assert said.low < said.rounds < said.high
    assert forecast(falling, 0.5, 0.5) is None and forecast(falling[:5], 0.2, 0.5) is None
    far = forecast(falling, 1e-3, 0.5)
    assert (far.rounds, far.high, far.seconds) == (None, None, None)


def test_forecasts_in_words():
    said = ForecastRecord(loss=0.1, rounds=1320, low=900, high=2100, seconds=90.0)
    assert forecast_text(said) == f"loss 0.1 in 1,320 rounds (900 to 2,100), {format_seconds(90)} simulated"
    assert forecast_text(said.model_copy(update={"high": None})).count("(900 to ?)") == 1
    far = ForecastRecord(loss=0.1, low=900)
    assert forecast_text(far) == "loss 0.1 not in sight (at least 900 rounds)"
    assert forecast_text(ForecastRecord(loss=0.1)) == "loss 0.1 not in sight"


def test_only_the_last_loss_is_drawn(tiny, tmp_path):
    run = hsfl.train(tiny(LONG | {"stopping.rounds": 200, "stopping.until_loss": 0.3}), out=tmp_path / "run")
    made = forecasts(run)
    other = made[0][0].model_copy(update={"forecast": ForecastRecord(loss=0.5, rounds=3, low=2, high=4, seconds=1.0)})
    metrics = [other if line is made[0][0] else line for line in run.metrics]
    assert len(forecasts(replace(run, metrics=metrics))) == len(made) - 1
