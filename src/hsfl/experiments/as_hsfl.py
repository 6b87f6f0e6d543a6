"""Figures 4 and 5 once more, past the paper: the same strategies as hsfl plans them, beside as the paper plans them."""

from __future__ import annotations

from typing import Any

from hsfl.experiments.benchmarks import FULL_SYNC, HEADLINE, PARTITIONS, planned
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import PAST, Claim, Panel, Result
from hsfl.experiments.settings import AS_HSFL, Settings
from hsfl.experiments.statistics import MORE_ERROR, ahead, curves, finals, slowdown, target_of, times_to, up_to
from hsfl.runs.reading import Run

BY_PAPER, BY_HSFL = "as the paper plans", "as hsfl plans"


def _strategies(settings: Settings) -> tuple[str, ...]:
    return HEADLINE[:2] if settings.quick else HEADLINE


def runs(settings: Settings) -> Wanted:
    """By how they are planned, data set, partition, strategy and seed."""
    wanted: Wanted = {}
    for dataset in settings.datasets:
        for partition in PARTITIONS:
            for seed in settings.some_seeds:
                for strategy in (*_strategies(settings), FULL_SYNC):
                    wanted[BY_PAPER, dataset, partition, strategy, seed] = planned(
                        settings, dataset, partition, strategy, seed
                    )
                for strategy in _strategies(settings):
                    wanted[BY_HSFL, dataset, partition, strategy, seed] = settings.scenario(
                        dataset, partition, seed, AS_HSFL | {"strategy.name": strategy}
                    )
    return wanted


def as_hsfl(settings: Settings, found: Found) -> Result:
    panels: list[Panel] = []
    rows: list[list[Any]] = []
    claims: list[Claim] = []

    def of(how: str, dataset: str, partition: str, strategy: str) -> list[Run]:
        runs = (found[how, dataset, partition, strategy, seed] for seed in settings.some_seeds)
        return [up_to(run, settings.rounds(dataset)) for run in runs]

    for dataset in settings.datasets:
        for partition, word in PARTITIONS.items():
            both = {
                how: {s: of(how, dataset, partition, s) for s in _strategies(settings)} for how in (BY_PAPER, BY_HSFL)
            }
            sync = of(BY_PAPER, dataset, partition, FULL_SYNC)
            target = target_of(sync)
            lines = {f"{s}, {how}": runs for how, by_strategy in both.items() for s, runs in by_strategy.items()}
            panels.append(curves(f"{dataset}, {word}", lines, level=100 * target, log_x=True))
            for strategy, ours in both[BY_HSFL].items():
                theirs = both[BY_PAPER][strategy]
                numbers = (
                    text for runs in (theirs, ours) for text in (times_to(runs, target).text(0), finals(runs).text(2))
                )
                rows.append([dataset, word, strategy, f"{target:.0%}", *numbers, slowdown(theirs, ours, target).text()])
            first, where = both[BY_HSFL]["HSFL"], f"({dataset}, {word})"
            over_random = slowdown(both[BY_HSFL]["MA+RMS"], first, target).with_interval()
            over_paper = slowdown(both[BY_PAPER]["HSFL"], first, target).with_interval()
            points = ahead(first, sync).with_interval(1, "+")
            measured = {
                f"HSFL is faster than MA+RMS, both as hsfl plans {where}, time to {target:.0%}": over_random,
                f"HSFL is faster as hsfl plans than as the paper plans {where}, time to {target:.0%}": over_paper,
                f"HSFL as hsfl plans ends above full synchronisation {where}": f"{points} points",
            }
            claims += [Claim(what, "not in the paper", text, PAST) for what, text in measured.items()]
    each = ("s to target", "final accuracy (%)")
    return Result(
        "as-hsfl",
        "The strategies of fig4 as hsfl plans them, beside as the paper plans them",
        panels,
        [
            "data",
            "partition",
            "strategy",
            "target",
            *(f"{how}: {what}" for how in (BY_PAPER, BY_HSFL) for what in each),
            "times as fast",
        ],
        rows,
        claims,
        [
            "As hsfl plans: drift weighed against the loss of the moment, corrected averages, coded links, for all "
            "strategies alike. As the paper plans: as in fig4, of which these are the runs.",
            f"The target (dashed) allows {MORE_ERROR} times the final error of full synchronisation at its best cuts, "
            "with plain averages and 32 bits; final is the mean of the last 5 evaluations.",
        ],
    )
