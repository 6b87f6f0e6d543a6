"""hsfl train: what is in the run folder, when training ends, what it shows, and that it is what the scenario says."""

from __future__ import annotations

import io
import json
import math
import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import hsfl
from hsfl.report.live import LiveLine
from hsfl.report.page import what_you_see
from hsfl.runs.estimating import as_fields, write_constants
from hsfl.runs.preparing import prepare
from hsfl.runs.stopping import ended, is_converged, round_limit
from hsfl.scenario.dynamics import Conditions
from hsfl.strategies import Named
from hsfl.theory.latency import aggregation_latency, split_latency
from tests.runs.conftest import FIXED, results, write_tiny
from tests.scenario.scenarios import ABSENT

MINI = {
    "tiers.sensor.entities": 4,
    "tiers.gateway.entities": 2,
    "training.batch_size": 2,
    "stopping.rounds": 6,
    "execution.evaluate_every": 3,
    "execution.checkpoint_every": 2,
    "strategy.replan_every": 2,
    "strategy.probe_batches": 2,
}
#: Links that stay as they are.
STILL = {"dynamics": ABSENT}


def lines(path: Path) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


# --- the folder ---


def test_everything_is_in_the_folder_and_is_what_it_says(command, tmp_path):
    """The built-in scenario, made small."""
    options = [word for key, value in MINI.items() for word in ("--set", f"{key}={value}")]
    ended_ = command("train", "mnist-mini", *options, "--out", "run")
    assert ended_.code == 0 and ended_.err == "", ended_.err
    run = tmp_path / "run"
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert found == {
        *("scenario.toml", "environment.json", "metrics.jsonl", "plans.jsonl", "labels.json", "model.safetensors"),
        *("summary.json", ".lock"),
        *(f"checkpoints/round-{r:09d}.{kind}" for r in (4, 6) for kind in ("json", "safetensors")),
    }
    metrics, plans = lines(run / "metrics.jsonl"), lines(run / "plans.jsonl")
    assert [line["round"] for line in metrics] == list(range(7))
    assert [line["round"] for line in metrics if "accuracy" in line] == [0, 3, 6]
    assert all("loss" in line for line in metrics[1:]) and len(metrics[3]["losses"]) == 4
    for before, after in pairwise(metrics):
        assert after["time_s"] > before["time_s"]
        assert all(after["bytes"][link] >= count for link, count in before["bytes"].items())
        assert after["bytes"]["sensor.up"] > before["bytes"]["sensor.up"]
    assert plans[0]["round"] == 0 and plans[0]["strategy"] == "HSFL" and plans[0]["corrected_gain"] > 1
    labels = json.loads((run / "labels.json").read_text())
    assert np.array(labels["counts"]).shape == (4, 10) and np.array(labels["counts"]).sum() <= 10000
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["rounds"], summary["ended"], summary["seed"]) == (6, "rounds", 0)
    assert summary["accuracy"] == metrics[-1]["accuracy"] and summary["bytes"] == metrics[-1]["bytes"]
    environment = json.loads((run / "environment.json").read_text())
    assert environment["torch"] == torch.__version__ and environment["command"][:3] == ["hsfl", "train", "mnist-mini"]

    # The scenario reads back and gives the same run.
    again = hsfl.train(run / "scenario.toml", out=tmp_path / "again")
    assert results(again.folder) == results(run)
    # The model is that of the last checkpoint.
    scenario = hsfl.load_scenario(run / "scenario.toml")
    backend = prepare(scenario).backend
    backend.load(run / "checkpoints" / "round-000000006.safetensors")
    state, model = backend.global_state(), load_file(run / "model.safetensors")
    assert model.keys() == state.keys() and all(re.fullmatch(r"\d+\.[\w.]+", key) for key in model)
    assert all(torch.equal(model[key], state[key]) for key in state)


