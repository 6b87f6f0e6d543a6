"""Runs in words and tables, and one HTML page that holds everything it shows."""

from __future__ import annotations

import base64
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

from hsfl.errors import HsflError, MissingExtraError
from hsfl.problem.codes import CODES
from hsfl.problem.units import format_bits, format_seconds
from hsfl.records import PlanRecord, RoundRecord
from hsfl.report.groups import (
    Group,
    accuracies,
    classifies,
    clients_per_round,
    differences,
    ended_by,
    groups,
    run_labels,
)
from hsfl.report.measured import kind_of_time, parts_of_a_round, time_of, what_times_are
from hsfl.report.traffic import traffic_rows
from hsfl.report.verdicts import SPREADS, grouped_headline, grouped_rows, spread
from hsfl.report.words import both, counted, each_round, forecast_text, left_out, numbers, percent, planned_codes
from hsfl.runs.reading import Run, common_target, total_bytes
from hsfl.scenario.toml_format import dotted
from hsfl.scenario.varying import value_text

#: Of a long list of plans, so many at either end are shown.
PLANS_SHOWN = 20
#: How many letters the values of a field in which runs differ may have to be shown.
SHORT = 40


@dataclass(frozen=True)
class Picture:
    """A figure of the page: the name of its file, what one sees, and the run it is of (None: of all)."""

    name: str
    caption: str
    png: bytes
    run: Run | None = None

    @property
    def source(self) -> str:
        """All of it, as an address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class _Cells:
    """A table of the page."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def right(self) -> list[bool]:
        """Which columns hold nothing but numbers, and so belong to the right."""
        return [all(re.match(r"[-\d–…]|$", row[i]) for row in self.rows) for i in range(len(self.header))]


def check(runs: Sequence[Run]) -> None:
    """Refuse what cannot be shown: no run, and one that has not begun."""
    if not runs:
        raise HsflError("no run is given; give at least one folder of a run")
    for run in runs:
        if not run.metrics:
            raise HsflError(f"{run.folder / 'metrics.jsonl'}: holds no round yet; wait until the run has begun")


def headline(runs: Sequence[Run]) -> str:
    """The comparison in one sentence; of a single run, what it reached."""
    if len(runs) == 1:
        return _achievement(runs[0])
    found = groups(runs)
    if any(group.several for group in found):
        return grouped_headline(runs, found)
    target = common_target(runs)
    if not classifies(runs):
        evaluated = [(run.evaluations(), label) for run, label in zip(runs, run_labels(runs), strict=True)]
        least, lowest = min((lines[-1].test_loss or 0.0, label) for lines, label in evaluated if lines)
        return f"{lowest} has the lowest test loss at the end, {least:.4g}."
    if target is None:
        return f"The {len(runs)} runs reach no common test accuracy above the one they started with."
    times = [run.time_to_accuracy(target) or 0.0 for run in runs]
    (best, first), *others = sorted(zip(times, run_labels(runs), strict=True), key=lambda pair: pair[0])
    kinds = f" {what_times_are(runs)}" if kind_of_time(runs) == "time" else ""
    ratios = [f"{time / best:.2f} times as fast as {name}" for time, name in others]
    if len(ratios) > 5:
        ratios = [f"{others[0][0] / best:.2f} to {others[-1][0] / best:.2f} times as fast as the other {len(others)}"]
    goal = f"{percent(target, 1)} test accuracy (the most that all {len(runs)} runs reach, rounded down to 0.5 points)"
    return (
        f"{first} is the first to reach {goal}, after {format_seconds(best)} of {kind_of_time(runs)}: {both(ratios)}."
        f"{kinds}"
    )


def _achievement(run: Run) -> str:
    last, evaluations = run.metrics[-1], run.evaluations()
    if not evaluations:
        return f"{run.name} has not been evaluated after {_moment(last)}."
    now, sent = evaluations[-1], f"{format_bits(8 * total_bytes(last))} sent"
    if accuracies(run):
        accuracy, best = accuracies(run)[-1], max(accuracies(run))
        reached = f"{run.name} has {percent(accuracy)} test accuracy (at best {percent(best)})"
    else:
        reached = f"{run.name} has a test loss of {now.test_loss:.4g}"
    reached += "".join(f", {name} {value:.4g}" for name, value in now.metrics.items() if value is not None)
    if now.round == last.round:
        return f"{reached} after {_moment(last)} and {sent}."
    return f"{reached} after {_moment(now)}; so far it has gone on to {_moment(last)} and {sent}."


def _moment(line: RoundRecord) -> str:
    kind = "simulated time" if line.planned_s is None else "measured time"
    return f"{counted(line.round, 'round')}, {format_seconds(line.time_s)} of {kind}"


