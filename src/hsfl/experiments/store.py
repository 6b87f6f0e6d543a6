"""Trained runs, kept by what they learn from, so that none is trained twice.

The content of a run is its task (model, data, partition, seed and optimiser), its tree of machines, codes of links and
strategy: all but how fast the machines are, and for how long it is trained. A stored run of the same content is taken
over, with the clock run again, if its strategy chooses the same plans on the machines wanted, as far as it is wanted;
one of the same task, if every tier is averaged after every round in both. Else the run is trained.
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
from hsfl.runs.retiming import in_step, retimed
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy

#: How a run ended whose loss was no longer finite.
DIVERGED = "diverged"
#: The fields of [execution] that matter for neither the weights nor the plans.
_ASIDE = {"device", "backend", "checkpoint_every", "keep_checkpoints"}
#: The fields of [strategy] that matter only for strategies that plan more than once, or that need constants.
_PLANNING, _MEASURING = {"replan_every"}, {"constants", "probe_batches", "planner", "drift"}
#: The fields of [strategy] that say who chooses what, and not what is known then.
_CHOICE = {"name", "seed", "cuts", "intervals", "local_steps", "planner"}
#: The fields of [convergence] that are not measured.
_TARGET = {"target", "rounds", "slack", "drift"}


class Store:
    """A folder of run folders, without their weights."""

    def __init__(self, folder: Path, data: Path | None = None) -> None:
        self.folder, self.data = folder, data
        self.trained: list[Path] = []
        """The runs this store had to train."""
        self._known: dict[str, list[Run]] = {}

    def find(self, scenario: Scenario) -> Run | None:
        """The stored run that is also the run of this scenario; None where there is none."""
        own: list[Run] = []
        others: list[Run] = []
        for run in (run for run in self._runs(scenario) if run.finished):
            (own if run.folder.name.startswith(content(scenario)) else others).append(run)
        others.sort(key=lambda run: -run.metrics[-1].round)  # so that it is the same one for all that could be it
        for run in (*own, *(run for run in others if in_step(run, scenario) and _told_alike(run, scenario))):
            if (found := retimed(run, scenario)) is not None:
                return found
        return None

    def run(self, scenario: Scenario, callbacks: Sequence[Callback] = ()) -> Run:
        """The run of a scenario: as stored, else gone on with if it was interrupted, else trained."""
        if (found := self.find(scenario)) is not None:
            return found
        key, runs = content(scenario), self._runs(scenario)
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

    def _runs(self, scenario: Scenario) -> list[Run]:
        """The stored runs of a scenario's task."""
        if (key := task(scenario)) not in self._known:
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


def task(scenario: Scenario) -> str:
    """A name for what is to be learnt, from what and how, whatever machines and plans it is done with."""
    spec = scenario.spec
    seed = spec.seed if spec.training.seed is None else spec.training.seed
    return _name(
        {
            "model": spec.model.model_dump(exclude_defaults=True),
            "data": spec.data and spec.data.model_dump(exclude_defaults=True),
            "training": spec.training.model_dump(exclude={"seed", "chunks"}, exclude_defaults=True),
            "participation": spec.participation.model_dump(exclude_defaults=True),
            "execution": spec.execution.model_dump(exclude=_ASIDE, exclude_defaults=True),
            "seed": seed,
            "clients": scenario.system.num_clients,
            "folder": scenario.folder and str(scenario.folder.resolve()),
        }
    )


def content(scenario: Scenario) -> str:
    """A name for all that a run's weights come from, begun with its task's; runs on other machines may have it too."""
    spec, strategy = scenario.spec, make_strategy(scenario)
    aside = {"name", "seed"} | (set() if strategy.replans else _PLANNING)
    aside |= set() if strategy.needs_constants else _MEASURING
    parts = {
        "choice": spec.strategy.model_dump(exclude=aside, exclude_defaults=True),
        "strategy": spec.strategy.name if ":" in spec.strategy.name else strategy.name,
        "seed": getattr(strategy, "seed", None) if strategy.replans else None,
        "tree": [
            [tier.entities, tier.parents, *_coded(drawn.codes)]
            for tier, drawn in zip(spec.tiers, scenario.system.tree, strict=True)
        ],
        "convergence": _target(scenario) if strategy.needs_constants else None,
    }
    return f"{task(scenario)}-{_name(parts)}"


def shared(scenario: Scenario) -> str:
    """A name that scenarios have in common of which one run may be enough: their content, or, where every tier is
    likely to be averaged after every round, their task."""
    strategy = make_strategy(scenario)
    always = set(scenario.spec.strategy.intervals or ()) == {1}
    by_bound = getattr(strategy, "guarded", False) and scenario.spec.strategy.drift == "paper"
    return task(scenario) if always or by_bound else content(scenario)


def _name(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _told_alike(run: Run, scenario: Scenario) -> bool:
    """Whether the strategy of a scenario would have been told the same while a run was trained."""
    strategy, choice = make_strategy(scenario), scenario.spec.strategy
    if not strategy.needs_constants:
        return True
    before = run.scenario["strategy"], run.scenario.get("convergence", {})
    wanted = scenario.raw["strategy"], scenario.raw.get("convergence", {})
    of_plans = (before[0].keys() | wanted[0].keys()) - _CHOICE
    of_bound = _TARGET if choice.constants == "measured" else before[1].keys() | wanted[1].keys()
    return all(
        old.get(field) == new.get(field)
        for old, new, fields in zip(before, wanted, (of_plans, of_bound), strict=True)
        for field in fields
    )


def fingerprint(scenario: Scenario, *, ends: bool = True) -> str:
    """A name for all of a scenario, machines included, but for the device that trains it, and when it ends if so."""
    aside = {"execution"} if ends else {"execution", "stopping"}
    raw = {section: value for section, value in scenario.raw.items() if section not in aside}
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
    measured = scenario.spec.strategy.constants == "measured"
    return scenario.spec.convergence.model_dump(include=_TARGET if measured else None)
