"""Figures 8 and 9: planned intervals at given cuts, and given intervals at several cuts."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from hsfl.experiments.benchmarks import PARTITIONS, as_accurate
from hsfl.experiments.motivation import depth_runs, falling
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, PAST, Claim, Result, judged
from hsfl.experiments.settings import AS_HSFL, AS_PAPER, Settings, fixed
from hsfl.experiments.statistics import (
    MORE_ERROR,
    Spread,
    ahead,
    curves,
    finals,
    has_learnt,
    slowdown,
    target_of,
    time_to,
    times_to,
    whole_percent,
)
from hsfl.runs.reading import Run

PLANNED, BY_HSFL = "planned", "planned as hsfl plans"
#: The paper's gains over PSL: accuracy in points, time in percent.
_PAPER = {"iid": (3.4, 23.3), "shards": (11.4, 10.1)}


def _variants(settings: Settings) -> dict[str, dict[str, Any]]:
    cuts, longest = list(settings.size.cuts), settings.size.some_intervals[-1]
    return {
        PLANNED: AS_PAPER | {"strategy.name": "HSFL", "strategy.cuts": cuts},
        BY_HSFL: AS_HSFL | {"strategy.name": "HSFL", "strategy.cuts": cuts},
        "PSL": {"strategy.name": "PSL", "strategy.cuts": cuts},
        "I = 1": fixed(settings.size.cuts, (1, 1)),
        f"I = {longest[0]}": fixed(settings.size.cuts, longest),
    }


def intervals_runs(settings: Settings) -> Wanted:
    return {
        (partition, label, seed): settings.scenario(settings.dataset, partition, seed, overrides)
        for partition in PARTITIONS
        for label, overrides in _variants(settings).items()
        for seed in settings.some_seeds
    }


def intervals(settings: Settings, found: Found) -> Result:
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        of: dict[str, list[Run]] = {
            label: [found[partition, label, seed] for seed in settings.some_seeds] for label in _variants(settings)
        }
        final = {label: finals(runs) for label, runs in of.items()}
        target = target_of(of["I = 1"])
        learnt = [(psl, planned) for psl, planned in zip(of["PSL"], of["planned"], strict=True) if has_learnt(psl)]
        level = whole_percent(finals([psl for psl, _ in learnt] or of["PSL"]).low / 100 - 0.005)
        panels.append(curves(word, of, level=100 * target, log_x=True))
        for label in of:
            last = of[label][0].plans[-1].intervals if label in (PLANNED, BY_HSFL) else ""
            level_columns = (f"{level:.0%}", times_to(of[label], level).text(0)) if learnt else ("chance", "")
            target_columns = f"{target:.0%}", times_to(of[label], target).text(0)
            rows.append([word, label, final[label].text(2), *target_columns, *level_columns, str(last)])
        gain, faster = _PAPER[partition]
        gained = ahead(of["planned"], of["PSL"])
        compared, faster_than_psl = _faster_than_psl(learnt, len(settings.some_seeds), level, faster)
        sooner = slowdown(of["I = 1"], of["planned"], target)
        claims += [
            Claim(
                f"planned intervals are more accurate than PSL ({word})",
                f"+{gain} points",
                f"{gained.with_interval(1, '+')} points",
                judged(gained.mean, *gained.interval, gain),
            ),
            Claim(
                f"planned intervals are faster than PSL ({word})",
                f"{faster} % faster",
                compared,
                faster_than_psl,
            ),
            Claim(
                f"planned intervals are faster than I = 1 ({word}), time to {target:.0%}",
                "significantly",
                sooner.with_interval(2),
                HOLDS if sooner.mean and sooner.interval[0] > 1 else IN_PART if sooner.mean > 1 else FAILS,
            ),
            as_accurate(f"planned intervals are as accurate as I = 1 ({word})", of["planned"], of["I = 1"]),
            _past(of, target, word),
        ]
    return Result(
        "fig8",
        f"Intervals at cuts {settings.size.cuts}: planned, never, always, fixed ({settings.dataset})",
        panels,
        [
            "partition",
            "intervals",
            "final accuracy (%)",
            "target",
            "s to target",
            "PSL's level",
            "s to PSL's level",
            "last plan",
        ],
        rows,
        claims,
        [
            "Planned: by the paper's bound. As hsfl plans: by the loss of the moment, with corrected averages and "
            "coded links; cuts are given.",
            "Tested, as everywhere, is the mean of all copies, also of PSL's, which are never averaged in training.",
            f"The target (dashed) allows {MORE_ERROR} times the final error of I = 1. "
            "PSL's level is half a point under its final accuracy (the least of the seeds that learn), rounded down, "
            "so that the time to it can be compared.",
        ],
    )


def _past(of: dict[str, list[Run]], target: float, word: str) -> Claim:
    sooner, apart = slowdown(of["I = 1"], of[BY_HSFL], target), ahead(of[BY_HSFL], of["I = 1"])
    return Claim(
        f"{BY_HSFL}, intervals are faster than I = 1 ({word}), time to {target:.0%}",
        "not in the paper",
        f"{sooner.with_interval()}, ending {apart.with_interval(1, '+')} points higher",
        PAST,
    )


def _faster_than_psl(learnt: list[tuple[Run, Run]], seeds: int, level: float, paper: float) -> tuple[str, str]:
    """What was measured, in the seeds in which PSL learns, and the verdict; `learnt` has PSL's and the planned runs."""
    if not learnt:
        return "the mean of PSL's copies never leaves chance", HOLDS
    ratio = slowdown([psl for psl, _ in learnt], [planned for _, planned in learnt], level)
    if not ratio.mean:
        return f"planned intervals do not always reach PSL's {level:.0%}", FAILS
    saved = Spread(tuple(100 * (1 - 1 / value) for value in ratio.values))
    at_chance = f"; in {seeds - len(learnt)} of {seeds} seeds PSL never leaves chance" if len(learnt) < seeds else ""
    text = f"{saved.text()} % of PSL's time to {level:.0%} saved{at_chance}"
    return text, HOLDS if saved.interval[1] >= paper else IN_PART if saved.mean > 0 else FAILS


