"""The machines: tiers of entities, who hosts whom, their compute, memory and links, in SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hsfl.errors import ScenarioError
from hsfl.problem.codes import CODES, LINKS, PLAIN, LinkCodes
from hsfl.problem.cohort import expected_slowest, hit_chances, slowest_chances
from hsfl.problem.profile import FloatArray, freeze
from hsfl.problem.topology import IntArray, Topology, with_tail


@dataclass(frozen=True, eq=False)
class Tier:
    """One tier; every array has one entry per entity. An absent limit or an unused link is infinite."""

    name: str
    compute_flops: FloatArray
    memory_bits: FloatArray
    uplink_bps: FloatArray
    """Rate to the entity above, shared evenly by the hosted clients; infinite at the top."""
    downlink_bps: FloatArray
    """Rate from the entity above, shared likewise."""
    fed_uplink_bps: FloatArray
    """Rate to the fed server; one sub-model per entity travels, so it is not shared."""
    fed_downlink_bps: FloatArray
    parents: IntArray | None
    """The entity above, counted from 0; None at the top."""
    codes: LinkCodes = PLAIN
    """The codes of what crosses the tier's links."""

    def __post_init__(self) -> None:
        freeze(self)

    def __repr__(self) -> str:
        return f"<Tier {self.name}: {self.entities} entities>"

    @property
    def entities(self) -> int:
        return len(self.compute_flops)


