"""Who has which samples: from files of LEAF to training, in the command and in pictures."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import harmonic_mean

import numpy as np
import pytest

import hsfl
import hsfl.plot
from hsfl.data import load_client_data
from hsfl.distributed.machines import Machines
from hsfl.errors import ScenarioError
from hsfl.runs.preparing import prepare
from hsfl.runs.samples import scenario_samples
from tests.data.test_leaf import images, write


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    """A folder of 25 writers, 4 to 28 images each."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        write(tmp_path / "femnist" / part / "all_data_0.json", {f"w{n}": images(rng, 4 + n) for n in range(25)})
    return tmp_path / "femnist"


FIELDS = {"data.name": "leaf", "data.partition": "natural", "model.classes": 62, "stopping.rounds": 1}


FIXED = {"strategy.name": "fixed", "strategy.cuts": [3, 4], "strategy.intervals": [2, 2, 1]}


def test_writers_of_leaf_are_clients(writers: Path, tmp_path: Path) -> None:
    """One writer for each of 20 clients, 62 classes, as far as a round and what a run says of it."""
    fields = {"data.folder": str(writers), "data.users_per_client": 1, "training.weighting": "samples"}
    scenario = hsfl.load_scenario("mnist-mini", FIELDS | fields | FIXED)
    run = hsfl.train(scenario, out=tmp_path / "run")
    assert run.labels is not None and len(run.labels.labels) == 62
    sizes = [sum(counts) for counts in run.labels.counts]
    assert len(set(sizes)) == 20 and min(sizes) >= 4 and max(sizes) <= 28
    assert scenario_samples(scenario) == run.labels
    (record,) = [line for line in run.metrics if line.round == 1]
    assert record.losses is not None  # of the one round, by client
    assert record.loss == pytest.approx(np.average(record.losses, weights=sizes), rel=1e-6)
    assert abs(record.loss - np.mean(record.losses)) > 1e-6
    axes, above, _ = hsfl.plot.labels(run)
    assert axes.images[0].get_array().shape == (62, 20)
    assert [bar.get_height() for bar in above.patches] == sizes


def test_ten_classes_are_too_few(writers: Path) -> None:
    scenario = hsfl.load_scenario("mnist-mini", FIELDS | {"data.folder": str(writers), "model.classes": 10})
    with pytest.raises(ScenarioError, match="62 classes, but the model tells 10 apart"):
        prepare(scenario)


def test_a_model_with_other_classes_is_planned_with_them() -> None:
    """The last layer of LeNet-5 has a weight for each of 84 features and a bias, for every class."""
    ten, more = (hsfl.load_scenario("mnist-mini", {"model.classes": count}).profile for count in (10, 62))
    assert more.parameter_bits[-1] == ten.parameter_bits[-1] * 62 / 10 == 32 * 62 * 85
    assert more.parameter_bits[:-1].tolist() == ten.parameter_bits[:-1].tolist()


def test_data_show(command, tmp_path: Path) -> None:
    """A row for every client; --json has what a run writes; a picture."""
    ended = command("data", "show", "mnist-mini", "--set", "data.partition=quantity", "--plot", "labels.png")
    assert ended.code == 0 and ended.err == ""
    assert "20 clients with 10,000 samples" in ended.out and "Wrote labels.png" in ended.out
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")
    ended = command("data", "show", "mnist-mini", "--set", "data.partition=quantity", "--json")
    counts = np.array(json.loads(ended.out)["counts"])
    assert counts.shape == (20, 10) and counts.sum() == 10_000 and counts.sum(axis=1).min() < 100
    scenario = hsfl.load_scenario("mnist-mini", {"data.partition": "quantity"})
    assert scenario_samples(scenario).counts == counts.tolist()


