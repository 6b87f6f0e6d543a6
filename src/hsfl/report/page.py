"""Runs in words and tables, and one HTML page that holds everything it shows."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from hsfl.problem.units import format_bits, format_seconds
from hsfl.records import PlanRecord, RoundRecord
from hsfl.report.words import both, counted, numbers
from hsfl.runs.reading import Run, total_bytes
from hsfl.scenario.toml_format import dotted

#: Of a long list of plans, so many at either end are shown.
PLANS_SHOWN = 20
_ENDED = {"rounds": "rounds", "time": "time limit", "accuracy": "accuracy reached"}


@dataclass(frozen=True)
class Picture:
    """A figure of the page: the name of its file, what one sees, and the run it is of (None: of all)."""

    name: str
    caption: str
    png: bytes
    run: Run | None = None


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What the runs are called: their folders, with the folder above where two are alike, else numbered."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.folder.resolve().parent.name}/{run.name}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name} ({i})" for i, run in enumerate(runs, 1)]
    return names


def common_target(runs: Sequence[Run]) -> float | None:
    """The largest test accuracy that all runs reach, rounded down to 0.5 points; None where it is no progress."""
    if not all(run.evaluations() for run in runs):
        return None
    lowest = min(max(accuracies(run)) for run in runs)
    steps = round(200 * lowest)
    target = (steps - (steps / 200 > lowest)) / 200
    return target if all(run.time_to_accuracy(target) for run in runs) else None


def accuracies(run: Run) -> list[float]:
    """The test accuracies of a run, one per evaluation."""
    return [line.accuracy for line in run.evaluations() if line.accuracy is not None]


def headline(runs: Sequence[Run]) -> str:
    """The comparison in one sentence; of a single run, what it reached."""
    if len(runs) == 1:
        return _achievement(runs[0])
    target = common_target(runs)
    if target is None:
        return f"The {len(runs)} runs reach no common test accuracy above the one they started with."
    times = [run.time_to_accuracy(target) or 0.0 for run in runs]
    (best, first), *others = sorted(zip(times, run_labels(runs), strict=True), key=lambda pair: pair[0])
    ratios = [f"{time / best:.2f} times as fast as {name}" for time, name in others]
    if len(ratios) > 5:
        ratios = [f"{others[0][0] / best:.2f} to {others[-1][0] / best:.2f} times as fast as the other {len(others)}"]
    goal = f"{percent(target, 1)} test accuracy (the most that all {len(runs)} runs reach, rounded down to 0.5 points)"
    return f"{first} is the first to reach {goal}, after {format_seconds(best)} of simulated time: {both(ratios)}."


def _achievement(run: Run) -> str:
    last, evaluations = run.metrics[-1], run.evaluations()
    if not evaluations:
        return f"{run.name} has not been evaluated after {_moment(last)}."
    now, best = evaluations[-1], percent(max(accuracies(run)))
    sent = f"{format_bits(8 * total_bytes(last))} sent"
    reached = f"{run.name} has {percent(accuracies(run)[-1])} test accuracy (at best {best})"
    if now.round == last.round:
        return f"{reached} after {_moment(last)} and {sent}."
    return f"{reached} after {_moment(now)}; so far it has gone on to {_moment(last)} and {sent}."


def _moment(line: RoundRecord) -> str:
    return f"{counted(line.round, 'round')}, {format_seconds(line.time_s)} of simulated time"


def summary_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The header and one row per run; the time to a common accuracy only where several runs have one."""
    target = common_target(runs) if len(runs) > 1 else None
    header = ["run", "strategy", "rounds", "simulated time", "last accuracy", "best accuracy"]
    header += [] if target is None else [f"time to {percent(target, 1)}"]
    header += ["sent", "last cuts", "last intervals", "ended by"]
    rows = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        last, reached = run.metrics[-1], accuracies(run)
        row = [label, run.strategy, f"{last.round:,}", format_seconds(last.time_s)]
        row += [_last_accuracy(run), percent(max(reached))] if reached else ["–", "–"]
        row += [] if target is None else [format_seconds(run.time_to_accuracy(target) or 0.0)]
        row.append(format_bits(8 * total_bytes(last)))
        row += [numbers(run.plans[-1].cuts), numbers(run.plans[-1].intervals)] if run.plans else ["", ""]
        rows.append([*row, ended_by(run)])
    return header, rows