def cuts_runs(settings: Settings) -> Wanted:
    return depth_runs(settings, tuple(PARTITIONS))


def cuts(settings: Settings, found: Found) -> Result:
    panels, rows, claims, lost = [], [], [], {}
    for partition, word in PARTITIONS.items():
        of = {cuts: [found[partition, cuts, seed] for seed in settings.some_seeds] for cuts in settings.size.some_cuts}
        final = {cuts: finals(runs) for cuts, runs in of.items()}
        means = [spread.mean for spread in final.values()]
        learnt = [final[cuts].low for cuts, runs in of.items() if all(map(has_learnt, runs))]
        level = whole_percent(min(learnt or means) / 100 - 0.005)
        times = {
            cuts: Spread(tuple(time_to(run, level) if has_learnt(run) else inf for run in runs))
            for cuts, runs in of.items()
        }
        slower = [(spread.missed, spread.mean) for spread in times.values()]
        lost[partition] = means[0] - means[-1]
        panels.append(curves(word, {f"cuts {cuts}": runs for cuts, runs in of.items()}))
        rows += [[word, str(cuts), final[cuts].text(2), f"{level:.0%}", times[cuts].text(0)] for cuts in of]
        claims.append(
            Claim(
                f"deeper cuts: lower accuracy ({word})",
                "shown as curves",
                ", ".join(f"{cuts}: {spread.mean:.1f} %" for cuts, spread in final.items()),
                falling(means),
            )
        )
        claims.append(
            Claim(
                f"deeper cuts: slower ({word}), time to {level:.0%}",
                "shown as curves",
                ", ".join(
                    f"{cuts}: {time.mean / 60:.2g} min" if isfinite(time.mean) else f"{cuts}: {time.text()}"
                    for cuts, time in times.items()
                ),
                FAILS if slower[-1] <= slower[0] else HOLDS if slower == sorted(slower) else IN_PART,
            )
        )
    claims.append(
        Claim(
            "the loss of accuracy is larger on non-IID data",
            "more so non-IID",
            f"IID {lost['iid']:.1f}, non-IID {lost['shards']:.1f} points",
            HOLDS if lost["shards"] > lost["iid"] else FAILS,
        )
    )
    return Result(
        "fig9",
        f"Cuts at intervals {settings.size.rare} ({settings.dataset})",
        panels,
        ["partition", "cuts", "final accuracy (%)", "level", "s to level"],
        rows,
        claims,
        ["The level is what the least accurate of those that learn reaches, so that the time to it can be compared."],
    )
