"""hsfl run: every machine a process, over sockets; the weights are those of the reference, whatever is killed."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import hsfl
from hsfl.errors import HsflError
from hsfl.problem.system import System
from hsfl.report.measured import PARTS, draw_times, kind_of_time
from hsfl.report.runs import write_report
from tests.distributed.killing import Killer, Moving, same_files
from tests.runs.conftest import TINY, rounds_of, write_tiny
from tests.runs.conftest import spawn as spawn

pytestmark = pytest.mark.filterwarnings("ignore:waiting for")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """As machines have: sums depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_planned_run_is_that_of_the_reference(tmp_path: Path) -> None:
    """Layers move while it runs."""
    scenario = write_tiny(tmp_path, {"execution.backend": "reference"})
    theirs = hsfl.train(scenario, out=tmp_path / "simulated")
    ours = hsfl.run(scenario, out=tmp_path / "machines")
    assert len({tuple(plan.cuts) for plan in ours.plans}) > 1
    assert [(plan.cuts, plan.as_measured) for plan in ours.plans] == [(plan.cuts, False) for plan in theirs.plans]
    same_files(tmp_path / "machines" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
    for name in ("round-000000027", "round-000000030"):
        path = Path("checkpoints", f"{name}.safetensors")
        same_files(tmp_path / "machines" / path, tmp_path / "simulated" / path)
    simulated, measured = theirs.metrics[-1], ours.metrics[-1]
    assert (measured.loss, measured.accuracy) == (simulated.loss, simulated.accuracy)
    assert measured.planned_s == pytest.approx(simulated.time_s)
    assert measured.time_s > 0
    assert [kind_of_time(runs) for runs in ([ours], [theirs], [ours, theirs])] == [
        "measured time",
        "simulated time",
        "time",
    ]
    assert_parts_add_up(ours)
    seconds, planned, drawn = draw_times(ours, [ours, theirs]).axes[0].lines
    assert seconds.get_ydata()[-1] == measured.time_s
    assert planned.get_ydata()[-1] == measured.planned_s
    assert drawn.get_ydata()[-1] == simulated.time_s
    names = {path.name for path in write_report([ours], tmp_path / "report")}
    assert "times.png" in names
    assert "Times are measured" in (tmp_path / "report" / "report.html").read_text()


def assert_parts_add_up(run: hsfl.Run) -> None:
    """To what passed between rounds, planned and measured; rounds are measured, and every part is seen somewhere."""
    for before, line in pairwise(run.metrics):
        assert sum(part.planned for part in line.parts.values()) == pytest.approx(line.planned_s - before.planned_s)
        assert sum(part.measured for part in line.parts.values()) == pytest.approx(line.time_s - before.time_s)
        assert all(line.parts[name].measured > 0 for name in ("compute", "up", "down"))
        assert ("average" in line.parts) == bool(line.averaged)
    assert {name for line in run.metrics for name in line.parts} == set(PARTS)


def test_a_dozen_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any machine, the fed server among them, at any moment, while layers move; averages are coded and corrected, and
    mini-batches in chunks."""
    changes = {
        "execution.backend": "reference",
        "training.averaging": "corrected",
        "training.chunks": 2,
        "tiers.0.code": "int8",
        "stopping.rounds": 60,
    }
    scenario = write_tiny(tmp_path, changes)
    hsfl.train(scenario, strategy=Moving(), out=tmp_path / "simulated")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killer = Killer(tmp_path, kills=12, last=50)
    run = hsfl.run(scenario, strategy=Moving(), out=tmp_path / "machines", callbacks=[killer])
    assert len(killer.killed) >= 12
    same_files(tmp_path / "machines" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")
    path = Path("checkpoints", "round-000000060.safetensors")
    same_files(tmp_path / "machines" / path, tmp_path / "simulated" / path)
    assert [record.round for record in run.metrics] == list(range(61))
    assert not list(tmp_path.glob("hsfl-machines-*"))


def test_a_coordinator_that_is_killed_goes_on_where_it_was(spawn: Any, tmp_path: Path) -> None:
    scenario = write_tiny(tmp_path, {"execution.backend": "reference", "stopping.rounds": 40})
    hsfl.train(scenario, out=tmp_path / "simulated")
    run = tmp_path / "run"
    process = spawn("run", "--local", scenario, "--out", run)
    process.wait_for(lambda: rounds_of(run) >= 8)
    process.process.kill()
    process.process.join()
    process = spawn("run", "--local", "--resume", run)
    process.process.join(120)
    assert process.process.exitcode == 0, process.err
    same_files(run / "model.safetensors", tmp_path / "simulated" / "model.safetensors")


def test_machines_join_from_elsewhere(spawn: Any, tmp_path: Path) -> None:
    """Each by a command of its own, with certificate and token; a device and the coordinator are killed, and go on."""
    tiers = [{**tier, "entities": count} for tier, count in zip(TINY["tiers"][::2], (2, 1), strict=True)]
    own = {"tiers": tiers, "strategy.name": "fixed", "strategy.cuts": [2], "strategy.intervals": [2, 1]}
    scenario = write_tiny(tmp_path, {**own, "execution.backend": "reference", "stopping.rounds": 200})
    hsfl.train(scenario, out=tmp_path / "simulated")
    spawn("certificates", scenario, "--out", tmp_path / "keys").process.join(60)
    shown = ("--certificates", tmp_path / "keys", "--token", tmp_path / "keys" / "token")
    coordinator, fed, cloud = (f"127.0.0.1:{port}" for port in free_ports(3))

    def node(name: str, *options: str) -> Any:
        return spawn("node", scenario, "--name", name, "--state", tmp_path / name, *options, *shown)

    run = spawn("run", scenario, "--listen", coordinator, "--out", tmp_path / "run", *shown)
    node("fed", "--parent", coordinator, "--listen", fed)
    node("cloud-1", "--parent", coordinator, "--fed", fed, "--listen", cloud)
    first, _ = (node(f"device-{n}", "--parent", cloud, "--fed", fed) for n in (1, 2))
    run.wait_for(lambda: rounds_of(tmp_path / "run") >= 20)
    first.process.kill()
    again = node("device-1", "--parent", cloud, "--fed", fed)
    run.wait_for(lambda: rounds_of(tmp_path / "run") >= 100)
    run.process.kill()
    run.process.join()
    run = spawn("run", "--resume", tmp_path / "run", "--listen", coordinator, *shown)
    run.process.join(120)
    again.process.join(30)
    assert (run.process.exitcode, again.process.exitcode) == (0, 0), run.err + again.err
    same_files(tmp_path / "run" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")


def test_who_waits_for_the_lost_can_be_stopped(spawn: Any, tmp_path: Path) -> None:
    """One Ctrl-C, while a machine is not there that nobody starts again."""
    tiers = [{**tier, "entities": count} for tier, count in zip(TINY["tiers"][::2], (1, 1), strict=True)]
    own = {"tiers": tiers, "strategy.name": "fixed", "strategy.cuts": [2], "strategy.intervals": [1, 1]}
    scenario = write_tiny(tmp_path, {**own, "stopping.rounds": 10**6, "execution.checkpoint_every": 5})
    (tmp_path / "token").write_text("long enough a token for all")
    coordinator, fed, cloud = (f"127.0.0.1:{port}" for port in free_ports(3))
    shown = ("--token", tmp_path / "token")
    run = spawn("run", scenario, "--listen", coordinator, "--out", tmp_path / "run", *shown)
    spawn("node", scenario, "--name", "fed", "--parent", coordinator, "--listen", fed, *shown)
    spawn("node", scenario, "--name", "cloud-1", "--parent", coordinator, "--fed", fed, "--listen", cloud, *shown)
    device = spawn("node", scenario, "--name", "device-1", "--parent", cloud, "--fed", fed, *shown)
    run.wait_for(lambda: rounds_of(tmp_path / "run") >= 12)
    device.process.kill()
    run.wait_for(lambda: "waiting for device-1" in run.err)
    os.kill(run.process.pid, signal.SIGINT)
    run.process.join(30)
    assert run.process.exitcode == 2
    assert re.search(
        r"run: stopped while waiting for device-1; continue with hsfl run .*--resume .*run$", run.err.strip()
    )
    assert hsfl.Run.load(tmp_path / "run").metrics[-1].round >= 10


def test_a_full_disk_ends_the_run_with_a_sentence_and_it_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As good as full: one machine may write no file of more than a few bytes any more."""
    scenario = write_tiny(tmp_path, {"execution.backend": "reference", "stopping.rounds": 40})
    hsfl.train(scenario, out=tmp_path / "simulated")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Fills(hsfl.Callback):
        def on_round(self, record: Any) -> None:
            if record.round == 5:
                (file,) = tmp_path.glob("hsfl-machines-*/edge-1/pid")
                resource.prlimit(int(file.read_text()), resource.RLIMIT_FSIZE, (100, 100))

    with pytest.raises(HsflError, match=r"^edge-1: .*: cannot be written \(File too large\); make room, then go on$"):
        hsfl.run(scenario, out=tmp_path / "run", callbacks=[Fills()])
    hsfl.resume(tmp_path / "run", cluster="local")
    same_files(tmp_path / "run" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def test_plans_that_do_not_fit_are_found_before_anybody_is_waited_for(command: Any, tmp_path: Path) -> None:
    Path("t").write_text("0123456789abcdef\n")
    wanted = ("--strategy", "fixed", "--intervals", "1,1,1", "--token", "t")
    result = command("run", "mnist-mini", "--listen", "127.0.0.1:0", "--cuts", "3,9", *wanted)
    assert result.code == 2
    assert "strategy fixed: cuts [3, 9]: they must be never falling and lie between 1 and 5 for 5 layers" in result.err
    little = ("--set", "tiers.sensor.memory=1 kB")
    result = command("run", "mnist-mini", "--listen", "127.0.0.1:0", "--cuts", "3,4", *wanted, *little)
    assert "cuts [3, 4] need more memory than tier sensor has; choose other cuts" in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "mnist-mini"), "say where to run: --local"),
        (("run", "mnist-mini", "--local", "--listen", "a:1"), "say where to run: --local"),
        (("run", "--local"), "name a scenario to run"),
        (("run", "mnist-mini", "--listen", "here"), "cluster here: write HOST:PORT"),
        (("run", "mnist-mini", "--listen", "127.0.0.1:1"), "give a token (--token FILE), certificates"),
        (("node", "mnist-mini", "--name", "sensor-1", "--parent", "a:1"), "give a token (--token FILE)"),
        (("node", "mnist-mini", "--name", "senser-1", "--parent", "a:1", "--token", "t"), "did you mean sensor-1?"),
        (("node", "mnist-mini", "--name", "sensor-1", "--parent", "a:1", "--token", "t"), "--fed is missing"),
        (("node", "mnist-mini", "--name", "fed", "--parent", "a:1", "--token", "t"), "--listen is missing: sensor-1"),
        (("node", "mnist-mini", "--name", "sensor-1", "--parent", "a", "--token", "t"), "--parent a: write HOST:PORT"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str, command: Any, tmp_path: Path) -> None:
    Path("t").write_text("0123456789abcdef\n")
    result = command(*arguments)
    assert result.code == 2
    assert sentence in result.err


