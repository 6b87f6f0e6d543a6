"""Figures 6 and 7: scarcer and richer compute and communication, for the strategies and for fewer tiers.

A strategy that plans is asked again on every system. Any other is trained once and timed on all of them, and so is a
strategy that plans, as far as it chooses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hsfl.experiments.benchmarks import STRATEGIES
from hsfl.experiments.motivation import TREES, on_tree
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import AS_PAPER, Settings, scaled
from hsfl.experiments.statistics import MORE_ERROR, Ratio, Spread, slowdown, target_of, times_to
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario

KINDS = ("compute", "communication")
#: Factors closer than this are alike.
_ALIKE = 1.02
#: What grows by no more grows slightly.
_SLIGHT = 1.5
#: The factor by which the time grows on the scarcest system, for each strategy or system.
Factors = Mapping[str, Ratio]


def _networks(settings: Settings) -> list[tuple[str, float]]:
    """The system as it is, first, and each resource scaled alone."""
    return [("as is", 1.0), *((kind, scale) for kind in KINDS for scale in settings.size.scales if scale != 1)]


def _factors(kind: str, scale: float) -> tuple[float, float]:
    return (scale, 1.0) if kind == "compute" else (1.0, scale)


def _runs(settings: Settings, labels: tuple[str, ...], of: Callable[[str, int], Scenario]) -> Wanted:
    return {
        (label, kind, scale, seed): of(label, seed) if scale == 1 else scaled(of(label, seed), *_factors(kind, scale))
        for label in labels
        for kind, scale in _networks(settings)
        for seed in settings.some_seeds
    }


def strategies_runs(settings: Settings) -> Wanted:
    def of(strategy: str, seed: int) -> Scenario:
        return settings.scenario(settings.dataset, "iid", seed, AS_PAPER | {"strategy.name": strategy})

    return _runs(settings, STRATEGIES, of)


def trees_runs(settings: Settings) -> Wanted:
    def of(tree: str, seed: int) -> Scenario:
        return on_tree(tree, settings.scenario(settings.dataset, "iid", seed, AS_PAPER))

    return _runs(settings, TREES, of)


def strategies(settings: Settings, found: Found) -> Result:
    return _result(
        settings,
        found,
        STRATEGIES,
        "fig6",
        f"Time to target against resources, HSFL and five benchmarks ({settings.dataset}, IID)",
        {
            "HSFL degrades least as {} shrinks": ("slight increase", _least),
            "RMA+RMS slows down more than RMA+MS and MA+RMS as {} shrinks": ("notably", _random_most),
        },
    )


def trees(settings: Settings, found: Found) -> Result:
    return _result(
        settings,
        found,
        TREES,
        "fig7",
        f"Time to target against resources, three tiers and two ({settings.dataset}, IID)",
        {"3-tier is the most robust as {} shrinks": ("negligible increase", _least)},
    )


def _least(times: Factors) -> str:
    """The verdict on whether the first grows slightly, and by the least factor; in part if by less than some others.

    What misses the target on the system as it is has no factor.
    """
    first, *others = times.values()
    known = [other.mean for other in others if other.mean]
    if not first.mean or not any(first.mean < other / _ALIKE for other in known):
        return FAILS
    least = all(first.mean <= _ALIKE * other for other in known)
    return HOLDS if least and first.mean <= _SLIGHT else IN_PART


def _random_most(times: Factors) -> str:
    random, halves = times["RMA+RMS"], [times["RMA+MS"], times["MA+RMS"]]
    less = [bool(half.mean) and (not random.mean or half.mean < random.mean / _ALIKE) for half in halves]
    return HOLDS if all(less) else IN_PART if any(less) else FAILS


def _result(
    settings: Settings,
    found: Found,
    labels: tuple[str, ...],
    name: str,
    title: str,
    said: Mapping[str, tuple[str, Callable[[Factors], str]]],
) -> Result:
    first, scarcest = labels[0], min(settings.size.scales)

    def of(label: str, kind: str, scale: float) -> list[Run]:
        return [found[label, "as is" if scale == 1 else kind, scale, seed] for seed in settings.some_seeds]

    target = target_of(of(first, "as is", 1.0))
    seconds = {
        (label, kind, scale): times_to(of(label, kind, scale), target)
        for label in labels
        for kind in KINDS
        for scale in settings.size.scales
    }
    panels, claims = [], []
    for kind in KINDS:
        panels.append(
            Panel(
                "",
                f"{kind} of all machines, times the scenario's",
                f"minutes to {target:.0%}",
                [
                    _series(settings, label, [seconds[label, kind, scale] for scale in settings.size.scales])
                    for label in labels
                ],
                log_x=True,
                log_y=True,
            )
        )
        times = {label: slowdown(of(label, kind, scarcest), of(label, kind, 1.0), target) for label in labels}
        text = ", ".join(f"{label} {ratio.text(2)}" for label, ratio in times.items())
        for what, (paper, judge) in said.items():
            claims.append(Claim(what.format(kind), paper, f"at {scarcest:g} of it: {text}", judge(times)))
        claims.append(_fastest(settings, seconds, labels, kind, target))
    rows = [[*key, spread.text(1)] for key, spread in seconds.items()]
    return Result(
        name,
        title,
        panels,
        ["who", "resource", "scale", f"s to {target:.0%}"],
        rows,
        claims,
        [
            f"The target allows {MORE_ERROR} times the final error of {first} on the system as it is.",
            "One resource is scaled at a time, on all machines and links alike. Robustness is the factor by which the "
            f"time to the target grows, over seeds; factors within {_ALIKE - 1:.0%} are alike. Least: holds if no "
            f"other factor is smaller and it is at most {_SLIGHT}, which is slight; in part if some are larger. What "
            "misses the target on the system as it is has no factor.",
            "Strategies that plan do so anew on every system, by the paper's bound; a run is trained only where what "
            "it learns is new.",
        ],
    )


def _series(settings: Settings, label: str, spreads: list[Spread]) -> Series:
    mean, low, high = (
        [None if spread.missed else getattr(spread, end) / 60 for spread in spreads] for end in ("mean", "low", "high")
    )
    return Series(label, list(settings.size.scales), mean, low, high)


def _fastest(
    settings: Settings, seconds: Mapping[Any, Spread], labels: tuple[str, ...], kind: str, target: float
) -> Claim:
    first = labels[0]
    best = {scale: min(labels, key=lambda who: seconds[who, kind, scale].mean) for scale in settings.size.scales}
    ahead = [who == first for who in best.values()]
    return Claim(
        f"{first} is the fastest at every scale of {kind}, time to {target:.0%}",
        "faster across varying resources",
        ", ".join(f"at {scale:g}: {who}" for scale, who in best.items()),
        HOLDS if all(ahead) else IN_PART if any(ahead) else FAILS,
    )
