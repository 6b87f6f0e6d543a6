"""Measure what coding adds to the variance of a mini-batch gradient, on real data; writes benchmarks/coding.md.

    python benchmarks/coding.py --data DIR [--models lenet5-1x28x28 ...] [--rounds 10] [--device cuda] [--quick]

The models, data and clients are those of benchmarks/constants.py: 20 clients, IID, mini-batches of 16. At the start and
after --rounds steps, for every cut and either link over it: the mean squared distance between a mini-batch gradient
with that link coded and without,

    up     activations, as a part of sum_l sigma_l^2 of all layers
    down   gradients, as a part of the same sum over the layers below the cut

The medians for int4 are `theory.coding.USUAL_NOISE`, for plans of scenarios that give no noise of their own. The other
codes are shown as parts of int4, as `problem.codes.Code.noise` has them. Averages: the squared error of a coded
difference of weights over four steps, as a part of the difference's square, which is `Code.average_noise`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from constants import BATCH, CLIENTS, PROFILES, load, partition

from hsfl.engine.links import AVERAGE_CODECS
from hsfl.engine.losses import cross_entropy
from hsfl.engine.probe import coding_noise
from hsfl.engine.virtual_model import VirtualModel
from hsfl.models import build, chain
from hsfl.problem.codes import CODES

OUT = Path(__file__).with_suffix(".md")
BATCHES, STEPS, CODED = 4, 4, [name for name in CODES if name != "fp32"]


class Trained:
    """A model in a short synchronised training, and what coding does to its gradients there."""

    def __init__(self, name: str, data: Path, device: str) -> None:
        torch.manual_seed(0)
        inputs, targets = load(name, data)
        kind, shape = name.split("-")
        layers = list(chain(build(kind, tuple(map(int, shape.split("x")))), inputs[:2]).to(device))
        inputs, targets = inputs.to(device), targets.to(device)
        state = torch.nn.ModuleList(layers).state_dict()
        self.model = VirtualModel(
            layers, state, lambda i: (inputs[i], targets[i]), cross_entropy, 0, torch.device(device), "fp32"
        )
        self.rng = np.random.default_rng(0)
        self.clients = partition(targets.cpu(), False, self.rng)

    def drawn(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.rng.choice(samples, shape) for samples in self.clients]))

    def train(self, steps: int, learning_rate: float) -> list[torch.Tensor]:
        """The change of all weights."""
        before = [p.detach().clone() for p in self.model.parameters]
        for _ in range(steps):
            _, gradient = self.model.gradient(0, self.drawn(BATCH).flatten())
            with torch.no_grad():
                torch._foreach_add_(self.model.parameters, gradient, alpha=-learning_rate)
        return [p.detach() - b for p, b in zip(self.model.parameters, before, strict=True)]

    def variance(self, indices: torch.Tensor) -> np.ndarray:
        """sigma_l^2, the mean over clients."""
        found = []
        for n in range(CLIENTS):
            gradients = [self.model.gradient(n, batch)[1] for batch in indices[n]]
            mean = [torch.stack(same).mean(0) for same in zip(*gradients, strict=True)]
            squares = torch.stack([self.model.squares(g) for g in gradients]).mean(0)
            found.append((squares - self.model.squares(mean)) * BATCHES / (BATCHES - 1))
        return torch.stack(found).mean(0).cpu().numpy()

    def noise(self) -> dict[str, np.ndarray]:
        """(2, L-1) for every code: up and down over every cut, relative to the variance."""
        indices = self.drawn(BATCHES, BATCH)
        variance = self.variance(indices)
        scale = np.stack((np.full(len(variance), variance.sum()), variance.cumsum()))
        found = coding_noise(self.model, range(CLIENTS), indices, (CODED, CODED))
        return {code: (found[:, list(CODES).index(code)] / scale)[:, :-1] for code in CODED}

    def average_noise(self, changes: Sequence[torch.Tensor]) -> dict[str, float]:
        total = sum(float(c.square().sum()) for c in changes)
        lost = {
            code: sum(
                float((AVERAGE_CODECS[code].passed(c.reshape(1, -1)) - c.reshape(1, -1)).square().sum())
                for c in changes
            )
            for code in CODED
        }
        return {code: value / total for code, value in lost.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=["lenet5-1x28x28", "vgg11-1x32x32"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="writes nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.models if not (PROFILES / f"{name}.csv").is_file()]:
        parser.error(f"{unknown[0]} has no shipped profile")
    rows, averages = [], []
    for name in given.models:
        trained = Trained(name, given.data, given.device)
        for rounds in (0, given.rounds):
            trained.train(rounds, given.learning_rate)
            found = trained.noise()
            averages.append(trained.average_noise(trained.train(STEPS, given.learning_rate)))
            for link, label in enumerate(("up", "down")):
                noise = {code: np.maximum(found[code][link], 1e-300) for code in CODED}
                median, low, high = (float(f(noise["int4"])) for f in (np.median, np.min, np.max))
                parts = [f"{np.median(noise[code] / noise['int4']):.2g}" for code in ("int8", "bf16")]
                rows.append((name, rounds, label, median, f"{low:.2g} to {high:.2g}", *parts))
                print(rows[-1], flush=True)
    text = "\n".join(
        [
            "# What coding adds to the noise of gradients",
            "",
            f"Written by `python benchmarks/coding.py`: {CLIENTS} clients, IID, mini-batches of {BATCH}. int4: the "
            "added variance as a part of the mini-batches' own, of all layers (up) or of those below the cut (down), "
            "over all cuts. int8 and bf16: as parts of int4's, the median over the cuts.",
            "",
            "| model | steps | link | int4: median | over the cuts | int8 | bf16 |",
            "|---|---|---|---|---|---|---|",
            *(f"| {m} | {r} | {link} | {n:.2g} | {o} | {i} | {b} |" for m, r, link, n, o, i, b in rows),
            "",
            "Median of int4: "
            + ", ".join(
                f"{link} {np.median([row[3] for row in rows if row[2] == link]):.2g}" for link in ("up", "down")
            )
            + ".",
            "",
            "Averages, the squared error as a part of what is sent: "
            + ", ".join(f"{code} {np.median([a[code] for a in averages]):.2g}" for code in CODED)
            + ".",
            "",
        ]
    )
    print(text)
    if not given.quick:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
