"""Scenarios from dictionaries, and models, data and strategies from Python: everywhere, and recorded."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.errors import HsflError
from hsfl.models import chain
from hsfl.problem.plan import Plan
from hsfl.runs.given import given_source
from hsfl.runs.writing import check_free
from tests.runs.conftest import FIXED, TASK, TINY, results, write_tiny
from tests.scenario.scenarios import changed

SHORT = FIXED | {"stopping.rounds": 4, "execution.evaluate_every": 2, "execution.checkpoint_every": 2}
task: dict[str, Any] = {}
exec(compile(TASK, "task.py", "exec"), task)


class Mine:
    """A strategy."""

    name, replans, needs_constants = "mine", False, False

    def propose(self, problem, current, round_):
        return Plan((1, 3), (2, 4, 1))


def make_model() -> nn.Module:
    return task["model"]()


def make_data() -> Any:
    return task["data"]()


def make_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * nn.functional.cross_entropy(outputs, targets, reduction="none")


def tiny(**changes: Any) -> dict[str, Any]:
    return changed(SHORT | changes, TINY)


def test_a_dictionary_is_a_scenario(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_tiny(tmp_path, SHORT)
    raw = tiny()
    before = copy.deepcopy(raw)
    from_dict, from_file = (hsfl.train(given, out=str(i)) for i, given in enumerate((raw, file)))
    assert results(from_dict.folder) == results(from_file.folder) and raw == before
    arrays = hsfl.load_scenario(tiny(), {"tiers.device.compute": np.array([1e4, 2e4, 3e4, 4e4])})
    assert arrays.system.tiers[0].compute_flops.tolist() == [1e4, 2e4, 3e4, 4e4]
    paper = hsfl.load_scenario("paper")
    assert hsfl.plan(dict(paper.raw)).plan == hsfl.plan("paper").plan
    assert hsfl.evaluate(paper.raw, (3, 8)).objective_s > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "scenario: "),
        ({"name": "x", "model": {"name": "vgg16"}}, "scenario x: "),
        (tiny(model={"name": object()}), "scenario tiny: <object object at"),
        (tiny(**{"training.batch_size": "many"}), "scenario tiny: training.batch_size"),
    ],
)
def test_what_is_wrong_in_a_dictionary_is_one_sentence(given, said) -> None:
    with pytest.raises(HsflError) as error:
        hsfl.load_scenario(given)
    assert str(error.value).startswith(said)


def test_objects_train_as_their_names_do(tmp_path, monkeypatch) -> None:
    """Functions are called with the seed of the run, so that the same comes out as by their names."""
    monkeypatch.chdir(tmp_path)
    named = hsfl.train(write_tiny(tmp_path, SHORT), out="named")
    scenario = hsfl.load_scenario(tiny(), model=make_model, data=make_data, strategy=Mine())
    given = hsfl.train(scenario, out="given")
    assert results(named.folder)["model.safetensors"] == results(given.folder)["model.safetensors"]
    assert [line.accuracy for line in named.metrics] == [line.accuracy for line in given.metrics]
    tensors = hsfl.train(hsfl.load_scenario(tiny(), model=make_model, data=task["data"]()), out="tensors")
    assert results(named.folder) == results(tensors.folder)
    assert given.strategy == "mine" and given.scenario["model"]["factory"] == "given:make_model"
    # Plans, constants, the page and changes of fields take them along.
    assert len(scenario.profile) == len(hsfl.load_scenario(write_tiny(tmp_path)).profile)
    assert hsfl.estimate(scenario, rounds=1, batches=2).smoothness > 0
    other = scenario.with_overrides({"training.batch_size": 3, "strategy.name": "HSFL"})
    assert set(other.objects) == {"model", "data"} and other.spec.training.batch_size == 3
    page = hsfl.explore(scenario)
    page.close()


def test_a_model_is_trained_from_the_weights_it_has(tmp_path) -> None:
    """A copy of it: the model itself stays as it was."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    before = copy.deepcopy(model.state_dict())
    fixed = {"strategy.cuts": [1, 2], "training.learning_rate": 1e-12}
    run = hsfl.train(hsfl.load_scenario(tiny(**fixed), model=model, data=make_data), out=tmp_path / "run")
    from safetensors.torch import load_file

    trained = load_file(run.folder / "model.safetensors")
    for name, value in nn.Sequential(*chain(copy.deepcopy(model), torch.zeros(2, 8))).state_dict().items():
        assert torch.allclose(trained[name], value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "Linear(in_features=8, out_features=4" in (run.folder / "given_model.py").read_text()


def test_a_model_takes_the_shape_of_the_one_whose_place_it_takes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    scenario = hsfl.load_scenario("mnist-mini", model=model)
    assert scenario.spec.model.input_shape == [1, 28, 28] and len(scenario.profile) == 3
    with pytest.raises(HsflError, match=r"convergence\.gradient_variance is missing .* hsfl estimate"):
        hsfl.plan(scenario)  # the constants were those of another model
    with pytest.raises(HsflError, match=r"model\.input_shape is missing"):
        hsfl.load_scenario({**hsfl.load_scenario("mnist-mini").raw, "model": {}}, model=model)


def test_run_folders_hold_the_source_and_resuming_asks_for_the_objects(tmp_path) -> None:
    scenario = hsfl.load_scenario(tiny(), model=make_model, data=make_data, strategy=Mine())
    folder = hsfl.train(scenario, out=tmp_path / "run").folder
    sources = {kind: (folder / f"given_{kind}.py").read_text() for kind in ("model", "data", "strategy")}
    assert "def make_model() -> nn.Module:" in sources["model"] and "def make_data()" in sources["data"]
    assert "class Mine:" in sources["strategy"] and "def propose" in sources["strategy"]
    own = hsfl.train(scenario, out=tmp_path / "own", loss=make_loss, metrics={"half": make_loss}).folder
    assert (
        "def make_loss(" in (own / "given_loss.py").read_text()
        and "def make_loss(" in (own / "given_metrics.py").read_text()
    )
    more = {"stopping.rounds": 6}
    assert hsfl.Run.load(own).scenario["training"]["loss"] == "given:make_loss"
    objects: dict[str, Any] = {"model": make_model, "data": make_data, "strategy": Mine()}
    with pytest.raises(
        HsflError, match=r"training.loss = given:make_loss: it was given from Python.*loss= of hsfl.train"
    ):
        hsfl.resume(own, more, **objects, metrics={"half": make_loss})
    with pytest.raises(HsflError, match=r"the metrics of this run: 'half', not 'accuracy'.*metrics=\.\.\."):
        hsfl.resume(own, more, **objects, loss=make_loss)
    assert hsfl.resume(own, more, **objects, loss=make_loss, metrics={"half": make_loss}).metrics[-1].round == 6
    with pytest.raises(HsflError, match="given:Mine': it was given from Python, and no file holds it; give it again"):
        hsfl.resume(folder, more)
    with pytest.raises(HsflError, match=r"given:make_model: it was given from Python.*of hsfl.resume"):
        hsfl.resume(folder, more, strategy=Mine(), data=make_data)
    with pytest.raises(HsflError, match=r"given:make_model: it was given from Python"):
        hsfl.load_scenario(folder / "scenario.toml")
    run = hsfl.resume(folder, more, model=make_model, data=make_data, strategy=Mine())
    assert run.metrics[-1].round == 6
    whole = hsfl.train(scenario.with_overrides(more), out=tmp_path / "whole")
    assert results(run.folder) == results(whole.folder)
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "given_model.py").write_text("# begun\n")
    check_free(killed)


