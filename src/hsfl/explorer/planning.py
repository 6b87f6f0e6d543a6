"""What the plan page asks: a plan for changed fields, plans of one's own, alternatives, sweeps, the file and commands.

Nothing is kept between requests: a request holds all that its window shows, so windows do not disturb each other.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hsfl import api
from hsfl.errors import HsflError, ScenarioError
from hsfl.explorer.server import Gone, GoneError
from hsfl.planner.baselines import alternatives
from hsfl.planner.result import PlanResult
from hsfl.problem.profile import LayerProfile
from hsfl.report.colours import tier_colour
from hsfl.report.plan_view import compare_view, evaluation_view, plan_view, sweep_view
from hsfl.scenario.catalog import scenario_names
from hsfl.scenario.form import form, may_turn
from hsfl.scenario.scenario import Profiler, Scenario
from hsfl.scenario.schema import ModelSection
from hsfl.scenario.template import scenario_text
from hsfl.scenario.toml_format import toml_or_text

#: A search that takes longer answers with the best so far and what is proven of it.
TIME_LIMIT_S = 5.0
_SWEPT = 41

Text = Annotated[str, Field(max_length=20_000)]


class Asked(BaseModel):
    """A request: known fields of the right types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OwnPlan(Asked):
    """A plan by hand; without intervals it takes the best ones for its cuts."""

    cuts: Annotated[list[int], Field(max_length=64)]
    intervals: Annotated[list[int], Field(max_length=64)] | None = None


class PlanAsked(Asked):
    """All that a window shows of a scenario."""

    scenario: Annotated[str, Field(max_length=200)] = ""
    """The name of a built-in scenario; empty for the one that was given."""
    changes: Annotated[dict[str, Text], Field(max_length=1000)] = {}
    """Fields by path, as one writes them; empty text removes a field."""
    own: OwnPlan | None = None
    allow_empty_tiers: bool = False
    optimize_learning_rate: bool = False


class SweepAsked(PlanAsked):
    """What a window shows, and a sweep of one field besides."""

    field: Text
    values: Annotated[list[Text], Field(min_length=1, max_length=_SWEPT)]


class PlanPage:
    """Answers about one scenario, and about the built-in ones. `command` is how hsfl plan would be given it."""

    def __init__(self, scenario: Scenario, command: str | None) -> None:
        self._given = replace(scenario, profiler=_once(scenario.profiler))
        self._command = command

    def start(self) -> dict[str, Any]:
        """What a window begins with."""
        given = self._given.name
        return {"given": given, "scenarios": [name for name in scenario_names() if name != self._command]}

    def plan(self, asked: PlanAsked, gone: Gone) -> dict[str, Any]:
        """The plan and everything around it, and a plan by hand beside it."""
        base = self._base(asked)
        scenario = _changed(base, asked)
        result = api.plan(scenario, **_options(asked))
        problem = scenario.problem
        view = plan_view(problem, result, scenario.caveat)
        return view | {
            **_fields(scenario, base),
            "own": _own(scenario, result, asked),
            "commands": self._commands(asked),
        }

    def compare(self, asked: PlanAsked, gone: Gone) -> dict[str, Any]:
        """What other ways of choosing would cost."""
        scenario = _changed(self._base(asked), asked)
        result = api.plan(scenario, **_options(asked))
        problem = replace(scenario.problem, learning_rate=result.evaluation.learning_rate)
        others = []
        for other in alternatives(problem, result.plan, allow_empty_tiers=asked.allow_empty_tiers):
            others.append(other)
            if gone():
                raise GoneError
        return {"rows": compare_view(result, others)}

    def sweep(self, asked: SweepAsked, gone: Gone) -> dict[str, Any]:
        """The plan for every value of a field."""
        scenario = _changed(self._base(asked), asked)
        _check_field(scenario, asked.field)
        points: list[PlanResult | HsflError] = []
        for value in asked.values:
            points += api.plan_sweep(scenario, asked.field, [toml_or_text(value)], **_options(asked))
            if gone():
                raise GoneError
        shown = sweep_view(asked.values, points, scenario.tier_names, scenario.source)
        return {"field": asked.field, "points": shown}

    def file(self, asked: PlanAsked, gone: Gone) -> dict[str, Any]:
        """The scenario as a file, every field explained."""
        scenario = _changed(self._base(asked), asked)
        spec = scenario.spec
        named = [spec.model.profile, spec.data and spec.data.assignments, spec.dynamics and spec.dynamics.trace]
        relative = [name for name in (*named, spec.model.factory, spec.data and spec.data.factory) if name]
        note = f"It names {', '.join(relative)}: put the file into {scenario.folder}." if relative else ""
        return {"name": "scenario.toml", "text": scenario_text(scenario.raw), "note": note}

    def wrong(self, error: HsflError, asked: PlanAsked) -> dict[str, Any]:
        """What is wrong, without the scenario's name, and in which field: one that the sentence names, or the last."""
        source = f"scenario {asked.scenario}" if asked.scenario else self._given.source
        named = [path for path in asked.changes if path in str(error)] or list(asked.changes)
        sentence = str(error).removeprefix(f"{source}: ")
        return {"error": sentence, "field": named[-1] if named else None, **self._form(asked)}

    def _form(self, asked: PlanAsked) -> dict[str, Any]:
        """The fields of the form, so that they can be put right even where no plan was ever made."""
        try:
            base = self._base(asked)
        except HsflError:
            return {}
        try:
            scenario = _changed(base, asked)
        except HsflError:
            scenario = base
        tiers = [{"name": name, "colour": tier_colour(m)} for m, name in enumerate(scenario.tier_names)]
        return {**_fields(scenario, base), "tiers": tiers}

    def _base(self, asked: PlanAsked) -> Scenario:
        if not asked.scenario:
            return self._given
        if asked.scenario not in scenario_names():
            raise ScenarioError(
                f"scenario = {asked.scenario}: no such built-in scenario; there are {', '.join(scenario_names())}"
            )
        return api.load_scenario(asked.scenario)

    def _commands(self, asked: PlanAsked) -> dict[str, str]:
        """The commands that do the same; where a field is taken away they need the saved file."""
        name = asked.scenario or self._command
        if name is None or not all(asked.changes.values()):
            name, changes = "scenario.toml", {}
        else:
            changes = dict(asked.changes)
        fields = [word for path, text in changes.items() for word in ("--set", f"{path}={text}")]
        plan = ["hsfl", "plan", name, *fields]
        plan += ["--allow-empty-tiers"] if asked.allow_empty_tiers else []
        plan += ["--optimize-learning-rate"] if asked.optimize_learning_rate else []
        train = ["hsfl", "train", name, *fields]
        if asked.own is not None:
            train += ["--strategy", "fixed", "--cuts", ",".join(map(str, asked.own.cuts))]
            if asked.own.intervals is not None:
                train += ["--intervals", ",".join(map(str, asked.own.intervals))]
        return {"plan": shlex.join(plan), "train": shlex.join(train), "save_first": str(name == "scenario.toml")}


