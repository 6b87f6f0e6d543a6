"""Measure the convergence constants that ship with the built-in models, on real data.

    python benchmarks/constants.py --data DIR [--models vgg16-3x32x32 ...] [--device cuda] [--out FILE.json] [--write]

DIR holds the official files: cifar-10-batches-bin/data_batch_1.bin and MNIST/raw/train-*-ubyte.gz. The small GPT reads
the sources of Python's standard library. 20 clients with mini-batches of 16 (the paper's setting), gradients at the
synchronised weights at four points of a short training run (steps of --learning-rate, all intervals 1):

    gradient_second_moment   G_l^2: the largest over clients and points of the mean squared gradient norm of layer l
    gradient_variance        sigma_l^2: likewise of the squared distance to the client's mean gradient
    gradient_dissimilarity   zeta_l^2: the mean over clients of the squared distance between the client's mean gradient
                             and that of all (the sampling noise in it subtracted), for label shards: 2 of 40 a client
    smoothness               beta: the largest over clients of |grad f_n(w) - grad f_n(w')| / |w - w'| between points
    initial_gap              theta0: the loss at the start

--write puts the three per-layer columns into the shipped profiles.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hsfl.data.official_files import read_named
from hsfl.models import build, chain
from hsfl.problem.profile import LayerProfile

CLIENTS, BATCH, BATCHES, POINTS, BETWEEN = 20, 16, 16, 4, 100
PROFILES = Path(__file__).parent.parent / "src/hsfl/catalog/profiles"


SAMPLES = 10_000


def images(name: str, data: Path) -> tuple[np.ndarray, torch.Tensor]:
    """The first training images of a data set, from 0 to 1, and their labels."""
    (pixels, labels), _ = read_named(name, data)
    return pixels[:SAMPLES].astype(np.float32) / 255, torch.from_numpy(labels[:SAMPLES].astype(np.int64))


def cifar10(data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = images("cifar10", data)
    inputs = torch.from_numpy(pixels)
    mean, std = inputs.mean((0, 2, 3), keepdim=True), inputs.std((0, 2, 3), keepdim=True)
    return (inputs - mean) / std, labels


def mnist(data: Path, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = images("mnist", data)
    pad = (size - 28) // 2
    return functional.pad((torch.from_numpy(pixels) - 0.1307) / 0.3081, (pad,) * 4), labels


def python_sources(context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the standard library's text, sorted by file: neighbours are alike, as in label shards."""
    text = b"".join(p.read_bytes() for p in sorted(Path(os.__file__).parent.glob("*.py")))
    windows = np.frombuffer(text[: 10000 * (context + 1)], dtype=np.uint8).reshape(-1, context + 1).astype(np.int64)
    return torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())


