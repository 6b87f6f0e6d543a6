"""The section of a scenario file that says who takes part; planning and training read it."""

from __future__ import annotations

from pydantic import Field

from hsfl.scenario.field_types import NumberOrShare, Section


class ParticipationSection(Section):
    """Who takes part; without it, all clients in every round."""

    cohort: NumberOrShare | None = Field(
        None,
        description="How many clients take part at a time: a whole number, or a share of them between 0 and 1, "
        "rounded. They are drawn at random and stay until the devices are next averaged; default: all.",
        examples=[10],
    )