def _fields(scenario: Scenario, base: Scenario) -> dict[str, Any]:
    """The fields as they are in a window, and as they were."""
    return {"fields": [asdict(field) for field in form(scenario)], "base": [asdict(field) for field in form(base)]}


def _options(asked: PlanAsked) -> dict[str, Any]:
    return {
        "allow_empty_tiers": asked.allow_empty_tiers,
        "optimize_learning_rate": asked.optimize_learning_rate,
        "time_limit_s": TIME_LIMIT_S,
    }


def _changed(base: Scenario, asked: PlanAsked) -> Scenario:
    """The scenario with the fields of a window; only fields of the form can be changed."""
    for path in asked.changes:
        _check_field(base, path)
    overrides: Mapping[str, Any] = {path: toml_or_text(text) if text else None for path, text in asked.changes.items()}
    return base.with_overrides(overrides) if overrides else base


def _check_field(scenario: Scenario, path: str) -> None:
    if not may_turn(scenario, path):
        raise ScenarioError(f"{path}: not a field that can be changed here; change it in the scenario file")


def _own(scenario: Scenario, result: PlanResult, asked: PlanAsked) -> dict[str, Any] | None:
    """A plan by hand with what it costs against the best one, or why it cannot be a plan."""
    if asked.own is None:
        return None
    planned = scenario.with_overrides({"training.learning_rate": result.evaluation.learning_rate})
    own, problem = asked.own, planned.problem
    try:
        found = api.evaluate(planned, own.cuts, own.intervals, allow_empty_tiers=asked.allow_empty_tiers)
    except HsflError as error:
        return {"error": str(error).removeprefix(f"{scenario.source}: ")}
    slowdown = found.objective_s / result.objective_s if found.reaches_target and result.objective_s else None
    return evaluation_view(problem, found) | {"slowdown": slowdown, "best_intervals": own.intervals is None}


def _once(profiler: Profiler) -> Profiler:
    """A model of one's own is built and measured once, however often fields are changed."""
    known: dict[str, LayerProfile] = {}

    def profile(model: ModelSection, folder: Path | None, given: Any) -> LayerProfile:
        key = model.model_dump_json()
        if key not in known:
            known[key] = profiler(model, folder, given)
        return known[key]

    return profile
