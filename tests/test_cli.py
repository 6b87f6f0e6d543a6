"""The hsfl command: every option does what it says, and what it prints agrees with Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hsfl
from hsfl.problem.profile import LayerProfile
from tests.scenario.command import Command, contents, process
from tests.scenario.scenarios import SMALL, changed, write

DOCUMENTED = {
    *("scenario", "method", "status", "cuts", "intervals", "rounds", "split_latency_s", "aggregation_latency_s"),
    *("objective_s", "total_latency_s", "lower_bound_s", "gap", "slowest_client", "limits", "memory_bits", "solve_ms"),
}
QUICK = [name for name in hsfl.scenario_names() if name != "city"]
#: What is said on stderr of scenarios with Adam, such as tight-memory.
CAVEAT = re.compile(r"hsfl: the convergence bound is one of SGD .*\n")
NET = """\
from torch import nn


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(4, 2))
"""


@pytest.fixture
def command(command, monkeypatch) -> Command:
    """With a terminal wide enough that no line is folded."""
    monkeypatch.setenv("COLUMNS", "240")
    return command


@pytest.fixture
def small(command, tmp_path) -> Path:
    return write(tmp_path, SMALL, "small.toml")


def read(command: Command, *args: object) -> dict[str, Any]:
    """The one JSON object that `--json` prints."""
    ended = command(*args, "--json")
    assert ended.code == 0 and CAVEAT.sub("", ended.err) == "", ended.err
    return json.loads(ended.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


def said(command: Command, *args: object) -> str:
    ended = command(*args)
    assert ended.code == 0 and CAVEAT.sub("", ended.err) == "", ended.err
    return ended.out


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k != "solve_ms"}


# --- hsfl plan --json ---


@pytest.mark.parametrize("name", QUICK)
def test_json_is_complete_and_agrees_with_python(command, name):
    found = read(command, "plan", name)
    assert set(found) >= DOCUMENTED
    scenario = hsfl.load_scenario(name)
    problem, result = scenario.problem, hsfl.plan(scenario)
    M, L, N = problem.system.num_tiers, problem.num_layers, problem.system.num_clients
    assert without_time(found) == without_time(json.loads(json.dumps(result.to_dict())))
    assert (found["scenario"], found["method"], found["status"]) == (name, "exact", "optimal")
    assert len(found["cuts"]) == M - 1 and found["cuts"] == sorted(set(found["cuts"]))
    assert found["cuts"][0] >= 1 and found["cuts"][-1] < L
    for field in ("intervals", "aggregation_latency_s", "memory_bits"):
        assert len(found[field]) == M, field
    for m, entities in enumerate(problem.system.entities):
        if entities == 1:
            assert found["intervals"][m] == 1 and found["aggregation_latency_s"][m] == 0
    assert 1 <= found["slowest_client"] <= N
    assert 0 < found["lower_bound_s"] <= found["objective_s"] and 0 <= found["gap"] <= 1e-9
    assert found["solve_ms"] > 0

    mine = hsfl.evaluate(scenario, found["cuts"], found["intervals"])
    for field in set(mine.to_dict()) - {"limits"}:
        assert found[field] == mine.to_dict()[field], field
    averaging = list(zip(found["aggregation_latency_s"], found["intervals"], strict=True))
    every_round = found["split_latency_s"] + sum(t / i for t, i in averaging)
    assert found["rounds"] - 1 < found["objective_s"] / every_round <= found["rounds"] * (1 + 1e-9)
    averages = [
        found["rounds"] // i * t for t, i in zip(found["aggregation_latency_s"], found["intervals"], strict=True)
    ]
    assert found["total_latency_s"] == pytest.approx(found["rounds"] * found["split_latency_s"] + sum(averages))


def test_the_slowest_client_counts_from_one_and_is_the_slowest(command, tmp_path):
    slow_first = write(tmp_path, changed({"tiers.0.uplink": [1e5, 1e7, 1e7, 1e7, 1e7, 1e7]}), "first.toml")
    slow_last = write(tmp_path, changed({"tiers.0.uplink": [1e7, 1e7, 1e7, 1e7, 1e7, 1e5]}), "last.toml")
    assert read(command, "plan", slow_first)["slowest_client"] == 1
    assert read(command, "plan", slow_last)["slowest_client"] == 6
    assert re.search(r"slowest client\W+client 1 of 6", said(command, "plan", slow_first))
    assert re.search(r"slowest client\W+client 6 of 6", said(command, "plan", slow_last))


def test_limits_are_shares_of_a_round_and_name_tiers_from_one(command, small):
    limits = read(command, "plan", small)["limits"]
    assert limits and all(set(x) == {"kind", "tier", "seconds", "share"} for x in limits)
    assert {x["kind"] for x in limits} <= {"compute", "uplink", "downlink", "aggregation", "memory"}
    assert all(1 <= x["tier"] <= 3 for x in limits)
    parts = [x for x in limits if x["kind"] != "memory"]
    assert sum(x["share"] for x in parts) == pytest.approx(1)
    assert [x["seconds"] for x in parts] == sorted((x["seconds"] for x in parts), reverse=True)


def test_memory_that_costs_time_is_a_limit(command):
    found = read(command, "plan", "tight-memory")
    assert found["fits_memory"] is True
    assert "memory" in {x["kind"] for x in found["limits"]}
    free = read(
        command, "plan", "tight-memory", "--set", "tiers.sensor.memory=1 TB", "--set", "tiers.gateway.memory=1 TB"
    )
    assert "memory" not in {x["kind"] for x in free["limits"]}
    lost = next(x for x in found["limits"] if x["kind"] == "memory")["seconds"]
    assert lost == pytest.approx(found["objective_s"] - free["objective_s"])


# --- hsfl plan for people ---


def test_the_report_says_what_the_json_says(command, small):
    found, text = read(command, "plan", small), said(command, "plan", small)
    cuts = [0, *found["cuts"], 5]
    for tier, first, last in zip(("device", "edge", "cloud"), cuts, cuts[1:], strict=False):
        layers = f"{first + 1}" if last == first + 1 else f"{first + 1}–{last}"
        assert re.search(rf"^\s*\d {tier}\s+{layers}\W.*(conv|fc)\d", text, flags=re.MULTILINE), (tier, text)
    assert f"{found['rounds']:,} rounds" in text
    assert re.search(rf"slowest client\W+client {found['slowest_client']} of 6", text)
    assert "6 devices → 2 edges → 1 cloud" in text
    assert "Proven optimal" in text
    assert "Limited by" in text


def test_the_time_to_target_is_shown_for_people(command, small):
    from hsfl.problem.units import format_seconds

    shown = re.escape(format_seconds(read(command, "plan", small)["total_latency_s"]))
    assert re.search(rf"Time to target\W+{shown}\b", said(command, "plan", small))


def test_the_readme_shows_what_is_printed(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    words, shown = re.search(r"^\$ hsfl (plan paper.*)\n((?:.*\n)*?)```$", readme, flags=re.MULTILINE).groups()
    printed = [line.rstrip() for line in said(command, *words.split()).splitlines()]
    took = re.compile(r"\(exact, [\d.]+ [mµ]?s\)")
    assert took.sub("", "\n".join(printed)) == took.sub("", shown.rstrip("\n"))


def test_plan_as_a_process_prints_the_same(tmp_path):
    write(tmp_path, SMALL, "small.toml")
    ended = process("plan", "small.toml", "--json", cwd=tmp_path)
    assert ended.code == 0 and ended.err == ""
    assert without_time(json.loads(ended.out)) == without_time(hsfl.plan(tmp_path / "small.toml").to_dict())
    assert list(contents(tmp_path)) == ["small.toml"]


def test_a_cold_plan_imports_nothing_heavy(tmp_path):
    ended = process("plan", "paper", cwd=tmp_path, python_options=("-X", "importtime"))
    assert ended.code == 0 and "Time to target" in ended.out
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.err.splitlines()}
    assert {"hsfl", "numpy", "pydantic"} <= imported
    assert not imported & {"torch", "matplotlib", "scipy"}


# --- options ---


@pytest.mark.parametrize("name", [name for name in QUICK if name != "fleet"])  # bcd knows no cohorts
def test_bcd_never_says_optimal(command, name):
    found = read(command, "plan", name, "--method", "bcd")
    assert (found["method"], found["status"]) == ("bcd", "heuristic")
    assert found["lower_bound_s"] is None and found["gap"] is None
    assert found["history"][-1]["objective_s"] == pytest.approx(found["objective_s"])
    assert found["objective_s"] >= read(command, "plan", name)["objective_s"] * (1 - 1e-9)
    text = said(command, "plan", name, "--method", "bcd")
    assert "optimal" not in text and "nothing proven" in text


def test_set_replaces_fields(command, small):
    options = ["--set", "tiers.device.uplink=20 Mbps", "--set", 'tiers.2.uplink="30 Mbps"', "--set", "seed=8"]
    options += ["--set", "training.optimizer=momentum", "--set", "tiers.cloud.compute = {uniform = [1e12, 2e12]}"]
    options += ["--set", "tiers.device.parents=[0, 1, 0, 1, 0, 1]"]
    overrides = {
        "tiers.device.uplink": "20 Mbps",
        "tiers.edge.uplink": "30 Mbps",
        "seed": 8,
        "training.optimizer": "momentum",
        "tiers.cloud.compute": {"uniform": [1e12, 2e12]},
        "tiers.device.parents": [0, 1, 0, 1, 0, 1],
    }
    found = read(command, "plan", small, *options)
    assert without_time(found) == without_time(hsfl.plan(hsfl.load_scenario(small, overrides)).to_dict())
    assert found["objective_s"] != read(command, "plan", small)["objective_s"]
    assert small.read_text() == write(small.parent, SMALL, "again.toml").read_text(), "the file itself must not change"


def test_corrected_averages_are_planned_with_their_memory(command, small):
    found = read(command, "plan", small, "--averaging", "corrected")
    plain = read(command, "plan", small)
    assert found["cuts"] == plain["cuts"] and found["objective_s"] == plain["objective_s"]
    more = [a - b for a, b in zip(found["memory_bits"], plain["memory_bits"], strict=True)]
    parameters = hsfl.load_scenario(small).problem.profile.parameter_bits
    first, second = found["cuts"]
    assert more == pytest.approx([2 * parameters[:first].sum(), 2 * 3 * parameters[first:second].sum(), 0])


def test_set_displaces_the_alternative(command, small):
    found = read(command, "plan", small, "--set", "convergence.target=2.5")
    assert found["rounds"] == hsfl.plan(hsfl.load_scenario(small, {"convergence.target": 2.5})).evaluation.rounds


def test_code_is_that_of_every_tier_unless_set(command, small):
    found = read(command, "plan", small, "--code", "int8", "--set", "tiers.edge.code=bf16")
    codes = {"tiers.device.code": "int8", "tiers.edge.code": "bf16"}
    assert found["objective_s"] == hsfl.plan(hsfl.load_scenario(small, codes)).objective_s
    assert found["objective_s"] < read(command, "plan", small)["objective_s"]
    ended = command("plan", small, "--code", "int5")
    assert ended.code == 2 and 'tiers.device.code = "int5": no such code' in ended.err
    assert command("plan", small, "--code", "int4").out.count("int4") == 2
    among = hsfl.plan(hsfl.load_scenario(small, {"tiers.*.code": ["int8", "bf16"]}))
    assert read(command, "plan", small, "--code", "int8,bf16")["objective_s"] == among.objective_s


def test_micro_batches_are_given_or_planned(command, small):
    field = "training.micro_batches"
    for text, value in (("3", 3), ("auto", "auto"), ("1,2", [1, 2])):
        planned = hsfl.plan(hsfl.load_scenario(small, {field: value}))
        found = read(command, "plan", small, "--micro-batches", text)
        assert found["objective_s"] == planned.objective_s
        assert found.get("micro_batches") == planned.plan.micro_batches
        assert (value == 3) == (planned.plan.micro_batches is None)
    assert "with 3 mini-batches in a pipeline" in said(command, "plan", small, "--micro-batches", "3")
    assert "mini-batches" in said(command, "plan", small, "--sweep", f"{field}=1,auto")
    assert "mini-batches" not in said(command, "plan", small, "--sweep", "training.batch_size=8,16")
    ended = command("plan", small, "--micro-batches", "0")
    assert ended.code == 2 and "training.micro_batches = 0: it should be a whole number from 1 on" in ended.err
    ended = command("plan", small, "--micro-batches", "auto", "--method", "bcd")
    assert ended.code != 0 and "it plans no training.micro_batches; give a number" in ended.err


def test_a_mini_batch_in_chunks(command, small):
    planned = hsfl.plan(hsfl.load_scenario(small, {"training.chunks": 4}))
    assert read(command, "plan", small, "--chunks", "4")["objective_s"] == planned.objective_s
    assert planned.objective_s < hsfl.plan(small).objective_s
    assert "with the mini-batch in 4 chunks in a pipeline" in said(command, "plan", small, "--chunks", "4")
    both = ("--chunks", "4", "--micro-batches", "2")
    assert "with 2 mini-batches of 4 chunks each in a pipeline" in said(command, "plan", small, *both)
    ended = command("plan", small, "--chunks", "3")
    assert ended.code == 2
    assert "training.chunks = 3: a mini-batch of training.batch_size = 4 samples cannot be divided" in ended.err


def test_allow_empty_tiers(command, tmp_path):
    """An edge much slower than the devices is best left to relay."""
    path = write(tmp_path, changed({"tiers.1.compute": "1 MFLOPS"}), "slow-edge.toml")
    plain, empty = read(command, "plan", path), read(command, "plan", path, "--allow-empty-tiers")
    assert empty["objective_s"] < plain["objective_s"]
    assert empty["cuts"][0] == empty["cuts"][1] and empty["cuts"][0] >= 1
    assert empty["cuts"] == list(hsfl.plan(path, allow_empty_tiers=True).cuts)
    assert "relays" in said(command, "plan", path, "--allow-empty-tiers")


def test_optimize_learning_rate(command, small):
    plain, found = read(command, "plan", small), read(command, "plan", small, "--optimize-learning-rate")
    assert 0 < found["learning_rate"] <= 1 / 7.8 * (1 + 1e-12)
    assert found["objective_s"] <= plain["objective_s"] * (1 + 1e-9)
    assert found["given_learning_rate"]["objective_s"] == plain["objective_s"]
    assert found["given_learning_rate"]["learning_rate"] == 0.01
    assert found["status"] in ("optimal", "bounded") and 0 <= found["gap"] <= 2e-3
    moved = hsfl.load_scenario(small, {"convergence.target": hsfl.load_scenario(small).problem.constants.target})
    at_it = hsfl.plan(moved.with_overrides({"training.learning_rate": found["learning_rate"]}))
    assert at_it.objective_s == pytest.approx(found["objective_s"])
    text = said(command, "plan", small, "--optimize-learning-rate")
    assert f"learning rate {found['learning_rate']:.3g}" in text and re.search(r"given.* 0\.01\b", text)


def test_a_target_out_of_reach_of_the_given_rate_is_planned_with_another(command, tmp_path):
    convergence = {"smoothness": 7.8, "initial_gap": 2.3, "target": 0.1, "gradient_variance": [1, 2, 3, 4, 5]}
    path = write(tmp_path, changed({"convergence": convergence}), "noisy.toml")
    assert command("plan", path).code == 2
    found = read(command, "plan", path, "--optimize-learning-rate")
    assert found["learning_rate"] < 0.01 and "given_learning_rate" not in found


@pytest.mark.parametrize("momentum", [False, True])
def test_a_rate_above_the_bound_is_planned_with_another(command, tmp_path, momentum):
    """The target by rounds is then that of the largest rate the bound holds for."""
    changes = {"training.optimizer": "momentum", "training.momentum": 0.5} if momentum else {}
    path = write(tmp_path, changed({"training.learning_rate": 0.5} | changes), "steep.toml")
    largest = (1 - 0.5 * momentum) / 7.8
    refused = command("plan", path)
    assert refused.code == 2 and f"write at most {largest:.4g}" in refused.err
    found = read(command, "plan", path, "--optimize-learning-rate", "--compare")
    assert 0 < found["learning_rate"] <= largest * (1 + 1e-12) and "given_learning_rate" not in found
    at_largest = hsfl.load_scenario(path, {"training.learning_rate": largest})
    assert found["target"] == pytest.approx(at_largest.problem.constants.target)
    again = hsfl.plan(at_largest, optimize_learning_rate=True)
    assert found["objective_s"] == pytest.approx(again.objective_s, rel=2e-3)
    alike = [a for a in found["alternatives"] if a["name"] != "4 chunks"]
    assert all(a["slowdown"] is None or a["slowdown"] > 0.95 for a in alike if "slowdown" in a)
    text = said(command, "plan", path, "--optimize-learning-rate", "--plot", "steep.png")
    assert "The given learning rate 0.5 is above 1/smoothness" in text


def test_a_bound_that_is_not_the_optimisers_is_said(command, small):
    """Once, on stderr, and what is proven is proven of that bound only."""
    for options in ([], ["--sweep", "training.batch_size=8,16"], ["--json"]):
        ended = command("plan", small, "--set", "training.optimizer=adam", *options)
        assert ended.code == 0
        assert CAVEAT.fullmatch(ended.err)
    text = command("plan", small, "--set", "training.optimizer=adamw").out
    assert "Proven optimal with every tier used, for what the bound knows (exact" in text
    assert "SGD" not in said(command, "plan", small)
    with pytest.warns(UserWarning, match="one of SGD and takes adam's learning rate"):
        hsfl.plan(hsfl.load_scenario(small, {"training.optimizer": "adam"}))


def test_compare(command, small):
    found = read(command, "plan", small, "--compare")
    scenario = hsfl.load_scenario(small)
    others = hsfl.compare(scenario, hsfl.plan(scenario))
    assert [a["name"] for a in found["alternatives"]] == [a.name for a in others]
    names = {a["name"] for a in found["alternatives"]}
    assert names >= {"full sync", "RMA+MS", "MA+RMS", "RMA+RMS", "PSL", "no edge", "no cloud"}
    for shown, other in zip(found["alternatives"], others, strict=True):
        assert shown["what"]
        if other.evaluation is None:
            assert "slowdown" not in shown
        elif not other.evaluation.reaches_target:
            assert shown["slowdown"] is None and shown["objective_s"] is None
        else:
            assert shown["slowdown"] == pytest.approx(other.evaluation.objective_s / found["objective_s"])
            if not shown["name"].startswith(("no ", "4 ")):
                assert shown["slowdown"] >= 1 - 1e-9, shown["name"]
    text = said(command, "plan", small, "--compare")
    assert "slowdown" in text
    assert "Faster than this plan: " in text and "4 chunks. " in text and "--chunks 4 takes mini-batches apart." in text
    assert all(name in text for name in names)


def test_comparison_is_reproducible_and_follows_the_seed(command, small):
    first = read(command, "plan", small, "--compare")["alternatives"]
    assert read(command, "plan", small, "--compare")["alternatives"] == first
    other = read(command, "plan", small, "--compare", "--set", "seed=77")["alternatives"]
    drawn = [a["cuts"] + a["intervals"] for a in first if a["name"] == "RMA+RMS"]
    assert drawn != [a["cuts"] + a["intervals"] for a in other if a["name"] == "RMA+RMS"]


def test_sweep(command, small):
    found = read(command, "plan", small, "--sweep", "training.batch_size=1,8,64")
    assert (found["scenario"], found["field"]) == ("small", "training.batch_size")
    assert [p["value"] for p in found["sweep"]] == ["1", "8", "64"]
    for point in found["sweep"]:
        assert set(point) >= DOCUMENTED
        alone = read(command, "plan", small, "--set", f"training.batch_size={point.pop('value')}")
        assert without_time(point) == without_time(alone)
    text = said(command, "plan", small, "--sweep", "training.batch_size=1,8,64")
    assert all(re.search(rf"^\s*{value}\s", text, flags=re.MULTILINE) for value in (1, 8, 64))


def test_sweep_shows_the_values_without_a_plan_too(command, small):
    values = "tiers.device.memory=1 GB,1 kB,2 GB"
    found = read(command, "plan", small, "--sweep", values)["sweep"]
    assert found[0]["objective_s"] == found[2]["objective_s"]
    assert "memory" in found[1]["error"] and "objective_s" not in found[1]
    assert "no plan" in said(command, "plan", small, "--sweep", values)


def test_sweep_over_a_value_that_cannot_be_is_one_sentence(command, small):
    ended = command("plan", small, "--sweep", "tiers.device.uplink=1 Mbps,nonsense,100 Mbps")
    assert ended.code == 2 and ended.out == "" and ended.err.count("\n") == 1
    assert 'uplink = "nonsense"' in ended.err


def test_sweep_keeps_the_other_options(command, small):
    found = read(command, "plan", small, "--sweep", "seed=1,2", "--method", "bcd", "--set", "training.batch_size=2")
    assert {p["method"] for p in found["sweep"]} == {"bcd"}
    alone = read(command, "plan", small, "--set", "seed=2", "--set", "training.batch_size=2", "--method", "bcd")
    assert found["sweep"][1]["objective_s"] == alone["objective_s"]


def test_time_limit(command, small):
    assert read(command, "plan", small, "--time-limit", "0")["status"] in ("optimal", "bounded")
    assert read(command, "plan", small, "--time-limit", "5.5")["status"] == "optimal"


def deep_scenario(folder: Path, seed: int) -> Path:
    """Six uneven tiers over forty layers for sixty clients: more plans than are tabulated, so that time can run out."""
    rng = np.random.default_rng(seed)
    tiers: list[dict[str, Any]] = []
    for m, count in enumerate((60, 30, 12, 6, 3, 1)):
        fields = ("compute", "uplink", "downlink", "fed_uplink", "fed_downlink") if count > 1 else ("compute",)
        tiers.append({"name": f"t{m}", "entities": count} | {f: rng.lognormal(16, 1.5, count).tolist() for f in fields})
    header = "name,forward_flops,backward_flops,activation_bits,gradient_bits,parameter_bits,optimizer_bits"
    layers = rng.uniform(1e4, 1e6, (40, 5))
    rows = "".join(f"layer{i}," + ",".join(f"{x:.0f}" for x in row) + ",0\n" for i, row in enumerate(layers))
    (folder / "deep.csv").write_text(f"{header}\n{rows}")
    lists = {f"convergence.gradient_{k}": rng.uniform(0, 0.1, 40).tolist() for k in ("variance", "second_moment")}
    return write(folder, changed({"tiers": tiers, "model": {"profile": "deep.csv"}, **lists}), "deep.toml")


def test_a_search_out_of_time_still_tells_the_truth(command, tmp_path):
    bounded = 0
    for seed in range(4):
        path = deep_scenario(tmp_path, seed)
        short, long = (read(command, "plan", path, "--time-limit", limit) for limit in ("0", "60"))
        assert long["status"] == "optimal" and long["gap"] <= 1e-9
        assert short["lower_bound_s"] <= long["objective_s"] * (1 + 1e-9)
        assert long["objective_s"] <= short["objective_s"] * (1 + 1e-9)
        if short["status"] == "bounded":
            bounded += 1
            assert short["gap"] == pytest.approx(1 - short["lower_bound_s"] / short["objective_s"])
            assert "% of the optimum" in said(command, "plan", path, "--time-limit", "0")
        else:
            assert short["objective_s"] == pytest.approx(long["objective_s"])
    assert bounded, "no search ran out of time"


# --- pictures ---


def picture(path: Path) -> np.ndarray:
    """The colour of every pixel, as one number."""
    from matplotlib import image

    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = (255 * image.imread(path)).astype(np.uint32)
    return pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]


@pytest.mark.parametrize("name", ["small.toml", "client-cloud", "four-tier"])
def test_plot_is_a_picture_of_the_plan(command, small, tmp_path, name):
    text = said(command, "plan", name, "--plot", "p.png")
    assert "Wrote p.png" in text
    pixels = picture(tmp_path / "p.png")
    assert min(pixels.shape) > 300 and len(np.unique(pixels)) > 10
    assert sorted(contents(tmp_path)) == ["p.png", "small.toml"], "no part files stay"


def test_plot_of_a_sweep(command, small, tmp_path):
    said(command, "plan", small, "--sweep", "training.batch_size=1,8,64", "--plot", "sweep.png")
    assert len(np.unique(picture(tmp_path / "sweep.png"))) > 10


def test_plot_replaces_an_old_picture_and_knows_other_kinds(command, small, tmp_path):
    (tmp_path / "p.svg").write_text("old")
    found = read(command, "plan", small, "--plot", "p.svg")
    assert found["status"] == "optimal", "--json prints nothing besides"
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_plot_follows_the_options(command, small, tmp_path):
    said(command, "plan", small, "--plot", "a.png")
    said(command, "plan", small, "--plot", "b.png", "--allow-empty-tiers")
    said(command, "plan", small, "--plot", "c.png", "--set", "tiers.device.uplink=1 kbps")
    said(command, "plan", small, "--plot", "d.png")
    a, b, c, d = (picture(tmp_path / f"{name}.png") for name in "abcd")
    assert np.array_equal(a, d)
    assert not np.array_equal(a, b) and not np.array_equal(a, c)


# --- hsfl scenarios, hsfl init ---


def test_scenarios_lists_every_scenario_with_its_tiers(command):
    text = said(command, "scenarios")
    for name in hsfl.scenario_names():
        row = next(line for line in text.splitlines() if line.split()[:1] == [name])
        spec = hsfl.load_scenario(name).spec
        assert row.split()[1] == str(len(spec.tiers))
        assert spec.model.name in row and spec.description in row
    assert "hsfl init" in text


@pytest.mark.parametrize("name", QUICK)
def test_init_writes_a_scenario_that_plans_the_same(command, tmp_path, name):
    text = said(command, "init", "mine.toml", "--from", name)
    assert "Wrote mine.toml" in text and "hsfl plan mine.toml" in text
    assert list(contents(tmp_path)) == ["mine.toml"]
    assert without_time(read(command, "plan", "mine.toml")) == without_time(read(command, "plan", name))


def test_init_starts_from_the_paper_by_default(command):
    said(command, "init", "mine.toml")
    assert hsfl.load_scenario("mine.toml").raw == hsfl.load_scenario("paper").raw


# --- hsfl profile ---


def test_profile_of_a_built_in_model_agrees_with_the_shipped_one(command, tmp_path):
    text = said(command, "profile", "lenet5", "--csv", "lenet.csv")
    assert "5 layers" in text and "conv1" in text and "fc3" in text and "1 × 28 × 28" in text
    found, shipped = LayerProfile.from_csv(tmp_path / "lenet.csv"), hsfl.load_scenario("tight-memory").profile
    for column in ("forward_flops", "backward_flops", "activation_bits", "gradient_bits", "parameter_bits"):
        assert getattr(found, column).tolist() == getattr(shipped, column).tolist(), column
    assert found.names == shipped.names


def test_profile_csv_can_be_planned(command, tmp_path):
    said(command, "profile", "lenet5", "--csv", "lenet.csv")
    lists = {f"convergence.gradient_{k}": [0.5, 1.0, 1.5, 2.0, 2.5] for k in ("variance", "second_moment")}
    by_csv = write(tmp_path, changed({"model": {"profile": "lenet.csv"}, **lists}), "csv.toml")
    by_name = write(tmp_path, changed(lists), "name.toml")
    assert without_time(read(command, "plan", by_csv)) == without_time(read(command, "plan", by_name))


def test_profile_of_a_factory_in_this_folder(command, tmp_path):
    (tmp_path / "cli_net.py").write_text(NET)
    text = said(command, "profile", "cli_net:build", "--input", "8", "--csv", "net.csv", "--optimizer", "adam")
    assert "4 layers" in text and 'profile = "net.csv"' in text
    found = LayerProfile.from_csv(tmp_path / "net.csv")
    assert found.forward_flops.tolist() == [2 * 8 * 16, 2 * 16 * 16, 2 * 16 * 4, 2 * 4 * 2]
    assert found.parameter_bits.tolist() == [
        32 * (8 * 16 + 16),
        32 * (16 * 16 + 16),
        32 * (16 * 4 + 4),
        32 * (4 * 2 + 2),
    ]
    assert found.optimizer_bits.tolist() == (2 * found.parameter_bits).tolist()
    assert found.activation_bits.tolist() == [32 * 16, 32 * 16, 32 * 4, 32 * 2]


def test_profile_of_another_shape(command, tmp_path):
    said(command, "profile", "lenet5", "--input", "3,20,20", "--csv", "rgb.csv")
    assert LayerProfile.from_csv(tmp_path / "rgb.csv").forward_flops[0] == 2 * 3 * 25 * 6 * 20 * 20


def test_profile_measures_this_machine(command):
    text = said(command, "profile", "lenet5", "--measure", "--batch-size", "4")
    for layer in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        timed = [line for line in text.splitlines() if layer in line and re.search(r"\d (ms|µs)\b", line)]
        assert len(timed) == 1 and len(re.findall(r"\d (?:ms|µs)\b", timed[0])) == 2, (
            "one forward and one backward time"
        )
        assert "FLOPS" in timed[0] and "%" in timed[0]
    assert re.search(r"batch (of )?4\b", text) and "nominal" in text
    assert not re.search(r"\d (ms|µs)\b", said(command, "profile", "lenet5"))


def test_warnings_of_a_model_are_one_line_each(command, tmp_path):
    warning = "import warnings\n\nwarnings.warn('this model is old')\n"
    (tmp_path / "warning_net.py").write_text(NET + warning)
    ended = command("profile", "warning_net:build", "--input", "8")
    assert ended.code == 0 and ended.err == "hsfl: this model is old\n"


# --- help ---


@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], ["init", "--help"], ["profile", "--help"]])
def test_help(command, args):
    ended = command(*args)
    assert ended.code == 0 and ended.err == "" and "Usage: hsfl" in ended.out


def test_plan_help_names_every_option(command):
    text = command("plan", "--help").out
    for option in (
        "method",
        "set",
        "allow-empty-tiers",
        "optimize-learning-rate",
        "compare",
        "sweep",
        "plot",
        "json",
        "micro-batches",
        "chunks",
    ):
        assert f"--{option}" in text
    assert "--time-limit" in text


def test_no_argument_shows_the_help_in_lines(command):
    ended = command()
    shown = ended.out + ended.err
    assert all(name in shown for name in ("plan", "scenarios", "init", "profile"))
    assert shown.count("\n") > 4, "help folded into one line"
