"""A run folder, read: what a training wrote about itself."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.scenario.toml_format import dotted

_NUMBER = (int, float)
_METRIC = {"loss": _NUMBER, "accuracy": _NUMBER, "test_loss": _NUMBER, "bytes": dict, "losses": list, "drift": dict}
_PLAN = {"time_s": _NUMBER, "strategy": str, "rounds_predicted": _NUMBER, "constants": dict, "kept": str}
_WORDS = {_NUMBER: "a number", int: "a whole number", dict: "an object", list: "a list", str: "text"}


@dataclass(frozen=True, repr=False)
class Run:
    """Everything in a run folder but the weights; of a run that goes on, everything up to now.

    `metrics` and `plans` hold one dict per line of their files, `summary` is None until the run has ended, and
    `labels` is None for data without labels.
    """

    folder: Path
    scenario: dict[str, Any]
    scenario_text: str
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    plans: list[dict[str, Any]]
    labels: dict[str, Any] | None
    summary: dict[str, Any] | None

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run folder; a line torn off at the end of a file, as a killed process leaves it, is left out."""
        folder = Path(folder)
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise HsflError(f"{folder}: {problem}; give the folder of a run, as hsfl train writes it")
        if not (folder / "scenario.toml").is_file():
            raise HsflError(f"{folder}: not a run (it has no scenario.toml); give a folder that hsfl train wrote")
        text = _read(folder / "scenario.toml").decode("utf-8-sig", errors="replace")
        try:
            scenario = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise HsflError(f"{folder / 'scenario.toml'}: not valid TOML: {error}; correct that line") from None
        metrics = _lines(folder / "metrics.jsonl", {"round": int, "time_s": _NUMBER}, _METRIC)
        plans = _lines(folder / "plans.jsonl", {"round": int, "cuts": list, "intervals": list, "layers": int}, _PLAN)
        labels = _optional(folder / "labels.json", {"labels": list, "counts": list}, {})
        summary = _optional(folder / "summary.json", {}, {"ended": str, "strategy": str, "wall_s": _NUMBER})
        environment = _object(folder / "environment.json", {}, {"command": list})
        return cls(folder, scenario, text, environment, metrics, plans, labels, summary)

    def __repr__(self) -> str:
        rounds = self.metrics[-1]["round"] if self.metrics else 0
        return f"<Run {self.folder}: {self.strategy}, {rounds} rounds{'' if self.finished else ', not ended'}>"

    @property
    def name(self) -> str:
        return self.folder.name or self.folder.resolve().name

    @property
    def strategy(self) -> str:
        """Who chose cuts and intervals."""
        given = self.scenario.get("strategy", {})
        return str((self.summary or {}).get("strategy") or given.get("name") or "HSFL")

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def tier_names(self) -> list[str]:
        return [str(tier.get("name", m + 1)) for m, tier in enumerate(self.scenario.get("tiers", []))]

    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of the metrics with a test accuracy."""
        return [line for line in self.metrics if line.get("accuracy") is not None]

    def columns(self) -> dict[str, list[Any]]:
        """The metrics as columns of equal lengths, as `pandas.DataFrame(run.columns())` takes them.

        Nested keys are dotted ("bytes.device.up", "drift.device.measured"), and what a line does not have is None.
        """
        rows = [dotted(line) for line in self.metrics]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def time_to_accuracy(self, target: float) -> float | None:
        """Simulated seconds until the first evaluation at or above the accuracy (0 to 1); None where none is."""
        return next((float(line["time_s"]) for line in self.evaluations() if line["accuracy"] >= target), None)


def total_bytes(line: Mapping[str, Any]) -> int:
    """All bytes sent up to a line of the metrics, over all links of all tiers."""
    return sum((line.get("bytes") or {}).values())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise HsflError(f"{path}: missing; wait until the run has begun, or bring the file back") from None
    except OSError as error:
        raise HsflError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None


def _lines(path: Path, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a JSONL file, whose rounds must rise; a broken last line is the torn end of a killed process."""
    texts = [(number, text) for number, text in enumerate(_read(path).split(b"\n"), 1) if text.strip()]
    lines: list[dict[str, Any]] = []
    for number, text in texts:
        place = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            if number == texts[-1][0]:
                break
            raise HsflError(f"{place}: not valid JSON; remove the line or train again") from None
        _check(place, line, needed, optional)
        if lines and line["round"] < lines[-1]["round"]:
            raise HsflError(f"{place}: round {line['round']} comes after round {lines[-1]['round']}; rounds must rise")
        lines.append(line)
    return lines


def _object(path: Path, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError):
        raise HsflError(f"{path}: not valid JSON; bring the file back or train again") from None
    return _check(str(path), value, needed, optional)


def _optional(path: Path, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any] | None:
    return _object(path, needed, optional) if path.exists() else None


def _check(place: str, value: Any, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what is no object, lacks a needed field, or has a field of another kind; optional ones may be null."""
    if not isinstance(value, dict):
        raise HsflError(f"{place}: not a JSON object; bring the file back or train again")
    for field, kind in (*needed.items(), *optional.items()):
        found = value.get(field)
        if found is None and field in optional:
            continue
        if not isinstance(found, kind) or isinstance(found, bool):
            raise HsflError(f"{place}: {field} must be {_WORDS[kind]}; bring the file back or train again")
    return value