def test_train_returns_the_run_and_the_next_folder_is_free(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenario = tiny(FIXED | {"stopping.rounds": 4, "name": "a/b c"})
    first, second = hsfl.train(scenario), hsfl.train(scenario)
    assert [run.folder for run in (first, second)] == [Path("runs/a-b-c-fixed-1"), Path("runs/a-b-c-fixed-2")]
    assert first.finished and first.metrics == hsfl.Run.load(first.folder).metrics == second.metrics


def test_checkpoints_hold_no_code(tiny, tmp_path):
    run = hsfl.train(tiny(FIXED | {"stopping.rounds": 3}), out=tmp_path / "run")
    for path in run.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not data.startswith((b"\x80", b"PK")), f"{path} is a pickle or an archive"


def test_coded_links_are_trained_timed_and_counted(command, tiny, tmp_path):
    """Cuts after 24 and 4 values, batches of 2: what a round sends, by hand; a resumed run counts on."""
    codes = {"tiers.0.code": {"up": "int4", "down": "int8"}, "tiers.1.code": {"up": "bf16"}}
    changes = FIXED | STILL | {"stopping.rounds": 6}
    plain, coded = (hsfl.train(tiny(changes | c), out=tmp_path / n) for n, c in (("plain", {}), ("coded", codes)))
    samples = 6 * 4 * 2
    each = {"device.up": 12 + 8, "device.down": 24 + 8, "edge.up": 4 * 2, "edge.down": 4 * 4}
    assert {link: coded.metrics[-1].bytes[link] for link in each} == {k: samples * v for k, v in each.items()}
    fed = ("device.fed_up", "edge.fed_down")
    assert all(coded.metrics[-1].bytes[link] == plain.metrics[-1].bytes[link] > 0 for link in fed)
    assert coded.metrics[-1].time_s < plain.metrics[-1].time_s
    assert coded.metrics[-1].loss != plain.metrics[-1].loss
    text = coded.scenario_text
    assert 'code = { up = "int4", down = "int8" }' in text and "(links: up int4, down int8)" in what_you_see([coded])
    half = hsfl.train(tiny(changes | codes | {"stopping.rounds": 3}), out=tmp_path / "half")
    again = command("train", "--resume", half.folder, "--rounds", 6)
    assert again.code == 0, again.err
    assert hsfl.Run.load(half.folder).metrics == coded.metrics
    refused = command("train", "--resume", half.folder, "--rounds", 9, "--code", "bf16")
    assert refused.code == 2 and "code" in refused.err and refused.err.count("\n") == 1


@pytest.mark.parametrize("averaging", ["plain", "corrected"])
def test_coded_averages_are_trained_timed_and_counted(averaging, command, tiny, tmp_path):
    """What a resumed run has left unsent counts on: its metrics are those of a run that was never stopped."""
    changes = FIXED | STILL | {"stopping.rounds": 8, "training.averaging": averaging}
    codes = {"tiers.0.code": {"average": "int4"}, "tiers.1.code": {"average": "int4"}}
    plain, coded = (hsfl.train(tiny(changes | c), out=tmp_path / n) for n, c in (("plain", {}), ("coded", codes)))
    for link, bits in coded.metrics[-1].bytes.items():
        before = plain.metrics[-1].bytes[link]
        assert 0.12 * before < bits < 0.5 * before if "fed" in link else bits == before > 0
    assert coded.metrics[-1].time_s < plain.metrics[-1].time_s and coded.metrics[-1].loss != plain.metrics[-1].loss
    half = hsfl.train(tiny(changes | codes | {"stopping.rounds": 5}), out=tmp_path / "half")
    again = command("train", "--resume", half.folder, "--rounds", 8)
    assert again.code == 0, again.err
    assert hsfl.Run.load(half.folder).metrics == coded.metrics


# --- the end ---


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stopping.rounds": 7}, "rounds"),
        ({"stopping.rounds": 500, "stopping.time_limit": 3.0}, "time"),
        ({"stopping.rounds": 500, "stopping.until_accuracy": 0.4}, "accuracy"),
        ({"stopping.rounds": 500, "stopping.until_converged": True, "execution.evaluate_every": 1}, "converged"),
    ],
)
def test_training_ends_at_the_first_rule_that_is_met(tiny, tmp_path, changes, why):
    run = hsfl.train(tiny(FIXED | changes), out=tmp_path / "run")
    assert run.summary.ended == why
    last, evaluations = run.metrics[-1], run.evaluations()
    assert last.accuracy is not None and run.summary.accuracy == last.accuracy
    if why == "rounds":
        assert last.round == 7
    if why == "time":
        assert last.time_s >= 3.0 > run.metrics[-2].time_s
    if why == "accuracy":
        assert last.accuracy >= 0.4 > max(line.accuracy for line in evaluations[:-1])
    if why == "converged":
        accuracies = [line.accuracy for line in evaluations]
        assert is_converged(accuracies) and not any(is_converged(accuracies[:n]) for n in range(len(accuracies)))


