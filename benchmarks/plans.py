"""Compare planned training with full synchronisation, simple fixed plans and the best of a grid, on small problems.

    python benchmarks/plans.py [--problems NAME ...] [--seeds N ...] [--averaging RULE ...] [--grid] [--energy]
                               [--constant NAME=VALUE ...]

Every problem is one a user might bring: a model, data, a skew of the data over the clients, a tree of machines, links
and a step. The figure of a run is the simulated time to a test accuracy that full synchronisation sets with the same
seed: 1.25 times the error it ends with. A run that never gets there counts with all its time and, since it was in vain,
that of full synchronisation besides. The figure of a problem is the mean over seeds of planned training, as a multiple
of the best of full synchronisation and the simple plans. Fixed plans have the cuts whose rounds of full synchronisation
are shortest.

Needs scikit-learn for its digits: pip install scikit-learn.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tried
from torch import nn

from hsfl.errors import DivergedError
from hsfl.planner.baselines import full_sync_cuts
from hsfl.runs.profiling import profile_model
from hsfl.runs.reading import Run
from hsfl.runs.training import start
from hsfl.scenario.scenario import Scenario, scenario_from_dict

FOLDER = Path(__file__).parent

# ---------------------------------------------------------------------------------------------- models and data


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 48), nn.ReLU(),
        nn.Linear(48, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def tabular(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(),
        nn.Linear(64, 32), nn.Tanh(),
        nn.Linear(32, classes),
    )  # fmt: skip


def cancer_mlp() -> nn.Module:
    return tabular(30, 2)


def clusters_mlp() -> nn.Module:
    return tabular(20, 8)


def deep_mlp() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 64)]
    for _ in range(5):
        layers += [nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64)]
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, 10))


class MeanOfTokens(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def token_net() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(40, 24),
        nn.Linear(24, 48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.ReLU(),
        MeanOfTokens(),
        nn.Linear(48, 6),
    )


def digits() -> tuple[torch.Tensor, ...]:
    """scikit-learn's digits: 1,797 images of 8 x 8."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = torch.tensor(found.images[order] / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(found.target[order])
    return x[:1400], y[:1400], x[1400:], y[1400:]


def blobs() -> tuple[torch.Tensor, ...]:
    """Ten classes of three Gaussians each in 64 dimensions."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(10, 3, 64)) * 0.55
    y = rng.integers(0, 10, 5000)
    x = centres[y, rng.integers(0, 3, 5000)] + rng.normal(size=(5000, 64))
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return x[:4000], y[:4000], x[4000:], y[4000:]


def tokens() -> tuple[torch.Tensor, ...]:
    """Sequences of 20 tokens, each drawn from one of six topics."""
    rng = np.random.default_rng(2)
    topics = rng.dirichlet(np.full(40, 0.3), size=6)
    y = rng.integers(0, 6, 4000)
    x = np.stack([rng.choice(40, size=20, p=0.35 * topics[k] + 0.65 / 40) for k in y])
    x, y = torch.tensor(x), torch.tensor(y)
    return x[:3000], y[:3000], x[3000:], y[3000:]


def cancer() -> tuple[torch.Tensor, ...]:
    """scikit-learn's breast cancer: 569 samples of 30 numbers, two classes."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = (found.data - found.data.mean(0)) / found.data.std(0)
    x, y = torch.tensor(x[order], dtype=torch.float32), torch.tensor(found.target[order])
    return x[:400], y[:400], x[400:], y[400:]


