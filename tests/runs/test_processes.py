"""Training in several processes, as torchrun starts them, is training in one: folders, stops, losses, sentences."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.distributed import TCPStore

from hsfl.runs.reading import Run
from tests.runs.conftest import FIXED, Process, Write, rounds_of
from tests.scenario.command import Command

LONG = FIXED | {"stopping.rounds": 10**6}


@pytest.fixture
def together(spawn):
    """Start `hsfl ARGUMENTS` as two processes that find each other as those of torchrun do, and its store."""
    stores = []

    def start(*args: object, other: tuple[object, ...] | None = None) -> list[Process]:
        """`other`: what the second process is given instead."""
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        port = stores[-1].port
        given = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        given |= {"TORCHELASTIC_USE_AGENT_STORE": True}
        found = []
        for rank in (0, 1):
            own = {name: str(value) for name, value in (given | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            arguments = args if not rank or other is None else other
            found.append(spawn(*arguments, setup=f"import os; os.environ.update({own})"))
        return found

    return start


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_alike(one: Path, other: Path) -> None:
    """The same plans, clocks and traffic; losses and weights to rounding."""
    ours, theirs = Run.load(one), Run.load(other)
    assert [(p.round, p.cuts, p.intervals) for p in ours.plans] == [
        (p.round, p.cuts, p.intervals) for p in theirs.plans
    ]
    assert len(ours.metrics) == len(theirs.metrics)
    for line, their in zip(ours.metrics, theirs.metrics, strict=True):
        assert (line.round, line.time_s, line.bytes, line.averaged) == (
            their.round,
            their.time_s,
            their.bytes,
            their.averaged,
        )
        for field in ("loss", "losses", "test_loss"):
            given, found = getattr(line, field), getattr(their, field)
            assert found is given is None or found == pytest.approx(given, rel=1e-4), (line.round, field)
    expected = weights(one)
    assert weights(other).keys() == expected.keys()
    for key, value in weights(other).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5)


def test_two_processes_train_like_one(together, spawn, tiny: Write, tmp_path: Path) -> None:
    """Planned, with layers that move, coded links and corrected averages; the first process alone says something."""
    scenario = tiny({"training.averaging": "corrected", "tiers.0.code": "int8"})
    both = together("train", scenario, "--out", "two")
    alone = spawn("train", scenario, "--out", "one")
    assert [process.wait() for process in (*both, alone)] == [0, 0, 0], [process.err for process in both]
    assert both[0].out.replace("two", "one").splitlines()[:2] == alone.out.splitlines()[:2]
    assert both[1].out == both[1].err == ""
    assert len({tuple(plan.cuts) for plan in Run.load(tmp_path / "two").plans}) > 1
    assert_alike(tmp_path / "one", tmp_path / "two")
    names = [sorted(path.name for path in (tmp_path / name).rglob("*")) for name in ("one", "two")]
    assert names[0] == names[1]
    saved = [sorted((tmp_path / name / "checkpoints").glob("*.safetensors"))[-1] for name in ("one", "two")]
    ours, theirs = (safetensors.torch.load_file(path) for path in saved)
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }


def test_what_is_stopped_or_killed_goes_on(together, spawn, tiny: Write, tmp_path: Path) -> None:
    """Stopped, resumed, one process killed, resumed in one: as a run that nobody disturbed."""
    run = tmp_path / "run"
    both = together("train", tiny(LONG), "--out", run)
    both[0].wait_for(lambda: rounds_of(run) > 4)
    for process in reversed(both):  # as torchrun does it
        process.send(signal.SIGINT)
    assert [process.wait() for process in both] == [130, 130]
    (said,) = [process.err for process in both if process.err]  # by one of them
    assert said.startswith("hsfl: stopped after round ")
    assert said.endswith(f"continue with torchrun --nproc-per-node 2 -m hsfl train --resume {run}\n")

    stopped = rounds_of(run)
    both = together("train", "--resume", run)
    both[0].wait_for(lambda: rounds_of(run) > stopped + 4)
    both[1].send(signal.SIGKILL)
    assert [process.wait() for process in both] == [2, -9]
    assert both[0].err == (
        f"hsfl: {run}: another of the 2 processes that train together has ended, or cannot be reached any more; "
        f"continue with torchrun --nproc-per-node 2 -m hsfl train --resume {run}\n"
    )

    end = rounds_of(run) + 5
    again = spawn("train", "--resume", run, "--rounds", end)
    alone = spawn("train", tiny(LONG), "--rounds", end, "--out", "alone")
    assert [again.wait(), alone.wait()] == [0, 0], (again.err, alone.err)
    assert_alike(tmp_path / "alone", run)


def test_the_others_end_with_the_first(together, tiny: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = together("train", tiny(LONG), "--out", run)
    both[0].wait_for(lambda: rounds_of(run) > 1)
    both[0].send(signal.SIGKILL)
    assert [process.wait() for process in both] == [-9, 2]
    assert "another of the 2 processes that train together has ended" in both[1].err
    assert both[1].err.count("\n") == 1


def test_one_sentence_whoever_fails(together, tiny: Write, tmp_path: Path) -> None:
    """What all processes find, and what only the second one does; nothing is written."""
    tiny()
    wrong = tiny({"data.factory": "task:nothing"}, "wrong.toml")
    for other in (None, ("train", wrong)):
        both = together("train", wrong if other is None else tmp_path / "tiny.toml", other=other)
        assert [process.wait() for process in both] == [2, 2]
        (said,) = [process.err for process in both if process.err]
        assert "task:nothing" in said and said.count("\n") == 1
        assert not (tmp_path / "runs").exists()


def test_a_run_that_diverges_ends_in_all(together, tiny: Write) -> None:
    both = together("train", tiny(FIXED | {"training.learning_rate": 1e30}))
    assert [process.wait() for process in both] == [2, 2]
    (said,) = [process.err for process in both if process.err]
    assert "lower training.learning_rate" in said


@pytest.mark.parametrize(
    ("given", "changes", "sentence"),
    [
        (
            {"WORLD_SIZE": "2"},
            {"execution.backend": "reference"},
            'execution.backend = "reference" trains in one process',
        ),
        ({"WORLD_SIZE": "9"}, {}, "9 processes for 4 clients, and each needs one; give torchrun --nproc-per-node 4"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE is 2, but RANK is not set"),
    ],
)
def test_what_cannot_be_spread(
    monkeypatch: pytest.MonkeyPatch, command: Command, tiny: Write, given: dict, changes: dict, sentence: str
) -> None:
    path = tiny(changes)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    result = command("train", path)
    assert result.code == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_processes_that_never_meet(spawn, tiny: Write) -> None:
    given = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "no port"}
    process = spawn("train", tiny(), setup=f"import os; os.environ.update({given})")
    assert process.wait() == 2
    assert process.err.startswith("hsfl: the 2 processes do not find each other at 127.0.0.1:no port (")
