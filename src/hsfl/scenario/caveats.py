"""What plans rest on that a scenario does not hold to."""

from __future__ import annotations

from hsfl.scenario.schema import ScenarioFile
from hsfl.scenario.training_sections import SERVER_SETTINGS


def caveat(spec: ScenarioFile) -> str | None:
    """The first of it, in a sentence; None where a plan rests on nothing else than what is so."""
    training, given = spec.training, spec.participation
    if training.optimizer in ("adam", "adamw"):
        return (
            f"the convergence bound is one of SGD and takes {training.optimizer}'s learning rate for a step, so "
            "plans may average far too rarely; compare with strategy fixed"
        )
    if training.averaging in SERVER_SETTINGS:
        return (
            "the convergence bound is one of SGD with plain averages and does not know the server's steps of "
            f"{training.averaging}; compare with strategy fixed"
        )
    other = {
        'participation.redraw = "round"': given.redraw == "round" and given.cohort is not None,
        'participation.choose = "speed"': given.choose == "speed",
        "participation.availability": given.availability is not None,
        "participation.dropout": given.dropout > 0,
        "participation.failures": given.failures is not None,
        "execution.deadline": spec.execution.deadline is not None,
    }
    if named := [name for name, is_so in other.items() if is_so]:
        return (
            "plans take cohorts to be drawn from all clients alike, for an interval of the devices, and everybody in "
            f"them to take part; they know nothing of {', '.join(named)}"
        )
    return None
