"""The fast backend: one copy per entity, one flat tensor per tier.

Tier m has J_m distinct copies of its layers, not N, and each works on all its clients' samples at once, so a round
costs little more than one centralised step on the same samples. An entity's parameters are views of its row of the
tier's flat tensor: averaging is one weighted mean over rows. On CUDA a whole round is one graph, see `capture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hsfl.engine import seats
from hsfl.engine.attendance import Sources
from hsfl.engine.averaging import UNSENT, Tensors
from hsfl.engine.coded_averages import coded_mean
from hsfl.engine.flat_tiers import FlatTier, Sequences
from hsfl.engine.layer_copy import State
from hsfl.engine.precision import arithmetic
from hsfl.engine.seats import Seats, Weights, free_rows, rows_for
from hsfl.engine.sharding import Processes, RoundSum, Shard
from hsfl.engine.stacked_passes import EntityStep
from hsfl.engine.stacked_rounds import StackedRounds
from hsfl.problem.codes import LinkCodes


class StackedBackend(StackedRounds):
    """See the module's text. Gives the numbers of the reference backend."""

    def __init__(self, *args: Any, processes: Processes | None = None, **options: Any) -> None:
        """`processes`: those that train together, where there are several; each has a part of the clients."""
        super().__init__(*args, **options)
        self.shard = Shard(self.topology, processes or Processes())
        tiers = range(self.num_tiers)
        self._shares = [torch.tensor(self.shard.shares(m), dtype=self.dtype, device=self.device) for m in tiers]
        self._build()

    @torch.no_grad()
    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        rows, weights = self._tiers[tier], self._weights(tier, layers[0])
        held, mean = replace(rows.held(layers), round=self.round), partial(self._mean, weights)
        with arithmetic(self.device):  # in full precision, whatever that of rounds
            contributed, server = self.averaging.contribute(held), rows.server_slots(layers)
            served = partial(self.averaging.served, server=server, rounds=rounds)
            if self.coded[tier]:
                codec, sequences = self.links[tier].average, Sequences(rows.parameters, layers)
                unsent = held.slots[UNSENT], server[UNSENT]
                with weights.only_theirs(unsent[0]):
                    average = coded_mean(codec, mean, served, contributed, *unsent, sequences)
            else:
                average = mean(contributed)
                average = [*served(average[: len(held.weights)]), *average[len(held.weights) :]]
            self.averaging.adopt(held, average, rounds)
        rows.keep_last(layers)
        if not self.attendance.complete(layers[0]):
            first = self._row(tier, min(self._shares_of(tier, layers[0])))
            rows.count_as(first, free_rows(self._seats[tier], len(rows.weights)))

    def _weights(self, tier: int, layer: int) -> Weights:
        """The weights of a tier's rows in an average of a layer."""
        if self.attendance.complete(layer):
            return Weights(self._shares[tier])
        shares = self._shares_of(tier, layer)
        return Weights(
            torch.tensor(list(shares.values()), dtype=self.dtype, device=self.device),
            torch.tensor([self._row(tier, j) for j in shares], device=self.device),
        )

    def _row(self, tier: int, entity: int) -> int:
        """The row of an entity; one that holds what all others have, for an entity without a row."""
        found = self._seats[tier].get(entity)
        return free_rows(self._seats[tier], len(self._tiers[tier].weights))[0] if found is None else found

    def _mean(self, weights: Weights, rows: Tensors) -> Tensors:
        """The mean over a tier's entities."""
        return self.shard.processes.sum([weights.mean(one) for one in rows])

    def _groups(self, tier: int) -> list[tuple[Weights, Sequence[int]]]:
        """The layers of a tier that have the same weights in an average, with these."""
        layers = self._tier_layers()[tier]
        if not layers:
            return []
        if all(self.attendance.complete(layer) for layer in layers):
            return [(Weights(self._shares[tier]), layers)]
        return [(self._weights(tier, group[0]), group) for group in self._by_age(layers).values()]

    @torch.no_grad()
    def drift(self, tier: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for weights, layers in self._groups(tier):
            for rows in self._tiers[tier].held(layers).weights:
                with arithmetic(self.device):
                    (middle,) = self._mean(weights, [rows])
                    total += weights.apart(rows, middle)
        return self.shard.processes.sum([total])[0]

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        if changed := super().recode(codes):
            self._recorded.clear()
        return changed

    @torch.no_grad()
    def _move(self, before: Sequence[int], taken: Mapping[int, Sources]) -> None:
        old_tiers, old_seats = self._tiers, self._seats
        self._build()
        for layer, (old, new) in enumerate(zip(before, self._tier_by_layer(), strict=True)):
            places = old_seats[old], len(old_tiers[old].weights), self._seats[new], len(self._tiers[new].weights)
            counting = places[0][min(places[0])] if places[0] else 0
            with arithmetic(self.device):
                if old == new:
                    rows = torch.tensor(seats.stayed(*places), device=self.device)
                    self._tiers[new].take(
                        layer, old_tiers[old], partial(torch.index_select, dim=0, index=rows), counting
                    )
                    continue
                if taken[layer].complete:
                    part = torch.tensor(self.shard.part(new, old), dtype=self.dtype, device=self.device)

                    def mean(rows: torch.Tensor, new: int = new, part: torch.Tensor = part) -> torch.Tensor:
                        return self.shard.completed(new, part @ rows)

                    self._tiers[new].take(layer, old_tiers[old], mean, counting)
                else:
                    means = seats.taken(taken[layer], *places, like=self._shares[new])
                    self._tiers[new].take(layer, old_tiers[old], partial(seats.spread, means, places[-1]), counting)
        for tier, own in zip(self._tiers, self._seats, strict=True):
            tier.clear(free_rows(own, len(tier.weights)), self._own_slots())

    @torch.no_grad()
    def _seat(self) -> None:
        self._forget_parties()
        for m, own in enumerate(self._seats):
            needed, tier = self.attendance.needed(m), self._tiers[m]
            free = free_rows(own, len(tier.weights))
            left = [own.pop(j) for j in own.keys() - set(needed)]  # it has what all have that have no row
            tier.clear(left, self._own_slots())
            tier.count_as(free[0] if free else left[0] if left else 0, left)
            count = self.topology.entities[m]
            wanted, old = rows_for(len(needed), count), dict(own)
            grows = wanted > len(tier.weights)
            if self.attendance.cohort is None:  # everybody: one row after the other
                own.update((j, j) for j in needed)
            joining = (j for j in needed if j not in own)
            own |= zip(joining, free_rows(own, max(wanted, len(tier.weights))), strict=False)
            if grows or any(own[j] != row for j, row in old.items()):
                rows = min(count, max(wanted, len(tier.weights) * 3 // 2)) if grows else len(tier.weights)
                self._tiers[m] = self._new_tier(m, rows)
                self._tiers[m].take_rows(tier, seats.stayed(old, len(tier.weights), own, rows))
                self._stepped[m] = self._new_steps(m)

    @torch.no_grad()
    def global_state(self) -> State:
        everybody = self.attendance.cohort is None
        state = self.client_state(min(self.shard.clients) if everybody else min(self.attendance.enrolled, default=0))
        for m, tier in enumerate(self._tiers):
            for weights, layers in self._groups(m):
                if weights.rows is not None:  # counters are those of the first who took part
                    first, _ = self._held(m, min(self._shares_of(m, layers[0])))
                    own = {key: value for key, value in first.items() if int(key.partition(".")[0]) in layers}
                    state |= {key: value.clone() for key, value in own.items()}
                with arithmetic(self.device):
                    means = self._mean(weights, [tier.weights, tier.statistics])
                for mean, places in zip(means, (tier.parameters, tier.buffers), strict=True):
                    for place in (place for place in places if place.layer in layers):
                        for name in (place.name, *place.aliases):
                            if (key := f"{place.layer}.{name}") in state:
                                state[key] = place.view(mean)
        return state

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        if self.attendance.cohort is None and entity not in self._seats[tier]:  # another process has it
            return State(), State()
        return self._tiers[tier].named(self._row(tier, entity))

    def _rest(self, tier: int) -> list[tuple[State, State]]:
        rows = self._tiers[tier]
        return [rows.named(row) for row in free_rows(self._seats[tier], len(rows.weights))]

    def _last(self, tier: int) -> list[State]:
        return self._tiers[tier].named_rows(self._tiers[tier].last)

    def _of_server(self, tier: int, slot: str) -> list[State]:
        return self._tiers[tier].named_rows(self._tiers[tier].server.get(slot))

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        self._clock.fill_(round_)
        self._seed.fill_(seed)

    def _build(self) -> None:
        """Tiers for the current cuts, all entities as the model came."""
        self._forget_parties()
        everybody = self.attendance.cohort is None
        needed = [
            rows.tolist() if everybody else self.attendance.needed(m) for m, rows in enumerate(self.shard.entities)
        ]
        self._seats: list[Seats] = [{j: row for row, j in enumerate(entities)} for entities in needed]
        self._tiers = [
            self._new_tier(m, len(own) if everybody else rows_for(len(own), self.topology.entities[m]))
            for m, own in enumerate(self._seats)
        ]
        self._sum = RoundSum(self.shard, self._tiers) if self.shard.processes.size > 1 else None
        self._stepped = [self._new_steps(m) for m in range(self.num_tiers)]

    @torch.no_grad()
    def _new_tier(self, tier: int, rows: int) -> FlatTier:
        layers = self._tier_layers()[tier]
        return FlatTier(
            [self._layers[i] for i in layers],
            layers,
            self._slots(tier),
            self._shares[tier].new_empty(rows),
            keeps_last=self._keeps_last(tier),
            server=self._server_slots(tier),
            channels_last=self._channels_last,
        )

    def _new_steps(self, tier: int) -> list[EntityStep]:
        """For every row what an update needs."""
        corrected = self.averaging.corrects and bool(self.topology.averaged[tier])
        summed = {} if self._sum is None else self._sum.gradients[tier]
        rows = self._tiers[tier]
        return [
            EntityStep(modules, rows.trained(j), None, None, corrected, summed.get(j, []))
            for j, modules in enumerate(rows.entities)
        ]
