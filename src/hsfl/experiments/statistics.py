"""What is read off a run: how good it gets, how fast, and when it has converged; and the same over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import Any

import numpy as np

from hsfl.experiments.confidence import confidence
from hsfl.experiments.result import EXCEEDS, OPEN, Panel, Series, judged
from hsfl.experiments.store import DIVERGED
from hsfl.records import RoundRecord
from hsfl.runs.reading import Run, total_bytes
from hsfl.runs.stopping import WINDOW, is_converged

#: The last evaluations whose mean is a run's final accuracy: single ones jump by a point.
LAST = 5
#: A target is reached when the mean of so many evaluations is there: one alone may be a tenth of a run early or late.
TOGETHER = 3
#: A target allows so many times the error of the run it is set by.
MORE_ERROR = 1.25


def diverged(run: Run) -> bool:
    """Whether a run ended because its loss was no longer finite."""
    return run.summary is not None and run.summary.ended == DIVERGED


def evaluations(run: Run) -> list[RoundRecord]:
    """The evaluations of a run. A diverged run gets the missing ones: at its own pace, and as good as untrained."""
    lines = run.evaluations()
    if not diverged(run):
        return lines
    every, last = run.scenario["execution"]["evaluate_every"], run.metrics[-1]
    later = range(lines[-1].round, run.scenario["stopping"]["rounds"], every)
    for r in (round_ + every for round_ in later):
        times = r / max(1, last.round)
        sent = {link: round(times * size) for link, size in last.bytes.items()}
        lines.append(lines[0].model_copy(update={"round": r, "time_s": times * last.time_s, "bytes": sent}))
    return lines


def up_to(run: Run, rounds: int) -> Run:
    """The first rounds of a run, as if it had been trained for no more."""
    scenario = {**run.scenario, "stopping": {**run.scenario["stopping"], "rounds": rounds}}
    return replace(run, scenario=scenario, metrics=[line for line in run.metrics if line.round <= rounds])


def paired(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs seed by seed, as far as both were trained: what is no headline has the first seeds only."""
    return list(zip(runs, others, strict=False))


def _accuracies(lines: Sequence[RoundRecord]) -> list[float]:
    """The test accuracies of evaluated rounds."""
    return [line.accuracy for line in lines if line.accuracy is not None]


def final_accuracy(run: Run) -> float:
    """The mean of the last evaluations."""
    return float(np.mean(_accuracies(evaluations(run)[-LAST:])))


def time_to(run: Run, target: float, count: str = "time_s") -> float:
    """Simulated seconds (or `count="round"`) to the evaluation of training with which the mean of the last `TOGETHER`,
    fewer at the beginning, is at the target; infinite if there is none."""
    lines = [line for line in run.evaluations() if line.round > 0 and line.accuracy is not None]
    for k, line in enumerate(lines):
        if np.mean(_accuracies(lines[max(0, k + 1 - TOGETHER) : k + 1])) >= target:
            return float(getattr(line, count))
    return inf


def end_s(run: Run) -> float:
    return float(evaluations(run)[-1].time_s)


@dataclass(frozen=True)
class Converged:
    """Where a run converged: at the first evaluation that ends `WINDOW` ones whose mean gains less than 0.02 points on
    the `WINDOW` before; the accuracy is that mean. A run that does not is taken at its end, and one that diverged never
    converges."""

    accuracy: float
    time_s: float
    reached: bool


def converged(run: Run) -> Converged:
    lines = evaluations(run)
    accuracies = _accuracies(lines)
    found = next((k for k in range(1, len(lines) + 1) if is_converged(accuracies[:k]) and not diverged(run)), None)
    k = found or len(lines)
    window = accuracies[max(0, k - WINDOW) : k]
    return Converged(float(np.mean(window)), float(lines[k - 1].time_s), found is not None)


def target_of(runs: Sequence[Run]) -> float:
    """A target that a good run reaches: `MORE_ERROR` times the mean final error of some, rounded down to 0.01."""
    return whole_percent(1 - MORE_ERROR * (1 - float(np.mean([final_accuracy(run) for run in runs]))))


def whole_percent(accuracy: float) -> float:
    """An accuracy rounded down to a whole percent."""
    return floor(100 * accuracy + 1e-9) / 100


def has_learnt(run: Run) -> bool:
    """Whether a run ends at least 5 points above the model it began with."""
    return final_accuracy(run) >= _accuracies(evaluations(run))[0] + 0.05


def over_seeds(label: str, runs: Sequence[Run], x: Callable[[RoundRecord], float]) -> Series:
    """Accuracy in percent against something of an evaluation: the mean, the least and the most of all seeds."""
    lines = [evaluations(run) for run in runs]
    count = min(map(len, lines))
    xs = np.array([[x(line) for line in of_run[:count]] for of_run in lines])
    ys = 100 * np.array([_accuracies(of_run[:count]) for of_run in lines])
    band = (ys.min(0).tolist(), ys.max(0).tolist()) if len(runs) > 1 else ((), ())
    return Series(label, xs.mean(0).tolist(), ys.mean(0).tolist(), *band)


def minutes(line: RoundRecord) -> float:
    return line.time_s / 60


