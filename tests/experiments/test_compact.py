"""Runs in a small file show what the runs themselves show."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hsfl.api import load_scenario
from hsfl.errors import HsflError
from hsfl.experiments.compact import SUFFIX, known_runs, read_runs, runs_file, shown_again, write_runs
from hsfl.experiments.recipe import Found, Recipe, Wanted
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.reproduce import reproduce
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings, fixed
from hsfl.experiments.sizes import FULL, QUICK
from hsfl.experiments.store import DIVERGED, Store
from hsfl.records import PlanRecord
from hsfl.runs.reading import Run
from tests.experiments.curves import run

SETTINGS = Settings(QUICK, seeds=(0, 1, 2), precision="bf16")
TRAINED = [name for name, recipe in RECIPES.items() if not recipe.every_round and recipe.runs(SETTINGS)]


def found(name: str) -> Found:
    """Runs that differ in pace and accuracy, one of which diverges."""
    runs: dict[object, Run] = {}
    for k, key in enumerate(RECIPES[name].runs(SETTINGS)):
        one = run([0.1, 0.3, 0.5, *[0.7 + 0.01 * (k % 7)] * 9], pace=1 / 3 + k % 5)
        if k % 11 == 5:
            one = run([0.1, 0.3], pace=0.7, ended=DIVERGED, rounds=110)
            end = one.metrics[-1].model_copy(update={"round": 17, "accuracy": None})
            one = replace(one, metrics=[*one.metrics, end])
        plans = [*one.plans, PlanRecord(round=30, cuts=[1, 3], intervals=[2, 4, 1], layers=5, shortened="so")]
        runs[key] = replace(one, plans=plans)
    return runs


@pytest.mark.parametrize("name", TRAINED)
def test_results_are_the_same_to_the_digit(name: str, tmp_path: Path) -> None:
    given = found(name)
    write_runs(tmp_path, RECIPES[name], SETTINGS, given)
    settings, back = read_runs(runs_file(tmp_path, RECIPES[name]))
    assert settings == SETTINGS and list(back) == list(given)
    shown, again = RECIPES[name].show(SETTINGS, given), shown_again(RECIPES[name], tmp_path)
    assert again is not None and json.dumps(again.to_dict()) == json.dumps(shown.to_dict())
    assert shown_again(RECIPES[name], tmp_path / "elsewhere") is None


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.runs_of])
def test_runs_of_another_recipe_are_in_its_file(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.runs(SETTINGS).keys() == RECIPES[recipe.runs_of].runs(SETTINGS).keys()
    assert runs_file(Path(), recipe) == Path(f"{recipe.runs_of}{SUFFIX}")


def test_a_run_takes_a_few_kilobytes(tmp_path: Path) -> None:
    long = run([0.1 + 0.001 * k for k in range(161)], pace=0.2983878667998492)
    settings = replace(SETTINGS, seeds=tuple(range(10)))
    write_runs(tmp_path, RECIPES["fig2a"], settings, {("3-tier", seed): long for seed in range(10)})
    assert (tmp_path / f"fig2a{SUFFIX}").stat().st_size < 10 * 10_000


def test_what_a_file_has_is_not_trained_again(tmp_path: Path) -> None:
    """A seed more costs one run; a scenario that has changed is no longer known."""

    def runs(settings: Settings) -> Wanted:
        short = {
            "stopping.rounds": 1,
            "execution.evaluate_every": 1,
            "execution.precision": settings.precision,
        } | fixed((1, 2), (1, 1))
        return {(seed,): load_scenario("mnist-mini", short | {"training.seed": seed}) for seed in settings.seeds}

    recipe = Recipe("short", "one round", lambda settings, found: Result("short", "", [], [], [], [], []), runs)

    def trained(settings: Settings) -> int:
        store, known = Store(tmp_path / "runs"), known_runs(tmp_path, [recipe], settings.size)
        shutil.rmtree(store.folder, ignore_errors=True)
        keep = partial(write_runs, tmp_path, recipe, settings)
        (result,) = reproduce([recipe], settings, store, known=known, on_found=lambda _, found: keep(found))
        assert result.cost["runs"] == len(settings.seeds)
        return len(store.trained)

    assert [trained(replace(SETTINGS, seeds=seeds)) for seeds in ((0,), (0, 1), (1,))] == [1, 1, 0]
    assert trained(replace(SETTINGS, seeds=(1,), precision="fp32")) == 1
    with pytest.raises(HsflError, match="has runs of the quick setting, not of full size; give another --out"):
        known_runs(tmp_path, [recipe], FULL)


def test_a_longer_run_has_a_shorter_one_in_it(tmp_path: Path) -> None:
    """Where nothing is planned on the way: such a run is the same until the shorter one ends."""

    def recipe(name: str, changes: dict[str, object]) -> Recipe:
        def runs(settings: Settings) -> Wanted:
            return {("one",): load_scenario("mnist-mini", {"execution.evaluate_every": 1, "seed": 3} | changes)}

        return Recipe(name, "", lambda settings, found: Result(name, "", [], [], [], [], []), runs)

    def made(one: Recipe, folder: Path) -> tuple[int, Run]:
        store, given = Store(folder / "trained" / one.name), []
        known = known_runs(folder, [long, planned], SETTINGS.size)
        list(reproduce([one], SETTINGS, store, known=known, on_found=lambda _, found: given.extend(found.values())))
        write_runs(folder, one, SETTINGS, {("one",): given[0]})
        return len(store.trained), read_runs(runs_file(folder, one))[1]["one",]

    plan = fixed((1, 2), (2, 1))
    long, planned = recipe("long", plan | {"stopping.rounds": 4}), recipe("planned", {"stopping.rounds": 2})
    assert [made(one, tmp_path)[0] for one in (long, planned)] == [1, 1]
    trained, short = made(recipe("short", plan | {"stopping.rounds": 3}), tmp_path)
    alone = made(recipe("alone", plan | {"stopping.rounds": 3}), tmp_path / "elsewhere")[1]
    assert trained == 0 and short.metrics == alone.metrics and short.plans == alone.plans
    assert short.summary is not None and (short.summary.ended, short.summary.rounds) == ("rounds", 3)
    for other in (
        plan | {"stopping.rounds": 5},
        plan | {"stopping.rounds": 3, "stopping.until_accuracy": 0.9},
        plan | {"stopping.rounds": 3, "training.learning_rate": 0.2},
        {"stopping.rounds": 1},
    ):
        assert made(recipe("other", other), tmp_path)[0] == 1
        (tmp_path / f"other{SUFFIX}").unlink()


@pytest.mark.parametrize("name", ["drift", "fig2c"])
def test_nothing_is_written_that_would_not_do(name: str, tmp_path: Path) -> None:
    """For recipes that look at every round, and those that train nothing."""
    given = {} if name == "fig2c" else {("iid", 0): run([0.1, 0.2])}
    write_runs(tmp_path, RECIPES[name], SETTINGS, given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"settings": {"seeds": [0]}, "runs": [{"key": [1]}]}', '{"settings": 3}'])
def test_another_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / f"fig4{SUFFIX}"
    path.write_text(text)
    with pytest.raises(HsflError, match=r"fig4\.runs\.json: not the runs of a recipe"):
        read_runs(path)
