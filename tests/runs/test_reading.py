"""Run folders: what is in the files is in the `Run`, and damage is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hsfl.errors import HsflError
from hsfl.records import RoundRecord
from hsfl.runs.reading import Run, total_bytes

SCENARIO = """\
name = "small"
seed = 0

[model]
name = "vgg11"
input_shape = [1, 32, 32]

[training]
batch_size = 16
learning_rate = 0.01

[strategy]
name = "{strategy}"

[[tiers]]
name = "device"
entities = {clients}
compute = "0.5 TFLOPS"
uplink = "80 Mbps"

[[tiers]]
name = "edge"
entities = 2
compute = "5 TFLOPS"

[[tiers]]
name = "cloud"
entities = 1
compute = "50 TFLOPS"

[convergence]
drift = "refined"

[data]
name = "mnist-mini"
partition = "shards"
"""
LINKS = ("up", "down", "fed_up", "fed_down")
LAYERS = 11


def write_run(
    folder: Path,
    *,
    strategy: str = "HSFL",
    rounds: int = 100,
    speed: float = 1.0,
    accuracy: float = 0.9,
    every: int = 10,
    clients: int = 4,
    plans: int = 3,
    labels: bool = True,
    drift: bool = True,
    summary: bool = True,
) -> Path:
    """A run folder as the trainer writes it; round t takes t/speed seconds and its accuracy rises to `accuracy`."""
    folder.mkdir(parents=True)
    (folder / "scenario.toml").write_text(SCENARIO.format(strategy=strategy, clients=clients))
    command = ["hsfl", "train", "small", "--set", "data.name=a <b>"]
    environment = {"hsfl": "0.1.0", "python": "3.11.9", "torch": "2.11.0", "numpy": "2.1", "device": "cpu"}
    _write(folder / "environment.json", environment | {"threads": 2, "command": command})
    metrics = [metric(t, rounds, speed, accuracy, every, clients, drift) for t in range(rounds + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    made = [plan(i, rounds * i // plans, speed, strategy) for i in range(plans)]
    (folder / "plans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    if labels:
        counts = [[500 if label in (i % 10, (3 * i + 1) % 10) else 0 for label in range(10)] for i in range(clients)]
        _write(folder / "labels.json", {"labels": [str(c) for c in range(10)], "counts": counts})
    if summary:
        last = metrics[-1]
        ended = {"rounds": rounds, "time_s": last["time_s"], "accuracy": last.get("accuracy"), "ended": "rounds"}
        _write(folder / "summary.json", ended | {"wall_s": 12.5, "strategy": strategy, "seed": 0})
    return folder


def metric(t: int, rounds: int, speed: float, accuracy: float, every: int, clients: int, drift: bool) -> dict[str, Any]:
    sent = {f"{tier}.{link}": t * 1_000_000 * (i + 1) for i, tier in enumerate(("device", "edge")) for link in LINKS}
    line: dict[str, Any] = {"round": t, "time_s": t / speed, "bytes": sent}
    if t > 0:
        line["loss"] = 2.3 / (1 + 5 * t / rounds) + 0.05 * ((7 * t) % 5 - 2)
    if t % every == 0:
        line |= {"accuracy": 0.1 + (accuracy - 0.1) * t / rounds, "test_loss": 2.3 / (1 + 4 * t / rounds)}
        if t > 0:
            line["losses"] = [0.1 * i for i in range(clients)]
    if drift and t > 0 and t % 5 == 0:
        values = {"rounds": 5, "measured": 1e-3 * (1 + t % 7), "refined": 3e-3, "paper": 4e-1}
        line["drift"] = {"device": values, "edge": values | {"refined": None, "measured": 0.0}}
    return line


def plan(i: int, after: int, speed: float, strategy: str) -> dict[str, Any]:
    constants = {
        "smoothness": 9.5 + i,
        "initial_gap": 2.25,
        "target": 0.5,
        "gradient_variance": [0.25] * LAYERS,
        "gradient_second_moment": [0.75] * LAYERS,
        "gradient_dissimilarity": [[0.125] * LAYERS, [0.0625] * LAYERS, [0.0] * LAYERS],
        "drift": "refined",
    }
    cuts, intervals = [3 + i % 3, 6 + i % 4], [5 + 2 * i % 9, 6 - i % 3, 1]
    made = {"round": after, "time_s": after / speed, "cuts": cuts, "intervals": intervals, "strategy": strategy}
    kept = "the new plan is less than 1 % faster" if i % 4 == 3 else None
    return made | {
        "layers": LAYERS,
        "forecast": {"loss": 0.1, "rounds": 1400, "low": 1000, "high": 2000, "seconds": 1400 / speed},
        "constants": constants if strategy == "HSFL" else None,
        "kept": kept,
    }


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def test_everything_in_the_folder_is_read(tmp_path):
    run = Run.load(write_run(tmp_path / "first"))
    assert (run.name, run.strategy, run.finished) == ("first", "HSFL", True)
    assert run.scenario["tiers"][1] == {"name": "edge", "entities": 2, "compute": "5 TFLOPS"}
    assert run.scenario_text == (tmp_path / "first" / "scenario.toml").read_text()
    assert run.environment.threads == 2
    assert [line.round for line in run.metrics] == list(range(101))
    assert [p.round for p in run.plans] == [0, 33, 66]
    assert run.labels is not None and len(run.labels.counts) == 4
    assert run.summary is not None and run.summary.wall_s == 12.5
    assert run.tier_names == ["device", "edge", "cloud"]


def test_a_run_that_goes_on_has_no_summary(tmp_path):
    run = Run.load(str(write_run(tmp_path / "open", strategy="fixed", summary=False, labels=False)))
    assert (run.strategy, run.finished, run.labels) == ("fixed", False, None)


def test_a_run_prints_in_one_line(tmp_path):
    assert repr(Run.load(write_run(tmp_path / "r"))) == f"<Run {tmp_path / 'r'}: HSFL, 100 rounds>"
    going_on = Run.load(write_run(tmp_path / "s", strategy="fixed", summary=False))
    assert repr(going_on).endswith("fixed, 100 rounds, not ended>")


def test_bytes_are_summed_over_all_links(tmp_path):
    run = Run.load(write_run(tmp_path / "run"))
    assert total_bytes(run.metrics[0]) == 0
    assert total_bytes(run.metrics[3]) == 4 * 3_000_000 + 4 * 6_000_000
    assert total_bytes(RoundRecord(round=1, time_s=0.0)) == 0


def test_columns_have_equal_lengths_and_dotted_names(tmp_path):
    columns = Run.load(write_run(tmp_path / "run")).columns()
    assert {len(values) for values in columns.values()} == {101}
    assert columns["round"] == list(range(101))
    assert columns["bytes.edge.fed_down"][7] == 14_000_000
    assert columns["drift.device.measured"][:6] == [None] * 5 + [0.006]
    assert columns["loss"][0] is None and columns["accuracy"][0] == pytest.approx(0.1)
    assert columns["losses"][10] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert not any(isinstance(value, dict) for values in columns.values() for value in values)


def test_columns_make_a_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(Run.load(write_run(tmp_path / "run")).columns())
    assert len(frame) == 101 and frame["accuracy"].count() == 11


def test_time_to_accuracy_is_that_of_the_first_evaluation_at_or_above(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = [(0, 0.0, 0.1), (1, 2.0, None), (2, 4.0, 0.5), (3, 6.0, 0.4), (4, 8.0, 0.75)]
    texts = [{"round": r, "time_s": s} | ({} if a is None else {"accuracy": a}) for r, s, a in lines]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, texts)))
    run = Run.load(folder)
    assert [e.round for e in run.evaluations()] == [0, 2, 3, 4]
    expected = {0.05: 0.0, 0.1: 0.0, 0.11: 4.0, 0.45: 4.0, 0.5: 4.0, 0.51: 8.0, 0.75: 8.0, 0.76: None}
    assert {target: run.time_to_accuracy(target) for target in expected} == expected


@pytest.mark.parametrize("torn", ['{"round": 101, "ti', '{"round": 101, "time_s": 101.0, "loss"', "\x00\x00", "{"])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    folder = write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "plans.jsonl"):
        with (folder / name).open("a") as file:
            file.write(torn)
    run = Run.load(folder)
    assert (len(run.metrics), len(run.plans)) == (101, 3)


def test_a_line_torn_inside_a_letter_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    with (folder / "plans.jsonl").open("ab") as file:
        file.write('{"kept": "é'.encode()[:-1])
    assert len(Run.load(folder).plans) == 3


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl"])
def test_a_broken_line_elsewhere_is_named(tmp_path, name):
    folder = write_run(tmp_path / "run")
    lines = (folder / name).read_text().splitlines()
    lines[1] = lines[1][:20]
    (folder / name).write_text("\n".join(lines))
    with pytest.raises(HsflError, match=rf"{name}, line 2: not valid JSON"):
        Run.load(folder)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("metrics.jsonl", "[1, 2]", "line 102: not a JSON object"),
        ("metrics.jsonl", '{"time_s": 1}', "line 102: round is missing"),
        ("metrics.jsonl", '{"round": true, "time_s": 1}', "line 102: round must be a whole number"),
        ("metrics.jsonl", '{"round": 101, "time_s": "1"}', "line 102: time_s must be a number"),
        ("metrics.jsonl", '{"round": 101, "time_s": 1, "accuracy": "good"}', "line 102: accuracy must be a number"),
        ("metrics.jsonl", '{"round": 50, "time_s": 1}', "line 102: round 50 comes after round 100"),
        ("plans.jsonl", '{"round": 99, "cuts": 4, "intervals": [1]}', "line 4: cuts must be a list"),
    ],
)
def test_a_line_that_is_no_metric_or_plan_is_named(tmp_path, name, line, message):
    folder = write_run(tmp_path / "run")
    with (folder / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(HsflError, match=f"{name}, {message}"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl", "plans.jsonl"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(HsflError, match=f"{name}: missing"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["environment.json", "labels.json", "summary.json", "scenario.toml"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder / name).write_text("{ not")
    with pytest.raises(HsflError, match=rf"{name}: not valid (JSON|TOML)"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(HsflError, match=f"{name}: a folder, a pipe or a device, not a file"):
        Run.load(folder)


def test_labels_must_count_for_every_client(tmp_path):
    folder = write_run(tmp_path / "run")
    _write(folder / "labels.json", {"labels": ["a", "b"], "counts": [[1, 2], [3]]})
    with pytest.raises(HsflError, match=r"labels.json: counts\[2\] has 1 numbers for 2 labels"):
        Run.load(folder)


def test_a_scenario_cut_off_is_said(tmp_path):
    folder = write_run(tmp_path / "run")
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text[: text.index("[[tiers]]")] + "[[tiers]]\nentities = 4\n")
    with pytest.raises(HsflError, match=r"scenario.toml: tiers.* is missing"):
        Run.load(folder)


def test_what_is_no_run_folder_is_said(tmp_path):
    (tmp_path / "file").touch()
    for place, message in (("nowhere", "does not exist"), ("file", "is not a folder"), ("", "not a run")):
        with pytest.raises(HsflError, match=message):
            Run.load(tmp_path / place)