def _last_accuracy(run: Run) -> str:
    """With the round and the time of its evaluation, where the run has gone on since."""
    now, reached = run.evaluations()[-1], percent(accuracies(run)[-1])
    if now.round == run.metrics[-1].round:
        return reached
    return f"{reached} at round {now.round:,}, {format_seconds(now.time_s)}"


def ended_by(run: Run) -> str:
    ended = "not ended" if run.summary is None else run.summary.ended
    return _ENDED.get(ended, ended)


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def render(runs: Sequence[Run], pictures: Sequence[Picture]) -> str:
    """The page: one file, nothing loaded from elsewhere."""
    labels = run_labels(runs)
    title = f"Run {labels[0]}" if len(runs) == 1 else f"{len(runs)} runs: {', '.join(labels)}"
    parts = [f"<h1>{escape(title)}</h1>", f"<p class='lead'>{escape(what_you_see(runs))}</p>"]
    parts.append(_table(*summary_rows(runs)))
    parts += [_figure(picture) for picture in pictures if picture.run is None]
    for label, run in zip(labels, runs, strict=True):
        own = "".join(_figure(picture) for picture in pictures if picture.run is run)
        parts.append(f"<section><h2>{escape(label)}</h2>{own}{_run_details(run)}</section>")
    body = "\n".join(parts)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def what_you_see(runs: Sequence[Run]) -> str:
    """The runs in plain words, computed from their data."""
    sentences = [_setting(runs), headline(runs)]
    target = common_target(runs)
    if len(runs) > 1 and target is not None:
        sentences.append(_sent(runs, target))
    if len(runs) > 1:
        different = differences(runs)
        if len(different) > 8:
            different = [*different[:7], f"{len(different) - 7} other fields"]
        same = "Their scenarios are the same."
        sentences.append(f"Their scenarios differ in {both(different)}." if different else same)
    elif len(runs[0].plans) > 0:
        sentences.append(_plan_sentence(runs[0]))
    unfinished = [label for label, run in zip(run_labels(runs), runs, strict=True) if not run.finished]
    if unfinished:
        sentences.append(f"Not ended, so shown up to now: {', '.join(unfinished)}.")
    sentences.append(
        "Times are simulated: what the machines and links of the scenario take, not the computer that trained."
    )
    return " ".join(sentences)


def _setting(runs: Sequence[Run]) -> str:
    texts = []
    for run in runs:
        model, data = run.scenario.get("model", {}), run.scenario.get("data", {})
        names = [section.get("name") or section.get("factory") or "own" for section in (model, data)]
        tiers = " → ".join(counted(tier.get("entities", 1), tier["name"]) for tier in run.scenario.get("tiers", []))
        texts.append(f"the model {names[0]} trained on the data {names[1]} over {tiers}")
    count = "One run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{count}: {'; '.join(dict.fromkeys(texts))}."


def _sent(runs: Sequence[Run], target: float) -> str:
    sent = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        line = next(line for line in run.evaluations() if (line.accuracy or 0.0) >= target)
        sent.append(f"{label} {format_bits(8 * total_bytes(line))}")
    return f"Sent until then: {', '.join(sent)}."


def _plan_sentence(run: Run) -> str:
    pairs = [(plan.cuts, plan.intervals) for plan in run.plans]
    changes = sum(before != after for before, after in pairwise(pairs))
    times = {0: "never changed", 1: "changed once"}.get(changes, f"changed {changes:,} times")
    cuts, intervals = pairs[-1]
    return f"The plan {times}; the last has cuts {numbers(cuts)} and intervals {numbers(intervals)}."


def differences(runs: Sequence[Run]) -> list[str]:
    """The scenario fields in which the runs differ, by their dotted names."""
    flat = [dotted(run.scenario) for run in runs]
    return [name for name in dict.fromkeys(n for f in flat for n in f) if len({repr(f.get(name)) for f in flat}) > 1]


