"""Figure 4: HSFL and five benchmarks, on every data set, IID and not, as the paper plans and as hsfl plans."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, PAST, Claim, Panel, Result
from hsfl.experiments.settings import CODED, Settings, fixed
from hsfl.experiments.statistics import MORE_ERROR, Spread, ahead, curves, finals, slowdown, target_of, times_to
from hsfl.planner import baselines
from hsfl.runs.reading import Run

STRATEGIES = ("HSFL", "RMA+MS", "MA+RMS", "RMA+RMS", "DAMA+RMS", "RMA+AMS")
#: Trained besides the benchmarks: the reference of accuracies, and AMS where averages count.
FULL_SYNC, VARIANT = "full sync", "RMA+AMS-averages"
PARTITIONS = {"iid": "IID", "shards": "non-IID"}
#: Pairings: every planned half by the paper's bound, plain averages, 32 bits; or all that hsfl has.
AS_PAPER, AS_HSFL = "as the paper plans", "as hsfl plans"
PAIRINGS: dict[str, dict[str, Any]] = {
    AS_PAPER: {"strategy.drift": "paper", "convergence.drift": "paper"},
    AS_HSFL: {"strategy.drift": "energy", "training.averaging": "corrected", **CODED},
}
#: What is compared at one place, a data set and its partition: runs by strategy, one per seed.
ByStrategy = dict[str, list[Run]]


def strategies(settings: Settings, pairing: str) -> tuple[str, ...]:
    if pairing == AS_PAPER:
        return (*STRATEGIES, *([] if settings.quick else [VARIANT]), FULL_SYNC)
    return ("HSFL", "MA+RMS") if settings.quick else STRATEGIES


def runs(settings: Settings, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Wanted:
    """The runs by pairing, data set, partition, strategy and seed; `changes` are overrides by strategy."""
    wanted: Wanted = {}
    for pairing, planned in PAIRINGS.items():
        for dataset in settings.datasets:
            for partition in PARTITIONS:
                for strategy in strategies(settings, pairing):
                    chosen = planned | {"strategy.name": strategy}
                    if strategy == FULL_SYNC:
                        chosen = fixed(full_sync_cuts(settings), (1, 1))
                    chosen |= (changes or {}).get(strategy, {})
                    for seed in settings.seeds:
                        wanted[pairing, dataset, partition, strategy, seed] = settings.scenario(
                            dataset, partition, seed, chosen
                        )
    return wanted


def full_sync_cuts(settings: Settings, overrides: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """The cuts of full synchronisation: its accuracy does not depend on them, its time does, and these are the best.

    `overrides` may change what links carry, and so the cuts.
    """
    problem = settings.scenario(settings.dataset, "iid", settings.seeds[0], overrides).training_problem
    return baselines.full_sync_cuts(problem)


def by_strategy(settings: Settings, found: Found, pairing: str, dataset: str, partition: str) -> ByStrategy:
    return {
        s: [found[pairing, dataset, partition, s, seed] for seed in settings.seeds]
        for s in strategies(settings, pairing)
    }


def accuracy_over_time(settings: Settings, found: Found) -> Result:
    panels: list[Panel] = []
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    for dataset in settings.datasets:
        target: dict[str, float] = {}
        as_paper: dict[str, ByStrategy] = {}
        for partition, word in PARTITIONS.items():
            of = as_paper[partition] = by_strategy(settings, found, AS_PAPER, dataset, partition)
            target[partition] = target_of(of[FULL_SYNC])
            claims += _claims(of, target[partition], f"{dataset}, {word}")
            for pairing in PAIRINGS:
                of = by_strategy(settings, found, pairing, dataset, partition)
                level = target[partition]
                panels.append(curves(f"{dataset}, {word}, {pairing}", of, level=100 * level, log_x=True))
                rows += [[dataset, word, pairing, s, f"{level:.0%}", *_numbers(of[s], level)] for s in of]
            ratio = slowdown(of["MA+RMS"], of["HSFL"], level)
            claims.append(
                Claim(
                    f"{AS_HSFL}: HSFL is faster than MA+RMS ({dataset}, {word}), time to {level:.0%}",
                    "not in the paper",
                    ratio.with_interval(),
                    PAST,
                )
            )
        claims.append(_slower_without_iid(as_paper, target, dataset))
    return Result(
        "fig4",
        "Test accuracy against simulated time, HSFL and five benchmarks",
        panels,
        [
            "data",
            "partition",
            "planned",
            "strategy",
            "target",
            "s to target",
            "rounds to it",
            "s per round (whole run)",
            "final accuracy (%)",
        ],
        rows,
        claims,
        [
            f"{AS_PAPER.capitalize()}: planned halves by the paper's bound with the constants measured while training, "
            "no growth limit, plain averages, 32 bits; claims of the paper are judged by these. "
            f"{AS_HSFL.capitalize()}: drift weighed against the loss, corrected averages, coded links, for all "
            "strategies alike.",
            f"The target (dashed) allows {MORE_ERROR} times the final error of full synchronisation on the same data; "
            "final is the mean of the last 5 evaluations. Full synchronisation has the best cuts for it, plain "
            f"averages and 32 bits. {VARIANT} is RMA+AMS with averages counted in its rounds; it is not in the paper.",
            "Lines are means over seeds at the same round, of time and of accuracy; bands are the least and the most "
            "accuracy. HSFL is best in accuracy if no other of the six ends more than half a point higher. One is "
            "significantly faster than another if the confidence interval of the ratio of their times to the target is "
            "above 1; a claim about several holds if all are, in part if some are.",
        ],
    )


def _numbers(runs: list[Run], target: float) -> list[str]:
    pace = Spread(tuple(run.metrics[-1].time_s / run.metrics[-1].round for run in runs))
    return [
        times_to(runs, target).text(0),
        times_to(runs, target, "round").text(0),
        pace.text(2),
        finals(runs).text(2),
    ]


def _claims(of: ByStrategy, target: float, where: str) -> list[Claim]:
    times, final = ({s: read(of[s]) for s in STRATEGIES} for read in (lambda runs: times_to(runs, target), finals))
    first = all(times["HSFL"].mean <= times[s].mean for s in STRATEGIES) and isfinite(times["HSFL"].mean)
    best = all(final["HSFL"].mean >= final[s].mean - 0.5 for s in STRATEGIES)
    fastest = min(STRATEGIES, key=lambda s: times[s].mean)
    highest = max(STRATEGIES, key=lambda s: final[s].mean)
    random_cuts = ("MA+RMS", "DAMA+RMS", "RMA+RMS")
    return [
        Claim(
            f"HSFL is best in time and accuracy ({where})",
            "best everywhere",
            f"first to {target:.0%}: {fastest}; highest final accuracy: {highest} "
            f"({final[highest].mean:.1f} %, HSFL {final['HSFL'].mean:.1f} %)",
            HOLDS if first and best else IN_PART if first or best else FAILS,
        ),
        *(
            significantly_faster(of, who, random_cuts, target, where, "significantly faster")
            for who in ("RMA+MS", "RMA+AMS")
        ),
        significantly_faster(of, "HSFL", ("RMA+MS",), target, where, "faster, thanks to planned intervals"),
        significantly_faster(of, "MA+RMS", ("RMA+RMS",), target, where, "faster, thanks to planned intervals"),
    ]


def significantly_faster(
    of: ByStrategy, who: str, others: tuple[str, ...], target: float, where: str, paper: str
) -> Claim:
    """Whether one strategy is at the target before each of some others, in all seeds that one can expect."""
    ratios = {other: slowdown(of[other], of[who], target) for other in others}
    sooner = [ratio.mean > 0 and ratio.interval[0] > 1 for ratio in ratios.values()]
    *most, last = others
    return Claim(
        f"{who} is faster than {', '.join(most)}{' and ' if most else ''}{last} ({where}), time to {target:.0%}",
        paper,
        "; ".join(f"{other} {ratio.with_interval()}" for other, ratio in ratios.items()),
        HOLDS if all(sooner) else IN_PART if any(sooner) else FAILS,
    )


def _slower_without_iid(of: Mapping[str, ByStrategy], target: Mapping[str, float], dataset: str) -> Claim:
    """The claim that all need more rounds on non-IID data; a round is as long with either partition."""
    level = min(target.values())
    rounds = {s: [times_to(of[p][s], level, "round") for p in ("iid", "shards")] for s in STRATEGIES}
    slower = [shards.mean > iid.mean for iid, shards in rounds.values()]
    return Claim(
        f"all six are slower on non-IID data ({dataset}), rounds to {level:.0%}",
        "slower for HSFL and the five benchmarks",
        "; ".join(f"{s} {shards.text(0)} against {iid.text(0)}" for s, (iid, shards) in rounds.items()),
        HOLDS if all(slower) else IN_PART if any(slower) else FAILS,
    )


def as_accurate(what: str, runs: list[Run], others: list[Run], paper: str = "comparable", within: float = 1.0) -> Claim:
    """The claim to end within so many points, one being "comparable" in the paper; within twice as many is in part."""
    gained = ahead(runs, others)
    return Claim(
        what,
        paper,
        f"{finals(runs).mean:.2f} % against {finals(others).mean:.2f} %: {gained.text(2, '+')} points",
        HOLDS if gained.mean >= -within else IN_PART if gained.mean >= -2 * within else FAILS,
    )