def test_without_a_rule_it_ends_after_1000_rounds(tiny):
    stopping = hsfl.load_scenario(tiny({"stopping.rounds": ABSENT})).spec.stopping
    assert round_limit(stopping) == 1000
    assert ended(stopping, 999, 1e9, [0.1]) is None and ended(stopping, 1000, 0.0, [0.1]) == "rounds"
    timed = stopping.model_copy(update={"time_limit": 5.0})
    assert (
        round_limit(timed) == math.inf and ended(timed, 10**6, 4.9, []) is None and ended(timed, 1, 5.0, []) == "time"
    )


@pytest.mark.parametrize("old_end", [8, 9, 11], ids=["evaluated", "saved", "neither"])
def test_a_run_that_goes_on_is_one_that_never_ended(tiny, tmp_path, command, old_end):
    tiny({"stopping.rounds": old_end})
    assert command("train", "tiny.toml", "--out", "parts").code == 0
    end = hsfl.Run.load(tmp_path / "parts")
    assert end.summary.rounds == old_end and end.metrics[-1].accuracy == end.summary.accuracy
    before = results(end.folder)
    assert command("train", "--resume", "parts").code == 0  # nothing is left to do
    assert results(end.folder) == before
    assert command("train", "--resume", "parts", "--rounds", 16).code == 0
    hsfl.train(tiny({"stopping.rounds": 16}), out=tmp_path / "whole")
    assert results(end.folder) == results(tmp_path / "whole")
    assert hsfl.load_scenario(end.folder / "scenario.toml").spec.stopping.rounds == 16


def test_a_run_that_goes_on_is_not_over(tiny, tmp_path):
    """Whoever looks meanwhile sees no summary."""
    seen = []

    class Look(hsfl.Callback):
        def on_round(self, record):
            seen.append((record.round, (tmp_path / "run" / "summary.json").exists()))

    hsfl.train(tiny(FIXED | {"stopping.rounds": 4}), out=tmp_path / "run")
    hsfl.resume(tmp_path / "run", {"stopping.rounds": 6}, callbacks=[Look()])
    assert seen == [(5, False), (6, False)] and hsfl.Run.load(tmp_path / "run").summary.rounds == 6


# --- seeds ---


def test_the_same_seed_gives_the_same_run_and_another_does_not(tiny, tmp_path):
    scenario = hsfl.load_scenario(tiny({"stopping.rounds": 6}))
    other = scenario.with_overrides({"training.seed": 8})
    one, two, three = (
        results(hsfl.train(s, out=tmp_path / str(n)).folder) for n, s in enumerate((scenario, scenario, other))
    )
    assert one == two
    assert all(one[name] != three[name] for name in one)


@pytest.mark.parametrize(
    "changes",
    [
        FIXED | {"strategy.cuts": [2, 3]},
        FIXED | {"strategy.intervals": [5, 1, 1]},
        {},
        FIXED | {"tiers.1.entities": 4},
        FIXED | {"tiers.1.entities": 1, "strategy.intervals": [2, 1, 1]},
    ],
    ids=["cuts", "intervals", "strategy", "more entities", "fewer entities"],
)
def test_what_a_client_draws_depends_on_nothing_but_the_seed(tiny, changes):
    drawn = [prepare(hsfl.load_scenario(tiny(c))).backend.data.sampler.draw(5, 7) for c in (FIXED, changes)]
    assert np.array_equal(*drawn)


# --- machines that change ---


