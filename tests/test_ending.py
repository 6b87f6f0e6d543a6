"""However a command ends: one sentence, the traceback only for who asks for it, and no path that is none."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

import hsfl
from tests.runs.conftest import FIXED, write_tiny
from tests.scenario.command import Ended, contents
from tests.scenario.scenarios import SMALL, changed, write

NET = """\
def build():
    return helper()


def helper():
    raise LookupError("no weights here")
"""
STAMP = "20261116-041500"


def assert_one_sentence(ended: Ended) -> str:
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"hsfl: [^\n]+\n", ended.err) and "Traceback" not in ended.err, ended.err
    return ended.err


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_do_not_hold_busy_cores(given, found, command, monkeypatch):
    """Before torch is there; a user's own settings stay."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert command("scenarios").code == 0
    assert os.environ.get("GOMP_SPINCOUNT") == found


# --- --debug ---


@pytest.fixture
def failing(command, tmp_path) -> Path:
    (tmp_path / "failing_net.py").write_text(NET)
    return write(tmp_path, changed({"model": {"factory": "failing_net:build", "input_shape": [8]}}), "mine.toml")


@pytest.mark.parametrize("call", [["--debug", "plan", "mine.toml"], ["plan", "mine.toml", "--debug"], ["variable"]])
def test_debug_shows_the_traceback_with_its_causes_and_the_sentence_last(call, command, failing, monkeypatch):
    if call == ["variable"]:
        monkeypatch.setenv("HSFL_DEBUG", "1")
        call = ["plan", "mine.toml"]
    ended = command(*call)
    assert ended.code == 2 and ended.err.startswith("Traceback")
    assert "LookupError: no weights here" in ended.err and "ModelError: failing_net:build" in ended.err
    assert 'raise LookupError("no weights here")' in ended.err, "the line of the user's own code"
    last = ended.err.splitlines()[-1]
    assert last.startswith("hsfl: mine.toml: ") and "(no weights here) in failing_net.py, line 6" in last


@pytest.mark.parametrize("value", ["", "0"])
def test_without_debug_there_is_no_traceback(value, command, failing, monkeypatch):
    monkeypatch.setenv("HSFL_DEBUG", value)
    assert "failing_net.py, line 6" in assert_one_sentence(command("plan", "mine.toml"))


@pytest.mark.parametrize(
    "call", ["scenarios", "init a", "profile x", "train", "report a", "estimate a", "data list", "data get a", "plan"]
)
def test_every_command_knows_debug(call, command):
    for args in (["--debug", *call.split()], [*call.split(), "--debug"]):
        assert "No such option" not in command(*args).err


# --- faults of hsfl ---


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hsfl.api.plan", plan)
    monkeypatch.setattr("time.strftime", lambda _: STAMP)


def test_a_fault_is_one_sentence_and_a_log_that_replaces_no_other(command, tmp_path, monkeypatch):
    fail_with(ZeroDivisionError("who did this"), monkeypatch)
    for name in (f"hsfl-error-{STAMP}.log", f"hsfl-error-{STAMP}-2.log"):
        said = assert_one_sentence(command("plan", "paper"))
        assert "ZeroDivisionError (who did this)" in said and f"{name} has the details" in said
        log = (tmp_path / name).read_text()
        assert "Traceback" in log and "ZeroDivisionError: who did this" in log and hsfl.__version__ in log
    assert list(contents(tmp_path)) == [f"hsfl-error-{STAMP}-2.log", f"hsfl-error-{STAMP}.log"]


