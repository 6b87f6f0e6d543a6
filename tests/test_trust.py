"""Code that lies beside a file: it runs only when somebody has said so, once for as long as it stays what it is."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hsfl
from hsfl import factory
from tests.runs.conftest import FIXED, TASK, write_tiny
from tests.scenario.command import contents, environment, process
from tests.scenario.scenarios import changed, write

#: Leaves a trace when it is run.
TRACE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
NET = f"""{TRACE}
from torch import nn


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(4, 2))
"""
STRATEGY = """
from hsfl import Plan
class Mine:
    name, replans, needs_constants = "mine", False, False
    def propose(self, problem, current, round_):
        return Plan((1, 3), (2, 4, 1))
"""


@pytest.fixture(autouse=True)
def nothing_trusted(tmp_path_factory, monkeypatch) -> Path:
    """The folder in which it is remembered what is."""
    monkeypatch.delenv("HSFL_TRUST", raising=False)
    state = tmp_path_factory.mktemp("home") / "state"
    monkeypatch.setenv("HSFL_STATE", str(state))
    return state


@pytest.fixture
def plan(command, tmp_path) -> Path:
    """A scenario with a model of its own beside it."""
    (tmp_path / "trust_net.py").write_text(NET)
    ones = {f"convergence.gradient_{kind}": [1.0] * 4 for kind in ("variance", "second_moment")}
    model = {"model": {"factory": "trust_net:build", "input_shape": [8]}}
    return write(tmp_path, changed(model | ones), "stranger.toml")


def refused(command, folder: Path, *args: object) -> str:
    before = contents(folder)
    ended = command(*args)
    assert (ended.code, ended.out) == (2, "") and re.fullmatch(r"hsfl: [^\n]+\n", ended.err), ended
    assert contents(folder) == before, "it was run"
    return ended.err


def test_a_model_beside_a_scenario_is_not_run_before_it_is_trusted(command, plan, tmp_path):
    said = refused(command, tmp_path, "plan", "stranger.toml")
    assert f"code from {tmp_path / 'trust_net.py'}, which has not been trusted yet" in said
    assert "--trust" in said and "HSFL_TRUST=1" in said
    refused(command, tmp_path, "train", "stranger.toml", "--set", "data.name=mnist-mini")
    refused(command, tmp_path, "estimate", "stranger.toml", "--set", "data.name=mnist-mini")


def test_what_is_trusted_once_runs_until_it_changes(command, plan, tmp_path, nothing_trusted):
    assert command("plan", "stranger.toml", "--trust").code == 0
    assert (tmp_path / "ran").exists()
    assert list(json.loads((nothing_trusted / "trusted.json").read_text())) == [str(tmp_path / "trust_net.py")]
    assert command("plan", "stranger.toml").code == 0
    (tmp_path / "trust_net.py").write_text(NET + "# changed\n")
    assert "which has changed since it was trusted" in refused(command, tmp_path, "plan", "stranger.toml")
    (tmp_path / "trust_net.py").write_text(NET)
    assert command("plan", "stranger.toml").code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "trust_net.py").write_text(NET)
    (other / "stranger.toml").write_text(plan.read_text())
    assert "not been trusted yet" in refused(command, tmp_path, "plan", "other/stranger.toml"), "the same elsewhere"


@pytest.mark.parametrize(("value", "code"), [("1", 0), ("0", 2), ("", 2)])
def test_the_variable_trusts_everything_and_remembers_nothing(value, code, command, plan, monkeypatch, nothing_trusted):
    monkeypatch.setenv("HSFL_TRUST", value)
    assert command("plan", "stranger.toml").code == code
    assert not nothing_trusted.exists()


def test_trust_that_cannot_be_remembered_is_asked_for_again(command, plan, nothing_trusted):
    nothing_trusted.write_text("a file where the folder should be")
    assert command("plan", "stranger.toml", "--trust").code == 0
    assert command("plan", "stranger.toml").code == 2


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_damaged_memory_trusts_nothing(text, command, plan, tmp_path, nothing_trusted):
    nothing_trusted.mkdir()
    (nothing_trusted / "trusted.json").write_text(text)
    refused(command, tmp_path, "plan", "stranger.toml")
    assert command("plan", "stranger.toml", "--trust").code == 0
    assert command("plan", "stranger.toml").code == 0


def test_data_and_strategies_beside_a_scenario_are_asked_for_too(command, tmp_path):
    (tmp_path / "trust_data.py").write_text(TRACE + TASK)
    (tmp_path / "trust_mine.py").write_text(TRACE + STRATEGY)
    own = {"data.factory": "trust_data:data", "stopping.rounds": 2}
    write_tiny(tmp_path, FIXED | own)
    (tmp_path / "task.py").rename(tmp_path / "trust_model.py")
    options = ["--set", "model.factory=trust_model:model"]
    assert "trust_model.py" in refused(command, tmp_path, "train", "tiny.toml", *options)
    assert command("plan", "tiny.toml", *options, "--trust").code == 2, "it has no constants, but now it is trusted"
    assert "trust_data.py" in refused(command, tmp_path, "train", "tiny.toml", *options)
    (tmp_path / "trust_loss.py").write_text(TRACE + "def loss(outputs, targets):\n    return targets\n")
    for field in ("loss=trust_loss:loss", 'metrics=["trust_loss:loss"]'):
        loss = ["--set", f"training.{field}"]
        assert "trust_loss.py" in refused(command, tmp_path, "train", "tiny.toml", *options, *loss)
    options += ["--strategy", "trust_mine:Mine"]
    assert "trust_mine.py" in refused(command, tmp_path, "train", "tiny.toml", *options)
    assert command("train", "tiny.toml", *options, "--out", "run", "--trust").code == 0


def test_a_run_goes_on_with_trusted_code_only(command, tmp_path):
    """The folder of a run names the folder of its code."""
    away = tmp_path / "away"
    away.mkdir()
    hsfl.train(write_tiny(away, FIXED | {"stopping.rounds": 2}), out=tmp_path / "run")
    said = refused(command, tmp_path, "train", "--resume", "run", "--rounds", "3")
    assert str(away / "task.py") in said
    assert command("report", "run").code == 0, "which runs no code"
    assert command("train", "--resume", "run", "--rounds", "3", "--trust").code == 0


def test_a_package_is_trusted_with_what_importing_it_runs(command, plan, tmp_path):
    inner = tmp_path / "trust_outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "trust_outer" / "__init__.py").write_text("")
    (inner / "net.py").write_text(NET)  # in a folder without __init__.py
    options = ["--set", "model.factory=trust_outer.inner.net:build", "--set", "model.input_shape=[8]"]
    assert str(inner / "net.py") in refused(command, tmp_path, "plan", "stranger.toml", *options)
    assert command("plan", "stranger.toml", *options, "--trust").code == 0
    (tmp_path / "trust_outer" / "__init__.py").write_text("x = 1\n")
    assert "has changed" in refused(command, tmp_path, "plan", "stranger.toml", *options)


def test_what_is_installed_needs_no_trust_and_imports_nothing_from_the_folder(command, plan, tmp_path, monkeypatch):
    """Not even a module that poses as one that it needs."""
    (tmp_path / "fractions.py").write_text(TRACE)
    for module in ("fractions", "statistics"):  # which imports the first
        monkeypatch.delitem(sys.modules, module, raising=False)
    options = ["--set", "model.factory=statistics:Fraction", "--set", "model.input_shape=[8]"]
    said = command("plan", "stranger.toml", *options).err
    assert "statistics:Fraction returned a Fraction; a factory must return an nn.Module" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "module", [".", "..", ".trust_net", "a..b", "a/b", "/", "\0", "\udcff", "x" * 5000, "x." * 3000, " ", "*"]
)
def test_a_module_of_an_impossible_name_is_one_sentence(module, command, plan, tmp_path):
    for options in ([], ["--trust"]):
        spec = f"model.factory={module}:build"
        refused(command, tmp_path, "plan", "stranger.toml", "--set", spec, "--set", "model.input_shape=[8]", *options)


def test_code_named_in_the_command_itself_needs_no_trust(command, plan):
    assert command("profile", "trust_net:build", "--input", "8").code == 0


def test_from_python_nobody_is_asked(command, plan, tmp_path):
    assert command("plan", "stranger.toml").code == 2
    assert factory.consent is factory.allow
    assert hsfl.plan(plan).status == "optimal"


def test_hsfl_itself_needs_no_trust_wherever_it_is_called(command, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(hsfl.__file__).parent.parent)
    shape = ["--set", "model.input_shape=[3, 32, 32]"]
    ended = command("plan", "paper", "--set", "model.factory=hsfl.experiments.networks:nothing", *shape)
    assert "hsfl.experiments.networks has no nothing" in ended.err


def answered(answer: bytes, folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and stderr of a process on a terminal on which somebody answers."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "hsfl", *args],
        cwd=folder,
        env=environment(),
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
    )
    os.close(theirs)
    said = b""
    while b"[y/N] " not in said:
        said += os.read(ours, 1000)
    os.write(ours, answer)
    out, _ = child.communicate(timeout=60)
    assert b"[y/N]" not in out, "what is asked does not mix with what is printed"
    try:
        while more := os.read(ours, 1000):
            said += more
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    return child.returncode, said.decode()


def test_on_a_terminal_somebody_is_asked_once(plan, tmp_path):
    code, said = answered(b"\n", tmp_path, "plan", "stranger.toml")
    assert code == 2 and f"trust_net:build runs code from {tmp_path / 'trust_net.py'}, which has not been" in said
    assert "would run code from" in said and not (tmp_path / "ran").exists()
    code, said = answered(b"y\n", tmp_path, "plan", "stranger.toml", "--json")
    assert code == 0 and (tmp_path / "ran").exists()
    assert process("plan", "stranger.toml", cwd=tmp_path).code == 0
