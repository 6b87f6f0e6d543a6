"""hsfl reproduce: what it writes, shows and refuses."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.reproduce import Progress
from hsfl.report.progress import RunsProgress


def test_a_figure_is_written_with_its_page(command, tmp_path) -> None:
    out = tmp_path / "new" / "folder"
    ended = command("reproduce", "fig2c", "--quick", "--out", out)
    assert ended.code == 0, ended
    assert "strongly" in ended.out and "0 runs, 0 of them trained now" in ended.out
    assert sorted(path.name for path in out.iterdir()) == ["fig2c.csv", "fig2c.json", "fig2c.png", "results.md"]
    assert json.loads((out / "fig2c.json").read_text())["claims"][0]["verdict"] in ("holds", "holds in part")
    assert "![" in (out / "results.md").read_text()
    assert command("reproduce", "FIG2C", "--quick", "--seeds", 2, "--out", out).code == 0
    assert "--seeds 2" in (out / "results.md").read_text()


def test_the_list_has_every_recipe(command) -> None:
    shown = command("reproduce", "--list").out
    assert all(f"{name} " in shown for name in RECIPES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name what to reproduce: all, or some of fig2a"),
        (["fig10"], "fig10: no such figure"),
        (["fig2c", "--device", "tpu"], "training.device = 'tpu'"),
        (["fig2c", "--seeds", "0"], "--seeds"),
        (["fig2c", "--precision", "fp8"], 'training.precision = "fp8"'),
    ],
)
def test_what_cannot_be_is_said(command, tmp_path, arguments: list[str], said: str) -> None:
    ended = command("reproduce", *arguments, "--out", tmp_path / "out")
    assert ended.code == 2 and said in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_missing_data_is_one_sentence(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HSFL_DATA", str(tmp_path / "nowhere"))
    ended = command("reproduce", "fig2b", "--jobs", 1, "--device", "cpu", "--out", tmp_path / "out")
    assert ended.code == 2 and "run hsfl data get cifar10" in ended.err.splitlines()[-1]


def test_progress_tells_runs_done_running_and_left() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = RunsProgress(console)
    progress.update(Progress(total=8, done=3, trained=2, current="fig4: cifar10, iid, HSFL, 0"))
    progress.round, progress.rounds = 1200, 2000
    text = progress._text().plain
    assert (
        "3 runs done, 1 running, 4 left" in text
        and "fig4: cifar10, iid, HSFL, 0" in text
        and "round 1,200 of 2,000" in text
    )
    log = RunsProgress(Console(file=io.StringIO(), width=200))
    log.update(Progress(total=8, done=4, current="fig6: MA+RMS, compute, 4.0"))
    assert log.console.file.getvalue() == "[4/8] fig6: MA+RMS, compute, 4.0\n"