def by_hand(scenario: hsfl.Scenario, rounds: int) -> list[float]:
    """The times of a fixed plan, without the clock: T_S a round, and T_{m,A} whenever a tier is due."""
    strategy, problem = scenario.spec.strategy, scenario.training_problem
    conditions, time_s, found = Conditions(scenario), 0.0, [0.0]
    for round_ in range(rounds):
        now = replace(problem, system=conditions.at(round_, time_s))
        time_s += float(split_latency(now, strategy.cuts))
        averages = aggregation_latency(now, strategy.cuts)
        for m, tier in enumerate(now.system.tiers):
            if tier.entities > 1 and (round_ + 1) % strategy.intervals[m] == 0:
                time_s += float(averages[m])
        found.append(time_s)
    return found


def test_links_drawn_anew_change_the_simulated_time(tiny, tmp_path):
    scenario = hsfl.load_scenario(tiny(FIXED | {"stopping.rounds": 10}))
    run = hsfl.train(scenario, out=tmp_path / "run")
    assert [line.time_s for line in run.metrics] == pytest.approx(by_hand(scenario, 10))
    split = [after - before for before, after in pairwise(by_hand(scenario, 10))]
    assert split[0] == pytest.approx(split[2]) and split[0] != pytest.approx(split[4])


def test_a_trace_changes_the_simulated_time(tiny, tmp_path):
    """Ten times slower computers from 2 s on: every round that starts later takes the longer time."""
    one = {"compute": "20 kFLOPS", "uplink": "100 kbps", "downlink": "100 kbps"}
    links = {f"tiers.{m}.{key}": value for m in (0, 1) for key, value in one.items()}
    slower = {f"tiers.{m}.compute": f"{value} kFLOPS" for m, value in enumerate((2, 2, 100))}
    (tmp_path / "trace.csv").write_text(
        "time_s,tier,field,factor\n" + "".join(f"2,{tier},compute,0.1\n" for tier in ("device", "edge", "cloud"))
    )
    never = FIXED | links | {"strategy.intervals": [1000, 1000, 1], "stopping.rounds": 12}
    fast, slow = (
        float(split_latency(hsfl.load_scenario(tiny(never | extra)).training_problem, [1, 3]))
        for extra in (STILL, STILL | slower)
    )
    run = hsfl.train(tiny(never | {"dynamics": {"trace": "trace.csv"}}), out=tmp_path / "run")
    expected = [0.0]
    for _ in range(12):
        expected.append(expected[-1] + (fast if expected[-1] < 2 else slow))
    assert [line.time_s for line in run.metrics] == pytest.approx(expected)
    assert expected[1] == fast < 2 < expected[-2] and slow > 5 * fast


