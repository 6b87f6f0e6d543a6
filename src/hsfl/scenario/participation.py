"""The section of a scenario file that says who takes part; planning and training read it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hsfl.scenario.field_types import NumberOrShare, Section


class ParticipationSection(Section):
    """Who takes part in rounds; without it everybody does, always."""

    cohort: NumberOrShare | None = Field(
        None,
        description="How many clients take part at a time: a whole number, or a share of them between 0 and 1, "
        "rounded; default: all.",
        examples=[100],
    )
    redraw: Literal["interval", "round"] = Field(
        "interval",
        description="How long a cohort stays: interval (until the devices are next averaged) or round.",
    )
    choose: Literal["uniform", "speed"] = Field(
        "uniform",
        description="Who is drawn, without replacement: uniform (everybody alike) or speed (one after the other, each "
        "with a probability in proportion to the rounds that a client does in a second).",
    )
    availability: str | None = Field(
        None,
        description="A CSV with columns time_s,client,available: from that simulated time on the client, counted from "
        "0, can be drawn (1) or not (0); before, everybody can. Relative to this file.",
        examples=["availability.csv"],
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="The probability that a client of the cohort fails in a round, and takes no part in it."
    )
    failures: str | None = Field(
        None,
        description="Instead of dropout: a CSV with columns round,client that says who fails when; rounds count from "
        "1, clients from 0. Relative to this file.",
        examples=["failures.csv"],
    )