@dataclass(frozen=True, eq=False)
class System:
    """A tree of tiers, from the devices (one client each) up."""

    tiers: tuple[Tier, ...]
    cohort: int | None = None
    """K: how many clients take part at a time, drawn at random until the devices are next averaged; None is all."""
    returns: bool = False
    """Whether labels stay on the devices: then they are the last tier, too, above the top, with a tail of the model."""

    @classmethod
    def returning(cls, tiers: Sequence[Tier]) -> System:
        """The system of a tree of tiers whose devices have the last layers, too, and the labels."""
        device = tiers[0]
        nothing = np.full(device.entities, np.inf)
        tail = replace(
            device,
            name=with_tail([device.name])[-1],
            uplink_bps=nothing,
            downlink_bps=nothing,
            parents=None,
            codes=device.codes.only_averages(),
        )
        return cls((*tiers, tail), returns=True)

    def __repr__(self) -> str:
        return f"<System: {self.names}>"

    @property
    def names(self) -> str:
        """The tiers with their sizes: "20 device → 5 edge → 1 cloud"."""
        return " → ".join(f"{tier.entities} {tier.name}" for tier in self.tiers)

    @property
    def num_tiers(self) -> int:
        return len(self.tiers)

    @property
    def num_clients(self) -> int:
        return self.tiers[0].entities

    @cached_property
    def topology(self) -> Topology:
        """Who hosts whom."""
        parents = [tier.parents for tier in self.tiers if tier.parents is not None]
        return Topology.from_parents(self.num_clients, parents, returns=self.returns)

    def machines(self, tier: int) -> Tier:
        """The tier of machines that a tier is: itself, or the devices, where these are the last tier once more."""
        return self.tiers[tier % len(self.tree)]

    @property
    def tree(self) -> tuple[Tier, ...]:
        """The tiers of machines: every one once, from the devices to the top."""
        return self.tiers[:-1] if self.returns else self.tiers

    @cached_property
    def entities(self) -> tuple[int, ...]:
        """J_m: the number of entities of every tier."""
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
        """N_m^j: the number of clients that every entity hosts, tier by tier."""
        return self.topology.clients_per_entity

    @property
    def participants(self) -> int:
        """K: how many clients take part in a round."""
        return self.num_clients if self.cohort is None else min(self.cohort, self.num_clients)

    @property
    def sampled(self) -> bool:
        """Whether only some clients take part."""
        return self.participants < self.num_clients

    @cached_property
    def slowest_chances(self) -> FloatArray:
        """(N,): how likely the slowest of a cohort is the slowest client of all, the second slowest, and so on."""
        return slowest_chances(self.num_clients, self.participants)

    @cached_property
    def working(self) -> FloatArray:
        """(M,): how many entities host one of a cohort, expected; J_m where all clients take part."""
        if not self.sampled:
            return np.array(self.entities, dtype=float)
        return np.array([hit_chances(counts, self.slowest_chances).sum() for counts in self.clients_per_entity])

    @cached_property
    def missable(self) -> npt.NDArray[np.bool_]:
        """(M,): which tiers above the devices have an entity that hosts none of some cohort."""
        if not self.sampled:
            return np.zeros(self.num_tiers, dtype=bool)
        least = np.array([counts.min() for counts in self.clients_per_entity])
        found: npt.NDArray[np.bool_] = self.averaged & (self.participants <= self.num_clients - least)
        found[0] = False
        return found

    @cached_property
    def sharing(self) -> tuple[FloatArray | IntArray, ...]:
        """Among how many clients each entity divides its compute and its links: M arrays (J_m,).

        All that it hosts; with a cohort those expected to take part when one of them does, 1 + (N_m^j - 1)(K-1)/(N-1).
        """
        if not self.sampled:
            return self.clients_per_entity
        others = (self.participants - 1) / (self.num_clients - 1)
        return tuple(np.asarray(1 + (counts - 1) * others, dtype=float) for counts in self.clients_per_entity)

    @cached_property
    def most_hosted(self) -> tuple[IntArray, ...]:
        """The most clients of each entity that take part at a time: M arrays (J_m,), min(K, N_m^j)."""
        if not self.sampled:
            return self.clients_per_entity
        return tuple(np.minimum(counts, self.participants) for counts in self.clients_per_entity)

    @cached_property
    def slowness(self) -> FloatArray:
        """What a FLOP and a bit cost each client: (3M-2, N), after the even split of every entity (`sharing`).

        Rows: seconds per FLOP in tiers 1..M, per activation bit up from tiers 1..M-1, per gradient bit down to them.
        Where the devices are the last tier again, what the top sends them takes all links down, and their gradients
        take all links up.
        """
        inner = self.tiers[:-1]
        rates = [t.compute_flops for t in self.tiers] + [t.uplink_bps for t in inner] + [t.downlink_bps for t in inner]
        tiers = [*range(self.num_tiers), *range(self.num_tiers - 1), *range(self.num_tiers - 1)]
        slowness = np.empty((len(rates), self.num_clients))
        for row, rate, m in zip(slowness, rates, tiers, strict=True):
            np.take(self.sharing[m] / rate, self.hosts[m], out=row, mode="clip")
        if self.returns:
            links = slowness[self.num_tiers :].reshape(2, self.num_tiers - 1, -1)
            links[:, -1] = links[::-1, :-1].sum(axis=1)
        return slowness

    @cached_property
    def fed_seconds_per_bit(self) -> FloatArray:
        """(M,): what a parameter bit costs when a tier is averaged: max_j 1/r^U + max_j 1/r^D; 0 for one entity.

        With cohorts both are expected: one cohort's entities send, those of the next, or of the same, fetch.
        """
        if self.sampled:
            links = [(1 / t.fed_uplink_bps, 1 / t.fed_downlink_bps) for t in self.tiers]
            pairs = zip(links, self.clients_per_entity, strict=True)
            expected = [sum(expected_slowest(s, n, self.slowest_chances) for s in both) for both, n in pairs]
            return np.where(self.averaged, expected, 0.0)
        costs = [1 / t.fed_uplink_bps.min() + 1 / t.fed_downlink_bps.min() for t in self.tiers]
        return np.where(self.averaged, costs, 0.0)

    @cached_property
    def most_clients(self) -> IntArray:
        """(M,): the most clients that take part at a time on one entity of each tier."""
        return np.array([counts.max() for counts in self.most_hosted])

    @cached_property
    def tightest_entity(self) -> tuple[int, ...]:
        """The entity of each tier with the least memory per client it may have to hold."""
        return tuple(
            int(np.argmin(tier.memory_bits / count)) for tier, count in zip(self.tiers, self.most_hosted, strict=True)
        )

    @cached_property
    def memory_per_client_bits(self) -> FloatArray:
        """(M,): what a client's sub-model may occupy where memory is tightest, min_j rho_m^j / min(K, N_m^j)."""
        return np.array(
            [
                tier.memory_bits[j] / count[j]
                for tier, count, j in zip(self.tiers, self.most_hosted, self.tightest_entity, strict=True)
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
        return replace(self, tiers=tuple(replace(t, codes=code) for t, code in zip(self.tiers, codes, strict=True)))

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
        *rest, top = self.tree[:-1]
        absent = np.full(top.entities, np.inf)
        top = replace(top, uplink_bps=absent, downlink_bps=absent, parents=None)
        return replace(self, tiers=(*rest, top, *self.tiers[len(self.tree) :]))

    def without_memory_limits(self) -> System:
        """The same machines with all the memory in the world."""
        return replace(self, tiers=tuple(replace(t, memory_bits=np.full(t.entities, np.inf)) for t in self.tiers))

    def with_free_aggregation(self) -> System:
        """The same machines with fed links that cost no time, so that only split training counts."""
        free = [np.full(t.entities, np.inf) for t in self.tiers]
        tiers = [replace(t, fed_uplink_bps=f, fed_downlink_bps=f) for t, f in zip(self.tiers, free, strict=True)]
        return replace(self, tiers=tuple(tiers))
