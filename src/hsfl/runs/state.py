"""What a checkpoint holds of a run, but for the backend's tensors."""

from __future__ import annotations

from typing import Any

from hsfl.engine.state import AlgorithmRecord
from hsfl.records import Count, Record, RoundRecord


class Position(Record):
    """How much of a file there was at some moment: its length in bytes and their checksum."""

    size: Count
    checksum: str


class OriginRecord(Record):
    """In a checkpoint, what it comes from: the run, the code, and all that the results depend on."""

    run: str
    """The name in environment.json."""
    hsfl: str
    """The version that wrote the checkpoint."""
    fields: dict[str, Any]
    """What the scenario says, by paths, but for what may change when the run goes on."""
    files: dict[str, str]
    """The checksums of the data files that the scenario names."""


class SessionRecord(Record):
    """A checkpoint's state: all that training goes on from but for the backend's tensors."""

    origin: OriginRecord
    algorithm: AlgorithmRecord
    waiting: RoundRecord | None
    """The last round, where it is not written yet."""
    clients: list[Count]
    """Those who took part since the last evaluation."""
    losses: list[float]
    """The sums of their losses."""
    counts: list[Count]
    """The rounds that they took part in."""
    wall_s: float
    files: dict[str, Position]
    """How much was in the .jsonl files."""
