"""Who there is and who talks to whom: the entities of the tree by name, the fed server, and the coordinator on top."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hsfl.errors import HsflError, ScenarioError, nearest
from hsfl.problem.topology import Topology, machine_name

COORDINATOR, FED = "coordinator", "fed"


class Places:
    """The machines of a run by name: entity j of tier m is called after the tier and j, counted from 1, as in "edge-2".

    A child dials its parent. The coordinator is the parent of the top entities and of the fed server; every entity also
    dials the fed server, over which sub-models travel.
    """

    def __init__(self, topology: Topology, tiers: Sequence[str]) -> None:
        self.topology = topology
        stems = [tier.replace(" ", "-") for tier in tiers]
        if odd := next((stem for stem in stems if stems.count(stem) > 1), None):
            raise ScenarioError(f"tiers: two would have machines called {odd}-1; give them names that differ more")
        self._names = [
            [machine_name(stem, number) for number in range(count)]
            for stem, count in zip(stems, topology.entities, strict=True)
        ]

    def name(self, tier: int, number: int) -> str:
        return self._names[tier][number]

    @cached_property
    def entities(self) -> dict[str, tuple[int, int]]:
        """(tier, number) by name, from the devices up."""
        return {self.name(tier, number): (tier, number) for tier, number in self.topology.each_entity()}

    @property
    def nodes(self) -> list[str]:
        """Everyone but the coordinator, those who are dialled before those who dial."""
        return [FED, *reversed(self.entities)]

    def checked(self, name: str) -> str:
        """HsflError unless there is a machine of this name."""
        if name not in self.nodes:
            known = f"{FED}, {', '.join(list(self.entities)[:4])}" + (", ..." if len(self.entities) > 4 else "")
            raise HsflError(f"no machine {name!r}{nearest(name, self.nodes)}; this scenario has {known}")
        return name

    def parent(self, name: str) -> str:
        if name == FED:
            return COORDINATOR
        tier, number = self.entities[name]
        if tier == self.topology.num_tiers - 1:
            return COORDINATOR
        return self.host(tier + 1, self.topology.clients[tier][number][0])

    def host(self, tier: int, client: int) -> str:
        """The entity of a tier that serves a client."""
        return self.name(tier, int(self.topology.hosts[tier][client]))

    def children(self, name: str) -> tuple[str, ...]:
        """The machines that a machine passes commands on to."""
        return tuple(child for child in self.nodes if self.parent(child) == name)

    def callers(self, name: str) -> tuple[str, ...]:
        """The machines that may open a stream to a machine."""
        return tuple(self.entities) if name == FED else self.children(name)

    def uplinks(self, name: str) -> tuple[str, ...]:
        """The machines that a machine dials, its parent first."""
        return (self.parent(name),) if name == FED else (self.parent(name), FED)
