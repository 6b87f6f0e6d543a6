"""What a run writes about itself, line by line and file by file: one type for each, checked wherever it is read."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from statistics import fmean
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
#: A number of the user's own, for which JSON has nothing else where it is NaN or infinite.
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is not None and isfinite(value) else None)]


class Record(BaseModel):
    """A JSON object with known fields; what else it holds is left alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", ser_json_inf_nan="constants")

    def to_line(self) -> str:
        """JSON in one line, without the fields that have nothing to say."""
        return self.model_dump_json(exclude_defaults=True)

    def to_file(self) -> bytes:
        """JSON as a file of its own, every field in it."""
        return (self.model_dump_json(indent=1) + "\n").encode()


class DriftRecord(Record):
    """How far the entities of a tier were apart just before an average, and how far each model says."""

    rounds: Count
    """Since the average before."""
    measured: float
    refined: float | None = None
    paper: float | None = None


class ForecastRecord(Record):
    """How much longer it takes to a loss, by the losses up to now; None is beyond what they can tell."""

    loss: float
    """The target."""
    rounds: Count | None = None
    """Half of what the losses allow takes fewer, half more."""
    low: Count | None = None
    """A tenth takes fewer."""
    high: Count | None = None
    """A tenth takes more."""
    seconds: float | None = None
    """Simulated: `rounds` at the pace of the plan in force."""


class PartRecord(Record):
    """A part of a round's time: seconds as the plan says, and as machines took them."""

    planned: float
    measured: float


class SpreadRecord(Record):
    """A loss or a metric over clients, each on its own held-out samples: those with such samples count alike."""

    mean: float
    lowest_tenth: float
    """The mean over the tenth of the clients, at least one, that have the least."""
    highest_tenth: float
    each: list[float | None]
    """None for a client that has no such samples, or no finite number."""

    @classmethod
    def of(cls, values: Sequence[float]) -> SpreadRecord | None:
        """The spread of the values of all clients, those that are finite; None where nobody has one."""
        known = sorted(value for value in values if isfinite(value))
        if not known:
            return None
        tenth = ceil(len(known) / 10)
        return cls(
            mean=fmean(known),
            lowest_tenth=fmean(known[:tenth]),
            highest_tenth=fmean(known[-tenth:]),
            each=[value if isfinite(value) else None for value in values],
        )


class RoundRecord(Record):
    """A line of metrics.jsonl: what a round did, and what was known after it. Round 0 is the start."""

    round: Count
    time_s: float
    """Seconds since the start: simulated, or measured on machines."""
    planned_s: float | None = None
    """Where they were measured: the seconds that the plan says."""
    parts: dict[str, PartRecord] = {}
    """Where they were measured: what passed since the round before. Of the client whose round takes longest: compute
    (at machines, waiting for its turn or computed with), up and down (on its way); then average, move (of layers), plan
    (measuring for one) and the rest. They add up to the differences of `planned_s` and `time_s`."""
    bytes: dict[str, Count] = {}
    """Sent since the start, by TIER.LINK."""
    loss: float | None = None
    """The mean over the clients that took part; None where nobody did."""
    losses: list[float] | None = None
    """Of every client that took part; in metrics.jsonl evaluated rounds have means since the evaluation before."""
    losses_of: list[Count] | None = None
    """The clients whose losses they are, counted from 0; None: everybody."""
    took_part: Count | None = None
    """How many clients took part; None: everybody."""
    late: list[str] = []
    """The devices that were left out of the round because they were not there in time."""
    failed: list[str] = []
    """The devices that were to take part, and failed."""
    averaged: list[str] = []
    """The tiers that were averaged after the round."""
    drift: dict[str, DriftRecord] = {}
    """The drift of every tier that was averaged, by its name."""
    learning_rate: float | None = None
    """The learning rate of the round, where it changes."""
    accuracy: float | None = None
    """On the test data, where the round was evaluated and targets are classes."""
    test_loss: float | None = None
    """On the test data, where the round was evaluated."""
    metrics: dict[str, Finite] = {}
    """What else was counted there, by name; None where that is no finite number."""
    clients: dict[str, dict[str, SpreadRecord]] = {}
    """On samples held out: of the averaged model ("global") and of clients' own ("own") the loss and all metrics."""
    forecast: ForecastRecord | None = None
    """Where the round was evaluated, until the loss that ends training is reached."""


