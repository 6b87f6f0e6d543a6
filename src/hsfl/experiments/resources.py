"""Figures 6 and 7: scarcer and richer compute and communication, for the strategies and for fewer tiers.

A strategy that plans is asked again on every system. One that does not is trained once and timed on all of them, and
so is one that plans where it chooses the same.
"""

from __future__ import annotations

from math import isfinite

from hsfl.experiments.benchmarks import STRATEGIES
from hsfl.experiments.motivation import TREES, on_tree
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import Settings, scaled
from hsfl.experiments.statistics import MORE_ERROR, target_of, time_to

KINDS = ("compute", "communication")


def _networks(settings: Settings) -> list[tuple[str, float]]:
    """The system as it is, first, and each resource scaled alone."""
    return [("as is", 1.0), *((kind, scale) for kind in KINDS for scale in settings.scales if scale != 1)]


def _factors(kind: str, scale: float) -> tuple[float, float]:
    return (scale, 1.0) if kind == "compute" else (1.0, scale)


def strategies_runs(settings: Settings) -> Wanted:
    wanted: Wanted = {}
    for strategy in STRATEGIES:
        scenario = settings.scenario(settings.dataset, "iid", settings.seeds[0], {"strategy.name": strategy})
        for kind, scale in _networks(settings):
            wanted[strategy, kind, scale] = scaled(scenario, *_factors(kind, scale))
    return wanted


def trees_runs(settings: Settings) -> Wanted:
    scenario = settings.scenario(settings.dataset, "iid", settings.seeds[0])
    return {
        (tree, kind, scale): scaled(on_tree(tree, scenario), *_factors(kind, scale))
        for tree in TREES
        for kind, scale in _networks(settings)
    }


def strategies(settings: Settings, found: Found) -> Result:
    return _result(
        settings,
        found,
        STRATEGIES,
        "fig6",
        f"Time to target against resources, HSFL and five benchmarks ({settings.dataset}, IID)",
        "HSFL degrades least as {} shrinks",
    )


def trees(settings: Settings, found: Found) -> Result:
    return _result(
        settings,
        found,
        TREES,
        "fig7",
        f"Time to target against resources, three tiers and two ({settings.dataset}, IID)",
        "3-tier is the most robust as {} shrinks",
    )


def _result(settings: Settings, found: Found, labels: tuple[str, ...], name: str, title: str, claim: str) -> Result:
    first = labels[0]
    target = target_of([found[first, "as is", 1.0]])
    seconds = {
        (label, kind, scale): time_to(found[label, "as is" if scale == 1 else kind, scale], target)
        for label in labels
        for kind in KINDS
        for scale in settings.scales
    }
    panels, claims = [], []
    scarcest = min(settings.scales)
    for kind in KINDS:
        panels.append(
            Panel(
                "",
                f"{kind} of all machines, times the scenario's",
                f"minutes to {target:.0%}",
                [
                    Series(
                        label,
                        list(settings.scales),
                        [_minutes(seconds[label, kind, scale]) for scale in settings.scales],
                    )
                    for label in labels
                ],
                log_x=True,
                log_y=True,
            )
        )
        added = {label: seconds[label, kind, scarcest] - seconds[label, kind, 1.0] for label in labels}
        times = {label: seconds[label, kind, scarcest] / seconds[label, kind, 1.0] for label in labels}
        reached = [label for label in labels if isfinite(added[label])]
        least = bool(reached) and first in reached and all(added[first] <= added[label] for label in reached)
        relative = least and all(times[first] <= 1.02 * times[label] for label in reached)
        text = ", ".join(
            f"{label} {added[label] / 60:+.1f} min ({times[label]:.1f}x)" if label in reached else f"{label} never"
            for label in labels
        )
        claims.append(
            Claim(
                claim.format(kind),
                "slight increase" if first == "HSFL" else "negligible increase",
                f"at {scarcest:g} of it: {text}",
                HOLDS if relative else IN_PART if least else FAILS,
            )
        )
    rows = [[label, kind, scale, _round(seconds[label, kind, scale])] for label, kind, scale in seconds]
    return Result(
        name,
        title,
        panels,
        ["who", "resource", "scale", f"s to {target:.0%}"],
        rows,
        claims,
        [
            f"The target allows {MORE_ERROR} times the final error of {first} on the system as it is.",
            "One resource is scaled at a time, on all machines and links alike. Holds: the least added time, and no "
            "larger factor than others; in part: the least added time only.",
            "Strategies that plan do so anew on every system; a run is trained only where a schedule is new.",
        ],
    )


def _minutes(seconds: float) -> float | None:
    return seconds / 60 if isfinite(seconds) else None


def _round(seconds: float) -> float | str:
    return round(seconds, 1) if isfinite(seconds) else "never"
