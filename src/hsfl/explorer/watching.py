"""What the page of runs asks: the runs as they are now, and what is going on in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError
from hsfl.explorer.planning import Asked
from hsfl.report.pace import Pace
from hsfl.report.run_view import runs_view, state
from hsfl.runs.reading import Run
from hsfl.runs.stopping import round_limit
from hsfl.scenario.schema import ScenarioFile

#: Over about how many of the last seconds rounds per second are counted.
_WINDOW_S = 60.0
_FILES = ("scenario.toml", "environment.json", "metrics.jsonl", "plans.jsonl", "labels.json", "summary.json")


class RunsAsked(Asked):
    """What a window has seen already."""

    seen: str = ""


class RunsPage:
    """Runs in the given folders, or in folders in these; a folder that becomes a run later is shown from then on."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)
        self._read: dict[Path, tuple[str, Run | HsflError]] = {}
        self._paces: dict[Path, Pace] = {}
        for folder in folders:
            if not _runs_in(folder):
                Run.load(folder)  # says what is wrong with it

    def runs(self, asked: RunsAsked) -> dict[str, Any]:
        """All that has changed since a window looked last, and how every run stands."""
        places = list(dict.fromkeys(place for folder in self._folders for place in _runs_in(folder)))
        found = {place: self._load(place) for place in places}
        runs = {place: run for place, run in found.items() if isinstance(run, Run)}
        begun = [run for run in runs.values() if run.metrics]
        waiting = [
            {"label": place.name, "now": "preparing: no round yet"} for place, r in runs.items() if not r.metrics
        ]
        wrong = [{"label": place.name, "now": str(r)} for place, r in found.items() if isinstance(r, HsflError)]
        version = repr([(str(place), self._read[place][0]) for place in places])
        answer: dict[str, Any] = {
            "version": version,
            "states": [self._state(run) for run in begun],
            "others": waiting + wrong,
            "on": any(not run.finished for run in runs.values()) or bool(wrong),
        }
        if version != asked.seen and begun:
            answer["view"] = runs_view(begun)
        return answer

    def _load(self, place: Path) -> Run | HsflError:
        version = _version(place)
        known = self._read.get(place)
        if known is not None and known[0] == version:
            return known[1]
        run: Run | HsflError
        try:
            run = Run.load(place)
            if run.metrics:
                last = run.metrics[-1]
                self._paces.setdefault(place, Pace(_WINDOW_S)).add(time.monotonic(), last.round, last.time_s)
        except HsflError as error:
            run = error
        self._read[place] = version, run
        return run

    def _state(self, run: Run) -> dict[str, Any]:
        pace, stopping = self._paces[run.folder], ScenarioFile.model_validate(run.scenario).stopping
        said = next((line.forecast for line in reversed(run.evaluations())), None)
        due = float("inf") if said is None or said.rounds is None else run.evaluations()[-1].round + said.rounds
        left = pace.left_s(min(round_limit(stopping), due), stopping.time_limit)
        return state(run, pace.rate, left, max(0.0, time.time() - _changed(run.folder)))


def _runs_in(folder: Path) -> list[Path]:
    """The folder where it is a run, or the runs in it."""
    try:
        if (folder / "scenario.toml").is_file():
            return [folder]
        return sorted(place for place in folder.iterdir() if (place / "scenario.toml").is_file())
    except OSError:
        return []


def _version(place: Path) -> str:
    """A text that changes whenever a file of a run does."""
    found = []
    for name in _FILES:
        try:
            stat = (place / name).stat()
            found.append(f"{stat.st_size}.{stat.st_mtime_ns}")
        except OSError:
            found.append("-")
    return " ".join(found)


def _changed(place: Path) -> float:
    try:
        return (place / "metrics.jsonl").stat().st_mtime
    except OSError:
        return 0.0
