"""hsfl run: every machine a process, over sockets; the weights are those of the reference, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hsfl
from tests.runs.conftest import write_tiny

pytestmark = pytest.mark.filterwarnings("ignore:waiting for")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """As machines have: sums depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same_files(one: Path, other: Path) -> None:
    assert one.read_bytes() == other.read_bytes() or load_file(one).keys() == load_file(other).keys()
    for key, value in load_file(one).items():
        assert torch.equal(value, load_file(other)[key]), key


def test_a_planned_run_is_that_of_the_reference(tmp_path: Path) -> None:
    """Layers move while it runs."""
    scenario = write_tiny(tmp_path, {"execution.backend": "reference"})
    theirs = hsfl.train(scenario, out=tmp_path / "simulated")
    ours = hsfl.run(scenario, out=tmp_path / "machines")
    assert len({tuple(plan.cuts) for plan in ours.plans}) > 1
    assert [plan.cuts for plan in ours.plans] == [plan.cuts for plan in theirs.plans]
    same_files(tmp_path / "machines" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
    for name in ("round-000000027", "round-000000030"):
        path = Path("checkpoints", f"{name}.safetensors")
        same_files(tmp_path / "machines" / path, tmp_path / "simulated" / path)
    simulated, measured = theirs.metrics[-1], ours.metrics[-1]
    assert (measured.loss, measured.accuracy) == (simulated.loss, simulated.accuracy)
    assert measured.planned_s == pytest.approx(simulated.time_s)
    assert measured.time_s > 0
