"""Measure rounds of training: against a centralised step, against a copy per client, and as the system grows.

    python benchmarks/round.py [--device cpu|cuda] [--sections NAME ...] [--blocks N] [--out FILE]

Every figure that matters is a ratio of times taken side by side in this one run: the variants take turns in short
blocks, each block gives one ratio, and the median over blocks is quoted. Absolute times are for orientation.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hsfl
from hsfl.engine import BACKENDS, Backend
from hsfl.engine.precision import arithmetic, casts
from hsfl.models import build, chain, input_shape
from hsfl.records import RoundRecord
from hsfl.runs.preparing import prepare
from hsfl.runs.training import start

RULE = {"name": "sgd", "lr": 1e-4}
MOMENTUM = RULE | {"momentum": 0.9}
MODEL, CUTS = {"cpu": "lenet5", "cuda": "vgg16"}, {"cpu": (1, 3), "cuda": (3, 8)}
Work = Callable[[], object]


class Setting:
    """A model, a tree of entities and a resident data set from which every round draws its batches."""

    def __init__(
        self, device: str, *, model: str = "", clients: int = 20, edges: int = 5, batch: int = 16, tiers: int = 3
    ):
        self.device, self.clients, self.batch = torch.device(device), clients, batch
        self.model = build(model or MODEL[device])
        shape = input_shape(model or MODEL[device])
        self.layers = list(chain(self.model, torch.randn(2, *shape)))
        counts = [clients, *(max(1, edges // 2**m) for m in range(tiers - 2)), 1]
        self.hosts = [list(range(clients))]
        for below, count in itertools.pairwise(counts):
            self.hosts.append([j * count // below for j in self.hosts[-1]])
        self.images = torch.randint(0, 256, (4096, *shape), dtype=torch.uint8, device=self.device)
        self.labels = torch.randint(0, 10, (4096,), device=self.device)
        self.draw = torch.randint(0, 4096, (clients, batch, 1), device=self.device)
        self.rule: dict[str, Any] = RULE

    def draws(self, first_round: int, count: int) -> torch.Tensor:
        """As a backend takes its data: the same draw for every round."""
        return self.draw.expand(count, *self.draw.shape)

    def batch_of(self, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index = draw[..., 0]
        return self.images[index].float().div_(255).sub_(0.5), self.labels[index]

    def backend(self, cuts: Sequence[int], precision: str = "fp32", **options: object) -> Backend:
        kind = BACKENDS["stacked"]
        return kind(
            self.layers,
            self.hosts,
            cuts,
            self.rule,
            data=Data(self),
            device=self.device,
            precision=precision,
            **options,
        )

    def stacked(self, cuts: Sequence[int], precision: str = "fp32", **options: object) -> Work:
        backend = self.backend(cuts, precision, **options)
        return backend.train_round


class Data:
    """The setting's data as a backend takes them."""

    def __init__(self, setting: Setting) -> None:
        self.draws, self.batch = setting.draws, setting.batch_of


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """cuDNN's search for its fastest algorithms, for the baseline's benefit; `stacked` does without."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def centralised(setting: Setting, precision: str, channels_last: bool) -> Work:
    """One step of plain torch on the union of the clients' batches; on CUDA captured as a graph."""
    device, cuda = setting.device, setting.device.type == "cuda"
    model = copy.deepcopy(setting.model).to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    settings = {key: value for key, value in setting.rule.items() if key != "name"}
    optimizer = torch.optim.SGD(model.parameters(), **settings, fused=True)

    def step() -> None:
        inputs, targets = setting.batch_of(setting.draw)
        inputs = inputs.flatten(0, 1)
        if channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with casts(device, precision):
            loss = nn.functional.cross_entropy(model(inputs).float(), targets.flatten())
        loss.backward()
        optimizer.step()

    if not cuda:
        return step
    with arithmetic(device, precision), searching():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return lambda: (graph.replay(), step)  # step holds what the graph reads and writes


def both_layouts(setting: Setting, precision: str) -> dict[str, Work]:
    return {
        "centralised": centralised(setting, precision, False),
        "channels last": centralised(setting, precision, True),
    }


