"""Bad input to hsfl train: exit code 2, one sentence that starts with "hsfl: ", and nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hsfl
from hsfl import models
from hsfl.errors import printable
from hsfl.files import write_whole
from hsfl.strategies import Named
from tests.runs.conftest import FIXED, rounds_of, write_tiny
from tests.scenario.command import contents, environment
from tests.scenario.scenarios import ABSENT

SET = "--set"
FIX = ("--strategy", "fixed", "--intervals", "2,4,1")
BAD = {
    "unknown strategy": (["--strategy", "HFSL"], r"strategy.name = 'HFSL': no such strategy \(did you mean HSFL"),
    "too few cuts": ([*FIX, "--cuts", "1"], r"cuts.*\[1\].* 2 "),
    "too many intervals": (["--strategy", "fixed", "--cuts", "1,2", "--intervals", "1,1,1,1"], "intervals.* 3 "),
    "cuts that fall": ([*FIX, "--cuts", "3,1"], "cuts"),
    "a cut behind the model": ([*FIX, "--cuts", "1,9"], "cuts.*4 layers"),
    "cuts that are no numbers": ([*FIX, "--cuts", "1,x"], "--cuts 1,x: write whole numbers"),
    "fixed without cuts": (FIX, "strategy.cuts is missing"),
    "fixed without intervals": (["--strategy", "fixed", "--cuts", "1,2"], "strategy.intervals is missing"),
    "cuts for a random strategy": (
        ["--strategy", "rma+rms", "--cuts", "1,2"],
        "strategy.cuts: .* chooses its own cuts",
    ),
    "no such data": ([SET, "data.name=mnist"], "hsfl data get mnist"),
    "unknown data": ([SET, "data.name=mnits"], "data.name"),
    "no CUDA": (["--device", "cuda"], "execution.device = 'cuda': there is no CUDA here"),
    "a strange device": (["--device", "tpu"], "execution.device = 'tpu': write cpu, cuda"),
    "tf32 on the CPU": (["--precision", "tf32"], "tf32.*only on CUDA"),
    "unknown precision": (["--precision", "fp8"], "execution.precision"),
    "unknown backend": (["--backend", "fast"], "execution.backend"),
    "a strange unit": (["--time", "2 parsecs"], "stopping.time_limit.*parsecs"),
    "no time": (["--time", "0 s"], "stopping.time_limit"),
    "an accuracy in percent": (["--until-accuracy", "90"], "stopping.until_accuracy = 90"),
    "a loss of nothing": (["--until-loss", "0"], "stopping.until_loss = 0"),
    "a loss in words": (["--until-loss", "low"], "--until-loss"),
    "an accuracy in words": (["--until-accuracy", "high"], "--until-accuracy"),
    "negative rounds": (["--rounds", "-5"], "stopping.rounds = -5"),
    "half a round": (["--rounds", "2.5"], "--rounds"),
    "negative seed": (["--seed", "-1"], "training.seed = -1"),
    "a profile has no weights": (
        [SET, "model.profile=layers.csv"],
        "model.profile: a profile has costs but no weig",
    ),
    "no trace": ([SET, "dynamics.trace=none.csv"], r"dynamics.trace = 'none.csv': cannot be read \(No such file"),
    "a bad trace": ([SET, "dynamics.trace=trace.csv"], r"trace.csv', line 2: no tier 'devise' \(did you mean device\?"),
    "a misspelt field": ([SET, "training.learning_rat=1"], r"unknown field training.learning_rat \(did you mean lear"),
    "no field": ([SET, "stopping.rounds"], "write FIELD=VALUE"),
    "no target": ([SET, "convergence={}", SET, "strategy.drift=refined"], "convergence has neither target nor rounds"),
    "a target out of reach": ([SET, "convergence.target=1e-9", SET, "strategy.drift=refined"], "target"),
    "no memory": ([SET, "tiers.device.memory=1 bit"], "memory"),
    "a factory that fails": ([SET, "model.factory=task:broken"], "task:broken"),
    "an unknown option": (["--round", "5"], "--round"),
    "a folder for both": (["--out", "other", "--resume", "run"], "--out and --resume exclude each other"),
    "no run to resume": (["--resume", "nothing"], "nothing: does not exist"),
    "not a run to resume": (["--resume", "."], "not a run"),
    "a file to resume": (["--resume", "tiny.toml"], "not a run"),
    "a file as folder": (["--out", "tiny.toml"], "tiny.toml: there is a file; choose another --out"),
    "a folder in a file": (["--out", "tiny.toml/run"], "there is a file; choose another --out"),
    "a folder in use": (["--out", "full"], "full: exists already; choose another --out$"),
}


@pytest.fixture
def here(command, tiny, tmp_path) -> Path:
    tiny()
    (tmp_path / "trace.csv").write_text("time_s,tier,field,factor\n1,devise,uplink,2\n")
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    (tmp_path / "layers.csv").write_text(models.profile(layers, (8,)).to_csv())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    return tmp_path


def refused(command, folder: Path, *args: object) -> str:
    """The one sentence; nothing has been written."""
    before = contents(folder)
    ended = command(*args)
    assert ended.code == 2, ended
    assert re.fullmatch(r"hsfl: [^\n]+\n", ended.err), ended.err
    assert "Traceback" not in ended.err and ended.out == ""
    assert contents(folder) == before
    return ended.err.strip()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(command, here, case):
    if case == "no CUDA" and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    options, said = BAD[case]
    assert re.search(said, refused(command, here, "train", "tiny.toml", *options))


def test_neither_a_scenario_nor_a_run(command, here):
    assert "name a scenario to train" in refused(command, here, "train")


def test_a_scenario_without_data_or_without_a_file(command, here, tiny):
    tiny({"data": ABSENT}, "planned-only.toml")
    assert 'data is missing; add a section [data] with name = "mnist-mini"' in refused(
        command, here, "train", "planned-only.toml"
    )
    assert "no such file or built-in scenario" in refused(command, here, "train", "nothing.toml")


@pytest.fixture
def run(command, tiny, tmp_path) -> Path:
    """A run that has ended."""
    hsfl.train(tiny(FIXED | {"stopping.rounds": 4}), out=tmp_path / "run")
    return tmp_path / "run"


def test_an_existing_run_is_not_overwritten(command, tmp_path, run):
    said = refused(command, tmp_path, "train", "tiny.toml", "--out", run)
    assert said.endswith(f"{run}: exists already; choose another --out, or continue that run with --resume {run}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", "3"], "training.seed is not set in this run, but 3 now"),
        ([SET, "training.learning_rate=0.5"], "training.learning_rate is 0.05 in this run, but 0.5 now"),
        ([SET, "tiers.device.uplink=1 Mbps"], "tiers.device.uplink.* in this run, but '1 Mbps' now"),
        (["--cuts", "1,2"], r"strategy.cuts is \[1, 3\] in this run, but \[1, 2\] now"),
        (["--strategy", "hsfl"], "strategy.(cuts|name) is .+ in this run, but .+ now"),
    ],
)
@pytest.mark.parametrize("scenario", [[], ["tiny.toml"]], ids=["the run's", "a file"])
def test_a_run_goes_on_as_it_was_begun(command, tmp_path, run, options, said, scenario):
    found = refused(command, tmp_path, "train", *scenario, "--resume", run, *options, "--rounds", "9")
    assert re.search(said, found) and str(run) in found


def test_a_run_cannot_go_back(command, tmp_path, run):
    found = refused(command, tmp_path, "train", "--resume", run, "--rounds", "1")
    assert re.search(r"the run is at round \d+ already, past 1; give more rounds", found)


def test_a_changed_scenario_file_is_noticed_and_its_stopping_rules_count(command, tmp_path, run):
    write_tiny(tmp_path, FIXED | {"training.batch_size": 3})
    said = refused(command, tmp_path, "train", "tiny.toml", "--resume", run)
    assert "training.batch_size is 2 in this run, but 3 now" in said
    write_tiny(tmp_path, FIXED | {"stopping.rounds": 6})
    assert command("train", "tiny.toml", "--resume", run).code == 0
    assert hsfl.Run.load(run).summary.rounds == 6


def test_a_run_in_use_is_left_alone(command, spawn, tiny, tmp_path):
    tiny(FIXED | {"stopping.rounds": 10**6})
    run = tmp_path / "run"
    running = spawn("train", "tiny.toml", "--out", run)
    running.wait_for(lambda: rounds_of(run) > 2)
    ended = command("train", "--resume", run)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"hsfl: {run}: another process is writing this run; wait for it, or end it\n"
    assert running.process.is_alive()


def test_a_refused_resume_frees_the_run(command, tmp_path, run):
    """Also while Python still holds the error, as a notebook does."""
    with pytest.raises(hsfl.HsflError) as kept:
        hsfl.resume(run, data=tmp_path, strategy=Named("mine", [2, 4, 1], [1, 3]))
    assert "the strategy of this run is 'fixed', not 'mine'" in str(kept.value)
    assert hsfl.resume(run).finished


def test_two_runs_that_start_together_get_two_folders(spawn, tiny, tmp_path):
    tiny(FIXED | {"stopping.rounds": 3})
    both = [spawn("train", "tiny.toml") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["tiny-fixed-1", "tiny-fixed-2"]


@pytest.mark.parametrize("call", ["train('mnist-mini')", "resume('run')", "estimate('mnist-mini')"])
@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_a_missing_package_is_named_with_its_extra(call, package):
    code = f"import sys; sys.modules[{package!r}] = None; import hsfl; hsfl.{call}"
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert "MissingExtraError: Training needs" in ended.stderr and "pip install 'hsfl[torch]'" in ended.stderr


#: No folders at all, or none that every part of a run could use.
NO_PATHS = {
    "too long a name": ("x" * 5000, "File name too long"),
    "too long a path": ("/".join(["x" * 200] * 30), "File name too long"),
    "a NUL": ("a\0b", "embedded null byte|does not exist"),
    "half a character": ("\ud800x", "not a name in UTF-8|does not exist"),
    "not UTF-8": (os.fsdecode(b"a\xff"), "not a name in UTF-8|does not exist"),
}


@pytest.mark.parametrize("kind", NO_PATHS)
@pytest.mark.parametrize("call", [lambda path: hsfl.train("tiny.toml", out=path), hsfl.resume], ids=["out", "resume"])
def test_what_is_no_path_is_one_sentence(here, kind, call):
    """From Python: the command gets no such characters, or refuses them itself."""
    path, said = NO_PATHS[kind]
    before = contents(here)
    with pytest.raises(hsfl.HsflError) as error:
        call(path)
    sentence = (
        rf"{re.escape(printable(path))}: .*({said})\)?; "
        "(choose another --out|give a folder that hsfl train or hsfl run wrote)"
    )
    assert re.fullmatch(sentence, str(error.value))
    assert contents(here) == before


def test_a_folder_that_cannot_be_written(command, here, request):
    closed = here / "closed"
    closed.mkdir()
    if os.access(closed, os.W_OK) and os.geteuid() == 0:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", closed], capture_output=True)
        if mounted.returncode:
            pytest.skip("root may write everywhere, and nothing can be mounted here")
        request.addfinalizer(lambda: subprocess.run(["umount", closed], check=True))
    else:
        closed.chmod(0o500)
    said = refused(command, here, "train", "tiny.toml", "--out", closed / "run")
    assert "cannot be written" in said and "choose another --out" in said


def test_a_folder_that_could_not_be_filled_leaves_no_trace(command, here, monkeypatch):
    def write(path, data, **options):
        if path.name == "scenario.toml":
            raise hsfl.HsflError("no room")
        write_whole(path, data, **options)

    monkeypatch.setattr("hsfl.runs.writing.write_whole", write)
    assert refused(command, here, "train", "tiny.toml", "--out", "run") == "hsfl: no room"
    (here / "empty").mkdir()
    assert refused(command, here, "train", "tiny.toml", "--out", "empty") == "hsfl: no room"


@pytest.mark.parametrize("strategy", [{}, FIXED], ids=["planned", "fixed"])
@pytest.mark.parametrize("every", [1, 10**6])
@pytest.mark.parametrize(("rate", "decay"), [(1e12, 0.0), (1e20, 1e20)], ids=["the loss", "the weights first"])
def test_a_loss_that_is_no_number_stops_with_round_client_and_hint(
    command, tiny, tmp_path, strategy, every, rate, decay
):
    changes = {"training.learning_rate": rate, "training.weight_decay": decay}
    changes |= {"execution.checkpoint_every": every, "execution.evaluate_every": 10**6}
    tiny(changes | strategy)
    ended = command("train", "tiny.toml", "--out", "run")
    assert ended.code == 2
    said = re.fullmatch(
        r"hsfl: round (\d+): the (loss|weights) of client \d (is|are) .+; lower training.learning_rate, or .+\n",
        ended.err,
    )
    assert said, ended.err
    trained = int(said[1]) - (said[2] == "loss")
    assert [line.round for line in hsfl.Run.load(tmp_path / "run").metrics] == list(range(trained + 1))
    for path in (tmp_path / "run").glob("checkpoints/*.safetensors"):
        from safetensors.torch import load_file

        assert all(bool(tensor.isfinite().all()) for tensor in load_file(path).values()), path