def summary_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The header and one row per run; the time to a common accuracy only where several runs have one.

    Runs that differ in their seeds only have one row together, with their spread.
    """
    found = groups(runs)
    return grouped_rows(runs, found) if any(group.several for group in found) else _rows(runs)


def _rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    target = common_target(runs) if len(runs) > 1 else None
    what, by_loss = ("accuracy", False) if classifies(runs) else ("test loss", True)
    header = ["run", "strategy", "rounds", kind_of_time(runs), f"last {what}", f"best {what}"]
    header += [] if target is None else [f"time to {percent(target, 1)}"]
    header += ["clients per round"] if clients_per_round(runs, runs) else []
    header += ["sent", "last cuts", "last intervals", "ended by"]
    rows = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        last, reached = run.metrics[-1], accuracies(run)
        row = [label, run.strategy, f"{last.round:,}", time_of(run, last.time_s, runs)]
        losses = [line.test_loss for line in run.evaluations() if line.test_loss is not None and by_loss]
        row += [f"{losses[-1]:.4g}", f"{min(losses):.4g}"] if losses else []
        row += [] if losses else [_last_accuracy(run), percent(max(reached))] if reached else ["–", "–"]
        row += [] if target is None else [time_of(run, run.time_to_accuracy(target) or 0.0, runs)]
        row += [*clients_per_round([run], runs), format_bits(8 * total_bytes(last))]
        row += [numbers(run.plans[-1].cuts), numbers(run.plans[-1].intervals)] if run.plans else ["", ""]
        rows.append([*row, ended_by(run)])
    return header, rows


def _last_accuracy(run: Run) -> str:
    """With the round and the time of its evaluation, where the run has gone on since."""
    now, reached = run.evaluations()[-1], percent(accuracies(run)[-1])
    if now.round == run.metrics[-1].round:
        return reached
    return f"{reached} at round {now.round:,}, {format_seconds(now.time_s)}"


def render(runs: Sequence[Run], pictures: Sequence[Picture]) -> str:
    """The page: one file, nothing loaded from elsewhere, every text of a run escaped."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ModuleNotFoundError:
        raise MissingExtraError("Writing the page of runs", "plot") from None
    labels, found = run_labels(runs), groups(runs)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("hsfl.report") / "page.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        title=f"Run {labels[0]}" if len(runs) == 1 else f"{len(runs)} runs: {', '.join(g.label for g in found)}",
        lead=what_you_see(runs),
        summary=_Cells(*summary_rows(runs)),
        every=_Cells(*_rows(runs)) if any(group.several for group in found) else None,
        traffic=_Cells(*traffic_rows(runs)),
        pictures=pictures,
        runs=[
            {
                "label": label,
                "pictures": [picture for picture in pictures if picture.run is run],
                "parts": None if (parts := parts_of_a_round(run)) is None else _Cells(*parts),
                "plans_title": f"Plans ({len(run.plans):,})",
                "plans": _plans(run.plans),
                "constants": _constants(run),
                "environment": _environment(run),
                "scenario_text": run.scenario_text,
            }
            for label, run in zip(labels, runs, strict=True)
        ],
    )
    return page.lstrip() + "\n"


def what_you_see(runs: Sequence[Run]) -> str:
    """The runs in plain words, computed from their data."""
    found, sentences = groups(runs), [_setting(runs), headline(runs)]
    for label, run in zip(run_labels(runs), runs, strict=True):
        if late := Counter(name for line in run.metrics for name in line.late):
            sentences.append(f"Left out of rounds of {label} for being late: {left_out(late)}.")
    target = common_target(runs)
    if len(runs) > 1 and target is not None:
        sentences.append(_sent(found, target))
    if len(runs) > 1:
        sentences.append(differing(runs))
    elif len(runs[0].plans) > 0:
        sentences.append(_plan_sentence(runs[0]))
    unfinished = [label for label, run in zip(run_labels(runs), runs, strict=True) if not run.finished]
    if unfinished:
        sentences.append(f"Not ended, so shown up to now: {', '.join(unfinished)}.")
    if any(group.several for group in found):
        sentences.append(SPREADS)
    if what_times_are(runs) not in sentences[1]:
        sentences.append(what_times_are(runs))
    return " ".join(sentences)


def differing(runs: Sequence[Run]) -> str:
    """In which fields the scenarios of some runs differ, with what each run has where that is short."""
    flat, words = [dotted(run.scenario) for run in runs], []
    for name in differences(runs):
        values = ", ".join(value_text(of.get(name)) for of in flat)
        words.append(f"{name} ({values})" if len(values) <= SHORT else name)
    if len(words) > 8:
        words = [*words[:7], f"{len(words) - 7} other fields"]
    absent = " A dash stands for what a scenario does not say." if "–" in " ".join(words) else ""
    return f"Their scenarios differ in {both(words)}.{absent}" if words else "Their scenarios are the same."


def _setting(runs: Sequence[Run]) -> str:
    texts = []
    for run in runs:
        model, data = run.scenario.get("model", {}), run.scenario.get("data", {})
        names = [section.get("name") or section.get("factory") or "own" for section in (model, data)]
        tiers = " → ".join(_machines(tier) for tier in run.scenario.get("tiers", []))
        kept = ", labels on the devices" if len(run.tier_names) > len(run.scenario["tiers"]) else ""
        texts.append(f"the model {names[0]} trained on the data {names[1]} over {tiers}{kept}")
    count = "One run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{count}: {'; '.join(dict.fromkeys(texts))}."


