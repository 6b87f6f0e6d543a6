"""A run folder, read: what a training wrote about itself."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from hsfl.display import table
from hsfl.errors import HsflError
from hsfl.problem.topology import with_tail
from hsfl.problem.units import format_bits, format_seconds
from hsfl.records import Environment, Labels, PlanRecord, Record, RoundRecord, Summary
from hsfl.scenario.field_errors import first_problem
from hsfl.scenario.schema import ScenarioFile
from hsfl.scenario.toml_format import dotted

R = TypeVar("R", bound=Record)
#: What a field must be, in words, by pydantic's name for the check that failed.
_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "greater_than_equal": "at least 0",
}


@dataclass(frozen=True, repr=False)
class Run:
    """Everything in a run folder but the weights; while the run goes on, everything up to now.

    `metrics` has a record per round and `plans` one per plan, `summary` is None until the run has ended, and `labels`
    is None for data without labels.
    """

    folder: Path
    scenario: dict[str, Any]
    scenario_text: str
    environment: Environment
    metrics: list[RoundRecord]
    plans: list[PlanRecord]
    labels: Labels | None
    summary: Summary | None

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run folder; a line torn off at the end of a file, as a killed process leaves it, is left out."""
        folder = Path(folder)
        try:
            is_folder, is_run = folder.is_dir(), (folder / "scenario.toml").is_file()
        except (OSError, ValueError) as error:  # no path at all
            raise HsflError(f"{str(folder)[:80]}: {getattr(error, 'strerror', None) or error}; {_GIVE}") from None
        if not is_folder:
            raise HsflError(f"{folder}: {'is not a folder' if folder.exists() else 'does not exist'}; {_GIVE}")
        if not is_run:
            raise HsflError(f"{folder}: not a run (it has no scenario.toml); {_GIVE}")
        text = _read(folder / "scenario.toml").decode("utf-8-sig", errors="replace")
        run = cls(
            folder,
            _scenario(folder / "scenario.toml", text),
            text,
            _object(folder / "environment.json", Environment),
            _lines(folder / "metrics.jsonl", RoundRecord),
            _lines(folder / "plans.jsonl", PlanRecord),
            _optional(folder / "labels.json", Labels),
            _optional(folder / "summary.json", Summary),
        )
        run._check()
        return run

    def _check(self) -> None:
        """HsflError where lines that are right by themselves cannot be of one run."""
        metrics, tiers, time = self.folder / "metrics.jsonl", len(self.tier_names), 0.0
        for line in self.metrics:
            if not time <= line.time_s < inf:
                raise HsflError(f"{metrics}: round {line.round} is at {line.time_s} s after {time} s; {_AGAIN}")
            if line.accuracy is not None and not 0 <= line.accuracy <= 1:
                raise HsflError(
                    f"{metrics}: the accuracy of round {line.round} is {line.accuracy}, not a share; {_AGAIN}"
                )
            time = line.time_s
        for plan in self.plans:
            if (len(plan.cuts), len(plan.intervals), len(plan.codes or plan.intervals)) != (tiers - 1, tiers, tiers):
                raise HsflError(
                    f"{self.folder / 'plans.jsonl'}: the plan after round {plan.round} has {len(plan.cuts)} cuts and "
                    f"{len(plan.intervals)} intervals for {tiers} tiers; {_AGAIN}"
                )

    def __repr__(self) -> str:
        rounds = self.metrics[-1].round if self.metrics else 0
        return f"<Run {self.folder}: {self.strategy}, {rounds} rounds{'' if self.finished else ', not ended'}>"

    def _repr_html_(self) -> str:
        rows = [("strategy", self.strategy), ("ended by", "not ended" if self.summary is None else self.summary.ended)]
        if self.metrics:
            last = self.metrics[-1]
            kind = "simulated" if last.planned_s is None else "measured"
            rows += [("rounds", f"{last.round:,}"), ("time", f"{format_seconds(last.time_s)} {kind}")]
            rows.append(("sent", format_bits(8 * total_bytes(last))))
        reached = [line.accuracy for line in self.evaluations() if line.accuracy is not None]
        if reached:
            rows.append(("test accuracy", f"{reached[-1]:.2%}, at best {max(reached):.2%}"))
        if evaluated := self.evaluations():
            counted = {"loss": evaluated[-1].test_loss, **evaluated[-1].metrics}
            rows += [(f"test {name}", f"{value:.4g}") for name, value in counted.items() if value is not None]
        if self.plans:
            rows.append(("last cuts", ", ".join(map(str, self.plans[-1].cuts))))
        return table(f"Run {self.folder}", rows)

    @property
    def name(self) -> str:
        return self.folder.name or self.folder.resolve().name

    @property
    def strategy(self) -> str:
        """Who chose cuts and intervals."""
        ended = self.summary.strategy if self.summary is not None else None
        return str(ended or self.scenario.get("strategy", {}).get("name") or "HSFL")

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def tier_names(self) -> list[str]:
        names = [str(tier["name"]) for tier in self.scenario["tiers"]]
        return with_tail(names) if self.scenario.get("training", {}).get("labels") == "devices" else names

    def evaluations(self) -> list[RoundRecord]:
        """The records of rounds that were evaluated on test data."""
        return [line for line in self.metrics if line.test_loss is not None or line.accuracy is not None]

    def columns(self) -> dict[str, list[Any]]:
        """The metrics as columns of equal lengths, as `pandas.DataFrame(run.columns())` takes them.

        Nested keys are dotted ("bytes.device.up", "drift.device.measured"), and what a line does not have is None.
        """
        rows = [dotted(line.model_dump(exclude_defaults=True)) for line in self.metrics]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def frame(self) -> Any:
        """The metrics as a pandas DataFrame, with the columns of `columns`, one row per round."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError:
            raise HsflError(
                "run.frame() needs pandas: run pip install pandas, or take run.columns(), which needs nothing"
            ) from None
        return pandas.DataFrame(self.columns())

    def time_to_accuracy(self, target: float) -> float | None:
        """Simulated seconds until the first evaluation at or above the accuracy (0 to 1); None where none is."""
        return next((line.time_s for line in self.evaluations() if (line.accuracy or 0.0) >= target), None)


def total_bytes(line: RoundRecord) -> int:
    """All bytes sent up to a round, over all links of all tiers."""
    return sum(line.bytes.values())


def common_target(runs: Sequence[Run]) -> float | None:
    """The largest test accuracy that all runs reach, rounded down to 0.5 points; None where it is no progress."""
    reached = [[line.accuracy for line in run.evaluations() if line.accuracy is not None] for run in runs]
    if not all(reached):
        return None
    lowest = min(map(max, reached))
    steps = round(200 * lowest)
    target = (steps - (steps / 200 > lowest)) / 200
    return target if all(run.time_to_accuracy(target) for run in runs) else None


_GIVE = "give the folder of a run, as hsfl train writes it"
_AGAIN = "bring the file back or train again"


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe may never end
            raise HsflError(f"{path}: a folder, a pipe or a device, not a file; {_AGAIN}")
        return path.read_bytes()
    except FileNotFoundError:
        raise HsflError(f"{path}: missing; wait until the run has begun, or bring the file back") from None
    except OSError as error:
        raise HsflError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None


def _scenario(path: Path, text: str) -> dict[str, Any]:
    """What the file says, once it is known to be a scenario."""
    try:
        raw = tomllib.loads(text)
        ScenarioFile.model_validate(raw)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise HsflError(f"{path}: not valid TOML: {error}; correct that line") from None
    except ValidationError as error:
        raise HsflError(f"{path}: {first_problem(error, raw)}; {_AGAIN}") from None
    return raw


def _lines(path: Path, kind: type[R]) -> list[R]:
    """The records of a JSONL file, whose rounds must rise; a broken last line is the torn end of a killed process."""
    texts = [(number, text) for number, text in enumerate(_read(path).split(b"\n"), 1) if text.strip()]
    lines: list[Any] = []
    for number, text in texts:
        place = f"{path}, line {number}"
        try:
            line = _parsed(place, text, kind)
        except _NoJsonError:
            if number == texts[-1][0]:
                break
            raise HsflError(f"{place}: not valid JSON; remove the line or train again") from None
        if lines and line.round < lines[-1].round:  # type: ignore[attr-defined]
            raise HsflError(f"{place}: round {line.round} comes after round {lines[-1].round}; rounds must rise")  # type: ignore[attr-defined]
        lines.append(line)
    return lines


def _optional(path: Path, kind: type[R]) -> R | None:
    return _object(path, kind) if path.exists() else None


def _object(path: Path, kind: type[R]) -> R:
    try:
        return _parsed(str(path), _read(path), kind)
    except _NoJsonError:
        raise HsflError(f"{path}: not valid JSON; {_AGAIN}") from None


class _NoJsonError(Exception):
    """The text is no JSON at all."""


def _parsed(place: str, text: bytes, kind: type[R]) -> R:
    """A record; HsflError where it is JSON of another form."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["type"] == "json_invalid":
            raise _NoJsonError from None
        field = ".".join(str(k + 1) if isinstance(k, int) else k for k in problem["loc"])
        if not field and problem["type"] == "model_type":
            raise HsflError(f"{place}: not a JSON object; {_AGAIN}") from None
        if problem["type"] == "missing":
            reason = f"{field} is missing"
        elif problem["type"] in _MUST_BE:
            reason = f"{field} must be {_MUST_BE[problem['type']]}"
        else:
            reason = f"{field} {problem['msg'].removeprefix('Value error, ')}".strip()
        raise HsflError(f"{place}: {reason}; {_AGAIN}") from None
