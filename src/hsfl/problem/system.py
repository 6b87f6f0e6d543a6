"""The machines: tiers of entities, who hosts whom, their compute, memory and links, in SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hsfl.errors import ScenarioError
from hsfl.problem.codes import CODES, LINKS, PLAIN, LinkCodes
from hsfl.problem.profile import FloatArray, freeze
from hsfl.problem.topology import IntArray, Topology


@dataclass(frozen=True, eq=False)
class Tier:
    """One tier; every array has one entry per entity. An absent limit or an unused link is infinite."""

    name: str
    compute_flops: FloatArray
    memory_bits: FloatArray
    uplink_bps: FloatArray
    """Rate to the entity above, shared evenly by the hosted clients; infinite at the top."""
    downlink_bps: FloatArray
    """Rate from the entity above, likewise."""
    fed_uplink_bps: FloatArray
    """Rate to the fed server; one sub-model per entity travels, so it is not shared."""
    fed_downlink_bps: FloatArray
    parents: IntArray | None
    """The entity above, counted from 0; None at the top."""
    codes: LinkCodes = PLAIN
    """How what crosses its links is written."""

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def entities(self) -> int:
        return len(self.compute_flops)


@dataclass(frozen=True, eq=False)
class System:
    """A tree of tiers, from the devices (one client each) up."""

    tiers: tuple[Tier, ...]

    @property
    def num_tiers(self) -> int:
        return len(self.tiers)

    @property
    def num_clients(self) -> int:
        return self.tiers[0].entities

    @cached_property
    def topology(self) -> Topology:
        """Who hosts whom."""
        return Topology.from_parents(
            self.num_clients, [tier.parents for tier in self.tiers if tier.parents is not None]
        )

    @cached_property
    def entities(self) -> tuple[int, ...]:
        """J_m."""
        return tuple(tier.entities for tier in self.tiers)

    @property
    def averaged(self) -> npt.NDArray[np.bool_]:
        """Which tiers have several entities, and so drift apart and are averaged by the fed server."""
        return self.topology.averaged

    @property
    def hosts(self) -> tuple[IntArray, ...]:
        """hosts[m][n]: the entity of tier m that serves client n."""
        return self.topology.hosts

    @property
    def clients_per_entity(self) -> tuple[IntArray, ...]:
        """N_m^j."""
        return self.topology.clients_per_entity

    @cached_property
    def slowness(self) -> FloatArray:
        """What a FLOP and a bit cost each client: (3M-2, N), after the even split of every entity.

        Rows: seconds per FLOP in tiers 1..M, per activation bit up from tiers 1..M-1, per gradient bit down to them.
        """
        inner = self.tiers[:-1]
        rates = [t.compute_flops for t in self.tiers] + [t.uplink_bps for t in inner] + [t.downlink_bps for t in inner]
        tiers = [*range(self.num_tiers), *range(self.num_tiers - 1), *range(self.num_tiers - 1)]
        slowness = np.empty((len(rates), self.num_clients))
        for row, rate, m in zip(slowness, rates, tiers, strict=True):
            np.take(self.clients_per_entity[m] / rate, self.hosts[m], out=row, mode="clip")
        return slowness

    @cached_property
    def fed_seconds_per_bit(self) -> FloatArray:
        """(M,): what a parameter bit costs when a tier is averaged: max_j 1/r^U + max_j 1/r^D; 0 for one entity."""
        costs = [1 / t.fed_uplink_bps.min() + 1 / t.fed_downlink_bps.min() for t in self.tiers]
        return np.where(self.averaged, costs, 0.0)

    @cached_property
    def most_clients(self) -> IntArray:
        """(M,): the clients of the fullest entity of each tier."""
        return np.array([counts.max() for counts in self.clients_per_entity])

    @cached_property
    def tightest_entity(self) -> tuple[int, ...]:
        """The entity of each tier with the least memory per hosted client."""
        return tuple(
            int(np.argmin(tier.memory_bits / count))
            for tier, count in zip(self.tiers, self.clients_per_entity, strict=True)
        )

    @cached_property
    def memory_per_client_bits(self) -> FloatArray:
        """(M,): what a client's sub-model may occupy where memory is tightest, min_j rho_m^j / N_m^j."""
        return np.array(
            [
                tier.memory_bits[j] / count[j]
                for tier, count, j in zip(self.tiers, self.clients_per_entity, self.tightest_entity, strict=True)
            ]
        )

    @property
    def plans_codes(self) -> bool:
        """Whether the code of some link is left to the planner."""
        return any(tier.codes.planned for tier in self.tiers)

    def with_codes(self, codes: Sequence[LinkCodes] | None) -> System:
        """The same machines with the codes of a plan, where it has any."""
        if codes is None or all(tier.codes == code for tier, code in zip(self.tiers, codes, strict=True)):
            return self
        return System(tuple(replace(tier, codes=code) for tier, code in zip(self.tiers, codes, strict=True)))

    def codes_named(self, names: Sequence[Mapping[str, str]] | None) -> tuple[LinkCodes, ...] | None:
        """The codes of a plan, as a record names them; ScenarioError where the machines do not allow them."""
        if names is None:
            return None
        if len(names) != self.num_tiers:
            raise ScenarioError(f"codes: {len(names)} are given for {self.num_tiers} tiers; give them for each")
        found = []
        for tier, own in zip(self.tiers, names, strict=True):
            codes = {link: CODES[name] for link, name in own.items() if name in CODES and link in LINKS}
            if own.keys() != tier.codes.names().keys() or any(
                codes.get(link) not in tier.codes.allowed(link) for link in own
            ):
                raise ScenarioError(f"codes: {dict(own)} are none of those that tiers.{tier.name}.code allows")
            found.append(tier.codes.using(codes))
        return tuple(found)

    def without_top_tier(self) -> System:
        """The system whose second highest tier is the top."""
        *rest, top = self.tiers[:-1]
        absent = np.full(top.entities, np.inf)
        return System((*rest, replace(top, uplink_bps=absent, downlink_bps=absent, parents=None)))

    def without_memory_limits(self) -> System:
        """The same machines with all the memory in the world."""
        return System(tuple(replace(t, memory_bits=np.full(t.entities, np.inf)) for t in self.tiers))

    def with_free_aggregation(self) -> System:
        """The same machines with fed links that cost no time, so that only split training counts."""
        free = [np.full(t.entities, np.inf) for t in self.tiers]
        return System(
            tuple(replace(t, fed_uplink_bps=f, fed_downlink_bps=f) for t, f in zip(self.tiers, free, strict=True))
        )
