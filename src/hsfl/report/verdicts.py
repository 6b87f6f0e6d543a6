"""Strategies over several seeds: a row for each with its spread, and a verdict that says how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from hsfl.experiments.confidence import confidence, confidence_apart
from hsfl.problem.units import format_bits, format_seconds
from hsfl.report.groups import Group, accuracies, classifies, clients_per_round, ended_by, losses_on_test
from hsfl.report.measured import is_measured, kind_of_time, what_times_are
from hsfl.report.words import both, counted, numbers, percent
from hsfl.runs.reading import Run, common_target, total_bytes

#: Beyond so many others, a verdict speaks of the next and the last only.
_OTHERS = 5
#: What the spreads in a table are.
SPREADS = (
    "Numbers of several seeds are means ± half of their 95 % interval (Student's t); brackets hold 95 % intervals."
)


@dataclass(frozen=True)
class Apart:
    """By how much one group is above another, in numbers that are subtracted: the mean, and its 95 % interval."""

    mean: float
    interval: tuple[float, float] | None
    """None where a group has one seed only."""
    wins: int
    seeds: int
    """In so many of so many seeds it is above; 0 of 0 where the groups have no seeds in common."""

    @property
    def sure(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def apart(group: Group, other: Group, number: Callable[[Run], float]) -> Apart:
    """Seed by seed where both have the same ones, else by their means."""
    ours, theirs = group.by_seed(number), other.by_seed(number)
    common = [seed for seed in ours if seed in theirs]
    if len(common) > 1:
        pairs = np.array([ours[seed] - theirs[seed] for seed in common])
        return Apart(float(pairs.mean()), confidence(pairs), int((pairs > 0).sum()), len(common))
    a, b = list(ours.values()), list(theirs.values())
    return Apart(float(np.mean(a) - np.mean(b)), confidence_apart(a, b), 0, 0)


def grouped_headline(runs: Sequence[Run], found: Sequence[Group]) -> str:
    """Which group is ahead of the others, and how sure that is."""
    target = common_target(runs)
    if target is None:
        return _at_the_end(found) if classifies(runs) else _at_the_end(found, by_loss=True)

    def time(run: Run) -> float:
        return run.time_to_accuracy(target) or 0.0

    best, *others = sorted(found, key=lambda group: float(np.mean([time(run) for run in group.runs])))
    kinds = f" {what_times_are(runs)}" if kind_of_time(runs) == "time" else ""
    goal = f"{percent(target, 1)} test accuracy (the most that all {len(runs)} runs reach, rounded down to 0.5 points)"
    took = spread([time(run) for run in best.runs], format_seconds)
    if not others:
        return f"{best.label}: {goal} after {took} of {kind_of_time(runs)}.{kinds}"
    said = [_faster(apart(other, best, lambda run: log(time(run))), other) for other in _some(others)]
    first = f"{best.label} is the first to reach {goal}, after {took} of {kind_of_time(runs)}"
    return f"{first}: {_listed(said, others)}.{kinds}"


def _at_the_end(found: Sequence[Group], by_loss: bool = False) -> str:
    """Where there is no common accuracy to be first at: who ends with the most accuracy, or the least test loss."""
    values, last = (losses_on_test, _last_loss) if by_loss else (accuracies, _last)
    evaluated = [group for group in found if all(values(run) for run in group.runs)]
    nothing = "" if by_loss else "The runs reach no common test accuracy above the one they started with; "
    if not evaluated:
        return f"{nothing or 'The runs were not evaluated; '}".removesuffix("; ") + "."
    best, *others = sorted(evaluated, key=lambda group: -float(np.mean([last(run) for run in group.runs])))
    ends = [abs(last(run)) for run in best.runs]
    reached = f"a test loss of {spread(ends, '{:.4g}'.format)}" if by_loss else spread(ends, percent)
    if not others:
        return f"{nothing}{best.label} ends at {reached}."
    said = [_ahead(apart(best, other, last), other, by_loss) for other in _some(others)]
    return f"{nothing}{best.label} ends best, at {reached}: {_listed(said, others)}."


def _last_loss(run: Run) -> float:
    """Less is more."""
    return -losses_on_test(run)[-1]


def _last(run: Run) -> float:
    return accuracies(run)[-1]


def _some(others: Sequence[Group]) -> Sequence[Group]:
    return others if len(others) <= _OTHERS else [others[0], others[-1]]


def _listed(said: list[str], others: Sequence[Group]) -> str:
    if len(others) <= _OTHERS:
        return both(said)
    return f"{said[0]}, the next, and {said[1]}, the last of the other {len(others)}"


def _faster(found: Apart, other: Group) -> str:
    """How many times as fast, of the logarithms of times."""
    times = f"{exp(found.mean):.2f} times"
    if found.interval is None:
        return f"{times} as fast as {other.label}, by one seed of one of them"
    within = f"{times} ({exp(found.interval[0]):.2f} to {exp(found.interval[1]):.2f})"
    in_seeds = f" in {found.wins} of {found.seeds} seeds," if found.seeds else ","
    return f"faster than {other.label}{in_seeds} {within}{_doubt(found, other)}"


def _ahead(found: Apart, other: Group, by_loss: bool) -> str:
    """By how many points of accuracy, or by how much less loss."""
    word, text = ("below", "{:.4g}".format) if by_loss else ("above", lambda share: f"{100 * share:.2f}")
    mean = text(found.mean) + ("" if by_loss else " points")
    if found.interval is None:
        return f"{mean} {word} {other.label}, by one seed of one of them"
    within = f"{mean} ({text(found.interval[0])} to {text(found.interval[1])})"
    in_seeds = f" in {found.wins} of {found.seeds} seeds," if found.seeds else ","
    return f"{word} {other.label}{in_seeds} {within}{_doubt(found, other)}"


def _doubt(found: Apart, other: Group) -> str:
    count = found.seeds or len(other.runs)
    return "" if found.sure else f", which cannot be told from {counted(count, 'seed')}"


def spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The mean of several seeds ± half of its 95 % interval; of one, or where all have the same, the number."""
    if min(values) == max(values):
        return text(values[0])
    low, high = confidence(values)
    return f"{text(float(np.mean(values)))} ± {text((high - low) / 2)}"