def clusters() -> tuple[torch.Tensor, ...]:
    """scikit-learn's clusters on the corners of a cube: eight classes of two each."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        10_000, 20, n_informative=12, n_classes=8, n_clusters_per_class=2, class_sep=1.2, random_state=5
    )
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return x[:8000], y[:8000], x[8000:], y[8000:]


# ---------------------------------------------------------------------------------------------------- problems


def tree(
    devices: int, edges: int, tops: int, *, up: str, fed: str, edge_up: str = "40 Mbps", compute: str = "1 GFLOPS"
) -> list[dict[str, Any]]:
    top: dict[str, Any] = {"name": "top", "entities": tops, "compute": "1 TFLOPS"}
    if tops > 1:
        top |= {"fed_uplink": edge_up, "fed_downlink": edge_up}
    return [
        {"name": "device", "entities": devices, "compute": compute, "uplink": up, "downlink": up, "fed_uplink": fed,
         "fed_downlink": fed},
        {"name": "edge", "entities": edges, "compute": "20 GFLOPS", "uplink": edge_up, "downlink": edge_up,
         "fed_uplink": edge_up, "fed_downlink": edge_up},
        top,
    ]  # fmt: skip


def two_tiers(devices: int, *, up: str, fed: str) -> list[dict[str, Any]]:
    """Devices and a server."""
    device, _, top = tree(devices, 1, 1, up=up, fed=fed)
    return [device, top]


def four_tiers(devices: int, edges: int, regions: int, *, up: str, fed: str) -> list[dict[str, Any]]:
    """Devices, edges, regions and one more machine on top."""
    device, edge, region = tree(devices, edges, regions, up=up, fed=fed)
    rates = dict.fromkeys(("uplink", "downlink", "fed_uplink", "fed_downlink"), "40 Mbps")
    return [
        device, edge, region | {"name": "region"} | rates, {"name": "cloud", "entities": 1, "compute": "2 TFLOPS"},
    ]  # fmt: skip


def problem(
    model: str, data: str, partition: dict[str, Any], tiers: list[dict[str, Any]], training: dict[str, Any], rounds: int
) -> dict[str, Any]:
    where = {"name": data} if data == "mnist-mini" else {"factory": f"plans:{data}"}
    built = {"name": model} if model == "lenet5" else {"factory": f"plans:{model}", "input_shape": SHAPES[data]}
    return {
        "model": built,
        "data": where | partition,
        "tiers": tiers,
        "training": {"batch_size": 16} | training,
        "stopping": {"rounds": rounds},
        "execution": {"evaluate_every": 5, "checkpoint_every": 0},
        "convergence": {"rounds": 200, "slack": 0.5},
    }


SHAPES = {"digits": [1, 8, 8], "blobs": [64], "tokens": [20], "cancer": [30], "clusters": [20]}
IID = {"partition": "iid"}
SHARDS = {"partition": "shards", "shards_per_client": 2}


def skewed(alpha: float) -> dict[str, Any]:
    return {"partition": "dirichlet", "alpha": alpha}


SGD = {"learning_rate": 0.1}
MOMENTUM = {"learning_rate": 0.02, "optimizer": "momentum"}
SLOW = {"learning_rate": 0.01, "optimizer": "momentum"}
LONG, SHORT = {"learning_rate": 0.3}, {"learning_rate": 0.05}
PROBLEMS: dict[str, dict[str, Any]] = {
    "digits-phones": problem("mlp", "digits", skewed(0.3), tree(12, 4, 2, up="1 Mbps", fed="1 Mbps"), SGD, 400),
    "digits-iid": problem("mlp", "digits", IID, tree(12, 4, 1, up="2 Mbps", fed="1 Mbps"), SGD, 300),
    "digits-shards": problem("mlp", "digits", SHARDS, tree(10, 5, 1, up="2 Mbps", fed="2 Mbps"), SGD, 800),
    "digits-cnn": problem("small_cnn", "digits", skewed(0.1), tree(16, 4, 2, up="1 Mbps", fed="200 kbps"), SGD, 600),
    "digits-fast-fed": problem(
        "small_cnn", "digits", SHARDS, tree(8, 2, 1, up="500 kbps", fed="20 Mbps"), MOMENTUM, 500
    ),
    "digits-norm": problem(
        "norm_cnn", "digits", skewed(0.5), tree(12, 3, 3, up="1 Mbps", fed="500 kbps"), MOMENTUM, 300
    ),
    "blobs-iid": problem("mlp", "blobs", IID, tree(30, 6, 2, up="5 Mbps", fed="500 kbps"), SGD, 400),
    "blobs-skewed": problem("mlp", "blobs", skewed(0.1), tree(20, 5, 1, up="5 Mbps", fed="1 Mbps"), SGD, 600),
    "blobs-momentum": problem("mlp", "blobs", skewed(0.3), tree(12, 4, 4, up="1 Mbps", fed="1 Mbps"), MOMENTUM, 400),
    "tokens-shards": problem("token_net", "tokens", SHARDS, tree(12, 4, 2, up="2 Mbps", fed="500 kbps"), LONG, 600),
    "tokens-iid": problem("token_net", "tokens", IID, tree(12, 4, 2, up="2 Mbps", fed="200 kbps"), LONG, 400),
    "digits-deep": problem("deep_mlp", "digits", IID, tree(12, 4, 1, up="2 Mbps", fed="1 Mbps"), SLOW, 300),
    "digits-four": problem("mlp", "digits", SHARDS, four_tiers(16, 8, 2, up="2 Mbps", fed="1 Mbps"), SGD, 600),
    "cancer-two": problem("cancer_mlp", "cancer", skewed(0.5), two_tiers(10, up="200 kbps", fed="200 kbps"), SGD, 200),
    "clusters-100": problem(
        "clusters_mlp", "clusters", skewed(0.2), tree(100, 10, 1, up="2 Mbps", fed="500 kbps"), SLOW, 400
    ),
    "blobs-compute": problem(
        "mlp", "blobs", skewed(0.3), tree(12, 4, 1, up="20 Mbps", fed="20 Mbps", compute="4 MFLOPS"), SGD, 400
    ),
    "mnist-shards": problem("lenet5", "mnist-mini", SHARDS, tree(20, 5, 1, up="6 Mbps", fed="6 Mbps"), SHORT, 400),
    "mnist-iid": problem("lenet5", "mnist-mini", IID, tree(20, 5, 1, up="6 Mbps", fed="2 Mbps"), SHORT, 300),
}
#: What a user would try first, in rounds from the devices up; the last for all further tiers.
SIMPLE = {"2": (2, 2, 2), "5-2-1": (5, 2, 1), "8-4-1": (8, 4, 1), "10": (10, 10, 10)}
GRID = [(a, b, min(b, 4)) for a in (1, 2, 4, 8, 16) for b in (1, 4, 16)]
SYNC, PLANNED = "full sync", "planned"

# ------------------------------------------------------------------------------------------------------- runs

#: Evaluations: round, simulated seconds, accuracy, and the energy of the drift last seen over the loss.
Curve = list[tuple[int, float, float, float]]


def scenario_of(name: str) -> Scenario:
    return scenario_from_dict({"name": name, "seed": 0} | PROBLEMS[name], name, FOLDER, profile_model)


def train(name: str, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train a problem: the evaluations and the plans."""
    torch.set_num_threads(1)
    scenario = scenario_of(name).with_overrides({"training.seed": seed} | overrides)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = start(scenario, Path(folder) / "run")
        except DivergedError:
            run = Run.load(Path(folder) / "run")
    curve, drift = [], dict.fromkeys(run.tier_names, 0.0)
    for line in run.metrics:
        drift |= {tier: seen.measured for tier, seen in line.drift.items()}
        if line.accuracy is not None and line.test_loss is not None:
            energy = sum(drift.values()) / (2 * scenario.training_problem.step)
            curve.append((line.round, line.time_s, line.accuracy, energy / line.test_loss))
    return {"curve": curve, "plans": [[plan.round, plan.cuts, plan.intervals] for plan in run.plans]}


