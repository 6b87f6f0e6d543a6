"""Who took part in rounds since layers were last averaged, and so which entities have copies of their own.

An average is over those who took part since the one before, weighted by clients and rounds. Whoever did not holds what
all last had in common, and so need not be held apart: an entity has a copy of its own only if one of its clients is
enrolled now, or took part since a layer of its tier was last averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hsfl.engine.state import AttendanceRecord, PresenceRecord
from hsfl.problem.topology import Clients, Topology, tier_layers, tier_of

Shares = dict[int, float]
"""Entities and their weights in a mean."""


@dataclass(frozen=True)
class Sources:
    """Whose copies of a layer its new hosts take."""

    complete: bool
    """Everybody took part: a host takes those of all its clients."""
    of_host: Mapping[int, Shares]
    """For every host some of whose clients took part since the layer was last averaged: their hosts before."""
    others: Shares
    """For all other hosts: what an average would be over. Empty: nobody is enrolled, and all copies are the same."""


class Attendance:
    """What has happened to a tree, as far as it matters who took part."""

    def __init__(self, topology: Topology, num_layers: int, cuts: Sequence[int], cohort: Clients | None = None) -> None:
        """`cohort` are the clients that are enrolled, in order; None: all."""
        self.topology, self.cuts, self.cohort = topology, tuple(cuts), cohort
        self.everybody: Clients = tuple(range(topology.num_clients)) if cohort is None else ()
        self.round = 0
        self.averaged_at = [0] * num_layers
        """The round each layer was last averaged in, or left a tier with one entity."""
        self._runs: dict[int, list[tuple[Clients, int]]] = {0: []}
        """Who took part since these rounds, and in how many in a row."""

    @property
    def enrolled(self) -> Clients:
        """The clients that may take part."""
        if self.cohort is not None:
            return self.cohort
        self.everybody = self.everybody or tuple(range(self.topology.num_clients))
        return self.everybody

    def trained(self, clients: Clients) -> None:
        """These clients took part in a round."""
        self.round += 1
        for runs in self._runs.values() if clients else ():
            if runs and (runs[-1][0] is clients or runs[-1][0] == clients):
                runs[-1] = clients, runs[-1][1] + 1
            else:
                runs.append((clients, 1))

    def averaged(self, layers: Iterable[int]) -> None:
        for layer in layers:
            self.averaged_at[layer] = self.round
        self._forget()

    def moved(self, cuts: Sequence[int]) -> None:
        """Layers changed tiers."""
        before, self.cuts = self._tiers(), tuple(cuts)
        for layer, (old, new) in enumerate(zip(before, self._tiers(), strict=True)):
            if old != new and not self.topology.averaged[old]:
                self.averaged_at[layer] = self.round
        self._forget()

    def _tiers(self) -> list[int]:
        return [tier_of(self.cuts, layer) for layer in range(len(self.averaged_at))]

    def _forget(self) -> None:
        """What no layer needs any more; a tier with one entity is never averaged."""
        tiers = enumerate(self._tiers())
        needed = {self.averaged_at[layer] for layer, tier in tiers if self.topology.averaged[tier]}
        self._runs = {at: self._runs.get(at, []) for at in sorted(needed)}

    def complete(self, layer: int) -> bool:
        """Whether everybody took part in all rounds since the layer was last averaged, and still does."""
        runs = self._runs.get(self.averaged_at[layer], [])
        return self.cohort is None and all(len(clients) == self.topology.num_clients for clients, _ in runs)

    def shares(self, tier: int, layer: int) -> Shares:
        """The weights of a tier's entities in an average of a layer; empty where nobody took part."""
        return self._shares(tier, self._runs.get(self.averaged_at[layer], []))

    def _shares(self, tier: int, runs: Sequence[tuple[Clients, int]]) -> Shares:
        if not self.topology.averaged[tier]:
            return {0: 1.0}
        counts: dict[int, float] = {}
        for clients, rounds in runs:
            entities, places = np.unique(self.topology.hosts[tier][list(clients)], return_inverse=True)
            served = np.bincount(places, self.topology.client_weights[list(clients)])
            for entity, count in zip(entities.tolist(), served.tolist(), strict=True):
                counts[entity] = counts.get(entity, 0.0) + count * rounds
        return _normalised(counts)

    def sources(self, layer: int, old: int, new: int) -> Sources:
        """Whose copies hosts in tier `new` take of a layer that was in tier `old`; to be asked before `moved`.

        Where nobody took part since the layer was averaged, all copies are the same; what lies beside them is then that
        of those who are enrolled.
        """
        pairs: dict[int, dict[int, float]] = {}
        hosts, complete = self.topology.hosts, self.complete(layer)
        runs = self._runs.get(self.averaged_at[layer], []) if self.topology.averaged[old] else []
        runs = runs or [(self.enrolled, 1)]
        for clients, rounds in () if complete else runs:
            chosen = list(clients)
            counted = (rounds * self.topology.client_weights[chosen]).tolist()
            for host, source, count in zip(
                hosts[new][chosen].tolist(), hosts[old][chosen].tolist(), counted, strict=True
            ):
                own = pairs.setdefault(host, {})
                own[source] = own.get(source, 0.0) + count
        of_host = {host: _normalised(pairs[host]) for host in sorted(pairs)}
        return Sources(complete, of_host, self._shares(old, runs))

    def needed(self, tier: int) -> list[int]:
        """The entities of a tier that have a copy of their own."""
        if self.cohort is None:
            return list(range(self.topology.entities[tier]))
        layers = tier_layers(self.cuts, len(self.averaged_at))[tier]
        since = {self.averaged_at[layer] for layer in layers} if self.topology.averaged[tier] else set()
        groups = [self.cohort, *(clients for at in since for clients, _ in self._runs.get(at, []))]
        found = [np.unique(self.topology.hosts[tier][list(clients)]) for clients in groups if clients]
        if not self.topology.averaged[tier]:
            return [0]
        return np.unique(np.concatenate(found)).tolist() if found else []

    def state(self) -> AttendanceRecord:
        """The attendance as a checkpoint holds it, with None for everybody."""
        whole = self.topology.num_clients
        return AttendanceRecord(
            averaged_at=list(self.averaged_at),
            cohort=None if self.cohort is None else list(self.cohort),
            presence=[
                PresenceRecord(since=at, clients=None if len(clients) == whole else list(clients), rounds=rounds)
                for at, runs in self._runs.items()
                for clients, rounds in runs
            ],
        )

    def restore(self, state: AttendanceRecord, round_: int, cuts: Sequence[int]) -> None:
        """Go on from there."""
        self.round, self.cuts, self.averaged_at = round_, tuple(cuts), list(state.averaged_at)
        self.cohort = None if state.cohort is None else tuple(state.cohort)
        self._runs = {}
        self._forget()
        for one in state.presence:
            clients = tuple(range(self.topology.num_clients)) if one.clients is None else tuple(one.clients)
            self._runs.setdefault(one.since, []).append((clients, one.rounds))


def _normalised(counts: Mapping[int, float]) -> Shares:
    total = sum(counts.values())
    return {entity: counts[entity] / total for entity in sorted(counts)}