def curves(
    title: str,
    runs: Mapping[str, Sequence[Run]],
    x: Callable[[RoundRecord], float] = minutes,
    x_label: str = "simulated minutes",
    **look: Any,
) -> Panel:
    """Accuracy of runs by label; `look` is more of the panel."""
    return Panel(title, x_label, "test accuracy (%)", [over_seeds(label, of, x) for label, of in runs.items()], **look)


def gigabytes(line: RoundRecord) -> float:
    return total_bytes(line) / 1e9


def _surely_more(interval: tuple[float, float], nothing: float, count: int) -> bool | None:
    if count < 2 or interval[0] <= nothing < interval[1]:
        return None
    return interval[0] > nothing


def _with_interval(text: str, interval: tuple[float, float], form: str, count: int) -> str:
    if count < 2 or not all(map(isfinite, interval)):
        return text
    low, high = (f"{end:{form}}" for end in interval)
    return text if low == high else f"{text}, 95 %: {low} to {high}"


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def missed(self) -> int:
        """The seeds in which the number is infinite: what it counts never came."""
        return sum(not isfinite(v) for v in self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean over seeds; of one seed, the number."""
        return confidence(self.values) if not self.missed else (self.low, self.high)

    @property
    def surely_more(self) -> bool | None:
        """Whether the mean is above 0 for sure, or for sure not; None where the seeds cannot tell."""
        return _surely_more(self.interval, 0.0, len(self.values))

    def with_interval(self, digits: int = 1, sign: str = "-") -> str:
        """What `text` says, and the confidence interval."""
        return _with_interval(self.text(digits, sign), self.interval, f"{sign}z.{digits}f", len(self.values))

    def text(self, digits: int = 1, sign: str = "-") -> str:
        """The mean and the range; `sign="+"` marks what is positive too."""
        if self.missed:
            return "never" if self.missed == len(self.values) else f"never in {self.missed} of {len(self.values)}"
        mean, low, high = (f"{v:{sign}z.{digits}f}" for v in (self.mean, self.low, self.high))
        return mean if len(self.values) == 1 else f"{mean} ({low} to {high})"


def finals(runs: Sequence[Run]) -> Spread:
    """The final accuracies of runs in percent."""
    return Spread(tuple(100 * final_accuracy(run) for run in runs))


def ahead(runs: Sequence[Run], others: Sequence[Run]) -> Spread:
    """By how many points some runs end above others, seed by seed."""
    return Spread(tuple(100 * (final_accuracy(one) - final_accuracy(other)) for one, other in paired(runs, others)))


def times_to(runs: Sequence[Run], target: float, count: str = "time_s") -> Spread:
    """The time to the target of each run, as `time_to` has it."""
    return Spread(tuple(time_to(run, target, count) for run in runs))


@dataclass(frozen=True)
class Ratio:
    """How many times longer others take to a target, seed by seed; a run that never gets there counts with its end."""

    values: tuple[float, ...]
    never: int
    """The number of seeds in which the other ends without reaching the target."""

    @property
    def mean(self) -> float:
        """The geometric mean; 0 where the first itself never gets there."""
        return float(np.exp(np.mean(np.log(self.values)))) if min(self.values, default=0.0) > 0 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the geometric mean over seeds; of one seed, the number."""
        if not self.mean:
            return 0.0, 0.0
        low, high = confidence(np.log(self.values))
        return float(np.exp(low)), float(np.exp(high))

    @property
    def surely_more(self) -> bool | None:
        """Whether it is above 1 for sure, or for sure not; None where the seeds cannot tell."""
        if not self.mean:  # the first does not get there
            return None if len(self.values) < 2 else False
        found = _surely_more(self.interval, 1.0, len(self.values))
        return found or (None if self.never else found)  # a lower bound shows nothing else

    def with_interval(self, digits: int = 1) -> str:
        """What `text` says, and the confidence interval, which lower bounds do not have."""
        count = len(self.values) if self.mean and not self.never else 0
        return _with_interval(self.text(digits), self.interval, f".{digits}f", count)

    def judged(self, paper: float) -> str:
        """The verdict on "so many times as fast".

        Lower bounds are judged by their mean. Where no seed gets there at all, a ratio would be without end.
        """
        if self.never and self.never == len(self.values):
            return EXCEEDS if self.mean > 1 else OPEN
        interval = (self.mean, self.mean) if self.never else self.interval
        return judged(self.mean, *interval, paper, nothing=1.0)

    def text(self, digits: int = 1) -> str:
        if not self.mean:
            return "target missed"
        text = f"{self.mean:.{digits}f}x"
        if len(self.values) > 1:
            text += f" ({min(self.values):.{digits}f} to {max(self.values):.{digits}f})"
        if self.never == len(self.values):
            return f"never, so more than {text}"
        return f"more than {text}" if self.never else text


def slowdown(others: Sequence[Run], firsts: Sequence[Run], target: float, count: str = "time_s") -> Ratio:
    values, never = [], 0
    for other, first in paired(others, firsts):
        took, best = time_to(other, target, count), time_to(first, target, count)
        if not isfinite(took):
            never += 1
            took = float(getattr(evaluations(other)[-1], count))
        values.append(took / best if isfinite(best) else 0.0)
    return Ratio(tuple(values), never)
