"""Runs are kept by what they learn from, and none is trained twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hsfl
from hsfl.experiments.recipe import Recipe
from hsfl.experiments.reproduce import reproduce
from hsfl.experiments.resources import strategies_runs, trees_runs
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings, client_cloud, client_edge, one_edge_server, scaled
from hsfl.experiments.sizes import QUICK
from hsfl.experiments.statistics import evaluations, final_accuracy
from hsfl.experiments.store import DIVERGED, Store, content
from hsfl.scenario.scenario import Scenario

SETTINGS = Settings(QUICK, seeds=(0,))
SHORT = {"stopping.rounds": 4, "execution.evaluate_every": 2, "strategy.replan_every": 2}


def short(strategy: str = "HSFL", seed: int = 0, **changes: object) -> Scenario:
    overrides = {**SHORT, "strategy.name": strategy} | {k.replace("__", "."): v for k, v in changes.items()}
    return SETTINGS.scenario("mnist-mini", "shards", seed, overrides)


def test_runs_that_differ_in_timing_only_are_trained_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.run(short("RMA+RMS"))
    for compute, communication in ((1, 1), (0.5, 1), (1, 0.1), (3, 7)):
        run = store.run(scaled(short("RMA+RMS"), compute, communication))
        assert [line.accuracy for line in run.metrics] == [line.accuracy for line in first.metrics]
        assert (run.metrics[-1].time_s == first.metrics[-1].time_s) == (compute == communication == 1)
    assert len(store.trained) == 1
    again = Store(tmp_path)
    assert again.run(scaled(short("RMA+RMS"), 2, 2)).metrics[-1].time_s == first.metrics[-1].time_s / 2
    assert not again.trained


def test_a_planned_run_is_trained_anew_only_where_other_plans_are_made(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.run(short())
    store.run(scaled(short(), 4, 4))
    assert len(store.trained) == 1
    slow = store.run(scaled(short(), 1 / 64, 1))
    assert len(store.trained) == 2
    assert store.run(scaled(short(), 1, 64)).metrics[-1].time_s == slow.metrics[-1].time_s / 64
    assert len(store.trained) == 2  # 64 times the links is 1/64 of the compute, in other seconds


def test_what_changes_the_weights_changes_the_content() -> None:
    one = content(short())
    same = [
        scaled(short(), 2, 3),
        short(execution__device="cpu", execution__checkpoint_every=7),
        short(stopping__rounds=5),
        short(tiers__1__code="fp32"),
        SETTINGS.scenario("mnist-mini", "shards", 0, {**SHORT, "convergence.smoothness": 9.0, "name": "other"}),
    ]
    other = [
        short(seed=1),
        short("RMA+MS"),
        short(training__learning_rate=0.5),
        client_edge(short()),
        short(tiers__1__code="int8"),
        short(tiers__1__code={"up": "int8"}),
        short(tiers__2__code="int8"),
        short(training__averaging="corrected"),
        short(strategy__drift="energy"),
        SETTINGS.scenario("mnist-mini", "iid", 0, SHORT),
        SETTINGS.scenario("mnist-mini", "shards", 0, {**SHORT, "convergence.slack": 1.0}),
    ]
    assert {content(scenario) for scenario in same} == {one}
    assert len({one, *map(content, other)}) == 1 + len(other)
    given = {"strategy__cuts": [1, 3], "strategy__intervals": [1, 1, 1]}
    assert content(short("fixed", **given)) == content(short("fixed", **given, strategy__drift="energy"))
    random = [content(short("RMA+RMS", strategy__seed=seed)) for seed in (0, 1)]
    assert random[0] == content(short("RMA+RMS")) != random[1]


def test_a_longer_run_is_also_a_shorter_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "one")
    longer = store.run(short(stopping__rounds=6))
    found = store.run(scaled(short(), 2, 2))
    assert len(store.trained) == 1
    expected = Store(tmp_path / "two").run(scaled(short(), 2, 2))
    assert (found.metrics, found.plans) == (expected.metrics, expected.plans)
    assert found.summary.model_copy(update={"wall_s": None}) == expected.summary.model_copy(update={"wall_s": None})
    assert store.run(short(stopping__rounds=6)).metrics == longer.metrics
    store.run(short(stopping__rounds=5))  # which ends with an evaluation that the longer run does not have
    assert len(store.trained) == 2
    store.run(short(stopping__rounds=4, stopping__until_accuracy=0.9))
    assert len(store.trained) == 3


def in_step(strategy: str = "HSFL", **changes: object) -> Scenario:
    """Planned by the paper's bound, which leaves nothing to drift: every tier is averaged after every round."""
    bound = {"strategy__drift": "paper", "convergence__drift": "paper", "convergence__slack": 0.0}
    return short(strategy, **bound | changes)


SYNC = {"strategy__cuts": [1, 3], "strategy__intervals": [1, 1, 1]}