def naive(setting: Setting, cuts: Sequence[int], precision: str) -> Work:
    """What public research code does: a copy of every tier per client, a loop over clients, state_dict averaging."""
    device = setting.device
    edges = (0, *cuts, len(setting.layers))
    tiers = [range(a, b) for a, b in itertools.pairwise(edges)]
    models = [[copy.deepcopy(layer).to(device) for layer in setting.layers] for _ in range(setting.clients)]
    settings = {key: value for key, value in setting.rule.items() if key != "name"}
    optimizers = [torch.optim.SGD([p for layer in m for p in layer.parameters()], **settings) for m in models]

    def average(layers: range, clients: list[int]) -> None:
        for layer in layers:
            states = [models[n][layer].state_dict() for n in clients]
            mean = {key: sum(state[key] for state in states) / len(states) for key in states[0]}
            for n in clients:
                models[n][layer].load_state_dict(mean)

    def step() -> None:
        with arithmetic(device, precision):
            inputs, targets = setting.batch_of(setting.draw)
            for n, model in enumerate(models):
                optimizers[n].zero_grad()
                sent, received = [], []
                x = inputs[n]
                with casts(device, precision):
                    for layers in tiers:
                        x = x.detach().requires_grad_()
                        received.append(x)
                        for layer in layers:
                            x = model[layer](x)
                        sent.append(x)
                    loss = nn.functional.cross_entropy(x.float(), targets[n])
                loss.backward()
                for m in range(len(tiers) - 2, -1, -1):
                    sent[m].backward(received[m + 1].grad)
                optimizers[n].step()
            for layers, row in zip(tiers[1:], setting.hosts[1:], strict=True):
                for j in range(max(row) + 1):
                    average(layers, [n for n in range(setting.clients) if row[n] == j])

    return step


def timed(works: dict[str, Work], device: str, blocks: int, seconds: float = 0.05) -> dict[str, list[float]]:
    """Milliseconds per call, block by block; the works take turns."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def milliseconds(work: Work, calls: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        return 1e3 * (time.perf_counter() - start) / calls

    for work in works.values():
        work()
    calls = {name: max(1, min(50, int(1e3 * seconds / milliseconds(work, 2)))) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(blocks):
        for name, work in works.items():
            times[name].append(milliseconds(work, calls[name]))
    return times


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def best(times: dict[str, list[float]]) -> list[float]:
    """The centralised step in the faster of its two layouts, block by block."""
    return [min(pair) for pair in zip(times["centralised"], times["channels last"], strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- sections: each returns Markdown ---------------------------------------------------------------------------------


def memory(device: str, blocks: int) -> str:
    """First, in a process that has not used the device: what libraries keep counts as well."""
    if device != "cuda":
        return ""
    rows = []
    for precision in ("tf32", "bf16"):
        free()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        setting = Setting(device)
        setting.rule = MOMENTUM
        work = setting.stacked(CUTS[device], precision)
        work()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        peak = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        free()
        torch.cuda.reset_peak_memory_stats()
        work()
        sizes = (*peak, torch.cuda.max_memory_reserved())
        rows.append((precision, f"{first:.1f} s", *(f"{size / 2**30:.2f} GiB" for size in sizes)))
        del work
    head = (
        "precision",
        "first round",
        "peak allocated until then",
        "peak reserved until then",
        "reserved from then on",
    )
    return (
        f"## Memory and start\n\n{MODEL[device]}, 20 clients, 5 edges, batch 16, cuts {CUTS[device]}, momentum. "
        "The first round builds, warms up and captures.\n\n" + table(head, rows)
    )


def check(device: str, blocks: int) -> str:
    """The stacked backend on this device against the reference on the CPU, in float64."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.engine.test_speed_paths import largest_difference

    rows = [(name, f"{value:.1e}") for name, value in largest_difference(device).items()]
    return "## Correctness\n\nLargest difference from the reference on the CPU.\n\n" + table(
        ("what", "difference"), rows
    )


def ratios(device: str, blocks: int) -> str:
    rows = []
    for precision in ("tf32", "bf16") if device == "cuda" else ("fp32",):
        free()
        setting = Setting(device)
        works = {
            **both_layouts(setting, precision),
            "stacked": setting.stacked(CUTS[device], precision),
            "naive": naive(setting, CUTS[device], precision),
        }
        times = timed(works, device, blocks)
        middle = {name: statistics.median(values) for name, values in times.items()}
        rows.append(
            (
                precision,
                f"**{ratio(times['stacked'], best(times)):.2f}**",
                f"**{ratio(times['naive'], times['stacked']):.1f}**",
                *(f"{middle[name]:.2f} ms" for name in works),
            )
        )
    head = ("precision", "stacked / centralised", "naive / stacked", *works)
    return f"## One round\n\n{MODEL[device]}, 20 clients, 5 edges, batch 16, cuts {CUTS[device]}.\n\n" + table(
        head, rows
    )