def test_what_is_given_must_be_what_it_is_for(tmp_path) -> None:
    for given, said in (
        ({"model": lambda: 3}, "returned a int; a factory must return an nn.Module"),
        ({"model": lambda: 1 / 0}, "calling it without arguments raised ZeroDivisionError"),
    ):
        with pytest.raises(HsflError, match=said):
            hsfl.load_scenario(tiny(), **given)
    with pytest.raises(HsflError, match="returned a tuple of 3"):
        hsfl.train(hsfl.load_scenario(tiny(), model=make_model, data=(1, 2, 3)), out=tmp_path / "run")
    with pytest.raises(HsflError, match="is a class; give an object of it"):
        hsfl.train(hsfl.load_scenario(tiny(), model=make_model, data=make_data), strategy=Mine, out=tmp_path / "run")
    with pytest.raises(HsflError, match="the model was given from Python, and machines are processes"):
        hsfl.run(hsfl.load_scenario(tiny(), model=make_model, data=make_data), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_public_objects_are_shown_in_one_short_line(tmp_path) -> None:
    scenario = hsfl.load_scenario("paper")
    result = hsfl.plan(scenario)
    shown = [scenario, result, result.plan, result.evaluation, scenario.problem, scenario.system, scenario.profile]
    shown += [scenario.system.tiers[0], scenario.problem.constants, scenario.system.topology]
    shown += [hsfl.compare(scenario, result), hsfl.compare(scenario, result)[0]]
    for thing in shown:
        assert "\n" not in repr(thing) and len(repr(thing)) < 160, thing
    assert repr(scenario) == "<Scenario paper: vgg16 over 20 device → 5 edge → 1 cloud>"
    assert repr(result).startswith("<PlanResult paper: optimal (exact), cuts [4, 7], intervals [5, 6, 1], ")


def test_a_sweep_takes_objects_along_and_says_which_cannot_travel(tmp_path) -> None:
    scenario = hsfl.load_scenario(tiny(), model=make_model, data=make_data, strategy=Mine())
    rates = {"training.learning_rate": [0.1]}
    hsfl.sweep(scenario, rates, out=tmp_path / "s", report=False)
    longer = scenario.with_overrides({"stopping.rounds": 6})
    assert hsfl.sweep(longer, rates, out=tmp_path / "s", report=False).runs[0].metrics[-1].round == 6
    local = hsfl.load_scenario(tiny(), model=lambda: task["model"](), data=make_data)
    with pytest.raises(HsflError, match="the model cannot be sent to other processes"):
        hsfl.sweep(local, {"training.learning_rate": [0.1, 0.2]}, out=tmp_path / "t", jobs=2, report=False)


def test_what_has_no_source_is_said() -> None:
    for thing in (nn.functional.gelu, len, partial(make_model), nn.Linear, [torch.zeros(2, 3)]):
        text = given_source("loss", thing)
        assert text.startswith("# The loss of this run, given from Python: ") and "# Its source cannot be had." in text
    assert "def make_model" in given_source("model", make_model)
