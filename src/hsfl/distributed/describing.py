"""From a scenario to what every machine of its run has to know."""

from __future__ import annotations

from pathlib import Path

from hsfl.distributed.machines import Machines
from hsfl.distributed.places import Places
from hsfl.distributed.process import Description
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.runs.preparing import Brought, Prepared, prepare
from hsfl.runs.resuming import fingerprint
from hsfl.scenario.scenario import Scenario

NOTHING = Brought()


class _Elsewhere:
    """The strategy as machines have it: the coordinator is the one who plans."""

    name, replans, needs_constants = "coordinator", False, False

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        raise HsflError("only the coordinator plans")


def describe(scenario: Scenario, data_folder: Path | None, brought: Brought = NOTHING) -> Description:
    """What a machine has to know, made anew from the scenario and, where data are elsewhere, from what it brings."""
    return described(scenario, prepare(scenario, _Elsewhere(), data_folder, Machines, brought=brought))


def described(scenario: Scenario, prepared: Prepared) -> Description:
    """What a machine has to know of a scenario that is prepared already."""
    assert isinstance(prepared.backend, Machines)
    return Description(prepared.backend, places_of(scenario), fingerprint(scenario))


def check_on_machines(scenario: Scenario) -> None:
    """ScenarioError where a scenario is one that machines cannot train."""
    if scenario.spec.training.labels == "devices":
        raise ScenarioError(
            f'{scenario.source}: training.labels = "devices": machines have their labels at the top so far; simulate '
            'it with hsfl train, or write "top"'
        )


def places_of(scenario: Scenario) -> Places:
    """The machines of a scenario."""
    check_on_machines(scenario)
    return Places(scenario.system.topology, [tier.name for tier in scenario.spec.tiers])


def brings_data(scenario: Scenario) -> bool:
    """Whether every device has data of its own, and nobody else has them."""
    return scenario.spec.data is not None and scenario.spec.data.name == "own"