def grouped_rows(runs: Sequence[Run], found: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The header and one row per group."""
    target = common_target(runs) if len(runs) > 1 else None
    what = "accuracy" if classifies(runs) else "test loss"
    header = ["runs", "strategy", "seeds", "rounds", kind_of_time(runs), f"last {what}", f"best {what}"]
    header += [] if target is None else [f"time to {percent(target, 1)}"]
    header += ["clients per round"] if clients_per_round(runs, runs) else []
    header += ["sent", "last cuts", "last intervals", "ended by"]
    return header, [_row(group, runs, target, kind_of_time(runs) == "time") for group in found]


def _row(group: Group, of: Sequence[Run], target: float | None, both_kinds: bool) -> list[str]:
    """`both_kinds`: some times are measured and some simulated, so that each says which it is."""
    runs = group.runs
    kind = "" if not both_kinds else " measured" if is_measured(runs[0]) else " simulated"
    lasts = [run.metrics[-1] for run in runs]
    row = [group.label, runs[0].strategy, str(len(runs)), spread([line.round for line in lasts], lambda r: f"{r:,.4g}")]
    row.append(spread([line.time_s for line in lasts], format_seconds) + kind)
    if all(accuracies(run) for run in runs):
        row += [spread([_last(run) for run in runs], percent), spread([max(accuracies(run)) for run in runs], percent)]
    elif all(losses_on_test(run) for run in runs):
        ends = [losses_on_test(run) for run in runs]
        row += [spread([f(of) for of in ends], "{:.4g}".format) for f in (lambda of: of[-1], min)]
    else:
        row += ["–", "–"]
    if target is not None:
        row.append(spread([run.time_to_accuracy(target) or 0.0 for run in runs], format_seconds) + kind)
    row += clients_per_round(runs, of)
    row.append(spread([8.0 * total_bytes(line) for line in lasts], format_bits))
    row += [_one({numbers(run.plans[-1].cuts) for run in runs if run.plans}, "cuts")]
    row += [_one({numbers(run.plans[-1].intervals) for run in runs if run.plans}, "intervals")]
    return [*row, both(list(dict.fromkeys(ended_by(run) for run in runs)))]


def _one(values: set[str], what: str) -> str:
    """What all seeds have, or how many different ones there are."""
    return next(iter(values), "") if len(values) < 2 else f"{len(values)} different {what}"