def load(profile: str, data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    shape = profile.split("-")[1]
    if profile.startswith("gpt"):
        return python_sources(int(shape))
    return cifar10(data) if shape.startswith("3x") else mnist(data, int(shape.split("x")[1]))


def partition(targets: torch.Tensor, shards: bool, rng: np.random.Generator) -> list[np.ndarray]:
    if not shards:
        return np.array_split(rng.permutation(len(targets)), CLIENTS)
    order = np.argsort(targets.numpy(), kind="stable") if targets.ndim == 1 else np.arange(len(targets))
    pieces = [np.array_split(order, 2 * CLIENTS)[i] for i in rng.permutation(2 * CLIENTS)]
    return [np.concatenate(pieces[2 * n : 2 * n + 2]) for n in range(CLIENTS)]


class Probe:
    def __init__(self, name: str, inputs: torch.Tensor, targets: torch.Tensor, device: str) -> None:
        torch.manual_seed(0)
        model_name, shape = name.split("-")
        model = build(model_name, tuple(map(int, shape.split("x"))))
        self.inputs, self.targets = inputs.to(device), targets.to(device)
        self.layers: nn.Sequential = chain(model, inputs[:2]).to(device).train()
        self.parameters = list(self.layers.parameters())
        self.layer_of = [i for i, layer in enumerate(self.layers) for _ in layer.parameters()]

    def loss(self, samples: np.ndarray) -> torch.Tensor:
        index = torch.from_numpy(samples).to(self.inputs.device)
        output = self.layers(self.inputs[index])
        return functional.cross_entropy(output.flatten(0, -2), self.targets[index].flatten())

    def gradient(self, samples: np.ndarray) -> list[torch.Tensor]:
        return list(torch.autograd.grad(self.loss(samples), self.parameters))

    def per_layer(self, squares: list[torch.Tensor]) -> np.ndarray:
        return np.bincount(self.layer_of, weights=[float(s) for s in squares], minlength=len(self.layers))


def squared(gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    return [g.double().square().sum() for g in gradient]


def measure(name: str, data: Path, device: str, shards: bool, learning_rate: float) -> dict:
    inputs, targets = load(name, data)
    rng = np.random.default_rng(0)
    clients = partition(targets, shards, rng)
    probe = Probe(name, inputs, targets, device)
    fixed = [rng.choice(samples, (BATCHES, BATCH)) for samples in clients]
    moments, variances, dissimilarities, betas, losses = [], [], [], [], []
    before: tuple[list[torch.Tensor], list[list[torch.Tensor]]] | None = None
    for point in range(POINTS):
        means, moment, variance = [], [], []
        for batches in fixed:
            total = [torch.zeros_like(p) for p in probe.parameters]
            norms = 0.0
            for batch in batches:
                gradient = probe.gradient(batch)
                norms = norms + probe.per_layer(squared(gradient))
                total = [t + g for t, g in zip(total, gradient, strict=True)]
            mean = [t / BATCHES for t in total]
            moment.append(norms / BATCHES)
            variance.append((norms / BATCHES - probe.per_layer(squared(mean))) * BATCHES / (BATCHES - 1))
            means.append(mean)
        with torch.no_grad():
            losses.append(float(np.mean([probe.loss(b.ravel()).item() for b in fixed])))
        overall = [sum(g) / CLIENTS for g in zip(*means, strict=True)]
        apart = np.mean([probe.per_layer(squared(m)) for m in means], axis=0) - probe.per_layer(squared(overall))
        noise = np.mean(variance, axis=0) / BATCHES * (1 - 1 / CLIENTS)
        moments.append(np.max(moment, axis=0))
        variances.append(np.max(variance, axis=0))
        dissimilarities.append(np.maximum(apart - noise, 0.0))
        weights = [p.detach().clone() for p in probe.parameters]
        if before is not None:
            moved = sum(float(s) for s in squared([a - b for a, b in zip(weights, before[0], strict=True)])) ** 0.5
            for now, then in zip(means, before[1], strict=True):
                turned = sum(float(s) for s in squared([a - b for a, b in zip(now, then, strict=True)])) ** 0.5
                betas.append(turned / moved)
        before = (weights, means)
        for _ in range(BETWEEN if point < POINTS - 1 else 0):
            union = np.concatenate([rng.choice(samples, BATCH) for samples in clients])
            update = probe.gradient(union)
            with torch.no_grad():
                for p, g in zip(probe.parameters, update, strict=True):
                    p -= learning_rate * g
    return {
        "losses": losses,
        "smoothness": max(betas),
        "gradient_second_moment": np.max(moments, axis=0).tolist(),
        "gradient_variance": np.max(variances, axis=0).tolist(),
        "gradient_dissimilarity": np.max(dissimilarities, axis=0).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=sorted(p.stem for p in PROFILES.glob("*.csv")))
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.models if not (PROFILES / f"{name}.csv").is_file()]:
        parser.error(
            f"{unknown[0]} has no shipped profile; there are {', '.join(p.stem for p in PROFILES.glob('*.csv'))}"
        )
    results = {}
    for name in arguments.models:
        results[name] = {
            kind: measure(name, arguments.data, arguments.device, kind == "shards", arguments.learning_rate)
            for kind in ("iid", "shards")
        }
        for kind, found in results[name].items():
            sums = {
                k: float(np.sum(found[k]))
                for k in ("gradient_second_moment", "gradient_variance", "gradient_dissimilarity")
            }
            print(
                name,
                kind,
                "loss",
                [round(x, 3) for x in found["losses"]],
                "beta",
                round(found["smoothness"], 2),
                sums,
                flush=True,
            )
        if arguments.out:
            arguments.out.write_text(json.dumps(results, indent=1))
        if arguments.write:
            write(name, results[name])


def write(name: str, found: dict) -> None:
    path = PROFILES / f"{name}.csv"
    worst = {
        k: np.maximum(found["iid"][k], found["shards"][k]) for k in ("gradient_second_moment", "gradient_variance")
    }
    worst["gradient_dissimilarity"] = np.array(found["shards"]["gradient_dissimilarity"])
    rounded = {k: np.array([float(f"{x:.3g}") for x in v]) for k, v in worst.items()}
    path.write_text(replace(LayerProfile.from_csv(path), **rounded).to_csv())


if __name__ == "__main__":
    main()
