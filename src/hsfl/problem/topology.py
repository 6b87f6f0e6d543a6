"""Who is where: the tree of machines above every client, and the layers that cuts give each tier.

Tiers, entities, clients and layers count from 0; cuts count layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hsfl.errors import ScenarioError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Clients = tuple[int, ...]


def edges(cuts: npt.ArrayLike, num_layers: int) -> IntArray:
    """c_0 = 0, the cuts, c_M = L of one or many cut vectors: (..., M+1)."""
    cuts = np.asarray(cuts, dtype=np.int64)
    found = np.empty((*cuts.shape[:-1], cuts.shape[-1] + 2), dtype=np.int64)
    found[..., 0], found[..., 1:-1], found[..., -1] = 0, cuts, num_layers
    return found


def tier_layers(cuts: Sequence[int], num_layers: int) -> list[range]:
    """The layers that each tier holds."""
    return [range(first, last) for first, last in pairwise((0, *cuts, num_layers))]


def tier_of(cuts: Sequence[int], layer: int) -> int:
    """The tier that holds a layer."""
    return sum(cut <= layer for cut in cuts)


def machine_name(tier: str, number: int) -> str:
    """The name of an entity: that of its tier, and a number from 1 on."""
    return f"{tier.replace(' ', '-')}-{number + 1}"


def tiers_text(tiers: int, *, returns: bool) -> str:
    """How many tiers plans have, in words."""
    return f"{tiers - 1} tiers and the devices' tail" if returns else f"{tiers} tiers"


def with_tail(names: Sequence[str]) -> list[str]:
    """The names of tiers, and that of the devices as the last of them, where labels stay there."""
    return [*names, f"{names[0]} tail"]


@dataclass(frozen=True, eq=False)
class Topology:
    """A tree of tiers from the devices up: `hosts[m][n]` is the entity of tier m that serves client n.

    Above its top the lowest tier may come once more: its entities then hold the last layers, too.
    """

    hosts: tuple[IntArray, ...]
    weights: FloatArray | None = None
    """What every client counts in means over clients, 1 on average; None: all the same."""

    def __repr__(self) -> str:
        return f"<Topology: {' → '.join(str(int(of.max()) + 1) for of in self.hosts)} entities>"

    @classmethod
    def from_parents(cls, clients: int, parents: Sequence[IntArray], *, returns: bool = False) -> Topology:
        """One device per client, and the entity above each entity, tier by tier; `returns`: then the devices again."""
        hosts = [np.arange(clients)]
        for above in parents:
            hosts.append(above[hosts[-1]])
        return cls((*hosts, hosts[0]) if returns else tuple(hosts))

    @classmethod
    def from_hosts(cls, hosts: Sequence[Sequence[int]]) -> Topology:
        """A tree as a user writes it; ScenarioError says what keeps it from being one."""
        try:
            rows = [np.array(row, dtype=np.int64) for row in hosts]
        except (TypeError, ValueError, OverflowError):
            raise ScenarioError(f"hosts {str(hosts)[:60]}: give a list of whole numbers for each tier") from None
        if len(rows) < 2 or len({row.shape for row in rows}) != 1 or rows[0].ndim != 1 or not rows[0].size:
            raise ScenarioError("hosts: give at least two tiers, each with the entity of every client")
        for m, row in enumerate(rows):
            if not np.array_equal(np.unique(row), np.arange(row.max() + 1)):
                raise ScenarioError(f"hosts: tier {m} leaves an entity without clients; number its entities from 0 on")
        tree = rows[:-1] if len(rows) > 2 and np.array_equal(rows[0], rows[-1]) else rows
        for m, (below, above) in enumerate(pairwise(tree)):
            pairs = np.unique(np.stack((below, above)), axis=1)
            if pairs.shape[1] > below.max() + 1:
                last = ", or write the hosts of tier 0 once more, as the last" if m == len(rows) - 2 else ""
                raise ScenarioError(
                    f"hosts: an entity of tier {m} has several entities above it in tier {m + 1}; give it one{last}"
                )
        return cls(tuple(rows))

    def weighted(self, weights: Sequence[float] | None) -> Topology:
        """The same tree with clients that count by these weights, on whatever scale; ScenarioError if they cannot."""
        if weights is None:
            return self
        given = np.array(weights, dtype=float)
        if given.shape != (self.num_clients,) or not np.isfinite(given).all() or not (given > 0).all():
            raise ScenarioError(
                f"weights: give one for each of the {self.num_clients} clients, each positive and finite"
            )
        same = bool((given == given[0]).all())
        return replace(self, weights=None if same else given * (self.num_clients / given.sum()))

    @property
    def num_tiers(self) -> int:
        return len(self.hosts)

    @property
    def num_clients(self) -> int:
        return len(self.hosts[0])

    @cached_property
    def returns(self) -> bool:
        """Whether the last tier is the lowest once more; not where the tiers between make it a tree all the same."""
        above_fewer = self.num_tiers > 2 and int(self.hosts[-2].max()) < int(self.hosts[-1].max())
        return above_fewer and np.array_equal(self.hosts[0], self.hosts[-1])

    @cached_property
    def entities(self) -> tuple[int, ...]:
        """J_m: the number of entities of every tier."""
        return tuple(len(counts) for counts in self.clients_per_entity)

    @cached_property
    def averaged(self) -> npt.NDArray[np.bool_]:
        """Which tiers have several entities, and so drift apart and are averaged by the fed server."""
        return np.array(self.entities) > 1

    @cached_property
    def clients_per_entity(self) -> tuple[IntArray, ...]:
        """N_m^j: the number of clients that every entity hosts, tier by tier."""
        return tuple(np.bincount(row) for row in self.hosts)

    @cached_property
    def client_weights(self) -> FloatArray:
        """(N,): what every client counts, 1 on average."""
        return np.ones(self.num_clients) if self.weights is None else self.weights

    @cached_property
    def entity_weights(self) -> tuple[FloatArray, ...]:
        """What the clients of each entity count together: N_m^j, where all count the same."""
        return tuple(np.bincount(row, self.client_weights).astype(float) for row in self.hosts)

    @cached_property
    def shares(self) -> tuple[FloatArray, ...]:
        """N_m^j / N: the weight of each entity in its tier's average."""
        return tuple(weights / self.num_clients for weights in self.entity_weights)

    def parts_of(self, clients: Sequence[int]) -> FloatArray | None:
        """The part of each of some clients in their mean; None where all count the same."""
        if self.weights is None:
            return None
        chosen = self.weights[list(clients)]
        return np.asarray(chosen / chosen.sum())

    @cached_property
    def clients(self) -> tuple[tuple[Clients, ...], ...]:
        """For every tier and entity the clients it hosts, those of the same entity below next to each other."""
        found: list[tuple[Clients, ...]] = []
        for row in self.hosts[:-1] if self.returns else self.hosts:
            below = found[-1] if found else tuple((n,) for n in range(self.num_clients))
            groups: list[list[int]] = [[] for _ in range(int(row.max()) + 1)]
            for group in below:
                groups[row[group[0]]] += group
            found.append(tuple(map(tuple, groups)))
        return (*found, found[0]) if self.returns else tuple(found)

    @cached_property
    def order(self) -> Clients:
        """All clients, those of every entity of every tier next to each other."""
        return tuple(n for group in self.clients[-2 if self.returns else -1] for n in group)

    @cached_property
    def _place(self) -> IntArray:
        """The place of every client in `order`."""
        found = np.empty(self.num_clients, dtype=np.int64)
        found[list(self.order)] = np.arange(self.num_clients)
        return found

    def ordered(self, clients: Sequence[int]) -> Clients:
        """Some clients, those of every entity of every tier next to each other."""
        chosen = np.asarray(clients, dtype=np.int64)
        return tuple(chosen[np.argsort(self._place[chosen])].tolist())

    def of(self, clients: Sequence[int]) -> tuple[tuple[IntArray, ...], Topology]:
        """The entities of every tier that host some of these clients, and the tree of both, numbered anew in order."""
        chosen = np.asarray(clients, dtype=np.int64)
        found = [np.unique(row[chosen], return_inverse=True) for row in self.hosts]
        return tuple(entities for entities, _ in found), Topology(tuple(hosts for _, hosts in found))

    def each_entity(self) -> Iterator[tuple[int, int]]:
        """Every entity as (tier, number), from the devices up."""
        return ((tier, entity) for tier, count in enumerate(self.entities) for entity in range(count))

    def part(self, new: int, old: int) -> FloatArray:
        """(J_new, J_old): what part of the clients of each entity of one tier each entity of another serves."""
        pairs = np.zeros((self.entities[new], self.entities[old]))
        np.add.at(pairs, (self.hosts[new], self.hosts[old]), self.client_weights)
        return np.asarray(pairs / pairs.sum(axis=1, keepdims=True))
