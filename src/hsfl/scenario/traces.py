"""CSV files that scenarios name: what changes from some moment on, line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from hsfl.errors import ScenarioError
from hsfl.files import MAX_CSV, read_text
from hsfl.problem.units import LARGEST
from hsfl.scenario.scenario import Scenario


def trace_rows(scenario: Scenario, field: str, name: str, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of a file, each with what to call it in a sentence; ScenarioError unless it has these columns."""
    path, label = (scenario.folder or Path()) / name, f"{scenario.source}: {field} = {name!r}"
    try:
        rows = list(csv.reader(io.StringIO(read_text(path, MAX_CSV))))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{label}: cannot be read ({reason}); give a CSV with {','.join(columns)}") from None
    if not rows or [c.strip() for c in rows[0]] != list(columns):
        raise ScenarioError(f"{label}: the first line must be {','.join(columns)}")
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        where = f"{label}, line {number}"
        if len(row) != len(columns):
            raise ScenarioError(f"{where}: it has {len(row)} fields; {','.join(columns)} are needed")
        yield where, [cell.strip() for cell in row]


def number(text: str, least: float, label: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= LARGEST:
        raise ScenarioError(f"{label} = {text!r} must be a number of at least {least:g}")
    return value


def whole(text: str, least: int, most: int, label: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most):
        raise ScenarioError(f"{label} = {text!r} must be a whole number from {least} to {most}")
    return int(text)


def read_availability(scenario: Scenario, name: str, clients: int) -> tuple[list[float], list[int], list[bool]]:
    """Times in order, the clients who come or go then, and whether they come."""
    found = []
    for where, (time_s, client, available) in trace_rows(
        scenario, "participation.availability", name, ("time_s", "client", "available")
    ):
        who = whole(client, 0, clients - 1, f"{where}: client")
        found.append((number(time_s, 0.0, f"{where}: time_s"), who, whole(available, 0, 1, f"{where}: available") == 1))
    found.sort(key=lambda row: row[0])
    return [row[0] for row in found], [row[1] for row in found], [row[2] for row in found]


def read_failures(scenario: Scenario, name: str, clients: int) -> dict[int, frozenset[int]]:
    """Who fails in which round, counted from 1."""
    found: dict[int, set[int]] = {}
    for where, (round_, client) in trace_rows(scenario, "participation.failures", name, ("round", "client")):
        number_ = whole(round_, 1, 10**9, f"{where}: round")
        found.setdefault(number_, set()).add(whole(client, 0, clients - 1, f"{where}: client"))
    return {number_: frozenset(who) for number_, who in found.items()}
