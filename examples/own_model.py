"""Your own model, data and strategy: python examples/own_model.py [OUT]

own_model.toml, beside this file, is the scenario: it names make_model and make_data below and describes the machines.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import torch
from torch import nn

import hsfl
from hsfl.records import PlanRecord, RoundRecord
from hsfl.theory.latency import aggregation_latency, split_latency

SAMPLES = 64
WAVES = {
    "sine": torch.sin,
    "square": lambda phase: torch.sin(phase).sign(),
    "sawtooth": lambda phase: phase.remainder(2 * torch.pi) / torch.pi - 1,
    "chirp": lambda phase: torch.sin(phase**2 / 8),
    "pulses": lambda phase: 3.0 * (torch.sin(phase) > 0.9),
    "silence": torch.zeros_like,
}


class Block(nn.Module):
    """Two convolutions and a way around them. A cut cannot go through it: two tensors would have to be sent."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, channels, 3, padding=1)
        self.second = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return torch.relu(signal + self.second(torch.relu(self.first(signal))))


class SignalNet(nn.Module):
    """Any module will do: hsfl traces forward() and finds where it can be cut."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, channels, 7, stride=2, padding=3)
        self.near = Block(channels)
        self.pool = nn.MaxPool1d(4)
        self.far = Block(channels)
        self.head = nn.Linear(channels * SAMPLES // 8, len(WAVES))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.stem(signal))
        features = self.far(self.pool(self.near(features)))
        return self.head(features.flatten(1))


def make_model() -> nn.Module:
    """What model.factory names; the run's seed is set before it is called."""
    return SignalNet()


def make_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What data.factory names: training inputs and classes, test inputs and classes."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(4000) % len(WAVES)
    frequency = torch.empty(len(targets), 1).uniform_(2, 6, generator=generator)
    shift = torch.empty(len(targets), 1).uniform_(0, 2 * torch.pi, generator=generator)
    phase = shift + 2 * torch.pi * frequency * torch.linspace(0, 1, SAMPLES)
    clean = torch.stack([wave(phase) for wave in WAVES.values()])[targets, torch.arange(len(targets))]
    inputs = (clean + 0.3 * torch.randn(clean.shape, generator=generator))[:, None]
    return inputs[:3000], targets[:3000], inputs[3000:], targets[3000:]


class ShareOfTime:
    """The cuts of the shortest round, and averages as often as they take a given share of the time.

    A strategy needs no base class, only these four members. This one is asked once, at the start, when `current` is
    None and `round_` 0, and wants no constants measured for it.
    """

    name = "share-of-time"
    replans = False
    needs_constants = False

    def __init__(self, share: float) -> None:
        self.share = share

    def propose(self, problem: hsfl.Problem, current: hsfl.Plan | None, round_: int) -> hsfl.Plan:
        tiers = problem.system.num_tiers
        cuts = min(
            combinations(range(1, problem.num_layers), tiers - 1), key=lambda cuts: float(split_latency(problem, cuts))
        )
        round_s = float(split_latency(problem, cuts))
        intervals = [max(1, round(float(s) / (self.share * round_s))) for s in aggregation_latency(problem, cuts)]
        return hsfl.Plan(cuts, tuple(intervals))


class Printer(hsfl.Callback):
    """Says what happens; hsfl.Callback has the other things to hear."""

    def on_plan(self, record: PlanRecord) -> None:
        print(f"plan by {record.strategy}: cuts {record.cuts}, intervals {record.intervals}")

    def on_round(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            print(f"round {record.round:4}  {record.time_s:7.1f} s simulated  accuracy {record.accuracy:.1%}")


def main(out: str | None = None) -> None:
    scenario = Path(__file__).with_suffix(".toml")
    run = hsfl.train(scenario, strategy=ShareOfTime(0.05), callbacks=[Printer()], out=out)
    columns = run.columns()  # also what pandas.DataFrame takes
    reached = run.time_to_accuracy(0.9)
    print(f"loss {columns['loss'][1]:.3f} in the first round, {columns['loss'][-1]:.3f} in the last")
    print("90 % was not reached" if reached is None else f"90 % after {reached:.1f} s simulated")
    print(f"{columns['bytes.sensor.up'][-1] / 1e6:.1f} MB of activations went up from the sensors; all in {run.folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
