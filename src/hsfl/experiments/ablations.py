"""Figures 8 and 9: planned intervals at given cuts, and given intervals at several cuts."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from hsfl.experiments.benchmarks import PARTITIONS
from hsfl.experiments.measures import (
    Spread,
    curves,
    finals,
    has_learnt,
    slowdown,
    time_to,
    times_to,
    whole_percent,
)
from hsfl.experiments.motivation import depth_runs, falling
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Result
from hsfl.experiments.settings import Settings, fixed
from hsfl.runs.run import Run

#: The paper's gains over PSL: accuracy in points, time in percent.
_PAPER = {"iid": (3.4, 23.3), "shards": (11.4, 10.1)}


def _variants(settings: Settings) -> dict[str, dict[str, Any]]:
    cuts, longest = list(settings.cuts), settings.some_intervals[-1]
    return {
        "planned": {"training.strategy": "HSFL", "training.cuts": cuts},
        "PSL": {"training.strategy": "PSL", "training.cuts": cuts},
        "I = 1": fixed(settings.cuts, (1, 1)),
        f"I = {longest[0]}": fixed(settings.cuts, longest),
    }


def intervals_runs(settings: Settings) -> Wanted:
    return {
        (partition, label, seed): settings.scenario(settings.dataset, partition, seed, overrides)
        for partition in PARTITIONS
        for label, overrides in _variants(settings).items()
        for seed in settings.seeds
    }


def intervals(settings: Settings, found: Found) -> Result:
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        of: dict[str, list[Run]] = {
            label: [found[partition, label, seed] for seed in settings.seeds] for label in _variants(settings)
        }
        final = {label: finals(runs) for label, runs in of.items()}
        target = whole_percent(final["PSL"].mean / 100 - 0.005)
        panels.append(curves(word, of, log_x=True))
        for label in of:
            last = of[label][0].plans[-1]["intervals"] if label == "planned" else ""
            times = times_to(of[label], target)
            rows.append([word, label, final[label].text(2), f"{target:.0%}", times.text(0), str(last)])
        gain, faster = _PAPER[partition]
        gained = final["planned"].mean - final["PSL"].mean
        ratio, learnt = slowdown(of["PSL"], of["planned"], target), any(map(has_learnt, of["PSL"]))
        saved = 100 * (1 - 1 / ratio.mean) if ratio.mean else 0.0
        compared = f"{abs(saved):.1f} % {'faster' if saved >= 0 else 'slower'} to PSL's {target:.0%}"
        behind = final["I = 1"].mean - final["planned"].mean
        claims += [
            Claim(
                f"planned intervals are more accurate than PSL ({word})",
                f"+{gain} points",
                f"{gained:+.1f} points",
                HOLDS if gained >= gain else IN_PART if gained > 0 else FAILS,
            ),
            Claim(
                f"planned intervals are faster than PSL ({word})",
                f"{faster} % faster",
                compared if learnt else "the mean of PSL's copies stays at chance",
                HOLDS if saved >= faster or not learnt else IN_PART if saved > 0 else FAILS,
            ),
            Claim(
                f"planned intervals are as accurate as I = 1 ({word})",
                "comparable",
                f"{final['planned'].mean:.1f} % against {final['I = 1'].mean:.1f} %",
                HOLDS if behind <= 1 else IN_PART if behind <= 2 else FAILS,
            ),
        ]
    return Result(
        "fig8",
        f"Intervals at cuts {settings.cuts}: planned, never, always, fixed ({settings.dataset})",
        panels,
        ["partition", "intervals", "final accuracy (%)", "PSL's level", "s to PSL's level", "last plan"],
        rows,
        claims,
        [
            "Tested, as everywhere, is the mean of all copies, also of PSL's, which are never averaged in training.",
            "PSL's level is half a point under its own final accuracy, rounded down, so that the time to it can be "
            "compared.",
        ],
    )


def cuts_runs(settings: Settings) -> Wanted:
    return depth_runs(settings, tuple(PARTITIONS))


def cuts(settings: Settings, found: Found) -> Result:
    panels, rows, claims, lost = [], [], [], {}
    for partition, word in PARTITIONS.items():
        of = {cuts: [found[partition, cuts, seed] for seed in settings.seeds] for cuts in settings.some_cuts}
        final = {cuts: finals(runs) for cuts, runs in of.items()}
        means = [spread.mean for spread in final.values()]
        learnt = [final[cuts].low for cuts, runs in of.items() if all(map(has_learnt, runs))]
        level = whole_percent(min(learnt or means) / 100 - 0.005)
        times = {
            cuts: Spread(tuple(time_to(run, level) if has_learnt(run) else inf for run in runs))
            for cuts, runs in of.items()
        }
        seconds = [spread.mean for spread in times.values()]
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
                HOLDS if seconds == sorted(seconds) else IN_PART if seconds[-1] > seconds[0] else FAILS,
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
        f"Cuts at intervals {settings.rare} ({settings.dataset})",
        panels,
        ["partition", "cuts", "final accuracy (%)", "level", "s to level"],
        rows,
        claims,
        ["The level is what the least accurate of those that learn reaches, so that the time to it can be compared."],
    )