def cuts(device: str, blocks: int) -> str:
    precision, rows = "tf32" if device == "cuda" else "fp32", []
    count = len(Setting(device).layers)
    deep = [(1, 2), (3, 8), (6, 10), (10, 13), (count - 2, count - 1)]
    for pair in deep if count > 10 else [(1, 2), (1, 3), (2, 3), (3, 4)]:
        row: list[object] = [pair]
        for rule in (RULE, MOMENTUM):
            free()
            setting = Setting(device)
            setting.rule = rule
            times = timed(both_layouts(setting, precision) | {"s": setting.stacked(pair, precision)}, device, blocks)
            row += [f"**{ratio(times['s'], best(times)):.2f}**", f"{statistics.median(times['s']):.2f} ms"]
        rows.append(row)
    head = ("cuts", "stacked / centralised", "stacked", "with momentum: stacked / centralised", "stacked")
    return f"## Where the cuts are\n\n{MODEL[device]}, {precision}.\n\n" + table(head, rows)


def growth(device: str, blocks: int) -> str:
    precision, rows = "tf32" if device == "cuda" else "fp32", []
    base = {"clients": 20, "edges": 5, "batch": 16, "tiers": 3}
    many = {"clients": 500, "edges": 25} if device == "cuda" else {"clients": 100, "edges": 25}
    changes = [
        {"clients": 100, "edges": 5},
        many,
        {"batch": 4},
        {"batch": 64},
        {"edges": 1},
        {"edges": 10},
        {"edges": 20},
    ]
    at_base = Setting(device, **base).stacked(CUTS[device], precision)
    for change in [*changes, {"tiers": 2}, {"tiers": 4}, {"tiers": 5}]:
        free()
        options = base | change
        at = CUTS[device]
        at = {2: at[:1], 3: at, 4: (*at, at[-1] + 1), 5: (*at, at[-1] + 1, at[-1] + 1)}[options["tiers"]]
        works = {"base": at_base, "changed": Setting(device, **options).stacked(at, precision)}
        times = timed(works, device, blocks)
        relative = ratio(times["changed"], times["base"])
        samples = options["clients"] * options["batch"] / (base["clients"] * base["batch"])
        name = ", ".join(f"{key} {value}" for key, value in change.items())
        rows.append(
            (name, f"{relative:.2f}", f"**{relative / samples:.2f}**", f"{statistics.median(times['changed']):.2f} ms")
        )
    head = ("changed from 20 clients, 5 edges, batch 16, 3 tiers", "round / base round", "per sample", "round")
    return (
        f"## Growth\n\n{MODEL[device]}, {precision}, cuts {CUTS[device]}; a tier more gets the cloud's first layer.\n\n"
        + table(head, rows)
    )


def links(device: str, blocks: int) -> str:
    """Rounds whose links code what crosses the cuts, against the same round with plain links; averages likewise."""
    rows = []
    for precision in ("tf32", "bf16") if device == "cuda" else ("fp32",):
        free()
        setting, crossing = Setting(device), ("fp32", "bf16", "int8", "int4")
        codes = {code: [{"up": code, "down": code}] * 2 + ["fp32"] for code in crossing}
        works = {code: setting.stacked(CUTS[device], precision, codes=given) for code, given in codes.items()}
        averaged = ("fp32", "int8", "int4")
        for code in averaged:
            works[f"{code} averages"] = averaging(setting.backend(CUTS[device], precision, codes=code))
        times = timed(works, device, blocks)
        against = [f"**{ratio(times[code], times['fp32']):.2f}**" for code in crossing[1:]]
        plain = times["fp32 averages"]
        with_averages = [f"**{ratio(times[f'{code} averages'], plain):.2f}**" for code in averaged[1:]]
        middle = [f"{statistics.median(found):.2f} ms" for found in (times["fp32"], plain)]
        rows.append((precision, *against, *with_averages, *middle))
    head = (
        "precision",
        *(f"{code} / plain" for code in crossing[1:]),
        *(f"{code} links and averages / plain" for code in averaged[1:]),
        "plain",
        "plain with averages",
    )
    return (
        f"## Coded links\n\n{MODEL[device]}, 20 clients, 5 edges, batch 16, cuts {CUTS[device]}, up and down alike; "
        "with averages: both lower tiers are averaged after every round.\n\n" + table(head, rows)
    )


