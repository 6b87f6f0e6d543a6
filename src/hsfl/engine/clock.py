"""Clocks: what a round, an average and a move of layers cost on the machines of that moment.

Only here does a plan become seconds and bytes. On the simulated clock split training takes T_S a round, averaging tier
m takes T_{m,A} (theory.latency). Layers that change tiers travel like sub-models: over the link between the two tiers,
one copy per entity of the lower one, with their optimiser state, and the slowest link decides.

Where labels stay on the devices, what goes between the top and their last layers crosses every link on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Protocol

import numpy as np

from hsfl.errors import HsflError
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem, cumulative
from hsfl.problem.profile import FloatArray
from hsfl.problem.system import System
from hsfl.problem.topology import Clients
from hsfl.theory.latency import (
    aggregation_latency,
    arrival_latency,
    averaged_bits,
    client_latency,
    demands,
    slowest_round,
    split_latency,
)

#: Some entities of a tier; None: all.
Some = Sequence[int] | None


class Clock(Protocol):
    """Tells the algorithm what it took: simulated, or as measured."""

    time_s: float
    """Since the start."""
    bits: dict[str, int]
    """What crossed every link since the start, by "TIER.LINK"."""
    planned_s: float | None
    """Where `time_s` is measured: what the plan says it takes."""

    @property
    def as_measured(self) -> bool:
        """Whether the machines of the moment are those that were measured, and not the scenario's."""

    @property
    def problem(self) -> Problem:
        """With the machines of the moment."""

    @property
    def bytes(self) -> dict[str, int]: ...
    def see(self, system: System, plan: Plan | None = None) -> None: ...
    def split(
        self, cuts: Sequence[int], rounds: int = 1, clients: Clients | None = None, least_s: float = 0.0
    ) -> None: ...
    def average(self, cuts: Sequence[int], tier: int, senders: Some = None, receivers: Some = None) -> None: ...
    def move(self, old: Sequence[int], new: Sequence[int], holders: Sequence[Sequence[int]] | None = None) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def round_s(self, cuts: Sequence[int]) -> FloatArray: ...
    def arrival_s(self, cuts: Sequence[int], clients: Clients) -> FloatArray: ...
    def parts(self) -> dict[str, tuple[float, float]]:
        """Where time is measured: planned and measured seconds by part, since they were last asked for."""


