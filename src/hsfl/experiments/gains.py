"""Past the paper: corrected averages and coded links, alone and together, and plans against the best in hindsight."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from hsfl.experiments.benchmarks import FULL_SYNC, PARTITIONS, as_accurate, full_sync_cuts
from hsfl.experiments.recipe import Found, Key, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series, all_of
from hsfl.experiments.settings import CODED, LINKS, Settings, fixed
from hsfl.experiments.statistics import (
    MORE_ERROR,
    Ratio,
    Spread,
    curves,
    evaluations,
    finals,
    gigabytes,
    slowdown,
    target_of,
    time_to,
    times_to,
)
from hsfl.runs.reading import Run

PLANNED, CORRECTED, TOGETHER = "planned", "planned, corrected", "planned, corrected, coded"
CODED_SYNC = "full sync, coded"
_BY_LOSS = {"strategy.name": "HSFL", "strategy.drift": "energy"}
_CORRECTED = {"training.averaging": "corrected"}
#: How many times as fast as full synchronisation each is to be, by what is trained and by partition.
AIMS = {
    PLANNED: {"iid": 1.35, "shards": 1.0},
    CORRECTED: {"iid": 1.4, "shards": 1.15},
    TOGETHER: {"iid": 4.0, "shards": 3.5},
}
#: How many points below full synchronisation a run may end.
POINTS = 0.7
#: How much longer than the best fixed plan a planned run may take.
LONGER = 0.05
NUMBERS = ("target", "s to target", "rounds to it", "ms per round", "final accuracy (%)")
_HOW = (
    "Planned: cuts and intervals by HSFL, drift weighed against the loss of the moment. The target allows "
    f"{MORE_ERROR} times the final error of full synchronisation at its best cuts, unplanned and uncoded; ms per round "
    "are of the whole run, final is the mean of the last 5 evaluations."
)


def variants(settings: Settings) -> dict[str, dict[str, Any]]:
    """What is trained, by its name: full synchronisation at its best cuts, and what is to be faster."""
    return {
        FULL_SYNC: fixed(full_sync_cuts(settings), (1, 1)),
        PLANNED: _BY_LOSS,
        CORRECTED: _BY_LOSS | _CORRECTED,
        CODED_SYNC: fixed(full_sync_cuts(settings, CODED), (1, 1)) | CODED,
        TOGETHER: _BY_LOSS | _CORRECTED | CODED,
    }


def partitions(settings: Settings) -> dict[str, str]:
    """The partitions, with the words for them; non-IID data only when quick."""
    return {name: word for name, word in PARTITIONS.items() if name == "shards" or not settings.quick}


def beyond_runs(settings: Settings) -> Wanted:
    return {
        (partition, label, seed): settings.scenario(settings.dataset, partition, seed, overrides)
        for partition in partitions(settings)
        for label, overrides in variants(settings).items()
        for seed in settings.some_seeds
    }


def beyond(settings: Settings, found: Found) -> Result:
    """What planning, corrected averages and coded links gain on full synchronisation, each alone and together."""
    panels, rows, claims = [], [], []
    gains: dict[str, dict[str, Ratio]] = {label: {} for label in variants(settings)}
    for partition, word in partitions(settings).items():
        of = {label: [found[partition, label, seed] for seed in settings.some_seeds] for label in gains}
        target = target_of(of[FULL_SYNC])
        panels.append(curves(word, of, level=100 * target, log_x=True))
        for label, runs in of.items():
            ratio = gains[label][word] = slowdown(of[FULL_SYNC], runs, target)
            sent = Spread(tuple(gigabytes(evaluations(run)[-1]) for run in runs))
            rows.append([word, label, *numbers(runs, target), ratio.text(2), sent.text(2), _last_plan(runs[0])])
        for label, aims in AIMS.items():
            claims += _claims(label, of, target, aims[partition], word)
        same_codes = f"{TOGETHER}: faster than full synchronisation with the same codes"
        claims.append(surely_faster(same_codes, word, target, of[CODED_SYNC], of[TOGETHER]))
    return Result(
        "beyond",
        f"Planning, corrected averages and coded links against full synchronisation ({settings.dataset})",
        [*panels, _bars(gains)],
        ["partition", "trained", *NUMBERS, "times as fast as full sync", "sent (GB)", "last plan"],
        rows,
        claims,
        [
            _HOW,
            f"Coded: activations and gradients in {LINKS['up']}, averages in {LINKS['average']}; full "
            "synchronisation has the best cuts for that.",
            f"Speed holds if the mean is at the aim, in part if it is above 1; accuracy within {POINTS} points of full "
            "synchronisation, in part within twice as many; aims are this project's own. Faster than with the same "
            "codes holds if the confidence interval is above 1, and is open if it has 1 in it. Sent is all of the run; "
            "plans are those of the first seed.",
        ],
    )


def _claims(label: str, of: dict[str, list[Run]], target: float, aim: float, word: str) -> list[Claim]:
    return [
        fast_enough(f"{label}: {{}} as full synchronisation", word, target, aim, of[FULL_SYNC], of[label]),
        as_accurate(
            f"{label}: ends within {POINTS} points of full synchronisation ({word})",
            of[label],
            of[FULL_SYNC],
            "not in the paper",
            POINTS,
        ),
    ]


def fast_enough(what: str, word: str, target: float, aim: float, others: list[Run], runs: list[Run]) -> Claim:
    """Whether some runs are so many times as fast as others in the mean."""
    faster = slowdown(others, runs, target)
    return Claim(
        f"{what.format(f'at least {aim:g} times as fast')} ({word}), time to {target:.0%}",
        "not in the paper",
        faster.with_interval(2),
        HOLDS if faster.mean >= aim else IN_PART if faster.mean > 1 else FAILS,
    )


def surely_faster(what: str, word: str, target: float, others: list[Run], runs: list[Run]) -> Claim:
    """Whether some runs are faster than others for sure."""
    faster = slowdown(others, runs, target)
    verdict = all_of([faster.surely_more])
    return Claim(f"{what} ({word}), time to {target:.0%}", "not in the paper", faster.with_interval(2), verdict)


def _bars(gains: dict[str, dict[str, Ratio]]) -> Panel:
    """How many times as fast as full synchronisation each is, by partition; None where a seed misses the target."""
    series = []
    for label, by_word in gains.items():
        three = [(g.mean, min(g.values), max(g.values)) if g.mean else (None,) * 3 for g in by_word.values()]
        mean, low, high = zip(*three, strict=True)
        series.append(Series(label, list(by_word), mean, low, high, ["missed"] * len(by_word)))
    return Panel("time to target", "", "times as fast as full sync", series, kind="bar")


def numbers(runs: list[Run], target: float) -> list[str]:
    """The columns `NUMBERS` for the runs of all seeds."""
    pace = Spread(tuple(1000 * run.metrics[-1].time_s / run.metrics[-1].round for run in runs))
    times, rounds = times_to(runs, target), times_to(runs, target, "round")
    return [f"{target:.0%}", times.text(0), rounds.text(0), pace.text(0), finals(runs).text(2)]


def _last_plan(run: Run) -> str:
    return f"{run.plans[-1].cuts} {run.plans[-1].intervals}"


def hindsight_runs(settings: Settings) -> Wanted:
    plans = {(cuts, i): fixed(cuts, i) for cuts, intervals in settings.size.grid.items() for i in intervals}
    return {
        (partition, *plan): settings.scenario(settings.dataset, partition, settings.seeds[0], overrides)
        for partition in partitions(settings)
        for plan, overrides in ({(PLANNED,): _BY_LOSS} | plans).items()
    }


def hindsight(settings: Settings, found: Found) -> Result:
    """What planning on the way loses against the best of a grid of fixed plans, each trained."""
    panels, rows, claims = [], [], []
    for partition, word in partitions(settings).items():
        planned = found[partition, PLANNED]
        fixed_plans = {key[1:]: run for key, run in found.items() if key[0] == partition and len(key) == 3}
        target = target_of([next(iter(fixed_plans.values()))])
        panels.append(_by_intervals(word, fixed_plans, target, time_to(planned, target)))
        rows.append([word, PLANNED, "", *numbers([planned], target), "1.00x", _last_plan(planned)])
        for (cuts, intervals), run in fixed_plans.items():
            times = slowdown([run], [planned], target).text(2)
            rows.append([word, str(cuts), str(intervals), *numbers([run], target), times, ""])
        claims.append(_in_hindsight(planned, fixed_plans, target, word))
    return Result(
        "hindsight",
        f"Planned against a grid of fixed plans ({settings.dataset})",
        panels,
        ["partition", "cuts", "intervals", *NUMBERS, "times planned's", "last plan"],
        rows,
        claims,
        [
            f"{_HOW} One seed, averages and links as in the paper.",
            f"Holds within {LONGER:.0%} of the best fixed plan, in part within twice as much. The best of many is "
            "also the luckiest, and times are read off evaluations.",
        ],
    )


def _by_intervals(word: str, fixed_plans: dict[Key, Run], target: float, planned_s: float) -> Panel:
    """The time to target for every pair of intervals, a bar for each pair of cuts; planned is the level."""
    series = []
    for cuts in dict.fromkeys(cuts for cuts, _ in fixed_plans):
        of = {str(intervals): time_to(run, target) for (c, intervals), run in fixed_plans.items() if c == cuts}
        series.append(Series(f"cuts {cuts}", list(of), [s if isfinite(s) else None for s in of.values()]))
    return Panel(
        f"{word} (planned: {'dashed' if isfinite(planned_s) else 'never'})",
        "intervals (device, edge)",
        f"simulated s to {target:.0%}",
        series,
        kind="bar",
        level=float(f"{planned_s:.3g}") if isfinite(planned_s) else None,
    )


def _in_hindsight(planned: Run, fixed_plans: dict[Key, Run], target: float, word: str) -> Claim:
    (cuts, intervals), best = min(fixed_plans.items(), key=lambda entry: time_to(entry[1], target))
    took, least = time_to(planned, target), time_to(best, target)
    measured, lost = "target missed", inf
    if isfinite(took):
        lost = took / least - 1
        measured = f"{took:.0f} s against {least:.0f} s at cuts {cuts}, I = {intervals}: {1 + lost:.2f}x"
    return Claim(
        f"planned takes at most {LONGER:.0%} longer than the best of {len(fixed_plans)} fixed plans ({word}), "
        f"time to {target:.0%}",
        "not in the paper",
        measured,
        HOLDS if lost <= LONGER else IN_PART if lost <= 2 * LONGER else FAILS,
    )