def averaging(backend: Backend) -> Work:
    """A round, and an average of every tier."""

    def work() -> None:
        backend.train_round()
        for tier in range(backend.num_tiers):
            backend.average(tier)

    return work


def random_images() -> tuple[torch.Tensor, ...]:
    """Data of CIFAR-10's size and shape, as a data factory of `whole`."""
    return (
        torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8),
        torch.randint(0, 10, (50_000,)),
        torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8),
        torch.randint(0, 10, (10_000,)),
    )


class Stopwatch(hsfl.Callback):
    """Seconds from one round to another, both evaluated."""

    def __init__(self, first: int, last: int) -> None:
        self.rounds, self.times = (first, last), {}

    def on_round(self, record: RoundRecord) -> None:
        if record.round in self.rounds:
            self.times[record.round] = time.perf_counter()

    @property
    def seconds(self) -> float:
        first, last = (self.times[round_] for round_ in self.rounds)
        return last - first


def whole(device: str, blocks: int) -> str:
    """hsfl train with a fixed plan against its rounds and averages alone, after the first evaluation."""
    every, count = (200, 1000) if device == "cuda" else (200, 400)
    intervals = (5, 6, 1)
    name, chosen = ("paper", {"data.factory": "round:random_images"}) if device == "cuda" else ("mnist-mini", {})
    overrides = chosen | {
        "execution.device": device,
        "execution.precision": "tf32" if device == "cuda" else "fp32",
        "execution.evaluate_every": every,
        "execution.checkpoint_every": 10**6,
        "strategy.name": "fixed",
        "strategy.cuts": list(CUTS[device]),
        "strategy.intervals": list(intervals),
        "stopping.rounds": every + count,
        "training.learning_rate": 1e-3,
    }
    scenario = hsfl.load_scenario(name, overrides)
    scenario = replace(scenario, folder=Path(__file__).parent)
    ratios_, rounds = [], []
    for _ in range(max(3, blocks // 3)):
        watch = Stopwatch(every, every + count)
        with tempfile.TemporaryDirectory() as folder:
            start(scenario, Path(folder) / "run", callbacks=[watch])
        prepared = prepare(scenario)
        backend = prepared.backend
        backend.move(CUTS[device])
        for t in range(20 + count):
            if t == 20:
                if device == "cuda":
                    torch.cuda.synchronize()
                begin = time.perf_counter()
            backend.train_round()
            for tier, interval in enumerate(intervals[:2]):
                if (t + 1) % interval == 0:
                    backend.average(tier)
        if device == "cuda":
            torch.cuda.synchronize()
        bare = time.perf_counter() - begin
        ratios_.append(watch.seconds / bare)
        rounds.append(1e3 * bare / count)
        del prepared, backend
        free()
    row = (
        f"**{statistics.median(ratios_):.2f}**",
        f"{min(ratios_):.2f} to {max(ratios_):.2f}",
        f"{statistics.median(rounds):.2f} ms",
    )
    return (
        f"## The whole of hsfl train\n\n{name}, cuts {CUTS[device]}, intervals {intervals}: data, clock, metrics, "
        f"drift and an evaluation every {every} rounds, against the rounds and averages alone.\n\n"
        + table(("whole / bare rounds", "over runs", "bare round"), [row])
    )


#: In this order.
SECTIONS: dict[str, Callable[[str, int], str]] = {
    "memory": memory,
    "check": check,
    "ratios": ratios,
    "cuts": cuts,
    "growth": growth,
    "links": links,
    "whole": whole,
}


def machine(device: str) -> str:
    if device == "cuda":
        return f"one {torch.cuda.get_device_name()}"
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    parts = [
        f"# Rounds on {machine(arguments.device)}\n\ntorch {torch.__version__}, Python {platform.python_version()}."
    ]
    for name in SECTIONS:
        if name in arguments.sections and (text := SECTIONS[name](arguments.device, arguments.blocks)):
            parts.append(text)
            print(text, end="\n\n", flush=True)
            free()
    if arguments.out:
        arguments.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
