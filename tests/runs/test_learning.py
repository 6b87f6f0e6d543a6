"""Losses, metrics, schedules, clipping, clients and callbacks of whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.data.holding_out import held_out
from hsfl.errors import HsflError
from hsfl.records import SpreadRecord
from hsfl.report.counted import metric_names
from hsfl.report.page import what_you_see
from hsfl.report.run_view import runs_view
from hsfl.report.runs import write_report
from hsfl.report.words import reached
from tests.runs.conftest import FIXED
from tests.scenario.scenarios import ABSENT

REGRESSION = """\
import torch
from torch import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.sign = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return {"value": self.value(x), "sign": self.sign(x)}


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 2))


def heads():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Tanh(), Two())


def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 8, generator=generator)
    targets = torch.tanh(inputs @ torch.randn(8, 2, generator=generator))
    return inputs[:120], targets[:120], inputs[120:], targets[120:]


def of_heads(outputs, targets):
    sign = nn.functional.binary_cross_entropy_with_logits(outputs["sign"], (targets > 0).float(), reduction="none")
    return nn.functional.mse_loss(outputs["value"], targets, reduction="none") + sign


def worst(outputs, targets):
    return (outputs - targets).abs().amax(-1)


def halved(round_):
    return 0.5 ** (round_ // 4)
"""
NUMBERS = {
    "model": {"factory": "numbers_task:model", "input_shape": [8]},
    "data": {"factory": "numbers_task:data"},
    "training.loss": "mse",
    "stopping.rounds": 12,
    "training.learning_rate": 0.2,
}


@pytest.fixture
def regression(tiny, tmp_path: Path):
    """The small scenario with numbers for targets, changed by fields."""

    def make(changes=None):
        (tmp_path / "numbers_task.py").write_text(REGRESSION)
        return tiny({**FIXED, **NUMBERS, **(changes or {})})

    return make


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_numbers_are_learned(regression, tmp_path: Path, backend: str) -> None:
    fields = {"training.metrics": ["l1", "numbers_task:worst"], "execution.backend": backend}
    run = hsfl.train(regression(fields), out=tmp_path / "run")
    first, last = run.evaluations()[0], run.evaluations()[-1]
    assert last.test_loss < first.test_loss and last.accuracy is None
    assert set(last.metrics) == {"l1", "worst"} and last.metrics["l1"] < last.metrics["worst"]
    assert run.summary.accuracy is None and run.summary.metrics == last.metrics and run.labels is None
    assert run.columns()["metrics.worst"][-1] == last.metrics["worst"]
    assert "test worst" in run._repr_html_()
    assert hsfl.estimate(regression(), rounds=2, batches=2).smoothness > 0


def test_a_planned_run_with_several_outputs(regression, tmp_path: Path) -> None:
    """The model is cut, profiled, measured and evaluated; and goes on from a checkpoint as if it had not ended."""
    fields = {
        "model.factory": "numbers_task:heads",
        "training.loss": "numbers_task:of_heads",
        "strategy": {"probe_batches": 2},
    }
    whole = hsfl.train(regression(fields), out=tmp_path / "whole")
    assert whole.evaluations()[-1].test_loss < whole.evaluations()[0].test_loss
    hsfl.train(regression(fields | {"stopping.rounds": 6}), out=tmp_path / "half")
    hsfl.resume(tmp_path / "half", {"stopping.rounds": 12})
    assert (tmp_path / "half/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_loss_and_metrics_from_python(tiny, tmp_path: Path) -> None:
    def smooth(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

    scenario = tiny({**FIXED, "stopping.rounds": 4})
    metrics = {
        "accuracy": lambda outputs, targets: outputs.argmax(-1) == targets,
        "top": lambda outputs, _: outputs.amax(-1),
    }
    run = hsfl.train(scenario, loss=smooth, metrics=metrics, out=tmp_path / "run")
    plain = hsfl.train(scenario, out=tmp_path / "plain")
    assert run.metrics[1].loss != plain.metrics[1].loss
    assert run.metrics[0].accuracy == plain.metrics[0].accuracy and "top" in run.metrics[-1].metrics
    with pytest.raises(
        HsflError, match=r"training.loss = given:\w*smooth: it was given from Python.*loss= of hsfl.train"
    ):
        hsfl.resume(run.folder, {"stopping.rounds": 6})
    with pytest.raises(HsflError, match=r"the metrics of this run: 'accuracy, top', not 'accuracy'"):
        hsfl.resume(run.folder, {"stopping.rounds": 6}, loss=smooth)
    assert hsfl.resume(run.folder, {"stopping.rounds": 6}, loss=smooth, metrics=metrics).summary.rounds == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stopping.until_accuracy": 0.9}, "stopping.until_accuracy: the targets are no classes"),
        ({"stopping.until_converged": True}, "stopping.until_converged: the targets are no classes"),
        ({"data.partition": "shards"}, "data.partition = shards: it goes by classes, and the targets are numbers"),
        ({"data.partition": "dirichlet"}, "data.partition = dirichlet: it goes by classes"),
        ({"training.loss": "cross_entropy"}, "cross entropy needs one more axis"),
        (
            {"training.loss": "mean"},
            'training.loss = "mean": it must be one of cross_entropy, mse, l1, bce, or your own',
        ),
        ({"training.loss": "numbers_task:nothing"}, "training.loss = numbers_task:nothing: module numbers_task has no"),
        ({"training.metrics": ["accuracy"]}, "cross entropy needs one more axis"),
        ({"training.metrics": ["l1", "numbers_task:l1"]}, "module numbers_task has no l1"),
        ({"training.metrics": ["l1", "l1"]}, "metrics: 'l1' is taken"),
        ({"training.horizon": 5}, 'training.horizon: only with training.schedule = "cosine"'),
        ({"training.schedule": "cosine", "training.warmup": 12}, "training.warmup = 12: the cosine ends at round 12"),
        ({"training.schedule": "cosine", "stopping": {"until_loss": 0.1}}, "nothing says when it ends"),
        ({"training.schedule": "steps"}, "training.decay_rounds is missing"),
        (
            {"training.schedule": "steps", "training.decay_rounds": [3, 2]},
            "training.decay_rounds = [3, 2]: they must rise",
        ),
        ({"training.schedule": "down"}, 'training.schedule = "down": it must be one of constant, cosine, steps'),
        ({"training.decay": 0.5}, 'training.decay: only with training.schedule = "steps"'),
        ({"training.clip": 0}, "training.clip = 0"),
        (
            {"model.factory": "numbers_task:heads", "training.loss": "numbers_task:of_heads"},
            "strategy.cuts = [1, 3]: the model gives several tensors",
        ),
        (
            {"execution.evaluate_clients": True},
            "execution.evaluate_clients = true: there is nothing to evaluate them on",
        ),
    ],
)
def test_what_does_not_go_together_is_said(regression, tmp_path: Path, changes: dict, said: str) -> None:
    with pytest.raises(HsflError) as caught:
        hsfl.train(regression(changes), out=tmp_path / "run")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"training.schedule": "cosine", "training.warmup": 3, "training.horizon": 14, "training.clip": 0.5},
        {
            "training.schedule": "numbers_task:halved",
            "training.averaging": "corrected",
            "execution.backend": "reference",
        },
        {"training.schedule": "steps", "training.decay_rounds": [4, 7], "training.optimizer": "adam"},
    ],
)
def test_a_run_that_goes_on_has_the_steps_of_one_that_did_not_end(regression, tmp_path: Path, fields: dict) -> None:
    if fields.get("training.optimizer") == "adam":
        fields = fields | {"training.momentum": ABSENT}
    whole = hsfl.train(regression(fields), out=tmp_path / "whole")
    hsfl.train(regression(fields | {"stopping.rounds": 5}), out=tmp_path / "half")
    hsfl.resume(tmp_path / "half", {"stopping.rounds": 12})
    assert (tmp_path / "half/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    rates = [line.learning_rate for line in whole.metrics[1:]]
    assert len(set(rates)) > 2 and max(rates) <= 0.2


def test_a_cosine_ends_when_training_was_to_end(regression, tmp_path: Path) -> None:
    """So a run that goes on for longer has to say that the cosine does not."""
    run = hsfl.train(regression({"training.schedule": "cosine", "stopping.rounds": 4}), out=tmp_path / "run")
    with pytest.raises(HsflError, match=r"training.horizon is 4 in this run, but 6 now"):
        hsfl.resume(run.folder, {"stopping.rounds": 6})
    longer = hsfl.resume(run.folder, {"stopping.rounds": 6, "training.horizon": 4})
    rates = [line.learning_rate for line in longer.metrics[1:]]
    assert rates[0] == 0.2 and rates[3] == rates[4] == rates[5]


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_clients_are_evaluated_on_what_they_held_out(tiny, tmp_path: Path, backend: str) -> None:
    fields = {**FIXED, "data.held_out": 0.2, "execution.evaluate_clients": True, "execution.backend": backend}
    run = hsfl.train(tiny({**fields, "stopping.rounds": 10}), out=tmp_path / "run")
    for line in run.evaluations():
        assert set(line.clients) == {"global", "own"} and set(line.clients["own"]) == {"loss", "accuracy"}
        for spread in (*line.clients["global"].values(), *line.clients["own"].values()):
            assert spread.lowest_tenth <= spread.mean <= spread.highest_tenth and len(spread.each) == 4
            assert spread.mean == pytest.approx(np.mean(spread.each))
    first, last = run.evaluations()[0], run.evaluations()[-1]
    for name, own in first.clients["own"].items():  # all begin alike
        assert own.each == pytest.approx(first.clients["global"][name].each)
    assert last.clients["own"]["loss"].each != last.clients["global"]["loss"].each
    assert sum(map(sum, run.labels.counts)) == 96  # of 120


def test_held_out_samples_are_apart() -> None:
    parts = [np.arange(10), np.arange(10, 12), np.array([12]), np.arange(13, 113)]
    left, held = held_out(parts, 0.1, seed=3)
    assert [len(part) for part in held] == [1, 1, 0, 10]
    for part, ours, theirs in zip(parts, left, held, strict=True):
        assert sorted([*ours, *theirs]) == part.tolist()
    again = held_out(parts, 0.1, seed=4)[1]
    assert any(a.tolist() != b.tolist() for a, b in zip(held, again, strict=True))


def test_tenths_of_clients() -> None:
    spread = SpreadRecord.of([float(n) for n in range(20)] + [float("nan")])
    assert (spread.mean, spread.lowest_tenth, spread.highest_tenth) == (9.5, 0.5, 18.5)
    assert spread.each[-1] is None and SpreadRecord.of([float("nan")]) is None


class Enough(hsfl.Callback):
    """Keeps the models of evaluations, and ends training after some."""

    def __init__(self, after: int) -> None:
        self.after, self.models, self.summary = after, {}, None

    def on_evaluation(self, record, model) -> None:
        self.models[record.round] = model()
        if record.round >= self.after:
            raise hsfl.StopTraining("that will do")

    def on_end(self, summary) -> None:
        self.summary = summary


def test_a_callback_sees_models_and_ends_training(tiny, tmp_path: Path) -> None:
    heard = Enough(8)
    scenario = tiny({**FIXED, "stopping.rounds": 30})
    run = hsfl.train(scenario, callbacks=[heard], out=tmp_path / "run")
    assert run.summary.ended == "callback" and run.summary.why == "that will do" and heard.summary == run.summary
    assert run.metrics[-1].round == 8 and list(heard.models) == [0, 4, 8]
    inputs = torch.randn(5, 8)
    outputs = {round_: model(inputs) for round_, model in heard.models.items()}
    assert all(isinstance(model, nn.Module) and not model.training for model in heard.models.values())
    assert not torch.equal(outputs[0], outputs[8]) and torch.equal(outputs[8], heard.models[8](inputs))
    assert "callback" in json.loads((tmp_path / "run/summary.json").read_text())["ended"]
    # It goes on as one that never stopped here.
    hsfl.resume(run.folder, {"stopping.rounds": 12})
    whole = hsfl.train(tiny({**FIXED, "stopping.rounds": 12}), out=tmp_path / "whole")
    assert (run.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_a_metric_that_is_no_number_is_absent_and_files_stay_json(tiny, tmp_path: Path) -> None:
    """NaN and infinity, always or at times: null in every file, and every reader goes on without it."""
    calls = iter(range(100))  # two in every evaluation: test data, and what is held out

    def odd(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.full((len(targets),), [1.0, float("inf")][next(calls) // 2 % 2])

    metrics = {"hollow": lambda outputs, targets: outputs.sum(-1) * float("nan"), "odd": odd}
    fields = FIXED | {"stopping.rounds": 8, "data.held_out": 0.2, "execution.evaluate_every": 2}
    run = hsfl.train(tiny(fields), metrics=metrics, out=tmp_path / "run")

    def refused(text: str) -> None:
        raise AssertionError(text)

    for name in ("metrics.jsonl", "summary.json"):
        text = (run.folder / name).read_text()
        for line in text.splitlines() if name.endswith("l") else [text]:
            json.loads(line, parse_constant=refused)
    evaluated = run.evaluations()
    assert {line.metrics["hollow"] for line in evaluated} == {None} == {run.summary.metrics["hollow"]}
    assert {1.0, None} == {line.metrics["odd"] for line in evaluated}
    assert set(evaluated[-1].clients["global"]) >= {"loss"} and "hollow" not in evaluated[-1].clients["global"]
    assert metric_names([run]) == ["odd"] and "hollow" not in what_you_see([run]) + run._repr_html_()
    assert "hollow" not in reached(evaluated[-1]) and run.columns()["metrics.hollow"] == [None] * 9
    json.dumps(runs_view([run]), allow_nan=False)
    assert [path.name for path in write_report([run], tmp_path / "report")][-1] == "report.html"
    old = (run.folder / "metrics.jsonl").read_text().replace('"hollow":null', '"hollow":NaN')
    (run.folder / "metrics.jsonl").write_text(old)
    assert hsfl.Run.load(run.folder).metrics == run.metrics