def fixed(name: str, intervals: tuple[int, ...]) -> dict[str, Any]:
    tiers = PROBLEMS[name]["tiers"]
    chosen = [intervals[min(m, 2)] if tier["entities"] > 1 else 1 for m, tier in enumerate(tiers)]
    return {
        "strategy.name": "fixed",
        "strategy.cuts": list(full_sync_cuts(scenario_of(name).bare_problem)),
        "strategy.intervals": chosen,
    }


def reached(curve: Curve, target: float, column: int = 1) -> float:
    """When the mean of three evaluations first is at the target; infinite if never."""
    for k in range(2, len(curve)):
        if statistics.mean(point[2] for point in curve[k - 2 : k + 1]) >= target:
            return curve[k][column]
    return float("inf")


def target_of(curve: Curve) -> float:
    """1.25 times the error with which a run of full synchronisation ends, and at least a point more."""
    error = 1 - statistics.mean(p[2] for p in curve[-5:])
    return 1 - max(1.25 * error, error + 0.01)


def mean_over_seeds(of: dict[str, list[dict[str, Any]]], label: str, when: Callable[[Curve, Curve], float]) -> float:
    """The mean over seeds of when a plan's runs are at the targets of the runs of full synchronisation."""
    pairs = zip(of[SYNC], of[label], strict=True)
    return statistics.mean(when(run["curve"], whole["curve"]) for whole, run in pairs)


