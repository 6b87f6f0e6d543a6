"""Who takes part in the rounds of a scenario, as its [participation] and execution.deadline say."""

from __future__ import annotations

import numpy as np

from hsfl.engine.participation import Availability, Participation
from hsfl.errors import ScenarioError
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.traces import read_availability, read_failures


def check_place(scenario: Scenario, *, processes: int, machines: bool) -> None:
    """ScenarioError where it cannot be chosen who takes part."""
    given = bool(scenario.spec.participation.model_fields_set)
    if machines and given:
        raise ScenarioError(
            "participation: machines take part as they are there, and execution.deadline leaves out who is late; "
            "remove the section, or simulate it with hsfl train"
        )
    if processes > 1 and (given or scenario.spec.execution.deadline is not None):
        field = "participation" if given else "execution.deadline"
        raise ScenarioError(f"{field}: several processes train all clients; remove it, or train without torchrun")


def participation_of(scenario: Scenario) -> Participation | None:
    """The rules of a scenario; None: everybody takes part. ScenarioError where they cannot be meant."""
    spec, section, training = scenario.spec, scenario.spec.participation, scenario.spec.training
    clients, cohort = spec.tiers[0].entities, scenario.system.cohort
    if not section.model_fields_set and spec.execution.deadline is None:
        return None
    if section.choose == "speed" and cohort is None:
        raise ScenarioError('participation.choose = "speed": nobody is chosen where all take part; give cohort as well')
    if section.failures is not None and section.dropout:
        raise ScenarioError("participation has dropout and failures; give one of them")
    availability = None
    if section.availability is not None:
        rows = read_availability(scenario, section.availability, clients)
        availability = Availability(*(np.array(column) for column in rows))
    found = Participation(
        clients,
        spec.seed if training.seed is None else training.seed,
        cohort=None if cohort == clients else cohort,
        every_round=section.redraw == "round",
        by_speed=section.choose == "speed",
        availability=availability,
        dropout=section.dropout,
        failures={} if section.failures is None else read_failures(scenario, section.failures, clients),
        deadline_s=spec.execution.deadline,
    )
    if found.draws and training.optimizer in ("adam", "adamw") and not training.average_optimizer:
        raise ScenarioError(
            f'training.optimizer = "{training.optimizer}": a device that joins has no state of its own to go on from; '
            "set training.average_optimizer = true, so that it gets that of the others, or use sgd or momentum"
        )
    return found
