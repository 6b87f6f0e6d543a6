"""Models, data, strategies and values of a user's own that once ended badly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hsfl
from hsfl.errors import HsflError
from hsfl.problem.plan import Plan
from tests.runs.conftest import FIXED
from tests.scenario.scenarios import ABSENT

SEGMENTATION = """\
import torch
from torch import nn


def model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1),
        nn.ReLU(), nn.Conv2d(4, 3, 1),
    )


def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(60, 1, 6, 5, generator=generator)
    masks = (images[:, 0] > 0).long() + (images[:, 0] > 1).long()
    return images[:40], masks[:40], images[40:], masks[40:]
"""
LENDING = {"model": {"factory": "segments:model", "input_shape": [1, 6, 5]}, "data": {"factory": "segments:data"}}


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_a_class_for_every_pixel(tiny, tmp_path: Path, backend: str) -> None:
    """Outputs (N, C, H, W) for targets (N, H, W), as everybody has them."""
    (tmp_path / "segments.py").write_text(SEGMENTATION)
    scenario = tiny({**LENDING, "stopping.rounds": 25, "execution.backend": backend, "training.learning_rate": 0.2})
    run = hsfl.train(scenario, out=tmp_path / "run")
    first, last = run.evaluations()[0], run.evaluations()[-1]
    assert run.summary.ended == "rounds" and last.test_loss < first.test_loss
    assert hsfl.estimate(scenario, rounds=2, batches=2).smoothness > 0


def test_numbers_of_numpy_are_numbers(tiny, tmp_path: Path) -> None:
    overrides = {
        "training.learning_rate": np.float64(0.01),
        "stopping.rounds": np.int64(3),
        "strategy.cuts": np.array([1, 3]),
        "strategy.intervals": (np.int32(2), 4, 1),
        "strategy.name": "fixed",
    }
    run = hsfl.train(hsfl.load_scenario(tiny(), overrides), out=tmp_path / "run")
    assert hsfl.Run.load(run.folder).scenario["training"]["learning_rate"] == 0.01
    assert hsfl.resume(run.folder, {"stopping.rounds": np.int64(5)}).summary.rounds == 5
    with pytest.raises(HsflError, match=r"training.learning_rate: <object .* is a object; give a number, text, a list"):
        hsfl.load_scenario(tiny(), {"training.learning_rate": object()})


def test_a_scenario_without_constants_is_loaded_and_trained(tiny, tmp_path: Path) -> None:
    """Only planning needs them, and says how to get them."""
    scenario = hsfl.load_scenario(tiny({"convergence": {"rounds": 100}}), {"stopping.rounds": 3, "training.seed": 2})
    assert hsfl.train(scenario, out=tmp_path / "run").summary.rounds == 3
    with pytest.raises(HsflError, match=r"convergence.gradient_variance is missing .* hsfl estimate .*tiny.toml --wr"):
        hsfl.plan(scenario)


def test_overrides_are_made_before_the_file_is_checked(command, tiny, tmp_path: Path) -> None:
    tiny(FIXED | {"training.batch_size": ABSENT, "stopping.rounds": 2})
    assert "training.batch_size is missing" in command("train", "tiny.toml", "--out", "run").err
    assert command("train", "tiny.toml", "--set", "training.batch_size=4", "--out", "run").code == 0
    assert hsfl.Run.load(tmp_path / "run").scenario["training"]["batch_size"] == 4


class Destructive:
    """A strategy that writes into what it is given."""

    name, replans, needs_constants = "destructive", False, False

    def propose(self, problem: hsfl.Problem, current: Plan | None, round_: int) -> Plan:
        for tier in problem.system.tiers:
            tier.compute_flops[:] = 0.0
        return Plan((1, 3), (1, 1, 1))


def test_a_strategy_cannot_change_the_machines(tiny, tmp_path: Path) -> None:
    with pytest.raises(HsflError, match=r"strategy destructive: propose raised ValueError \(.*read-only"):
        hsfl.train(hsfl.load_scenario(tiny()), strategy=Destructive(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


MIXING = """\
import torch
from torch import nn


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def model():
    return nn.Sequential(
        nn.Linear(8, 24), nn.Sequential(Mixing(), nn.Linear(24, 16)), nn.ReLU(), nn.Linear(16, 4), nn.Linear(4, 3)
    )
"""


def test_a_model_that_mixes_clients_is_refused_before_anything_is_written(command, tiny, tmp_path: Path) -> None:
    (tmp_path / "mixing.py").write_text(MIXING)
    tiny(FIXED | {"model.factory": "mixing:model", "stopping.rounds": 2})
    said = command("train", "tiny.toml", "--out", "run")
    assert said.code == 2 and "layer 1 (Layer) mixes the samples of its batch" in said.err
    assert not (tmp_path / "run").exists()
    assert command("train", "tiny.toml", "--out", "run", "--backend", "reference").code == 0


TIED = """\
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(24, 24), nn.Linear(24, 24)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.back(torch.tanh(self.there(x)))


def model():
    return nn.Sequential(nn.Linear(8, 24), Tied(), nn.Linear(24, 16), nn.Linear(16, 4), nn.Linear(4, 3))
"""


@pytest.mark.parametrize("backend", ["stacked", "reference"])
def test_tied_weights_are_saved_and_resumed(tiny, tmp_path: Path, backend: str) -> None:
    from safetensors.torch import load_file

    (tmp_path / "tied.py").write_text(TIED)
    scenario = tiny({"model.factory": "tied:model", "stopping.rounds": 7, "execution.backend": backend})
    hsfl.train(scenario, out=tmp_path / "run")
    run = hsfl.resume(tmp_path / "run", {"stopping.rounds": 14})
    model = load_file(run.folder / "model.safetensors")
    there, back = (next(v for k, v in model.items() if k.endswith(f"{name}.weight")) for name in ("there", "back"))
    assert np.array_equal(there, back) and run.summary.rounds == 14


def test_what_was_averaged_is_in_the_metrics(tiny, tmp_path: Path) -> None:
    run = hsfl.train(tiny(FIXED | {"stopping.rounds": 8}), out=tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    found = {line["round"]: line["averaged"] for line in lines if "averaged" in line}
    assert found == {2: ["device"], 4: ["device", "edge"], 6: ["device"], 8: ["device", "edge"]}


@pytest.mark.parametrize(
    ("cuts", "said"), [([1], r"\[1\]: 2 whole numbers"), ([1, 2, 3], r"\[1, 2, 3\]: 2 whole numbers")]
)
def test_a_wrong_number_of_cuts_is_said_whoever_plans(tiny, cuts: list[int], said: str) -> None:
    with pytest.raises(HsflError, match=rf"strategy.cuts = {said} are needed for 3 tiers"):
        hsfl.train(hsfl.load_scenario(tiny(), {"strategy.cuts": cuts}))


@pytest.mark.parametrize("callbacks", [hsfl.Callback(), [print], [hsfl.Callback]])
def test_what_is_no_callback_is_said_before_anything_is_written(tiny, tmp_path: Path, callbacks) -> None:
    with pytest.raises(HsflError, match=r"callbacks: .* is given; give a list of objects"):
        hsfl.train(tiny(FIXED), callbacks=callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_model_is_loaded_as_the_docs_say(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from hsfl.models import build, chain

    run = hsfl.train(hsfl.load_scenario("mnist-mini", {"stopping.rounds": 2}), out=tmp_path / "short")
    model = torch.nn.Sequential(*chain(build("lenet5"), torch.zeros(2, 1, 28, 28)))
    model.load_state_dict(load_file(run.folder / "model.safetensors"))
