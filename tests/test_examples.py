"""The examples and notebooks run, and the one without hsfl gives hsfl's numbers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl import models
from hsfl.engine.clock import SimulatedClock
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.system import System, Tier

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
CLIENTS, BATCH, CLASSES, ROUNDS = 6, 4, 3, 12
LEARNING_RATE = 0.1
#: Whether there are network namespaces, virtual devices and shaped links.
TRIES = (
    "ip netns add lab-try && ip link add lab-try type veth peer name lab-tried netns lab-try && "
    "ip link add lab-trying type bridge && ip link delete lab-trying && "
    "tc qdisc add dev lab-try root tbf rate 4mbit burst 3000 latency 5s"
)
#: Who hosts whom above the devices, cuts and intervals.
CASES = {
    "three tiers": ([[0, 0, 0, 1, 1, 2], [0] * 6], (1, 3), (3, 2, 1)),
    "late cuts": ([[1, 0, 1, 0, 0, 0], [0] * 6], (3, 4), (4, 5, 1)),
    "two edges on top": ([[0, 0, 0, 0, 1, 1]], (2,), (2, 3)),
    "four tiers": ([[0, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1], [0] * 6], (1, 2, 4), (1, 4, 6, 1)),
    "hardly averaged": ([[0, 0, 1, 1, 2, 2], [0] * 6], (2, 4), (5, 100, 1)),
}


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal", EXAMPLES / "minimal.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["minimal"] = module
    spec.loader.exec_module(module)
    return module


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    chosen = [
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(54, 12), nn.ReLU()),
        nn.Sequential(nn.Linear(12, 8), nn.Tanh()),
        nn.Linear(8, CLASSES),
    ]
    return [layer.double() for layer in chosen]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(CLIENTS, BATCH, 2, 6, 6, dtype=torch.float64, generator=generator),
            torch.randint(CLASSES, (CLIENTS, BATCH), generator=generator),
        )
        for _ in range(ROUNDS)
    ]


def machines(minimal: ModuleType, above: list[list[int]]) -> tuple[list, System]:
    """The same random machines twice: for the example and for hsfl."""
    rng = np.random.default_rng(2)
    hosts = [list(range(CLIENTS)), *above]
    mine, theirs = [], []
    for m, row in enumerate(hosts):
        count, top = max(row) + 1, m == len(hosts) - 1
        flops, up, down, fed_up, fed_down = 10.0**m * rng.uniform(1e6, 9e6, (5, count))
        parents = None if top else np.array([hosts[m + 1][row.index(j)] for j in range(count)])
        infinite = np.full(count, np.inf)
        links = ([], []) if top else (up.tolist(), down.tolist())
        mine.append(minimal.Tier(row, flops.tolist(), *links, fed_up.tolist(), fed_down.tolist()))
        links = (infinite, infinite) if top else (up, down)
        theirs.append(Tier(f"tier{m + 1}", flops, infinite, *links, fed_up, fed_down, parents))
    return mine, System(tuple(theirs))


@pytest.mark.parametrize("kind", ["reference", "stacked"])
@pytest.mark.parametrize("case", CASES)
def test_minimal_trains_like_a_backend(minimal: ModuleType, case: str, kind: str) -> None:
    """Losses and every client's weights after every round, and the averaged model, to 1e-9 in float64."""
    above, cuts, intervals = CASES[case]
    tiers, _ = machines(minimal, above)
    hosts = [tier.hosts for tier in tiers]
    optimizer = {"name": "sgd", "lr": LEARNING_RATE}
    backend = hsfl.backend(kind, layers(), hosts, cuts, optimizer, dtype=torch.float64)
    trained = minimal.train(layers(), tiers, cuts, intervals, batches(), LEARNING_RATE)
    rounds = 0
    for (t, _, losses, sub_models), (inputs, targets) in zip(trained, batches(), strict=True):
        torch.testing.assert_close(losses, backend.step(inputs, targets), rtol=0, atol=1e-9)
        for m, interval in enumerate(intervals):
            if t % interval == 0:
                backend.average(m)
        for n in range(CLIENTS):
            mine = {k: v for m, row in enumerate(hosts) for k, v in sub_models[m][row[n]].state_dict().items()}
            assert_close(mine, backend.client_state(n))
        assert_close(minimal.averaged_model(sub_models, tiers), backend.global_state())
        rounds += 1
    assert rounds == ROUNDS


