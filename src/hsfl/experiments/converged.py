"""Figure 5: converged accuracy and time; the strategies that the paper has numbers of train until they converge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from hsfl.experiments.benchmarks import (
    FULL_SYNC,
    HEADLINE,
    PARTITIONS,
    STRATEGIES,
    ByStrategy,
    by_strategy,
)
from hsfl.experiments.recipe import Found
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series, all_of, judged
from hsfl.experiments.settings import Settings
from hsfl.experiments.statistics import (
    MORE_ERROR,
    Ratio,
    Spread,
    converged,
    diverged,
    evaluations,
    paired,
    slowdown,
    target_of,
    time_to,
    times_to,
    up_to,
)
from hsfl.runs.reading import Run

#: The paper's numbers: (accuracy gained over MA+RMS in points, times as fast), on CIFAR-10 and MNIST, IID and not.
_PAPER = {
    ("cifar10", "iid"): (2.1, 8.1),
    ("cifar10", "shards"): (8.8, 8.0),
    ("mnist", "iid"): (1.0, 8.5),
    ("mnist", "shards"): (4.0, 7.0),
}
_AT_LEAST = 9.0


def converged_time(settings: Settings, found: Found) -> Result:
    places: dict[str, tuple[ByStrategy, float]] = {}
    rows: list[list[Any]] = []
    claims: list[Claim] = []
    for dataset in settings.datasets:
        gains: dict[str, Spread] = {}
        for partition, word in PARTITIONS.items():
            of, where = by_strategy(settings, found, dataset, partition), f"{dataset}, {word}"
            target = target_of([up_to(run, settings.rounds(dataset)) for run in of[FULL_SYNC]])
            rows += [[dataset, word, s, *_numbers(of, s, target)] for s in of]
            places[where] = of, target
            gains[partition] = gained(of["HSFL"], of["MA+RMS"])
            claims += _claims(of, target, where, *_PAPER.get((dataset, partition), (None, None)))
        claims.append(_more_without_iid(gains, dataset))
    return Result(
        "fig5",
        "Converged accuracy and time, HSFL and five benchmarks",
        _bars(places) + [_by_target(place, *places[place]) for place in list(places)[: len(PARTITIONS)]],
        [
            "data",
            "partition",
            "strategy",
            "converged accuracy (%)",
            "converged after (s)",
            "converged",
            "s to target",
            "times HSFL's",
        ],
        rows,
        claims,
        [
            "Converged: the mean accuracy of 10 evaluations gains less than 0.02 points on the 10 before; that mean is "
            "the accuracy of the table and of the claims. "
            f"{', '.join(HEADLINE)} and full synchronisation train until then, {_at_most(settings)}; a run that has "
            "not converged by its end is taken there, and one that diverged as the untrained model there (column "
            "converged).",
            "Plans, seeds and what is one training are as in fig4; with one seed a strategy draws the same cuts on all "
            "data, so that its factors on two of them are not independent.",
            f"The target allows {MORE_ERROR} times the final error of full synchronisation; a strategy that never gets "
            "there counts with its whole time, for which it was trained at most, so its ratio is a lower bound: judged "
            "by the mean, and exceeding where no seed gets there. The lower panels: for every target that all seeds "
            "reach.",
        ],
    )


def _at_most(settings: Settings) -> str:
    most = settings.size.converges_in
    return "as long as the others at most" if most is None else f"for {most:,} rounds at most"


def accuracies(runs: list[Run]) -> Spread:
    """The accuracies at which runs converged, in percent."""
    return Spread(tuple(100 * converged(run).accuracy for run in runs))


def gained(runs: list[Run], others: list[Run]) -> Spread:
    """By how many points some runs converge above others, seed by seed."""
    pairs = ((converged(one).accuracy, converged(other).accuracy) for one, other in paired(runs, others))
    return Spread(tuple(100 * (ours - theirs) for ours, theirs in pairs))


def sooner(others: list[Run], firsts: list[Run]) -> Ratio:
    """How many times longer others take to converge."""
    pairs = [(converged(other), converged(first)) for other, first in paired(others, firsts)]
    return Ratio(
        tuple(other.time_s / first.time_s if first.time_s else 0.0 for other, first in pairs),
        sum(first.reached and not other.reached for other, first in pairs),
    )


def _numbers(of: ByStrategy, strategy: str, target: float) -> list[str]:
    ends = [converged(run) for run in of[strategy]]
    lost = sum(map(diverged, of[strategy]))
    return [
        accuracies(of[strategy]).text(2),
        Spread(tuple(end.time_s for end in ends)).text(0),
        f"{sum(end.reached for end in ends)} of {len(ends)}{f', {lost} diverged' if lost else ''}",
        times_to(of[strategy], target).text(0),
        slowdown(of[strategy], of["HSFL"], target).text(),
    ]


def _claims(of: ByStrategy, target: float, where: str, gain: float | None, times: float | None) -> list[Claim]:
    ahead = gained(of["HSFL"], of["MA+RMS"])
    same = all(_learnt_alike(one, other) for one, other in paired(of["HSFL"], of["MA+RMS"]))
    claims = [
        Claim(
            f"HSFL is more accurate than MA+RMS ({where})",
            "not run" if gain is None else f"+{gain} points",
            "no difference: both are one training" if same else f"{ahead.with_interval(1, '+')} points",
            judged(ahead.mean, *ahead.interval, gain or 0.0),
        )
    ]
    for other, paper in (("MA+RMS", times or 1.0), ("RMA+RMS", _AT_LEAST)):
        said = "not run" if times is None else f"at least {paper:g}x" if other == "RMA+RMS" else f"{paper}x"
        ratios = {
            "until it converges": sooner(of[other], of["HSFL"]),
            f"time to {target:.0%}": slowdown(of[other], of["HSFL"], target),
        }
        claims += [
            Claim(f"HSFL is faster than {other} ({where}), {until}", said, ratio.with_interval(), ratio.judged(paper))
            for until, ratio in ratios.items()
        ]
    return [*claims, _not_by_convergence(of, target, where)]


def _not_by_convergence(of: ByStrategy, target: float, where: str) -> Claim:
    """RMA+AMS and DAMA+RMS against RMA+MS and MA+RMS: each slower, and each less accurate."""
    worse: list[bool | None] = []
    said = []
    for who in ("RMA+AMS", "DAMA+RMS"):
        for other in ("RMA+MS", "MA+RMS"):
            points, ratio = gained(of[other], of[who]), slowdown(of[who], of[other], target)
            worse += [points.surely_more, ratio.surely_more]
            times = f"{ratio.text()} the time" if ratio.mean else f"{other} misses the target"
            said.append(f"{who} against {other}: {-points.mean:+.1f} points, {times}")
    return Claim(
        f"RMA+AMS and DAMA+RMS are slower and less accurate than RMA+MS and MA+RMS ({where})",
        "slower and less accurate",
        "; ".join(said),
        all_of(worse),
    )


def _learnt_alike(one: Run, other: Run) -> bool:
    """Whether two runs are one training, timed twice."""
    return [line.accuracy for line in evaluations(one)] == [line.accuracy for line in evaluations(other)]


def _more_without_iid(gains: Mapping[str, Spread], dataset: str) -> Claim:
    iid, shards = gains["iid"], gains["shards"]
    more = shards.mean - iid.mean
    return Claim(
        f"HSFL gains more accuracy on MA+RMS on non-IID data ({dataset})",
        "more pronounced",
        f"{shards.text(1, '+')} against {iid.text(1, '+')} points",
        HOLDS if more > 0 and shards.interval[0] > iid.mean else IN_PART if more > 0 else FAILS,
    )


def _bars(places: Mapping[str, tuple[ByStrategy, float]]) -> list[Panel]:
    """Bars over places (data set and partition); `places` has every strategy's runs there, and the target."""

    def series(read: Callable[[Run, float], float]) -> list[Series]:
        found = []
        for s in (*STRATEGIES, FULL_SYNC):
            spreads = [Spread(tuple(read(run, target) for run in of[s])) for of, target in places.values()]
            known = [spread if isfinite(spread.mean) else None for spread in spreads]
            mean, low, high = (
                [None if k is None else float(getattr(k, end)) for k in known] for end in ("mean", "low", "high")
            )
            found.append(Series(s, list(places), mean, low, high, [spread.text() for spread in spreads]))
        return found

    targets = ", ".join(f"{target:.0%}" for _, target in places.values())
    return [
        Panel("", "", "converged accuracy (%)", series(lambda run, _: 100 * converged(run).accuracy), kind="bar"),
        Panel("", "", f"minutes to {targets}", series(lambda run, t: time_to(run, t) / 60), kind="bar", log_y=True),
    ]


def _by_target(place: str, of: ByStrategy, target: float) -> Panel:
    """How many times HSFL's time the others take to lower and higher targets, as far as they get."""
    targets = [round(target - 0.3 + 0.01 * k, 2) for k in range(60)]
    reached = [t for t in targets if 0 < t < 1 and slowdown(of["HSFL"], of["HSFL"], t).mean]
    series = []
    for s in (*STRATEGIES, FULL_SYNC):
        ratios = [slowdown(of[s], of["HSFL"], t) for t in reached]
        series.append(Series(s, [100 * t for t in reached], [None if ratio.never else ratio.mean for ratio in ratios]))
    return Panel(place, "target accuracy (%)", "times HSFL's time to it", series, log_y=True)
