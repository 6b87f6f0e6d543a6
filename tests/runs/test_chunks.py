"""Mini-batches that go through the tiers in chunks: the same training in less time, and where there can be none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import hsfl
from hsfl.errors import ScenarioError
from hsfl.experiments.in_chunks import timed_in_chunks
from hsfl.experiments.store import Store
from hsfl.runs.preparing import prepare
from hsfl.runs.reading import Run
from hsfl.runs.retiming import retimed
from hsfl.scenario.scenario import Scenario
from tests.runs.conftest import FIXED, write_tiny

#: Machines that stay what they are, and mini-batches of four.
STEADY = FIXED | {"dynamics.redraw_every": None, "training.batch_size": 4, "stopping.rounds": 12}
IN_TWO = {"training.chunks": 2}
NO_DROPOUT = ("nn.Dropout(0.3)", "nn.Identity()")
BATCH_NORM = ("nn.Dropout(0.3)", "nn.BatchNorm1d(24)")
MIXING = "\n\nclass Mixing(nn.Module):\n    def forward(self, x):\n        return x - x.mean(0)\n"


def tiny(tmp_path: Path, changes: Mapping[str, object], task: tuple[str, str] | None = None) -> Scenario:
    path = write_tiny(tmp_path)
    if task is not None:
        network = tmp_path / "task.py"
        network.write_text(network.read_text().replace(*task) + MIXING)
    return hsfl.load_scenario(path, STEADY | dict(changes))


def seconds(run: Run) -> list[float]:
    return [line.time_s for line in run.metrics]


def test_training_is_the_same_in_less_time(tmp_path) -> None:
    whole = hsfl.train(tiny(tmp_path, {}), out=tmp_path / "whole")
    run = hsfl.train(tiny(tmp_path, IN_TWO), out=tmp_path / "chunks")
    for one, other in zip(whole.metrics[1:], run.metrics[1:], strict=True):
        assert other.time_s < one.time_s and other.model_copy(update={"time_s": one.time_s}) == one


def test_it_is_that_of_as_many_samples_in_smaller_mini_batches(tmp_path) -> None:
    """Up to rounding, in as much time and with as many bytes."""
    chunks = hsfl.train(tiny(tmp_path, IN_TWO, NO_DROPOUT), out=tmp_path / "chunks")
    two = {"training.batch_size": 2, "training.micro_batches": 2}
    several = hsfl.train(tiny(tmp_path, two, NO_DROPOUT), out=tmp_path / "several")
    assert seconds(chunks) == pytest.approx(seconds(several))
    assert [line.loss for line in chunks.metrics[1:]] == pytest.approx(
        [line.loss for line in several.metrics[1:]], 1e-5
    )
    assert [line.bytes for line in chunks.metrics] == [line.bytes for line in several.metrics]


def test_a_run_in_one_piece_is_one_in_chunks_on_the_clock(tmp_path) -> None:
    """Round by round, from the store, and from plans and evaluations alone."""
    scenario, chunks = tiny(tmp_path, {}), tiny(tmp_path, IN_TWO)
    store = Store(tmp_path / "store")
    whole, expected = store.run(scenario), seconds(hsfl.train(chunks, out=tmp_path / "chunks"))
    again = retimed(whole, chunks)
    assert again is not None and seconds(again) == pytest.approx(expected)
    assert seconds(store.run(chunks)) == pytest.approx(expected) and len(store.trained) == 1
    assert seconds(timed_in_chunks(whole, scenario.training_problem, 2)) == pytest.approx(expected)


def test_rounds_are_those_of_the_plan_in_force(tmp_path) -> None:
    random = {"strategy.name": "RMA+RMS", "strategy.cuts": None, "strategy.intervals": None, "stopping.rounds": 90}
    scenario = tiny(tmp_path, random)
    run = hsfl.train(scenario, out=tmp_path / "whole")
    assert len({tuple(plan.cuts) for plan in run.plans}) > 1
    again = retimed(run, scenario.with_overrides({"training.chunks": 4}))
    assert again is not None
    assert seconds(timed_in_chunks(run, scenario.training_problem, 4)) == pytest.approx(seconds(again))


def test_what_belongs_to_whole_mini_batches_is_refused(tmp_path) -> None:
    """Batch normalisation, and clients that are left out of a round in the middle of theirs."""
    from hsfl.distributed.machines import Machines

    scenario = tiny(tmp_path, IN_TWO, BATCH_NORM)
    with pytest.raises(ScenarioError, match=r"chunks = 2: layer 1 has batch normalisation, whose statistics are"):
        hsfl.train(scenario, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ScenarioError, match=r"training\.chunks = 2: layer stem of resnet18 has batch normalisation"):
        hsfl.plan(hsfl.load_scenario("four-tier", IN_TWO))
    assert hsfl.plan(hsfl.load_scenario("four-tier")).evaluation.chunks == 1
    late = tiny(tmp_path, IN_TWO | {"execution.deadline": "2 s"})
    with pytest.raises(ScenarioError, match=r"training\.chunks = 2: machines that leave out who is late .* one piece"):
        prepare(late, backend=Machines)


@pytest.mark.parametrize("instead", ["Mixing()", "nn.AlphaDropout(0.3)"])
def test_a_layer_that_knows_its_whole_mini_batch_is_refused(instead: str, tmp_path) -> None:
    """The reference takes clients one by one, so that such layers train there."""
    reference = {"execution.backend": "reference"}
    scenario = tiny(tmp_path, reference, ("nn.Dropout(0.3)", instead))
    assert hsfl.train(scenario.with_overrides({"stopping.rounds": 1}), out=tmp_path / "whole").finished
    with pytest.raises(ScenarioError, match=r"training\.chunks: the model learns something else from a mini-batch"):
        hsfl.train(scenario.with_overrides(IN_TWO), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("chunks", "said"), [(0, "greater than or equal to 1"), (1.5, "whole"), (3, "cannot be divided into so")]
)
def test_a_field_that_cannot_be_is_one_sentence(chunks: object, said: str, tmp_path) -> None:
    with pytest.raises(ScenarioError, match=rf"training\.chunks = .*{said}"):
        tiny(tmp_path, {"training.chunks": chunks})