def rounds_to(curve: Curve, whole: Curve) -> float:
    return reached(curve, target_of(whole), column=0)


def time_to(curve: Curve, whole: Curve) -> float:
    target = target_of(whole)
    found = reached(curve, target)
    return found if math.isfinite(found) else curve[-1][1] + reached(whole, target)


def show_energy(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Of fixed plans: the energy of drift over the loss, in the second half, and rounds to target over full sync's."""
    print("\n| problem | plan | energy / loss | rounds / full sync's |\n|---|---|---|---|")
    for name, of in runs.items():
        whole = mean_over_seeds(of, SYNC, rounds_to)
        for label in (label for label in of if label != SYNC and not label.startswith(PLANNED)):
            curves = [run["curve"] for run in of[label]]
            energy = statistics.median(point[3] for curve in curves for point in curve[len(curve) // 2 :])
            slower = mean_over_seeds(of, label, rounds_to) / whole
            print(f"| {name} | {label} | {energy:.2f} | {slower:.2f} |")


def work(job: tuple[str, str, int, dict[str, Any]]) -> tuple[str, str, int, dict[str, Any]]:
    name, label, seed, overrides = job
    return name, label, seed, train(name, seed, overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--grid", action="store_true", help="train the grid of fixed plans too")
    parser.add_argument(
        "--averaging", nargs="+", default=["plain"], help="of the planned runs: plain, corrected or both"
    )
    parser.add_argument("--energy", action="store_true", help="show what drift of fixed plans costs in rounds")
    tried.add_option(parser)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = {SYNC: (1, 1, 1)} | SIMPLE | ({"-".join(map(str, i)): i for i in GRID} if given.grid else {})
    jobs = [(n, label, s, fixed(n, i)) for n in given.problems for label, i in chosen.items() for s in given.seeds]
    rules = {f"{PLANNED}, {rule}": {"training.averaging": rule} for rule in given.averaging}
    jobs += [(n, label, s, rule) for n in given.problems for label, rule in rules.items() for s in given.seeds]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {n: {} for n in given.problems}
    with multiprocessing.get_context("spawn").Pool(given.jobs, tried.use, [given.constant]) as pool:
        for name, label, _, run in pool.imap(work, jobs):
            runs[name].setdefault(label, []).append(run)
    machine = f"{platform.processor() or platform.machine()}, torch {torch.__version__}"
    print(f"{machine}, seeds {given.seeds}", *(f"{name}={value:g}" for name, value in given.constant))
    for label in rules:
        show(runs, label, grid=given.grid)
    if given.energy:
        show_energy(runs)


def show(runs: dict[str, dict[str, list[dict[str, Any]]]], planned: str, *, grid: bool) -> None:
    """A table of planned training of one kind beside the best of the others, and what it comes to."""
    print(f"\n{planned} averages\n")
    print(
        "| problem | target | full sync | best simple plan | planned | planned / best simple | last plan |"
        + (" best of grid | planned / grid |" if grid else "")
    )
    print("|---" * (9 if grid else 7) + "|")
    ratios = []
    for name, of in runs.items():
        target = statistics.mean(target_of(run["curve"]) for run in of[SYNC])
        times = {label: mean_over_seeds(of, label, time_to) for label in of}
        best = min((SYNC, *SIMPLE), key=times.__getitem__)
        ratios.append(times[planned] / times[best])
        last = of[planned][0]["plans"][-1]
        row = [name, f"{target:.1%}", f"{times[SYNC]:.0f} s", f"{best}: {times[best]:.0f} s", f"{times[planned]:.0f} s"]
        row += [f"{ratios[-1]:.2f}", f"cuts {last[1]}, I {last[2]}"]
        if grid:
            top = min((label for label in times if not label.startswith(PLANNED)), key=times.__getitem__)
            row += [f"{top}: {times[top]:.0f} s", f"{times[planned] / times[top]:.2f}"]
        print("| " + " | ".join(row) + " |")
    print(f"\nplanned / best simple: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