@dataclass
class SimulatedClock:
    """Simulated seconds since the start, and the bits that crossed every link so far.

    `problem` gives batch size and profile; its system is replaced by the one of the moment.
    """

    problem: Problem
    time_s: float = 0.0
    bits: dict[str, int] = field(default_factory=dict)
    """What crossed every link, by "TIER.LINK": up and down carry activations, gradients and moved layers, fed_up and
    fed_down sub-models."""
    planned_s: float | None = None
    as_measured: bool = False

    def __post_init__(self) -> None:
        tiers = self.problem.system.tree
        for m, tier in enumerate(tiers):
            links = (["up", "down"] if m < len(tiers) - 1 else []) + (
                ["fed_up", "fed_down"] if tier.entities > 1 else []
            )
            for link in links:
                self.bits.setdefault(f"{tier.name}.{link}", 0)
        self._seen: tuple[System, object] = self.problem.system, None
        self._cuts: tuple[int, ...] | None = None
        self._costs: tuple[float, list[float]] = (0.0, [])
        self._slowest: tuple[Clients, float] = ((), 0.0)
        """T_S of some clients at these cuts."""

    @property
    def bytes(self) -> dict[str, int]:
        """What crossed every link, in whole bytes."""
        return {link: bits // 8 for link, bits in self.bits.items()}

    def see(self, system: System, plan: Plan | None = None) -> None:
        """The machines as they are from now on, and the codes and mini-batches of the plan, where it has any."""
        what = None if plan is None else (plan.codes, plan.micro_batches)
        if system is not self._seen[0] or what != self._seen[1]:
            self._seen, self._cuts = (system, what), None
            self.problem = replace(self.problem, system=system)
            self.problem = self.problem if plan is None else self.problem.as_planned(plan)

    def split(self, cuts: Sequence[int], rounds: int = 1, clients: Clients | None = None, least_s: float = 0.0) -> None:
        """Rounds of split training: T_S each, of some clients or all, and not less than `least_s`.

        How machines are shared is that of `System.sharing`, whoever takes part.
        """
        problem, costs = self.problem, self._at(cuts)
        took_part = problem.system.num_clients if clients is None else len(clients)
        slowest_s = costs[0]
        if took_part < problem.system.num_clients:
            assert clients is not None
            if self._slowest[0] != clients:
                slowness = problem.system.slowness[:, list(clients)]
                self._slowest = clients, float(split_latency(problem, cuts, slowness)) if clients else 0.0
            slowest_s = self._slowest[1]
        self._pass(rounds * max(slowest_s, least_s), "a round of split training")
        samples = rounds * took_part * problem.micro_batches * problem.batch_size
        below = problem.system.tree[:-1]
        for m, cut in enumerate(cuts):
            up, down = samples * problem.uplink_bits[m, cut - 1], samples * problem.downlink_bits[m, cut - 1]
            if m == len(below):  # to the devices again, by all links down, and back
                up, down = down, up
            for tier in below if m == len(below) else below[m : m + 1]:
                self.bits[f"{tier.name}.up"] += round(up)
                self.bits[f"{tier.name}.down"] += round(down)

    def average(self, cuts: Sequence[int], tier: int, senders: Some = None, receivers: Some = None) -> None:
        """The fed server averages a tier: T_{m,A}, of the slowest of those that send and of those that fetch."""
        own, bits = self.problem.system.tiers[tier], float(averaged_bits(self.problem, cuts)[tier])
        if senders is None and receivers is None:
            self._pass(self._at(cuts)[1][tier], "an average")
        else:
            ways = ((own.fed_uplink_bps, senders), (own.fed_downlink_bps, receivers))
            rates = [rate if who is None else rate[list(who)] for rate, who in ways]
            self._pass(sum(bits / float(rate.min()) for rate in rates if len(rate)), "an average")
        name = self.problem.system.machines(tier).name
        for link, who in (("fed_up", senders), ("fed_down", receivers)):
            self.bits[f"{name}.{link}"] += round((own.entities if who is None else len(who)) * bits)

    def move(self, old: Sequence[int], new: Sequence[int], holders: Sequence[Sequence[int]] | None = None) -> None:
        """Layers change tiers: at every cut that moves, they cross that link, down if the cut rises and up if it falls.

        `holders` are the entities of every tier that have copies of their own (default: all).

        Boundaries are crossed one after the other, from the devices up. What averages keep in both tiers goes
        along.
        """
        profile, kept = self.problem.profile, self.problem.averaging_copies
        for m, (tier, before, after) in enumerate(zip(self.problem.system.tiers, old, new, strict=False)):
            sizes = cumulative((1 + min(kept[m], kept[m + 1])) * profile.parameter_bits + profile.optimizer_bits)
            bits = abs(float(sizes[after] - sizes[before]))
            if m == len(self.problem.system.tree) - 1:
                self._move_all_the_way(bits, None if holders is None else holders[-1], up=after > before)
                continue
            link, rates = ("down", tier.downlink_bps) if after > before else ("up", tier.uplink_bps)
            own = range(tier.entities) if holders is None else holders[m]
            rates = rates if holders is None else rates[list(own)]
            self._pass(bits / float(np.min(rates)) if len(own) else 0.0, "a move of layers")
            self.bits[f"{tier.name}.{link}"] += round(bits * len(own))

    def _move_all_the_way(self, bits: float, devices: Some, *, up: bool) -> None:
        """Layers go from the devices to the top, a copy of each device, or back, one copy over every link."""
        system = self.problem.system
        chosen = np.arange(system.num_clients) if devices is None else np.asarray(devices, dtype=np.int64)
        seconds = np.zeros(len(chosen))
        for tier, hosts in zip(system.tree[:-1], system.hosts, strict=False):
            copies = np.bincount(hosts[chosen], minlength=tier.entities)
            copies = copies if up else np.minimum(copies, 1)
            seconds += (bits * copies / (tier.uplink_bps if up else tier.downlink_bps))[hosts[chosen]]
            self.bits[f"{tier.name}.{'up' if up else 'down'}"] += round(bits * int(copies.sum()))
        self._pass(float(seconds.max(initial=0.0)), "a move of layers")

    def wait(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self._pass(seconds, "a wait")

    def round_s(self, cuts: Sequence[int]) -> FloatArray:
        """How long every client's round takes: T_n."""
        return client_latency(self.problem, demands(self.problem, cuts), self.problem.system.slowness)

    def arrival_s(self, cuts: Sequence[int], clients: Clients) -> FloatArray:
        """How long it takes what clients send up to be at the top tier."""
        return arrival_latency(self.problem, cuts, list(clients))

    def parts(self) -> dict[str, tuple[float, float]]:
        return {}

    def slowest_parts(self, cuts: Sequence[int]) -> dict[str, float]:
        """What T_S is made of: the parts of the slowest client's round."""
        _, _, one = slowest_round(self.problem, cuts)
        parts = {"compute": one.compute_s, "up": one.uplink_s, "down": one.downlink_s}
        return {name: float(seconds.sum()) for name, seconds in parts.items()}

    def _at(self, cuts: Sequence[int]) -> tuple[float, list[float]]:
        """T_S and every T_{m,A}, worked out once for the cuts and machines in force."""
        if self._cuts != tuple(cuts):
            self._cuts, self._slowest = tuple(cuts), ((), 0.0)
            self._costs = (float(split_latency(self.problem, cuts)), aggregation_latency(self.problem, cuts).tolist())
        return self._costs

    def _pass(self, seconds: float, what: str) -> None:
        if not isfinite(seconds):
            raise HsflError(f"{what} takes {seconds} simulated seconds; check the rates of the machines at that moment")
        self.time_s += seconds
        if self.planned_s is not None:  # a run that was measured goes on
            self.planned_s += seconds
