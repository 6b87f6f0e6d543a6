"""The paper's own step: plain SGD at 5e-4, with a normalisation that lets it learn, and what intervals do there.

Drift grows with the square of the step. At a step 200 times smaller than in the other experiments, longer intervals may
do no harm.
"""

from __future__ import annotations

from typing import Any

from hsfl.experiments.benchmarks import PARTITIONS, as_accurate
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, judged
from hsfl.experiments.settings import AS_PAPER, Settings, fixed
from hsfl.experiments.statistics import MORE_ERROR, ahead, curves, finals, slowdown, target_of, times_to
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario

EVERY_ROUND, PLANNED, NEVER = "I = 1", "planned", "PSL"
#: The paper's gains over PSL in points.
_GAINS = {"iid": 3.4, "shards": 11.4}


def _setting(settings: Settings) -> dict[str, Any]:
    return {
        "training.optimizer": "sgd",
        **settings.size.step,
        "convergence.gradient_variance": None,
        "convergence.gradient_second_moment": None,
        "convergence.gradient_dissimilarity": None,
    }


def _long(settings: Settings) -> dict[str, tuple[int, int]]:
    """The long intervals of the paper: the longest random ones, and those of its ablation of cuts."""
    return {f"I = {i}": i for i in (settings.size.random, settings.size.rare)}


def _partitions(settings: Settings) -> dict[str, str]:
    return {"shards": PARTITIONS["shards"]} if settings.quick else PARTITIONS


def _variants(settings: Settings) -> dict[str, dict[str, Any]]:
    cuts = {"strategy.cuts": list(settings.size.cuts)}
    return {
        EVERY_ROUND: fixed(settings.size.cuts, (1, 1)),
        PLANNED: AS_PAPER | {"strategy.name": "HSFL"} | cuts,
        **{label: fixed(settings.size.cuts, intervals) for label, intervals in _long(settings).items()},
        NEVER: {"strategy.name": "PSL"} | cuts,
    }


def step_runs(settings: Settings) -> Wanted:
    base = settings.scenario(settings.dataset, "iid", settings.seeds[0], _setting(settings))  # its network is profiled

    def scenario(partition: str, seed: int, overrides: dict[str, Any]) -> Scenario:
        return base.with_overrides({"data.partition": partition, "training.seed": seed, **overrides})

    return {
        (partition, label, seed): scenario(partition, seed, overrides)
        for partition in _partitions(settings)
        for label, overrides in _variants(settings).items()
        for seed in settings.seeds[:1]
    }


def step(settings: Settings, found: Found) -> Result:
    panels: list[Panel] = []
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    for partition, word in _partitions(settings).items():
        of = {label: [found[partition, label, seed] for seed in settings.seeds[:1]] for label in _variants(settings)}
        target = target_of(of[EVERY_ROUND])
        panels.append(curves(word, of, level=100 * target, log_x=True))
        for label, runs in of.items():
            plans = "; ".join(dict.fromkeys(str(plan.intervals) for plan in runs[0].plans))
            numbers = finals(runs).text(2), times_to(runs, target).text(0)
            rows.append([word, label, *numbers, slowdown(runs, of[EVERY_ROUND], target).text(2), plans])
        claims += _claims(of, list(_long(settings)), target, partition, word)
    return Result(
        "step",
        f"The paper's step, with batch normalisation: intervals at cuts {settings.size.cuts} ({settings.dataset})",
        panels,
        ["partition", "intervals", "final accuracy (%)", "s to target", "times I = 1's", "intervals in force"],
        rows,
        claims,
        [
            f"SGD without momentum at {_setting(settings)['training.learning_rate']:g}, "
            f"{_setting(settings)['stopping.rounds']:,} rounds, a batch normalisation after every convolution, by the "
            "statistics of each client's own mini-batch. Without it this step hardly moves the network (`setting`).",
            f"Planned: by the paper's bound. The target allows {MORE_ERROR} times the final error of I = 1. Intervals "
            "in force are those of the first seed.",
        ],
    )


def _claims(of: dict[str, list[Run]], long: list[str], target: float, partition: str, word: str) -> list[Claim]:
    gained, sooner = ahead(of[PLANNED], of[NEVER]), slowdown(of[EVERY_ROUND], of[PLANNED], target)
    longer = [max(plan.intervals) > 1 for run in of[PLANNED] for plan in run.plans]
    return [
        Claim(
            f"the paper's bound plans intervals longer than 1 ({word})",
            "planned intervals are a trade",
            f"{sum(longer)} of {len(longer)} plans",
            HOLDS if all(longer) else IN_PART if any(longer) else FAILS,
        ),
        Claim(
            f"planned intervals are faster than I = 1 ({word}), time to {target:.0%}",
            "significantly",
            sooner.with_interval(2),
            HOLDS if sooner.mean and sooner.interval[0] > 1 else IN_PART if sooner.mean > 1 else FAILS,
        ),
        as_accurate(f"planned intervals are as accurate as I = 1 ({word})", of[PLANNED], of[EVERY_ROUND]),
        *(
            as_accurate(f"{label} is as accurate as I = 1 ({word})", of[label], of[EVERY_ROUND], "not said")
            for label in long
        ),
        Claim(
            f"planned intervals are more accurate than PSL ({word})",
            f"+{_GAINS[partition]} points",
            f"{gained.with_interval(1, '+')} points",
            judged(gained.mean, *gained.interval, _GAINS[partition]),
        ),
    ]
