"""Trained runs, kept by what they learn from, so that none is trained twice.

The content of a run is its model, data, partition, seed, optimiser, tree of machines, codes of links and strategy: all
but how fast the machines are. A stored run of the same content is taken over, with the clock run again, if its strategy
chooses the same plans on the machines wanted; else the run is trained.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from hsfl import api
from hsfl.errors import DivergedError, HsflError
from hsfl.files import write_whole
from hsfl.problem.codes import PLAIN, LinkCodes
from hsfl.records import Summary
from hsfl.runs.callback import Callback
from hsfl.runs.reading import Run
from hsfl.runs.resuming import changes
from hsfl.runs.retiming import retimed
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy

#: How a run ended whose loss was no longer finite.
DIVERGED = "diverged"
#: The fields of [execution] that matter for neither the weights nor the plans.
_ASIDE = {"device", "backend", "checkpoint_every", "keep_checkpoints"}
#: The fields of [strategy] that matter only for strategies that plan more than once, or that need constants.
_PLANNING, _MEASURING = {"replan_every"}, {"constants", "probe_batches", "planner", "drift"}


class Store:
    """A folder of run folders, without their weights."""

    def __init__(self, folder: Path, data: Path | None = None) -> None:
        self.folder, self.data = folder, data
        self.trained: list[Path] = []
        """The runs this store had to train."""
        self._known: dict[str, list[Run]] = {}

    def find(self, scenario: Scenario) -> Run | None:
        """The stored run that is also the run of this scenario; None where there is none."""
        for run in self._runs(content(scenario)):
            if run.finished and (found := retimed(run, scenario)) is not None:
                return found
        return None

    def run(self, scenario: Scenario, callbacks: Sequence[Callback] = ()) -> Run:
        """The run of a scenario: as stored, else gone on with if it was interrupted, else trained."""
        if (found := self.find(scenario)) is not None:
            return found
        key = content(scenario)
        runs = self._runs(key)
        begun = next((run for run in runs if not run.finished and run.scenario == scenario.raw), None)
        number = 1 + max((int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{key}-*")), default=0)
        folder = begun.folder if begun is not None else self.folder / f"{key}-{number}"
        self.trained.append(folder)
        if begun is not None:
            runs.remove(begun)
        train_or_go_on(scenario, folder, callbacks, self.data)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "model.safetensors").unlink(missing_ok=True)
        runs.append(Run.load(folder))
        return runs[-1]

    def _runs(self, key: str) -> list[Run]:
        if key not in self._known:
            self._known[key] = []
            for path in sorted(self.folder.glob(f"{key}-*")):
                try:
                    run = Run.load(path)
                except HsflError:  # killed before it began, or damaged: another takes its place
                    continue
                if run.summary is None or (run.metrics and run.metrics[-1].round == run.summary.rounds):
                    self._known[key].append(run)
        return self._known[key]


def train_or_go_on(
    scenario: Scenario, folder: Path, callbacks: Sequence[Callback] = (), data: Path | None = None
) -> None:
    """Train into a folder, from where a run that is there stands; one that diverges is a run that ended."""
    started = perf_counter()
    try:
        if (folder / "scenario.toml").exists():
            given: dict[str, Any] = {"data": data, **scenario.objects}
            api.resume(folder, changes(scenario), callbacks=callbacks, **given)
        else:
            api.train(scenario, callbacks=callbacks, out=folder, data=data)
    except DivergedError as error:
        if not folder.exists():  # the model as it starts
            raise
        _close(folder, str(error), perf_counter() - started)


def _close(folder: Path, why: str, wall_s: float) -> None:
    """End a diverged run where it diverged: it is a result, too."""
    last = Run.load(folder).metrics[-1]
    summary = Summary(ended=DIVERGED, why=why, rounds=last.round, time_s=last.time_s, wall_s=wall_s)
    write_whole(folder / "summary.json", summary.to_line().encode(), replace=True)


def content(scenario: Scenario) -> str:
    """A name for all that a run's weights come from; runs that differ in machines only may have the same."""
    spec = scenario.spec
    seed = spec.seed if spec.training.seed is None else spec.training.seed
    strategy = make_strategy(scenario)
    aside = {"name", "seed"} | (set() if strategy.replans else _PLANNING)
    aside |= set() if strategy.needs_constants else _MEASURING
    parts: dict[str, Any] = {
        "model": spec.model.model_dump(exclude_defaults=True),
        "data": spec.data and spec.data.model_dump(exclude_defaults=True),
        "training": spec.training.model_dump(exclude={"seed"}, exclude_defaults=True),
        "stopping": spec.stopping.model_dump(exclude_defaults=True),
        "execution": spec.execution.model_dump(exclude=_ASIDE, exclude_defaults=True),
        "choice": spec.strategy.model_dump(exclude=aside, exclude_defaults=True),
        "strategy": spec.strategy.name if ":" in spec.strategy.name else strategy.name,
        "seeds": [seed, getattr(strategy, "seed", None) if strategy.replans else None],
        "tree": [
            [tier.entities, tier.parents, *_coded(drawn.codes)]
            for tier, drawn in zip(spec.tiers, scenario.system.tree, strict=True)
        ],
        "convergence": _target(scenario) if strategy.needs_constants else None,
        "folder": scenario.folder and str(scenario.folder.resolve()),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(scenario: Scenario) -> str:
    """A name for all of a scenario, machines included, but for the device that trains it."""
    raw = {section: value for section, value in scenario.raw.items() if section != "execution"}
    execution = {field: value for field, value in scenario.raw.get("execution", {}).items() if field not in _ASIDE}
    return hashlib.sha256(repr((raw, execution)).encode()).hexdigest()[:16]


def _coded(codes: LinkCodes) -> list[str]:
    """The names of a tier's codes, if its links are coded or their codes planned."""
    if codes == PLAIN:
        return []
    planned = [f"{link}={','.join(code.name for code in allowed)}" for link, allowed in codes.planned]
    return [codes.up.name, codes.down.name, codes.average.name, *planned]


def _target(scenario: Scenario) -> dict[str, Any]:
    """All that plans depend on besides machines and what is measured."""
    wanted = {"target", "rounds", "slack", "drift"} if scenario.spec.strategy.constants == "measured" else None
    return scenario.spec.convergence.model_dump(include=wanted)