def test_codes_that_are_planned_change_while_machines_run(tmp_path: Path) -> None:
    scenario = write_tiny(tmp_path, {"tiers.0.code": "auto", "execution.backend": "reference", "stopping.rounds": 12})
    theirs = hsfl.train(scenario, out=tmp_path / "simulated")
    ours = hsfl.run(scenario, out=tmp_path / "machines")
    assert [(plan.cuts, plan.codes) for plan in ours.plans] == [(plan.cuts, plan.codes) for plan in theirs.plans]
    assert any(codes != "fp32" for plan in ours.plans for tier in plan.codes or [] for codes in tier.values())
    same_files(tmp_path / "machines" / "model.safetensors", tmp_path / "simulated" / "model.safetensors")


class Asked:
    """A strategy that remembers the machines it was asked for."""

    name, replans, needs_constants = "Asked", True, False

    def __init__(self) -> None:
        self.systems: list[System] = []

    def propose(self, problem: hsfl.Problem, current: hsfl.Plan | None, round_: int) -> hsfl.Plan:
        self.systems.append(problem.system)
        return hsfl.Plan((1, 3), (1, 1, 1))


def test_plans_can_be_made_for_machines_as_measured(tmp_path: Path) -> None:
    """The scenario's machines are slow, those here are not."""
    scenario, strategy = hsfl.load_scenario(write_tiny(tmp_path, {"stopping.rounds": 8})), Asked()
    run = hsfl.run(scenario, out=tmp_path / "machines", strategy=strategy, as_measured=True)
    assert [plan.as_measured for plan in run.plans] == [True] * 3
    given = scenario.system.tiers
    first, *_, last = strategy.systems
    assert [tier.compute_flops.tolist() for tier in first.tiers] == [tier.compute_flops.tolist() for tier in given]
    for tier, slow in zip(last.tiers, given, strict=True):
        assert (tier.compute_flops != slow.compute_flops).all()