def assert_close(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert list(mine) == list(theirs)
    for key, value in mine.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("case", CASES)
def test_minimal_has_the_time_of_the_clock(minimal: ModuleType, case: str) -> None:
    """On the profile that hsfl counts for the same layers."""
    above, cuts, intervals = CASES[case]
    tiers, system = machines(minimal, above)
    profile = models.profile(nn.Sequential(*layers()), (2, 6, 6))
    unknown = Constants(np.nan, np.nan, np.nan, np.zeros(len(profile)), None, None, "refined")
    clock = SimulatedClock(Problem("minimal", system, profile, unknown, BATCH, LEARNING_RATE))
    times = []
    for t, time_s, _, _ in minimal.train(layers(), tiers, cuts, intervals, batches(), LEARNING_RATE):
        clock.split(cuts)
        for m, interval in enumerate(intervals):
            if system.averaged[m] and t % interval == 0:
                clock.average(cuts, m)
        assert time_s == pytest.approx(clock.time_s, rel=1e-9)
        times.append(time_s)
    # Rounds with an average take longer, so that the comparison above is one of both latencies.
    assert len({round(s, 9) for s in np.diff(times)}) > 1


def run(*arguments: str | Path, cwd: Path) -> str:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_minimal_learns(tmp_path: Path) -> None:
    """It needs nothing but torch, and ends far above the 10 % of chance."""
    source = (EXAMPLES / "minimal.py").read_text()
    assert "import hsfl" not in source and "from hsfl" not in source
    last = run(EXAMPLES / "minimal.py", cwd=tmp_path).splitlines()[-1]
    assert last.startswith("round 200")
    assert float(last.split()[-1].rstrip("%")) > 80


def test_own_model_trains_with_its_own_strategy(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "own_model.py", cwd=tmp_path)
    found = hsfl.Run.load(tmp_path / "runs" / "own-model-share-of-time-1")
    assert found.finished and found.strategy == "share-of-time"
    assert found.evaluations()[-1].accuracy > 0.6  # chance is 1 in 6
    assert [plan.strategy for plan in found.plans] == ["share-of-time"]
    assert f"cuts {found.plans[0].cuts}, intervals {found.plans[0].intervals}" in printed
    assert printed.count("accuracy") == len(found.evaluations())
    # The plan keeps its promise: averaging the sensors takes about a twentieth of the time of the rounds in between.
    columns = found.columns()
    seconds = np.diff(columns["time_s"])
    averaged = np.array([rounds is not None for rounds in columns["drift.sensor.rounds"][1:]])
    interval = found.plans[0].intervals[0]
    assert interval > 1 and averaged.sum() == found.summary.rounds // interval
    ordinary = seconds[~averaged].mean()
    assert 0.03 < (seconds[averaged].mean() - ordinary) / (interval * ordinary) < 0.07


def test_own_model_trains_from_the_command(tmp_path: Path) -> None:
    """The scenario is found beside its module from any folder, and the planner knows the model."""
    run("-m", "hsfl", "train", EXAMPLES / "own_model.toml", "--out", "planned", cwd=tmp_path)
    found = hsfl.Run.load(tmp_path / "planned")
    assert found.finished and found.strategy == "HSFL"
    assert found.evaluations()[-1].accuracy > 0.6


def test_own_model_cannot_be_cut_inside_a_block() -> None:
    scenario = hsfl.load_scenario(EXAMPLES / "own_model.toml")
    assert scenario.profile.names == ("stem", "near", "far", "head")


#: A notebook, and what its cells with results show, one after the other; pictures as such.
NOTEBOOKS = {
    "plan_and_explore": ["html", "html", "html", "png", "png", "times as long, limited by", "html"],
    "train_and_compare": ["html", "html", "MB up  accuracy", "png", "png", "html"],
    "own_model": ["kFLOPs", "html", "2.3275 2.3275"],
}


def test_notebooks_are_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == NOTEBOOKS.keys()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept without results, and runs from top to bottom."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "clear the results before you commit it"
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    results = [[result for result in cell.outputs if result.get("name") != "stderr"] for cell in cells]
    for shown, expected in zip(filter(None, results), NOTEBOOKS[name], strict=True):
        data = [kind.split("/")[1] for result in shown for kind in result.get("data", {})]
        texts = [result.get("text") or result.get("data", {}).get("text/plain", "") for result in shown]
        assert expected in data or any(expected in text for text in texts), shown


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None or not Path("/proc/self/ns/net").exists(),
    reason="network namespaces need root, ip and tc",
)
def test_the_laboratory_of_namespaces_runs(tmp_path: Path) -> None:
    """In namespaces that are gone afterwards."""
    tried = subprocess.run(["sh", "-c", TRIES], capture_output=True)
    subprocess.run(["sh", "-c", "ip netns delete lab-try; ip link delete lab-try"], capture_output=True)
    if tried.returncode:
        pytest.skip("this computer lets nobody make network namespaces and shape links")
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", str(EXAMPLES / "lab.sh"), str(tmp_path / "lab")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    run = hsfl.Run.load(tmp_path / "lab" / "run")
    assert run.summary is not None and run.summary.rounds == 12
    assert all(run.metrics[-1].parts[name].measured > 0 for name in ("compute", "up", "down"))
    assert "lab-1" not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
