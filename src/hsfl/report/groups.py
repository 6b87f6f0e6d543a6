"""Runs as they are shown together: their names, what they have in common, and those that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hsfl.problem.profile import FloatArray
from hsfl.records import RoundRecord
from hsfl.report.measured import is_measured
from hsfl.report.words import counted
from hsfl.runs.reading import Run, total_bytes
from hsfl.scenario.schema import ScenarioFile
from hsfl.scenario.toml_format import dotted
from hsfl.scenario.varying import short_name, value_text

#: The fields that hold seeds: of machines and of all that has none of its own, of training, of random plans.
SEEDS = ("seed", "training.seed", "strategy.seed")
_ENDED = {"rounds": "rounds", "time": "time limit", "accuracy": "accuracy reached", "loss": "loss reached"}
#: In the name of a group, so many fields at most.
_NAMED = 3


@dataclass(frozen=True)
class Group:
    """Runs of one scenario and strategy, each with seeds of its own; most often it is one run."""

    label: str
    runs: tuple[Run, ...]
    members: tuple[int, ...]
    """Their places among all that are shown."""

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    def by_seed(self, number: Callable[[Run], float]) -> dict[Any, float]:
        """A number of every run, by its seeds."""
        return {seeds_of(run): number(run) for run in self.runs}


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in their seeds only together, the others each by itself."""
    labels, places = run_labels(runs), seed_groups(runs)
    names = iter(_names([runs[members[0]] for members in places if len(members) > 1]))
    found = []
    for members in places:
        several = len(members) > 1
        label = f"{next(names)} ({counted(len(members), 'seed')})" if several else labels[members[0]]
        found.append(Group(label, tuple(runs[i] for i in members), tuple(members)))
    return found


def seed_groups(runs: Sequence[Run]) -> list[list[int]]:
    """The places of runs that are of one scenario and strategy but for their seeds.

    No group has two runs of the same seeds: one that was run twice is still one seed.
    """
    found: dict[tuple[str, int], list[int]] = {}
    times: dict[tuple[str, Any], int] = {}
    for i, run in enumerate(runs):
        key, seeds = repr((run.strategy, is_measured(run), _without_seeds(run))), seeds_of(run)
        again = times.get((key, seeds), 0)
        times[key, seeds] = again + 1
        found.setdefault((key, again), []).append(i)
    return list(found.values())


def seeds_of(run: Run) -> tuple[int, int, int]:
    """The seeds of machines, of training and of random plans, as they hold where some are not given."""
    spec = ScenarioFile.model_validate(run.scenario)
    training = spec.seed if spec.training.seed is None else spec.training.seed
    return spec.seed, training, training if spec.strategy.seed is None else spec.strategy.seed


def _without_seeds(run: Run) -> ScenarioFile:
    """A run's scenario, typed, so that a field that is given as it is by default is as if it were not given."""
    spec = ScenarioFile.model_validate(run.scenario)
    sections = {name: getattr(spec, name).model_copy(update={"seed": None}) for name in ("training", "strategy")}
    return spec.model_copy(update={"seed": 0, **sections})


def _names(runs: Sequence[Run]) -> list[str]:
    """What groups are called, by a run of each: their strategies, and in what they differ where two have the same."""
    names = [run.strategy for run in runs]
    if len(set(names)) < len(names):
        flat = [dotted(run.scenario) for run in runs]
        differing = [field for field in differences(runs) if field not in (*SEEDS, "strategy.name")][:_NAMED]
        values = [[f"{short_name(field)} {value_text(of.get(field))}" for field in differing] for of in flat]
        names = [", ".join([name, *of]) for name, of in zip(names, values, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, 1)]
    return names


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What the runs are called: their folders, with the folder above where two are alike, else numbered."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.folder.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name} ({i})" for i, run in enumerate(runs, 1)]
    return names


def differences(runs: Sequence[Run]) -> list[str]:
    """The scenario fields in which the runs differ, by their dotted names."""
    flat = [dotted(run.scenario) for run in runs]
    return [name for name in dict.fromkeys(n for f in flat for n in f) if len({repr(f.get(name)) for f in flat}) > 1]


def accuracies(run: Run) -> list[float]:
    """The test accuracies of a run, one per evaluation."""
    return [line.accuracy for line in run.evaluations() if line.accuracy is not None]


def classifies(runs: Sequence[Run]) -> bool:
    """Whether accuracy is what runs are told by: not where they were evaluated without it."""
    return any(map(accuracies, runs)) or not any(run.evaluations() for run in runs)


def losses_on_test(run: Run) -> list[float]:
    """The test losses of a run, one per evaluation."""
    return [line.test_loss for line in run.evaluations() if line.test_loss is not None]


def clients_per_round(runs: Sequence[Run], of: Sequence[Run]) -> list[str]:
    """How many clients took part in the rounds of some runs, a cell of a table; no cell where all did in all `of`."""
    if all(line.took_part is None for run in of for line in run.metrics):
        return []
    clients = runs[0].scenario["tiers"][0].get("entities", 1)
    counts = [clients if x.took_part is None else x.took_part for run in runs for x in run.metrics if x.round > 0]
    if len(set(counts)) < 2:
        return [f"{counts[0] if counts else clients:,} of {clients:,}"]
    return [f"{np.mean(counts):,.4g} ({min(counts):,} to {max(counts):,}) of {clients:,}"]


def ended_by(run: Run) -> str:
    ended = "not ended" if run.summary is None else run.summary.ended
    if run.summary is not None and ended == "callback" and run.summary.why:
        return f"callback: {run.summary.why}"
    return _ENDED.get(ended, ended)


@dataclass(frozen=True)
class Band:
    """Something of several seeds at the rounds that all have: its mean, the least and the most; places are means."""

    time: FloatArray
    round: FloatArray
    bytes: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def band(
    lines: Sequence[Sequence[RoundRecord]], heights: Callable[[list[RoundRecord]], FloatArray | list[float]]
) -> Band:
    """The lines of every run of a group, and what is drawn of them."""
    by_round = [{line.round: line for line in of} for of in lines]
    common = sorted(set.intersection(*(set(of) for of in by_round)))
    shared = [[of[round_] for round_ in common] for of in by_round]
    values = np.array([heights(of) for of in shared], dtype=float).reshape(len(lines), len(common))
    places = np.array([[(x.time_s, x.round, total_bytes(x)) for x in of] for of in shared], dtype=float)
    time, round_, sent = places.reshape(len(lines), len(common), 3).mean(0).T
    return Band(time, round_, sent, values.mean(0), values.min(0), values.max(0))
