"""Measure the planners against each other and against numpy; writes benchmarks/planner.md.

    python benchmarks/planner.py [--quick]

Every figure that matters is a ratio of times taken side by side in this one run; absolute times are for orientation.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import hsfl
from hsfl.planner.bcd import solve_bcd
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.planner.slowest import slowest_clients
from hsfl.planner.terms import Terms, in_order, numbered
from hsfl.problem.codes import CODES
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import LayerProfile
from hsfl.scenario.scenario import scenario_from_dict
from hsfl.theory.convergence import quadratic
from hsfl.theory.latency import split_latency
from hsfl.theory.objective import objective

OUT = Path(__file__).with_suffix(".md")


def seconds(function: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def grown(num_clients: int, num_layers: int, num_tiers: int) -> Problem:
    """The paper's system with more clients, its model with more (thinner) layers, and more tiers between."""
    edges = max(2, num_clients // 4)
    counts = [num_clients, *(max(2, edges // 4**m) for m in range(num_tiers - 2)), 1]
    scenario = hsfl.load_scenario("paper")
    raw = dict(scenario.raw)
    device, edge, cloud = raw["tiers"]
    middle = [edge | {"name": f"edge{m}", "entities": counts[m + 1]} for m in range(num_tiers - 2)]
    for m, tier in enumerate(middle):
        hosted = num_clients / counts[m + 1] / 4
        tier["compute"] = {"uniform": [4e12 * hosted * 4**m, 6e12 * hosted * 4**m]}
        for link in ("uplink", "downlink"):
            tier[link] = {"uniform": [370e6 * hosted, 400e6 * hosted]}
    raw["tiers"] = [device | {"entities": num_clients}, *middle, cloud | {"compute": 2.5e12 * num_clients}]
    problem = scenario_from_dict(raw, "grown", None, scenario.profiler).problem
    return with_layers(problem, num_layers)


def with_layers(problem: Problem, num_layers: int) -> Problem:
    """The same model, its layers split or joined into `num_layers`, in a random but fixed way."""
    if num_layers == problem.num_layers:
        return problem
    rng = np.random.default_rng(0)
    profile, constants = problem.profile, problem.constants
    at = np.linspace(0, len(profile) - 1, num_layers)
    near = np.round(at).astype(int)
    share = len(profile) / num_layers

    def spread(values: np.ndarray) -> np.ndarray:
        return values[near] * share * rng.uniform(0.5, 1.5, num_layers)

    sizes = profile.activation_bits[near] * rng.uniform(0.5, 1.5, num_layers)
    layers = LayerProfile(
        tuple(f"layer{i + 1}" for i in range(num_layers)),
        spread(profile.forward_flops),
        spread(profile.backward_flops),
        sizes,
        sizes,
        spread(profile.parameter_bits),
        0 * sizes,
    )
    assert constants.gradient_second_moment is not None
    scaled = replace(
        constants,
        gradient_variance=spread(constants.gradient_variance),
        gradient_second_moment=spread(constants.gradient_second_moment),
        gradient_dissimilarity=None,
    )
    return replace(problem, profile=layers, constants=scaled)


class EnumeratedCuts:
    """P2 of block coordinate descent without a solver: the least ratio among all cut vectors, tabulated once."""

    def __init__(self, problem: Problem, terms: Terms, allow_empty_tiers: bool) -> None:
        self._terms, self._split_s = terms, split_latency(problem, terms.segments.cuts)

    def solve(self, intervals: tuple[int, ...], start: tuple[int, ...] | None) -> tuple[int, ...]:
        terms, parts, given = self._terms, self._terms.segments.parts, np.asarray(intervals, dtype=float)
        left = terms.margin - quadratic(terms.drift[:, 0, parts], given).sum(axis=1)
        time_s = self._split_s + (terms.aggregation_s[0, parts] / given).sum(axis=1)
        best = np.argmin(np.where(left > 0, time_s / np.where(left > 0, left, 1.0), np.inf))
        return tuple(int(c) for c in terms.segments.cuts[best])


def cpu_seconds(call: Callable[[], object], calls: int) -> float:
    """The CPU time of a call: the mean of some, which is what a clock of ten milliseconds would show too."""
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def afresh_cpu_seconds(name: str, method: str, calls: int) -> float:
    """The CPU time of `hsfl.plan` with nothing kept: a scenario just read (not counted), and no numbered segments."""
    times = []
    for _ in range(calls):
        scenario = hsfl.load_scenario(name)
        for kept in (in_order, numbered):
            kept.cache_clear()
        start = time.process_time()
        hsfl.plan(scenario, method)
        times.append(time.process_time() - start)
    return float(np.median(times))


def versus_bcd(blocks: int) -> list[str]:
    """All in turn, block by block, so that a busy moment of the machine meets them all; ratios per block."""
    lines = [
        "| scenario | bcd / exact | with nothing kept | enumerated bcd / exact | `hsfl.plan` | with nothing kept | "
        '`hsfl.plan(method="bcd")` | enumerated bcd | bcd\'s objective / optimum |',
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in ("paper", "paper-mnist", "client-edge", "client-cloud", "four-tier", "tight-memory"):
        scenario = hsfl.load_scenario(name)
        best, other = hsfl.plan(scenario), hsfl.plan(scenario, "bcd")
        enumerated, _ = solve_bcd(scenario.problem, solver=EnumeratedCuts)
        assert other.objective_s >= best.objective_s * (1 - 1e-12), "bcd beat the proven optimum"
        reached = float(objective(scenario.problem, enumerated.cuts, enumerated.intervals))
        assert abs(reached - other.objective_s) <= 1e-9 * reached, "HiGHS and enumeration disagree"
        times = np.array(
            [
                (
                    cpu_seconds(lambda s=scenario: hsfl.plan(s), 20),
                    afresh_cpu_seconds(name, "exact", 5),
                    cpu_seconds(lambda s=scenario: hsfl.plan(s, "bcd"), 2),
                    afresh_cpu_seconds(name, "bcd", 2),
                    cpu_seconds(lambda p=scenario.problem: solve_bcd(p, solver=EnumeratedCuts), 5),
                )
                for _ in range(blocks)
            ]
        )
        ratios = [times[:, 2] / times[:, 0], times[:, 3] / times[:, 1], times[:, 4] / times[:, 0]]
        shown = [f"**{np.median(r):,.0f}** ({r.min():,.0f} to {r.max():,.0f})" for r in ratios]
        milliseconds = [f"{1e3 * t:.2f} ms" for t in np.median(times, axis=0)[[0, 1, 2, 4]]]
        lines.append(f"| {' | '.join([name, *shown, *milliseconds])} | {other.objective_s / best.objective_s:.4f} |")
    return lines


def growth_with_clients(sizes: list[int], repeats: int) -> list[str]:
    lines = [
        "| clients N | solve / numpy.max | solve | numpy.max | clients that can be the slowest | status |",
        "|---|---|---|---|---|---|",
    ]
    for size in sizes:
        problem = grown(size, 16, 3)
        coefficients = problem.system.slowness
        maximum = seconds(lambda c=coefficients: np.max(c), max(5, repeats))
        solve = seconds(lambda p=problem: ExactSolver(p).solve(), repeats)
        solution = ExactSolver(problem).solve()
        few = len(slowest_clients(coefficients))
        lines.append(
            f"| {size:,} | **{solve / maximum:,.1f}** | {1e3 * solve:.2f} ms | {1e3 * maximum:.3f} ms | {few:,} | "
            f"{_status(solution)} |"
        )
    return lines


def growth_with_layers_and_tiers(cases: list[tuple[int, int, int]], repeats: int) -> list[str]:
    lines = ["| L | M | N | cut vectors | by | solve | status |", "|---|---|---|---|---|---|---|"]
    for layers, tiers, clients in cases:
        problem = grown(clients, layers, tiers)
        solve = seconds(lambda p=problem: ExactSolver(p).solve(), repeats)
        solver = ExactSolver(problem)
        how = "table" if solver.tabulated else "branch and bound"
        lines.append(
            f"| {layers} | {tiers} | {clients:,} | {solver.terms.segments.count:.3g} | {how} | {1e3 * solve:.4g} ms | "
            f"{_status(solver.solve())} |"
        )
    return lines


def with_codes(repeats: int) -> list[str]:
    """Codes left to the planner, against the best single code for all links with the same noise in the bound."""
    lines = [
        "| scenario | planned / given codes: time | planned | objective / that of the best single code | status |",
        "|---|---|---|---|---|",
    ]
    for name in ("paper", "paper-mnist", "client-edge", "client-cloud", "four-tier"):
        problem = hsfl.load_scenario(name, {"tiers.*.code": "auto"}).problem
        planned = seconds(lambda p=problem: ExactSolver(p).solve(), 5 * repeats)
        given = seconds(lambda p=problem: ExactSolver(p, plan_codes=False).solve(), 5 * repeats)
        solution, single = ExactSolver(problem).solve(), []
        for code in CODES.values():
            codes = tuple(
                t.codes.using({link: code for link, allowed in t.codes.planned if code in allowed})
                for t in problem.system.tiers
            )
            single.append(ExactSolver(problem.as_planned(Plan((), (), codes)), plan_codes=False).solve().ratio)
        lines.append(
            f"| {name} | **{planned / given:.1f}** | {1e3 * planned:.2f} ms | {solution.ratio / min(single):.4f} | "
            f"{_status(solution)} |"
        )
    return lines


def with_cohorts(blocks: int) -> list[str]:
    """CPU time of `hsfl.plan` for cohorts, and with all clients, in turn, block by block."""
    lines = [
        "| scenario | clients | cohort | cohort / all clients: time | `hsfl.plan` | all clients | status |",
        "|---|---|---|---|---|---|---|",
    ]
    cases = [("paper", 5), ("paper-mnist", 5), ("client-edge", 5), ("client-cloud", 5), ("city", 100), ("city", 10_000)]
    for name, cohort in cases:
        everybody, scenario = hsfl.load_scenario(name), hsfl.load_scenario(name, {"participation.cohort": cohort})
        calls = 2 if name == "city" else 10
        result = hsfl.plan(scenario)
        times = np.array(
            [[cpu_seconds(lambda s=s: hsfl.plan(s), calls) for s in (scenario, everybody)] for _ in range(blocks)]
        )
        ratio, (own, others) = np.median(times[:, 0] / times[:, 1]), 1e3 * np.median(times, axis=0)
        clients = everybody.problem.system.num_clients
        numbers = f"**{ratio:.1f}** | {own:.3g} ms | {others:.3g} ms"
        lines.append(f"| {name} | {clients:,} | {cohort:,} | {numbers} | {result.status} |")
    return lines


def _status(solution: Solution) -> str:
    gap = 1 - solution.lower_bound / solution.ratio
    return "proven optimal" if gap <= 1e-9 else f"gap {gap:.2g}"


def cold_start(repeats: int) -> list[str]:
    def run(*arguments: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True), repeats)

    bare = run("-c", "pass")
    imports = run("-c", "import numpy, pydantic, typer, rich.table, rich.console")
    modules = run("-c", "import hsfl.cli, hsfl.report.tables, rich.console")
    whole = run("-m", "hsfl", "plan", "paper")
    return [
        "| | time | part of `hsfl plan paper` |",
        "|---|---|---|",
        f"| `python -c pass` | {1e3 * bare:.0f} ms | {100 * bare / whole:.0f} % |",
        f"| + importing numpy, pydantic, typer, rich | {1e3 * imports:.0f} ms | {100 * imports / whole:.0f} % |",
        f"| + importing hsfl | {1e3 * modules:.0f} ms | {100 * modules / whole:.0f} % |",
        f"| `hsfl plan paper`: + reading, planning, printing | {1e3 * whole:.0f} ms | 100 % |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes; writes nothing")
    quick = parser.parse_args().quick
    repeats, blocks = (3, 3) if quick else (7, 15)
    clients = [20, 1000] if quick else [20, 1000, 10_000, 100_000, 1_000_000]
    cases = [(16, 2, 20), (16, 3, 20), (16, 4, 100)]
    if not quick:
        cases += [(16, 5, 1000), (16, 6, 1000), (50, 3, 1000), (100, 3, 1000), (200, 3, 1000)]
        cases += [(200, 4, 1000), (200, 4, 100_000), (200, 5, 1000), (200, 6, 1000)]
    machine = f"{os.cpu_count()} cores of {_processor()}, {platform.system()}"
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    text = "\n".join(
        [
            "# How fast planning is",
            "",
            f"Written by `make bench` (`python benchmarks/planner.py`) on {machine}; {versions}. Ratios are of medians "
            "taken side by side in one run; absolute times are for orientation.",
            "",
            "## Exact against the paper's algorithm",
            "",
            "CPU time of the public call, `hsfl.plan(scenario)`, which returns the proven optimum with all numbers, "
            'against `hsfl.plan(scenario, "bcd")`, the paper\'s Algorithm 2 with HiGHS, and against the same with '
            "all cut vectors enumerated in the place of HiGHS, which compares the algorithms alone. Ratios: median "
            f"(least to most) of {blocks} blocks. Kept from call to call are what follows from the machines, the terms "
            "of the bound and the rounds of all cut vectors; both methods use the first. With nothing kept: of a "
            "scenario just read, its problem not yet made and no segments numbered; reading is not counted. A limited "
            "memory (four-tier, tight-memory) is planned once without it, and once more with it where that plan does "
            "not fit.",
            "",
            *versus_bcd(blocks),
            "",
            "## Growth with the number of clients",
            "",
            "The paper's system with more devices and edge servers. Next to it, one `numpy.max` over the same "
            "coefficient arrays (seconds per FLOP and per bit of every client in every tier).",
            "",
            *growth_with_clients(clients, repeats),
            "",
            "## Growth with layers and tiers",
            "",
            *growth_with_layers_and_tiers(cases, 1 if quick else 3),
            "",
            "## With planned codes",
            "",
            "All four codes allowed on every link, with what is usual of their noise in the bound.",
            "",
            *with_codes(repeats),
            "",
            "## With cohorts",
            "",
            "CPU time of `hsfl.plan` where some clients take part at a time, and where all do. What "
            "follows from the machines, and mean clients that were found, are kept from call to call.",
            "",
            *with_cohorts(blocks),
            "",
            "## From a cold start",
            "",
            *cold_start(repeats),
            "",
        ]
    )
    print(text)
    if not quick:
        OUT.write_text(text)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "an unknown processor"


if __name__ == "__main__":
    main()