def test_data_show_of_targets_that_are_no_labels(command, tmp_path: Path) -> None:
    """Numbers: their mean, deviation and range, client by client; several labels per sample: how many samples."""
    source = """
import torch

def numbers():
    inputs = torch.rand(40, 1, 28, 28)
    targets = torch.stack((torch.arange(40.0), torch.arange(40.0) + 100), dim=1)
    return inputs, targets, inputs[:2], targets[:2]

def pixels():
    inputs, targets = torch.rand(40, 1, 28, 28), torch.randint(0, 9, (40, 28, 28))
    return inputs, targets, inputs[:2], targets[:2]
"""
    (tmp_path / "measured.py").write_text(source)
    options = ("data", "show", "mnist-mini", "--trust", "--set", "data.name=", "--set", "data.partition=iid", "--set")
    ended = command(*options, "data.factory=measured:numbers", "--plot", "targets.png")
    assert ended.code == 0, ended.err
    assert "20 clients with 40 samples, 2 to 2 each, with targets that are" in ended.out and "deviation" in ended.out
    assert (tmp_path / "targets.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(command(*options, "data.factory=measured:numbers", "--json").out)
    scenario = hsfl.load_scenario(
        "mnist-mini", {"data.name": None, "data.partition": "iid", "data.factory": "measured:numbers"}
    )
    parts = load_client_data(scenario, None).parts
    own = [np.array([*part, *(part + 100.0)]) for part in parts]
    assert found["samples"] == [2] * 20 and found["mean"] == pytest.approx([one.mean() for one in own])
    assert found["deviation"] == pytest.approx([one.std() for one in own])
    assert (found["least"], found["greatest"]) == ([one.min() for one in own], [one.max() for one in own])
    assert len(hsfl.plot.labels(scenario)) == 2
    ended = command(*options, "data.factory=measured:pixels")
    assert ended.code == 0 and "2 to 2 each, with several labels per sample" in ended.out, ended.err


BAD = {
    "nobody's samples": (["--set", "data.partition=natural"], "whose each sample is"),
    "no folder": (["--set", "data.name=leaf"], "data.folder is missing"),
    "no files": (["--set", "data.name=leaf", "--set", "data.folder=."], "there are no .json files in it"),
    "elsewhere": (["--set", "data.name=own"], "every device has its own"),
    "no data": (["--set", "data.partition=csv"], "data.assignments is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_shown_is_one_sentence(command, name: str) -> None:
    options, says = BAD[name]
    ended = command("data", "show", "mnist-mini", *options)
    assert ended.code == 2 and ended.out == "" and ended.err.count("\n") == 1
    assert ended.err.startswith("hsfl: scenario mnist-mini: ") and says in ended.err


def test_noise_is_in_what_clients_train_on() -> None:
    plain, noisy = (
        prepare(hsfl.load_scenario("mnist-mini", {"data.feature_noise": level} | FIXED)) for level in (0.0, 0.2)
    )
    ours, theirs = (one.backend.data.batch(one.backend.drawn())[0] for one in (plain, noisy))
    apart = (ours - theirs).square().mean((1, 2, 3, 4))
    assert not apart[0] and apart[-1] > apart[1] > 0


@pytest.mark.parametrize("fields", [{}, {"data.held_out": 0.3}, {"data.partition": "quantity", "data.alpha": 1.0}])
def test_plans_know_how_soon_clients_see_their_samples_again(fields: dict[str, object]) -> None:
    """The harmonic mean, because the noise of every client's own samples is in proportion to one over their number."""
    prepared = prepare(hsfl.load_scenario("mnist-mini", fields | FIXED))
    labels = prepared.labels
    assert labels is not None
    sizes = [sum(counts) for counts in labels.counts]
    assert prepared.task.problem.constants.samples_per_client == pytest.approx(harmonic_mean(sizes))


def test_plans_know_it_of_clients_that_draw_their_own_samples_too() -> None:
    fields = {"data.samples_per_client": 37, "data.partition": "iid"}
    prepared = prepare(hsfl.load_scenario("mnist-mini", fields | FIXED))
    assert prepared.task.problem.constants.samples_per_client == 37


def test_plans_know_nothing_of_samples_that_are_elsewhere() -> None:
    prepared = prepare(hsfl.load_scenario("mnist-mini", {"data.name": "own"} | OWN), backend=Machines)
    assert prepared.task.problem.constants.samples_per_client is None


def test_samples_that_nobody_knows_cannot_weigh() -> None:
    scenario = hsfl.load_scenario("mnist-mini", {"data.name": "own", "training.weighting": "samples"} | OWN)
    with pytest.raises(ScenarioError, match=r'training\.weighting = "samples": with data\.name = "own" nobody knows'):
        prepare(scenario, backend=Machines)


OWN = {"data.partition": None, "data.inputs": "uint8"} | FIXED
