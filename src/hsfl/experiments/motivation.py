"""Figure 2: why three tiers, and what intervals and cuts do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import (
    AS_PAPER,
    DEVICE_TO_CLOUD,
    Settings,
    client_cloud,
    client_edge,
    fixed,
    one_edge_server,
)
from hsfl.experiments.statistics import (
    MORE_ERROR,
    curves,
    evaluations,
    finals,
    gigabytes,
    slowdown,
    target_of,
    times_to,
)
from hsfl.problem.units import format_seconds
from hsfl.records import RoundRecord
from hsfl.scenario.scenario import Scenario
from hsfl.theory.latency import aggregation_latency, split_latency

#: Client-edge in both readings: one split-training server for all devices, as the paper's introduction has it, and the
#: edge servers as they are, averaged by a fed server.
TREES = ("3-tier", "client-edge", "client-edge, averaged", "client-cloud")


def on_tree(tree: str, scenario: Scenario) -> Scenario:
    systems = {
        "client-edge": one_edge_server,
        "client-edge, averaged": client_edge,
        "client-cloud": client_cloud,
    }
    return systems[tree](scenario) if tree in systems else scenario


def tiers_runs(settings: Settings) -> Wanted:
    return {
        (tree, seed): on_tree(tree, settings.scenario(settings.dataset, "shards", seed, AS_PAPER))
        for tree in TREES
        for seed in settings.seeds
    }


def tiers(settings: Settings, found: Found) -> Result:
    runs = {tree: [found[tree, seed] for seed in settings.seeds] for tree in TREES}
    target = target_of(runs["3-tier"])
    claims, rows = [], []
    for tree, paper in (("client-edge", 1.6), ("client-cloud", 4.6)):
        ratio = slowdown(runs[tree], runs["3-tier"], target)
        claims.append(
            Claim(
                f"3-tier is faster than {tree} SFL (time to {target:.0%})",
                f"{paper}x",
                ratio.with_interval(),
                ratio.judged(paper),
            )
        )
    for tree in TREES:
        last = runs[tree][0].plans[-1]
        numbers = times_to(runs[tree], target).text(0), finals(runs[tree]).text()
        rows.append([tree, *numbers, str(last.cuts), str(last.intervals)])
    return Result(
        "fig2a",
        f"Three tiers against two ({settings.dataset}, non-IID)",
        [curves("", runs, level=100 * target, log_x=True)],
        ["system", f"s to {target:.0%}", "final accuracy (%)", "last cuts", "last intervals"],
        rows,
        claims,
        [
            "Cuts and intervals of every system are planned by the paper's bound (HSFL). Where it makes every interval "
            "1, what is learnt does not depend on the system, and is trained once with every seed. The target allows "
            f"{MORE_ERROR} times the final error of 3-tier.",
            "Client-edge: one edge server for all devices holds the rest of the model, as the paper's introduction has "
            "two-tier systems (only one split training server); the verdict is on it. Client-edge, averaged: each edge "
            "server serves its own devices, and the fed server averages them. Client-cloud: devices and cloud, over "
            f"{DEVICE_TO_CLOUD[settings.size.network]} (the paper's figure has {DEVICE_TO_CLOUD['vgg16']}).",
        ],
    )


def traffic_runs(settings: Settings) -> Wanted:
    return {
        (intervals, seed): settings.scenario(settings.dataset, "shards", seed, fixed(settings.size.cuts, intervals))
        for intervals in settings.size.some_intervals
        for seed in settings.some_seeds
    }


def traffic(settings: Settings, found: Found) -> Result:
    runs = {i: [found[i, seed] for seed in settings.some_seeds] for i in settings.size.some_intervals}
    final = {i: finals(of) for i, of in runs.items()}
    accuracy = {i: spread.mean for i, spread in final.items()}
    sent = {i: gigabytes(evaluations(of[0])[-1]) for i, of in runs.items()}
    often, rare = settings.size.some_intervals[0], settings.size.some_intervals[-1]
    device, edge = (i for i in runs if i[0] != i[1])  # the same two intervals, exchanged
    ordered = sorted(runs, key=lambda i: sent[i], reverse=True)
    falling = all(sent[a] > sent[b] for a, b in ((often, rare), (often, device), (often, edge)))
    best, worst = accuracy[often], accuracy[rare]
    apart = abs(accuracy[device] - accuracy[edge])
    return Result(
        "fig2b",
        f"Accuracy against traffic, cuts {settings.size.cuts} ({settings.dataset}, non-IID)",
        [curves("", {f"I = {i}": of for i, of in runs.items()}, gigabytes, "sent over all links (GB)")],
        ["intervals (device, edge)", "final accuracy (%)", "sent (GB)"],
        [[str(i), final[i].text(2), round(sent[i], 3)] for i in ordered],
        [
            Claim(
                "smaller intervals: more accuracy, more traffic",
                "shown as curves",
                f"I = {often}: {best:.1f} %, {sent[often]:.3g} GB; I = {rare}: {worst:.1f} %, {sent[rare]:.3g} GB",
                HOLDS if best > worst and falling else FAILS,
            ),
            Claim(
                "tiers differ: the same intervals exchanged give another accuracy",
                "shown as curves",
                f"I = {device}: {accuracy[device]:.1f} %, I = {edge}: {accuracy[edge]:.1f} %",
                HOLDS if apart > 2 else FAILS,
            ),
        ],
        [
            "Traffic counts activations, gradients and sub-models on all links of all tiers. Final is the mean of the "
            "last 5 evaluations; tiers differ if exchanging their intervals changes it by more than 2 points.",
        ],
    )


def latency(settings: Settings, found: Found) -> Result:
    """What a round takes at every pair of cuts: split training alone, and with an average of both tiers."""
    problem = settings.scenario(settings.dataset, "shards", settings.seeds[0]).training_problem
    L = problem.num_layers
    seconds = {
        (first, second): (
            float(split_latency(problem, (first, second))),
            float(aggregation_latency(problem, (first, second)).sum()),
        )
        for first in range(1, L - 1)
        for second in range(first + 1, L)
    }
    series = [
        Series(
            f"L1 = {first}",
            list(range(first + 1, L)),
            [1000 * sum(seconds[first, second]) for second in range(first + 1, L)],
        )
        for first in range(1, L - 1)
        if L < 10 or first in (1, 2, 4, 7, 10, 14)
    ]
    split = [
        Series(
            "split training",
            list(range(2, L)),
            [1000 * min(seconds[f, s][0] for f in range(1, s)) for s in range(2, L)],
        ),
    ]
    turns = [_turns([sum(seconds[first, second]) for second in range(first + 1, L)]) for first in range(1, L - 2)]
    by_first = _turns([sum(seconds[first, L - 1]) for first in range(1, L - 1)])
    totals = {cuts: sum(both) for cuts, both in seconds.items()}
    low, high = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    change = max(*turns, by_first)
    spread = totals[high] / totals[low]
    return Result(
        "fig2c",
        f"Latency of a round against the cuts ({settings.dataset})",
        [
            Panel("every tier averaged in the round", "second cut L2", "ms per round", series, log_y=True),
            Panel("split training alone, best first cut", "second cut L2", "ms per round", split),
        ],
        ["L1", "L2", "split training (ms)", "averaging (ms)"],
        [[*cuts, round(1000 * both[0], 3), round(1000 * both[1], 3)] for cuts, both in seconds.items()],
        [
            Claim(
                "the latency of a round is strongly non-monotone in the cuts",
                "shown as curves",
                f"turns up to {change} times along one cut; {format_seconds(totals[low])} at {low} to "
                f"{format_seconds(totals[high])} at {high}, {spread:.0f}x",
                HOLDS if change >= 2 and spread > 2 else IN_PART if change >= 1 else FAILS,
            )
        ],
        [
            "Nothing is trained for it: the latency model of the system. Holds if the latency turns at least twice "
            "along one cut and differs by more than a factor of 2; in part if it turns once.",
        ],
    )


def _turns(values: list[float]) -> int:
    """How often a sequence changes from rising to falling or back."""
    signs = [np.sign(b - a) for a, b in pairwise(values) if b != a]
    return sum(a != b for a, b in pairwise(signs))


def depth_runs(settings: Settings, partitions: tuple[str, ...] = ("shards",)) -> Wanted:
    return {
        (partition, cuts, seed): settings.scenario(settings.dataset, partition, seed, fixed(cuts, settings.size.rare))
        for partition in partitions
        for cuts in settings.size.some_cuts
        for seed in settings.some_seeds
    }


def depth(settings: Settings, found: Found) -> Result:
    runs = {cuts: [found["shards", cuts, seed] for seed in settings.some_seeds] for cuts in settings.size.some_cuts}
    final = {cuts: finals(of) for cuts, of in runs.items()}
    return Result(
        "fig2d",
        f"Accuracy against epochs for several cuts, I = {settings.size.rare} ({settings.dataset}, non-IID)",
        [curves("", {f"cuts {c}": of for c, of in runs.items()}, lambda line: _epochs(settings, line), "epochs")],
        ["cuts", "final accuracy (%)"],
        [[str(cuts), spread.text(2)] for cuts, spread in final.items()],
        [
            Claim(
                "shallower cuts give higher accuracy",
                "shown as curves",
                ", ".join(f"{cuts}: {spread.mean:.1f} %" for cuts, spread in final.items()),
                falling([spread.mean for spread in final.values()]),
            )
        ],
    )


def falling(values: list[float]) -> str:
    """Whether accuracies fall from the shallowest cuts to the deepest, as the paper says; half a point is noise."""
    if all(b < a + 0.5 for a, b in pairwise(values)) and values[-1] < values[0] - 0.5:
        return HOLDS
    return IN_PART if values[-1] < values[0] - 0.5 else FAILS


def _epochs(settings: Settings, line: RoundRecord) -> float:
    """Rounds as passes over the training data: every client takes a mini-batch in each."""
    spec = settings.scenario(settings.dataset, "shards", settings.seeds[0]).spec
    return line.round * spec.tiers[0].entities * spec.training.batch_size / settings.size.data[settings.dataset].samples