def _machines(tier: Mapping[str, Any]) -> str:
    """The machines of a tier, and how their links write what they carry, where the scenario says so."""
    code, text = tier.get("code"), counted(tier.get("entities", 1), tier["name"])
    if isinstance(code, Mapping):
        code = ", ".join(f"{link} {name}" for link, name in code.items())
    return f"{text} (links: {code})" if code else text


def _sent(found: Sequence[Group], target: float) -> str:
    sent = []
    for group in found:
        lines = [next(x for x in run.evaluations() if (x.accuracy or 0.0) >= target) for run in group.runs]
        sent.append(f"{group.label} {spread([8.0 * total_bytes(line) for line in lines], format_bits)}")
    return f"Sent until then: {', '.join(sent)}."


def _plan_sentence(run: Run) -> str:
    plans = [(plan.cuts, plan.intervals, plan.codes, plan.micro_batches) for plan in run.plans]
    changes = sum(before != after for before, after in pairwise(plans))
    times = {0: "never changed", 1: "changed once"}.get(changes, f"changed {changes:,} times")
    cuts, intervals, codes, count = plans[-1]
    links = "" if codes is None else f", links in {planned_codes(codes)}"
    chosen = f"{numbers(cuts)} and intervals {numbers(intervals)}{links}{each_round(count)}"
    return f"The plan {times}; the last has cuts {chosen}."


def _environment(run: Run) -> _Cells:
    environment = run.environment.model_dump(exclude_unset=True)
    if run.environment.command is not None:
        environment["command"] = shlex.join(run.environment.command)
    if run.summary is not None and run.summary.wall_s is not None:
        environment["training took"] = format_seconds(run.summary.wall_s)
    if run.summary is not None and run.summary.seed is not None:
        environment["seed"] = run.summary.seed
    return _Cells(["what", "value"], [[key, str(value)] for key, value in environment.items()])


def _plans(plans: Sequence[PlanRecord]) -> _Cells:
    coded = any(plan.codes is not None for plan in plans)
    counted_too = any(plan.micro_batches is not None for plan in plans)
    header = ["after round", "at", "cuts", "intervals", *(["links"] if coded else [])]
    header += ["mini-batches"] if counted_too else []
    header += ["forecast", "by", "kept or shortened because"]
    rows = [
        [
            f"{plan.round:,}",
            format_seconds(plan.time_s) if plan.time_s is not None else "–",
            numbers(plan.cuts),
            numbers(plan.intervals),
            *([planned_codes(plan.codes or [])] if coded else []),
            *([str(plan.micro_batches or "")] if counted_too else []),
            forecast_text(plan.forecast) if plan.forecast is not None else "–",
            plan.strategy or "",
            plan.kept or plan.shortened or "",
        ]
        for plan in plans
    ]
    hidden = len(rows) - 2 * PLANS_SHOWN
    if hidden > 0:
        more = [f"… {hidden:,} more", *[""] * (len(header) - 1)]
        rows = [*rows[:PLANS_SHOWN], more, *rows[-PLANS_SHOWN:]]
    return _Cells(header, rows)


def _constants(run: Run) -> dict[str, Any] | None:
    """The constants of the last plan that was made with any: single numbers, and lists by layer."""
    plan = next((plan for plan in reversed(run.plans) if plan.constants is not None), None)
    if plan is None or plan.constants is None:
        return None
    constants = plan.constants.model_dump()
    noise = constants.pop("coding_noise") or ()
    single = [[_words(k), _digits(v)] for k, v in constants.items() if v is not None and not isinstance(v, list)]
    columns: list[tuple[str, list[Any]]] = []
    for key, value in constants.items():
        tiers, count = run.tier_names, len(value) if isinstance(value, list) else 0
        names = tiers if len(tiers) == count else [str(m + 1) for m in range(count)]
        if key in ("drift_correction", "intervals_in_force"):
            single += [[f"{_words(key)}, {name}", _digits(v)] for name, v in zip(names, value or (), strict=True)]
        elif isinstance(value, list) and value and isinstance(value[0], list):
            columns += [(f"{_words(key)}, {name}", list(v)) for name, v in zip(names, value, strict=True)]
        elif isinstance(value, list):
            columns.append((_words(key), value))
    for link, codes in zip(("↑", "↓"), noise, strict=False):
        columns += [
            (f"noise of {link} {code}", values) for code, values in zip(CODES, codes, strict=False) if any(values)
        ]
    length = max((len(values) for _, values in columns), default=0)
    rows = [
        [str(l + 1), *(_digits(values[l]) if l < len(values) else "–" for _, values in columns)] for l in range(length)
    ]
    layers = _Cells(["layer", *(name for name, _ in columns)], rows)
    return {"round": f"{plan.round:,}", "single": _Cells(["constant", "value"], single), "layers": layers}


def _digits(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