@pytest.mark.parametrize(
    "wanted",
    [
        in_step("MA+RMS"),
        in_step("fixed", **SYNC),
        scaled(in_step(), 1 / 64, 1),
        client_edge(in_step()),
        client_cloud(in_step("MA+RMS")),
        one_edge_server(in_step("fixed", strategy__cuts=[2], strategy__intervals=[1, 1])),
    ],
    ids=lambda scenario: f"{scenario.spec.strategy.name}, {len(scenario.spec.tiers)} tiers",
)
def test_runs_in_step_are_one_training(tmp_path: Path, wanted: Scenario) -> None:
    """Other strategies, cuts and trees: what is learnt is the same up to rounding, plans and seconds exactly."""
    store = Store(tmp_path / "one")
    store.run(in_step())
    found = store.run(wanted)
    assert len(store.trained) == 1
    alone = Store(tmp_path / "two").run(wanted)
    assert [(line.round, line.time_s, line.bytes, line.averaged) for line in found.metrics] == [
        (line.round, line.time_s, line.bytes, line.averaged) for line in alone.metrics
    ]
    assert [line.loss for line in found.metrics[1:]] == pytest.approx([line.loss for line in alone.metrics[1:]], 1e-4)
    assert [(p.round, p.cuts, p.intervals, p.strategy) for p in found.plans] == [
        (p.round, p.cuts, p.intervals, p.strategy) for p in alone.plans
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        in_step("DAMA+RMS"),
        in_step("fixed", strategy__cuts=[1, 3], strategy__intervals=[1, 2, 1]),
        in_step("fixed", **SYNC, tiers__1__code="int8"),
        in_step("fixed", **SYNC, training__averaging="corrected"),
        in_step("fixed", **SYNC, training__clip=0.1),
        in_step("fixed", **SYNC, training__optimizer="adam"),
        in_step("fixed", **SYNC, participation__cohort=10),
        in_step("fixed", **SYNC, seed=1),
        in_step("MA+RMS", strategy__replan_every=1),
        in_step("MA+RMS", convergence__rounds=9.0),
        in_step(strategy__drift="energy"),
    ],
    ids=str,
)
def test_other_runs_are_trained(tmp_path: Path, wanted: Scenario) -> None:
    store = Store(tmp_path)
    store.run(in_step())
    assert store.find(wanted) is None


def test_a_coded_run_is_not_that_of_plain_links(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.run(in_step("fixed", **SYNC, tiers__1__code="int8"))
    assert store.find(in_step("fixed", **SYNC)) is None


class Stop(hsfl.Callback):
    """Interrupts after a round."""

    def on_round(self, record: hsfl.records.RoundRecord) -> None:
        if record.round == 2:
            raise RuntimeError("enough")


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "one")
    with pytest.raises(RuntimeError, match="enough"):
        store.run(short(), [Stop()])
    again = Store(tmp_path / "one")
    run = again.run(short())
    assert [path.name for path in again.trained] == [path.name for path in store.trained]
    whole = Store(tmp_path / "two").run(short())
    assert run.metrics == whole.metrics and run.plans == whole.plans
    assert not (run.folder / "checkpoints").exists() and not (run.folder / "model.safetensors").exists()


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_run_is_left_alone_and_another_trained(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    run = store.run(short())
    if damage == "empty":
        shutil.rmtree(run.folder)
        run.folder.mkdir()
    else:
        metrics = run.folder / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    again = Store(tmp_path)
    assert again.run(short()).metrics == run.metrics
    assert len(again.trained) == 1 and again.trained[0] != run.folder


def test_names_of_strategies_are_one_content_in_any_case() -> None:
    assert content(short("RMA+RMS")) == content(short("rma+rms")) != content(short("RMA+AMS"))


def result_of_nothing(settings: Settings, found: object) -> Result:
    return Result("x", "", [], [], [], [])


def test_recipes_share_runs(tmp_path: Path) -> None:
    recipes = [
        Recipe("a", "", result_of_nothing, lambda settings: {("one",): short(), ("two",): short("RMA+RMS")}),
        Recipe("b", "", result_of_nothing, lambda settings: {("same",): short(), ("three",): short(seed=1)}),
    ]
    store, seen = Store(tmp_path), []
    results = list(
        reproduce(recipes, SETTINGS, store, jobs=2, on_progress=lambda p: seen.append((p.done, p.total, p.trained)))
    )
    assert [result.cost["runs"] for result in results] == [2, 1]
    assert seen[-1] == (3, 3, 3) == (3, 3, len(store.trained))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_a_run_that_diverges_is_a_result_too(tmp_path: Path) -> None:
    wild = short("fixed", training__learning_rate=1e9, strategy__cuts=[1, 3], strategy__intervals=[1, 1, 1])
    store = Store(tmp_path)
    run = store.run(wild)
    assert run.summary is not None and run.summary.ended == DIVERGED
    assert [line.round for line in evaluations(run)] == [0, 2, 4]
    assert final_accuracy(run) < 0.2 and evaluations(run)[-1].time_s > 0
    again = Store(tmp_path)
    assert again.run(scaled(wild, 2, 2)).summary.ended == DIVERGED and not again.trained


def test_scaling_the_resources_trains_each_schedule_once(tmp_path: Path) -> None:
    """Figures 6 and 7 at their smallest: the runs of strategies that do not look at the machines are shared."""
    store = Store(tmp_path)
    for runs in (strategies_runs(SETTINGS), trees_runs(SETTINGS)):
        for key, scenario in runs.items():
            if key[0] in ("RMA+RMS", "DAMA+RMS"):
                store.run(scenario.with_overrides(SHORT))
    assert len(store.trained) == 2