def test_a_fault_with_debug_is_shown_and_not_logged(command, tmp_path, monkeypatch):
    fail_with(ZeroDivisionError("who did this"), monkeypatch)
    ended = command("plan", "paper", "--debug")
    assert ended.code == 2 and ended.err.startswith("Traceback") and "ZeroDivisionError: who did this" in ended.err
    assert contents(tmp_path) == {}


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc, where not even root can make a file")
def test_the_log_goes_where_it_can(command, tmp_path, monkeypatch):
    fail_with(ZeroDivisionError("who did this"), monkeypatch)
    monkeypatch.chdir("/proc/self")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert f"{tmp_path}/hsfl-error-{STAMP}.log has the details" in assert_one_sentence(command("plan", "paper"))
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self")
    assert "--debug shows the details" in assert_one_sentence(command("plan", "paper"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "not enough memory; use a smaller training.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "not enough mem"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
)
def test_too_little_memory_and_too_much_nesting_are_no_faults(error, says, command, tmp_path, monkeypatch):
    fail_with(error, monkeypatch)
    assert says in assert_one_sentence(command("plan", "paper"))
    assert contents(tmp_path) == {}


# --- paths ---

BAD_PATHS = {"too long": "x/" * 2500 + "x", "a long name": "x" * 300, "a zero": "a\0b", "no text": "a\udcffb"}
CALLS = {
    "scenario": ["plan", "{}"],
    "plot": ["plan", "good.toml", "--plot", "{}.png"],
    "init": ["init", "{}"],
    "csv": ["profile", "lenet5", "--csv", "{}"],
    "out": ["train", "good.toml", "--out", "{}"],
    "resume": ["train", "--resume", "{}"],
    "data": ["train", "good.toml", "--data", "{}"],
    "estimate": ["estimate", "{}", "--write"],
    "report": ["report", "{}"],
    "report out": ["report", ".", "--out", "{}"],
    "reproduce": ["reproduce", "fig2a", "--out", "{}"],
    "data list": ["data", "list", "--data", "{}"],
    "data get": ["data", "get", "mnist", "--data", "{}"],
    "profile of a scenario": ["plan", "good.toml", "--set", "model.profile={}"],
    "trace": ["train", "good.toml", "--set", "dynamics.trace={}", "--set", "data.name=mnist-mini"],
}


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("call", CALLS)
def test_a_path_that_is_none_is_one_sentence(call, path, command, tmp_path):
    write(tmp_path, SMALL, "good.toml")
    before = contents(tmp_path)
    assert_one_sentence(command(*(word.format(BAD_PATHS[path]) for word in CALLS[call])))
    assert contents(tmp_path) == before


# --- what steers a terminal ---

EVIL = "\x1b[2J\x9b\u202e"


def steered(text: str) -> bool:
    return any(code in text for code in "\x1b\x9b\u202e")


def test_names_in_files_do_not_steer_the_terminal(command, tmp_path):
    header = "name,forward_flops,backward_flops,activation_bits,gradient_bits,parameter_bits,optimizer_bits"
    rows = "".join(f"layer{EVIL}{n},1,1,1,1,1,0\n" for n in range(4))
    (tmp_path / "layers.csv").write_text(f"{header}\n{rows}", encoding="utf-8")
    ones = {f"convergence.gradient_{kind}": [1.0] * 4 for kind in ("variance", "second_moment")}
    write(tmp_path, changed({"model": {"profile": "layers.csv"}} | ones), "mine.toml")
    for options in ([], ["--compare"], ["--sweep", "seed=1,2"], ["--json"]):
        ended = command("plan", "mine.toml", *options)
        assert ended.code == 0, ended.err
        assert not steered(ended.out + ended.err), options
    assert "layer\ufffd[2J\ufffd\ufffd0" in command("plan", "mine.toml").out


@pytest.mark.parametrize("call", [["plan", EVIL], ["plan", "paper", f"--{EVIL}"], ["report", EVIL], [EVIL]])
def test_sentences_do_not_steer_the_terminal(call, command):
    said = assert_one_sentence(command(*call))
    assert not steered(said) and "[2J" in said


def test_the_name_of_a_run_does_not_steer_the_terminal(command, tiny_run):
    moved = tiny_run.rename(tiny_run.with_name(f"run{EVIL}"))
    ended = command("report", moved)
    assert ended.code == 0, ended.err
    assert not steered(ended.out + ended.err) and "run\ufffd[2J" in ended.out


@pytest.fixture
def tiny_run(tmp_path) -> Path:
    return hsfl.train(write_tiny(tmp_path, FIXED | {"stopping.rounds": 2}), out=tmp_path / "run").folder


def test_colours_of_our_own_stay(command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in command("plan", "paper").out