class ConstantsRecord(Record):
    """The constants of the bound as a plan was made with; None is not known."""

    smoothness: float | None
    initial_gap: float | None
    first_loss: float | None = None
    first_gradients: list[list[float]] | None = None
    target: float | None
    gradient_variance: list[float]
    gradient_second_moment: list[float] | None
    gradient_dissimilarity: list[list[float]] | None
    drift: str
    drift_correction: list[float] | None = None
    intervals_in_force: list[float] | None = None
    rise: float = 0.0
    samples_per_client: float | None = None
    coding_noise: list[list[list[float]]] | None = None


class PlanRecord(Record):
    """A line of plans.jsonl: the cuts and intervals from a round on, and what they were chosen with."""

    round: Count
    """The last one before the plan."""
    time_s: float | None = None
    strategy: str | None = None
    cuts: list[Count]
    intervals: list[Count]
    codes: list[dict[str, str]] | None = None
    """The code of every link of every tier, where they are planned."""
    micro_batches: Count | None = None
    """The mini-batches of every client in a round, where they are planned."""
    layers: Count
    forecast: ForecastRecord | None = None
    """A forecast as in metrics.jsonl, at the pace of this plan."""
    constants: ConstantsRecord | None = None
    kept: str | None = None
    """Why the plan before was kept, where the strategy found none."""
    corrected_gain: float | None = None
    """How many times as fast the plan would be with corrected averages, by the bound; where they are plain."""
    as_measured: bool = False
    """Whether it is for the machines as they were measured while they ran, and not as the scenario has them."""
    learning_rate: float | None = None
    """That the plan was made with, where it changes."""
    shortened: str | None = None
    """Why the intervals of the plan before were shortened, without asking the strategy."""


class Summary(Record):
    """summary.json: how a run ended."""

    ended: str
    """"rounds", "time", "accuracy", "loss", "converged", "callback" or "diverged"."""
    why: str | None = None
    """What diverged, or what a callback says."""
    rounds: Count = 0
    time_s: float = 0.0
    wall_s: float | None = None
    """Seconds that training took here."""
    accuracy: float | None = None
    best_accuracy: float | None = None
    test_loss: float | None = None
    metrics: dict[str, Finite] = {}
    bytes: dict[str, Count] = {}
    strategy: str | None = None
    seed: int | None = None
    late: dict[str, Count] = {}
    """How many rounds devices were left out of, where any were."""


class Labels(Record):
    """labels.json: how many samples of each label every client holds."""

    labels: list[str]
    counts: list[list[Count]]

    @model_validator(mode="after")
    def _every_client_counts_every_label(self) -> Self:
        wrong = next((k for k, row in enumerate(self.counts, 1) if len(row) != len(self.labels)), None)
        if wrong is not None:
            found = len(self.counts[wrong - 1])
            raise ValueError(f"counts[{wrong}] has {found} numbers for {len(self.labels)} labels")
        return self


class Environment(Record):
    """environment.json: what a run was started with, and where."""

    model_config = ConfigDict(extra="allow")

    run: str | None = None
    """A name that no other run has."""
    hsfl: str | None = None
    python: str | None = None
    torch: str | None = None
    numpy: str | None = None
    platform: str | None = None
    device: str | None = None
    threads: int | None = None
    command: list[str] | None = None
    strategy: str | None = None
    loss: str | None = None
    """What was minimised."""
    metrics: str | None = None
    """What evaluations counted."""
    scenario_folder: str | None = None
    data_folder: str | None = None
    cluster: str | None = None
    """The machines that it ran on; None: simulated in one process."""
