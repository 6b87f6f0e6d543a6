"""What a checkpoint holds of `Algorithm` and its parts, but for the backend's tensors."""

from __future__ import annotations

from pydantic import Field

from hsfl.records import ConstantsRecord, Count, Record


class PresenceRecord(Record):
    """Rounds in a row that the same clients took part in."""

    since: Count
    """The round in which the layers were last averaged that these rounds count for."""
    clients: list[Count] | None
    """None: everybody."""
    rounds: Count


class AttendanceRecord(Record):
    """In a checkpoint, who took part since layers were averaged: the state of `engine.attendance.Attendance`."""

    averaged_at: list[Count]
    """The round of every layer's last average."""
    cohort: list[Count] | None = None
    """The clients that are enrolled; None: everybody."""
    presence: list[PresenceRecord] = Field(default_factory=list)


class ScheduleRecord(Record):
    """Where a run stands: in a checkpoint, the state of `engine.schedule.Schedule`."""

    round: Count
    cuts: list[Count] | None
    intervals: list[Count] | None
    codes: list[dict[str, str]] | None = None
    micro_batches: Count | None = None
    plan_round: Count
    interval_since: list[Count]
    averaged_at: list[Count]
    moved_at: Count
    gathered_at: Count | None = None
    attendance: AttendanceRecord
    """Who took part, with tiers in the place of layers."""
    up_to_date: list[list[Count] | None]


class EstimateRecord(Record):
    """In a checkpoint, the constants as measured so far: the state of `engine.estimate.Estimate`."""

    smoothness: float
    initial_gap: float
    first_loss: float | None = None
    first_gradients: list[list[float]] | None = None
    gradient_variance: list[float]
    gradient_second_moment: list[float]
    gradient_dissimilarity: list[list[float]]
    correction: list[float]
    coding_noise: list[list[list[float]]] = Field(default_factory=list)
    probes: Count


class GuardRecord(Record):
    """In a checkpoint, what `engine.guard.Guard` has seen."""

    loss: float | None = None
    lowest: float | None = None
    alarm: str | None = None
    seen: Count = 0
    fresh: bool = False
    looked: Count = 0


class RiseRecord(Record):
    """In a checkpoint, what `engine.rise.Rise` has seen."""

    mean: float = 0.0
    """By how many times the root of the energy of drift the loss rises, by all plans that are over."""
    variance: float | None = None
    """How unsure that is; None before any is."""
    energies: list[list[float]] = Field(default_factory=list)
    """By tier: the energy of drift expected so many rounds after an average, under the plan in force."""
    since: list[Count] = Field(default_factory=list)
    """By tier: the rounds since its last average."""
    last: list[float] | None = None
    """The root of the energy and the loss of the last round under the plan in force."""
    sums: list[list[float]]
    """Of the products of how both changed from round to round under that plan."""


class AlgorithmRecord(Record):
    """In a checkpoint, the state of `engine.algorithm.Algorithm` but for the backend's tensors."""

    schedule: ScheduleRecord
    time_s: float
    planned_s: float | None = None
    bits: dict[str, Count]
    estimate: EstimateRecord
    constants: ConstantsRecord
    guard: GuardRecord
    rise: RiseRecord | None = None
    """None in checkpoints of before it was looked at."""