def test_a_new_plan_sees_the_machines_of_the_moment(tiny, tmp_path):
    asked = []

    class Listens(Named):
        def propose(self, problem, current, round_):
            asked.append((round_, problem.system.tiers[0].uplink_bps.tolist()))
            return super().propose(problem, current, round_)

    scenario = hsfl.load_scenario(tiny({"stopping.rounds": 9}))
    run = hsfl.train(scenario, strategy=Listens("HSFL", "planned", "planned"), out=tmp_path / "run")
    assert [round_ for round_, _ in asked] == [plan.round for plan in run.plans] and len(asked) > 1
    for round_, uplinks in asked:
        assert uplinks == scenario.system_in(round_ // 3).tiers[0].uplink_bps.tolist()
    assert asked[0][1] != asked[-1][1]


# --- what people see ---


def test_a_log_has_one_line_per_evaluation_however_long(command, tiny, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tiny({"stopping.rounds": 10})
    out = command("train", "tiny.toml", "--out", "run").out.splitlines()
    rounds = [line for line in out if line.startswith("round ")]
    assert [line.split("  ")[0] for line in rounds] == ["round 0", "round 4", "round 8", "round 10"]
    assert re.fullmatch(
        r"round 8  \S+ s simulated  loss \d\.\d{3}  accuracy \d+\.\d\d%  \S+ rounds/s  .+ left  cuts .+; intervals .+",
        rounds[2],
    )
    assert len(rounds[2]) > 80
    known = (
        "Training: tiny, strategy HSFL, into run",
        "round ",
        "  plan after round ",
        "Ended by rounds",
        "Look at",
    )
    assert all(line.startswith(known) for line in out)


def test_a_terminal_shows_one_line_that_is_kept_up_to_date(tiny, tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, highlight=False)
    hsfl.train(tiny({"stopping.rounds": 6}), callbacks=[LiveLine(console)], out=tmp_path / "run")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    last = [line for line in re.split(r"[\r\n]", shown) if line.startswith("round ")][-1]
    assert re.match(r"round 6  .+ simulated  loss .+  accuracy .+  .+ rounds/s  .+ left  cuts .+; intervals .+", last)
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back


# --- hsfl estimate ---


def test_estimated_constants_go_into_the_file_and_it_plans(command, tiny, tmp_path):
    path = tiny()
    text = path.read_text().replace("[convergence]", "# What is known.\n[convergence]  # so far")
    path.write_bytes(text.replace("\n", "\r\n").encode())
    told = command("estimate", "tiny.toml", "--rounds", 4, "--batches", 2)
    assert told.code == 0 and "smoothness" in told.out and "write" not in told.out.lower()
    found = json.loads(command("estimate", "tiny.toml", "--rounds", 4, "--batches", 2, "--json").out)
    assert path.read_bytes() == text.replace("\n", "\r\n").encode()
    assert command("plan", "tiny.toml").code == 2  # constants are missing
    written = command("estimate", "tiny.toml", "--rounds", 4, "--batches", 2, "--write")
    assert written.code == 0 and "Wrote them into tiny.toml" in written.out
    after = path.read_bytes().decode()
    assert all(line in after.split("\r\n") for line in text.splitlines())  # comments and all
    scenario = hsfl.load_scenario(path)
    assert scenario.spec.convergence.smoothness == found["smoothness"]
    assert np.array(scenario.spec.convergence.gradient_dissimilarity).shape == (3, 4)
    assert command("plan", "tiny.toml").code == 0


def test_what_estimate_advises_about_the_step_works(command, tiny):
    """Where the measured smoothness is too large for the learning rate."""
    tiny({"training.learning_rate": 50.0})
    told = command("estimate", "tiny.toml", "--rounds", 0, "--batches", 2, "--write")
    assert told.code == 0 and "hsfl plan wants a smaller step, or chooses one with" in " ".join(told.out.split())
    assert command("plan", "tiny.toml").code == 2
    planned = command("plan", "tiny.toml", "--optimize-learning-rate", "--json")
    assert planned.code == 0, planned.err
    limit = 1 / hsfl.load_scenario("tiny.toml").spec.convergence.smoothness
    assert 0 < json.loads(planned.out)["learning_rate"] <= limit * (1 + 1e-12)


def test_estimate_does_not_write_into_built_in_scenarios(command, tmp_path):
    ended_ = command("estimate", "mnist-mini", "--write")
    assert ended_.code == 2 and "hsfl init FILE --from mnist-mini" in ended_.err
    assert list(tmp_path.iterdir()) == []


def test_constants_join_their_section(command, tmp_path):
    """In a file of hsfl init, where comments of the next section follow."""
    assert command("init", "mine.toml", "--from", "mnist-mini").code == 0
    write_tiny(tmp_path)
    lines_ = (tmp_path / "mine.toml").read_text().splitlines()
    write_constants(tmp_path / "mine.toml", hsfl.estimate(tmp_path / "tiny.toml", rounds=0, batches=2))
    after = (tmp_path / "mine.toml").read_text().splitlines()
    added = [line for line in after if line not in lines_]
    assert {line.split(" = ")[0] for line in added} == {
        *("smoothness", "initial_gap", "gradient_variance", "gradient_second_moment", "gradient_dissimilarity"),
    }
    section = after.index("[convergence]")
    above_next = [n for n, line in enumerate(lines_) if line == "[data]"]
    comment = lines_[above_next[0] - 1]
    assert section < after.index(added[-1]) < after.index(comment)


def test_plans_for_adam_come_with_a_warning(tiny):
    path = tiny({"training.optimizer": "adam", "training.momentum": ABSENT})
    scenario = hsfl.load_scenario(path)
    with pytest.warns(UserWarning, match="bound is one of SGD and takes adam's learning rate for a step"):
        prepare(scenario)


def test_constants_go_into_a_scenario_without_a_section_for_them(tmp_path):
    path = tmp_path / "bare.toml"
    path.write_text('name = "bare"  # mine\n\n[model]\nname = "lenet5"\n')
    found = hsfl.load_scenario("mnist-mini").problem.constants
    write_constants(path, replace(found, gradient_second_moment=found.gradient_variance))
    raw = tomllib.loads(path.read_text())
    assert raw["convergence"]["smoothness"] == found.smoothness and raw["model"] == {"name": "lenet5"}
    assert "# mine" in path.read_text()


def test_an_averaged_optimizer_travels_and_is_averaged(tiny, tmp_path):
    """With momentum twice the bits per average, on the clock and for the planner; and other weights."""
    plain, both = (
        hsfl.load_scenario(tiny(), FIXED | {"stopping.rounds": 8, "training.average_optimizer": on})
        for on in (False, True)
    )
    runs = [hsfl.train(s, out=tmp_path / str(i)) for i, s in enumerate((plain, both))]
    sent = [run.metrics[-1].bytes for run in runs]
    assert sent[1]["device.fed_up"] == 2 * sent[0]["device.fed_up"] > 0
    assert sent[1]["device.up"] == sent[0]["device.up"]
    averages = [aggregation_latency(s.training_problem, (1, 3)) for s in (plain, both)]
    assert averages[1] == pytest.approx(2 * averages[0])
    losses = [[line.loss for line in run.metrics[1:]] for run in runs]
    assert losses[0][:2] == losses[1][:2] and losses[0] != losses[1]  # the first average is after round 2


def test_corrected_averages_train_from_the_scenario_at_no_more_traffic(tiny, tmp_path):
    """Interrupted in the middle of an interval and gone on with, to the bit; other weights than plain averages."""
    fixed = FIXED | {"stopping.rounds": 9, "execution.checkpoint_every": 5}
    plain, corrected = (
        hsfl.load_scenario(tiny(), fixed | {"training.averaging": rule}) for rule in ("plain", "corrected")
    )
    runs = [hsfl.train(s, out=tmp_path / s.spec.training.averaging) for s in (plain, corrected)]
    assert runs[0].metrics[-1].bytes == runs[1].metrics[-1].bytes
    losses = [[line.loss for line in run.metrics[1:]] for run in runs]
    assert losses[0][:2] == losses[1][:2] and losses[0] != losses[1]  # the first average is after round 2
    assert 'averaging = "corrected"' in (tmp_path / "corrected" / "scenario.toml").read_text()
    short = hsfl.train(corrected.with_overrides({"stopping.rounds": 5}), out=tmp_path / "short")
    assert short.finished
    resumed = hsfl.resume(tmp_path / "short", {"stopping.rounds": 9})
    assert [line.loss for line in resumed.metrics[1:]] == losses[1]
    ended = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("short", "corrected")]
    assert ended[0] == ended[1]


def test_constants_of_planned_codes_are_measured_and_planned_with(tiny):
    scenario = hsfl.load_scenario(tiny(), {"tiers.device.code": "auto", "tiers.edge.code": {"up": ["int8", "int4"]}})
    found = hsfl.estimate(scenario, rounds=1, batches=2)
    assert found.coding_noise.shape == (2, 4, 4) and (found.coding_noise[:, -1] > 0).all()
    fields = as_fields(found)
    assert fields["coding_noise_up"] == pytest.approx(found.coding_noise[0, -1], rel=1e-3)
    known = {f"convergence.{key}": value for key, value in fields.items()}
    result = hsfl.plan(scenario.with_overrides(known | {"training.learning_rate": 0.001}))
    assert result.status == "optimal" and set(result.to_dict()["codes"][1]) == {"up"}
    chosen = hsfl.evaluate(scenario.with_overrides(known), result.cuts, result.intervals).plan.codes
    assert chosen is not None and chosen[1].down.name == "fp32"