def _figure(picture: Picture) -> str:
    source = "data:image/png;base64," + base64.b64encode(picture.png).decode()
    caption = escape(picture.caption)
    return f"<figure><img src='{source}' alt='{caption}'><figcaption>{caption}</figcaption></figure>"


def _run_details(run: Run) -> str:
    parts = [_details(f"Plans ({len(run.plans):,})", _plans_table(run.plans))]
    planned = [plan for plan in run.plans if plan.constants]
    if planned:
        parts.append(_details("Constants the last plan was made with", _constants(planned[-1], run.tier_names)))
    environment = run.environment.model_dump(exclude_unset=True)
    if run.environment.command is not None:
        environment["command"] = shlex.join(run.environment.command)
    if run.summary is not None and run.summary.wall_s is not None:
        environment["training took"] = format_seconds(run.summary.wall_s)
    if run.summary is not None and run.summary.seed is not None:
        environment["seed"] = run.summary.seed
    rows = [[key, str(value)] for key, value in environment.items()]
    parts.append(_details("Environment", _table(["what", "value"], rows)))
    parts.append(_details("Scenario", f"<pre>{escape(run.scenario_text)}</pre>"))
    return "".join(parts)


def _plans_table(plans: Sequence[PlanRecord]) -> str:
    header = ["after round", "at", "cuts", "intervals", "rounds predicted", "by", "kept because"]
    rows = [
        [
            f"{plan.round:,}",
            format_seconds(plan.time_s) if plan.time_s is not None else "–",
            numbers(plan.cuts),
            numbers(plan.intervals),
            f"{plan.rounds_predicted:,}" if plan.rounds_predicted is not None else "–",
            plan.strategy or "",
            plan.kept or "",
        ]
        for plan in plans
    ]
    hidden = len(rows) - 2 * PLANS_SHOWN
    if hidden > 0:
        more = [f"… {hidden:,} more", *[""] * (len(header) - 1)]
        rows = [*rows[:PLANS_SHOWN], more, *rows[-PLANS_SHOWN:]]
    return _table(header, rows)


def _constants(plan: PlanRecord, tiers: Sequence[str]) -> str:
    assert plan.constants is not None
    constants = plan.constants.model_dump()
    single = [[_words(k), _digits(v)] for k, v in constants.items() if not isinstance(v, list)]
    columns: list[tuple[str, list[Any]]] = []
    for key, value in constants.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            names = tiers if len(tiers) == len(value) else [str(m + 1) for m in range(len(value))]
            columns += [(f"{_words(key)}, {name}", list(v)) for name, v in zip(names, value, strict=True)]
        elif isinstance(value, list):
            columns.append((_words(key), value))
    length = max((len(values) for _, values in columns), default=0)
    rows = [
        [str(l + 1), *(_digits(values[l]) if l < len(values) else "–" for _, values in columns)] for l in range(length)
    ]
    made = f"<p>Made after round {plan.round:,}.</p>"
    layers = _table(["layer", *(name for name, _ in columns)], rows) if rows else ""
    return made + _table(["constant", "value"], single) + layers


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that hold nothing but numbers are set to the right."""
    right = [all(re.match(r"[-\d–…]|$", row[i]) for row in rows) for i in range(len(header))]
    kinds = [" class='n'" if r else "" for r in right]
    head = "".join(f"<th scope='col'{kind}>{escape(text)}</th>" for kind, text in zip(kinds, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _digits(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --dim: #5b6168; --back: #fff; --line: #d8dce1; --band: #f3f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8ea; --dim: #a3abb3; --back: #15181b; --line: #3a4047; --band: #1f2428; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 75rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.lead { max-width: 52rem; font-size: 1.05rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; text-align: left; vertical-align: top; }
th { color: var(--dim); font-weight: 600; border-bottom: 2px solid var(--line); vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); }
.n { text-align: right; }
figure { margin: 2rem 0; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { color: var(--dim); font-size: 0.9rem; max-width: 52rem; }
details { margin: 0.8rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { background: var(--band); padding: 1rem; overflow-x: auto; font-size: 0.85rem; border-radius: 6px; }
@media print {
  :root { --text: #000; --dim: #444; --back: #fff; --line: #bbb; --band: #f5f5f5; color-scheme: light; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure, tr { break-inside: avoid; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
"""
