"""The backend whose entities are machines elsewhere: it commands them, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.coordinator import Answer, Coordinator, Mark
from hsfl.distributed.places import FED
from hsfl.distributed.probing import measured
from hsfl.distributed.tensors import pack_by_name, unpacked_by_name
from hsfl.engine import saving
from hsfl.engine.attendance import Sources
from hsfl.engine.entities import EntityBackend
from hsfl.engine.layer_copy import State
from hsfl.engine.probe import Measurement
from hsfl.errors import HsflError
from hsfl.problem.codes import LinkCodes

#: Rounds between two saves of every machine's own state.
SAVE_EVERY = 10


class Machines(EntityBackend):
    """Commands machines. Before `connect` it only says what entities are made of, which every machine needs too."""

    data_elsewhere = True
    counts_rounds = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.spent_s = dict.fromkeys(("round", "save", "average", "move", "probe"), 0.0)
        """Wall time that commands took so far, by kind."""
        self.chains: dict[int, wire.Chain] = {}
        """Where the last round spent its time, by client."""
        self.deadline_s = 0.0
        """How long a round waits for clients before it leaves out those who are late; 0: for all."""
        self.compute_s: dict[str, float] = {}
        """How long every entity computed in the last round."""
        self.bps: dict[str, float] = {}
        """How fast links are, by "SENDER>RECEIVER", as far as is known."""
        self._coordinator: Coordinator | None = None
        self._saved = 0
        """The round of the last save."""
        self._drifts: dict[int, torch.Tensor] = {}
        self._everything: dict[str, list[torch.Tensor]] | None = None
        """What all machines hold, while it is asked for client by client."""
        self._virtual: State | None = None
        """The virtual average, as long as nothing changes it."""

    def connect(self, coordinator: Coordinator) -> None:
        """Command machines from now on."""
        self._coordinator, self.places = coordinator, coordinator.places
        coordinator.start(self._mark(), {})

    @property
    def coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise HsflError("there are no machines yet")
        return self._coordinator

    def _mark(self) -> Mark:
        codes = tuple((link.up.code.name, link.down.code.name, link.average.code.name) for link in self.links)
        return Mark(self.round, self.cuts, self.seed, codes)

    def _change(self, settled: Callable[[wire.Done], dict[str, Any]] | None = None, **body: Any) -> Answer:
        self._virtual = None
        return self.coordinator.change(settled, **body)

    def train_round(self, clients: Sequence[int] | None = None) -> torch.Tensor:
        everybody = set(range(self.num_clients))
        absent = everybody - set(self._present(clients))
        if self.round >= self._saved + SAVE_EVERY:
            with self._timed("save"):
                self.coordinator.save(self._mark())
            self._saved = self.round
        with self._timed("round"):
            done, _ = self._change(
                lambda done: {"round": wire.Round(round=self.round, absent=sorted({*absent, *done.late}))},
                round=wire.Round(round=self.round, absent=sorted(absent), deadline_s=self.deadline_s),
            )
        left_out = absent | set(done.late)
        if not set(done.losses) == set(done.chains) == everybody - left_out or left_out >= everybody:
            raise HsflError("a round came back without the losses of all clients; the machines have other scenarios")
        self.compute_s, self.bps, self.chains = dict(done.compute_s), dict(done.bps), dict(done.chains)
        self._count(tuple(sorted(everybody - left_out)))
        return torch.tensor([done.losses[n] for n in self.took_part], dtype=torch.float32)

    def slowest_chain(self) -> dict[str, float]:
        """Where the time of the last round went, for the client whose round took longest."""
        parts = [{"compute": one.compute_s, "up": one.up_s, "down": one.down_s} for one in self.chains.values()]
        return max(parts, key=lambda part: sum(part.values()))

    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        raise HsflError("machines train on data of their own; call train_round")

    def average(self, tier: int) -> None:
        drift = self._drifts.pop(tier, None)
        self._drift = 0.0
        with self._timed("average"):
            super().average(tier)
        if drift is not None:
            drift.fill_(self._drift)

    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        done, _ = self._change(average=wire.Average(tier=tier, layers=layers, rounds=rounds))
        self._drift += done.drift

    def check_sent(self) -> None:
        """Nothing to do: every machine checks what it sends itself."""

    def drift(self, tier: int) -> torch.Tensor:
        """The drift, known once the tier is averaged: the fed server measures it on what it is sent then."""
        return self._drifts.setdefault(tier, torch.full((), float("nan"), dtype=torch.float64))

    def _move(self, before: Sequence[int], sources: Mapping[int, Sources]) -> None:
        with self._timed("move"):
            self._change(move=wire.Move(cuts=self.cuts))

    def probe(self, batches: int, step: float | None = None, *, coding: bool = False) -> Measurement:
        """Measure the constants: every client's gradients are taken where its data are, and pass through the tree."""
        with self._timed("probe"):
            return self.coordinator.together(lambda ask: measured(ask, self, self.places, batches, step, coding=coding))

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        changed = super().recode(codes)
        if changed:
            with self._timed("move"):
                self._change(recode=wire.Recode(codes=self._mark().restore(0).codes))
        return changed

    def global_state(self) -> State:
        if self._virtual is None:
            _, held = self.coordinator.do(collect=wire.Collect(all=False))
            like = {
                f"{n}.{key}": value for n, layer in enumerate(self._layers) for key, value in layer.state_dict().items()
            }
            found = unpacked_by_name(held[FED], like)
            self._virtual = State((key, found[key].to(self.device)) for key in like)
        return State((key, value.clone()) for key, value in self._virtual.items())

    def _kept(self) -> dict[str, list[torch.Tensor]]:
        _, held = self.coordinator.do(collect=wire.Collect(all=True))
        like = self._expected()
        found: dict[str, list[torch.Tensor]] = {}
        for name, state in held.items():
            wanted = {key: value for key, value in like.items() if self._whose(key, name)}
            found |= {key: [value] for key, value in unpacked_by_name(state, wanted).items()}
        self.coordinator.keep(self._mark(), held)
        return found

    def _expected(self) -> dict[str, torch.Tensor]:
        tiers = [
            saving.TierKeeps(layers, self._names(self.attendance, tier), self._slots(tier), self._keeps_once(tier))
            for tier, layers in enumerate(self._tier_layers())
        ]
        return saving.expected(self._layers, tiers)

    def _whose(self, key: str, name: str) -> bool:
        """Whether a machine keeps what a file has under this key."""
        kind, tier, rest = key.split(".", 2)
        of_server = kind not in ("state", "slot", "last")
        if name == FED or of_server:
            return name == FED and of_server
        own_tier, number = self.places.entities[name]
        return int(tier) == own_tier and (kind == "last" or int(rest.partition(".")[0]) == number)

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        kept = self._kept() if self._everything is None else self._everything
        return tuple(_under(kept, f"{kind}.{tier}.{entity}.") for kind in ("state", "slot"))  # type: ignore[return-value]

    def evaluate_clients(self, held: Sequence[torch.Tensor], *, own: bool = False) -> dict[str, list[float]]:
        self._everything = self._kept() if own else None
        try:
            return super().evaluate_clients(held, own=own)
        finally:
            self._everything = None

    def _last(self, tier: int) -> list[State]:
        return [found] if (found := _under(self._kept(), f"last.{tier}.")) else []

    def _of_server(self, tier: int, slot: str) -> list[State]:
        return [found] if (found := _under(self._kept(), f"{slot}.{tier}.")) else []

    def _take(self, cuts: Sequence[int], about: saving.About, tensors: Mapping[str, torch.Tensor]) -> None:
        self.cuts = tuple(cuts)
        self.attendance.restore(about.attendance, about.round, cuts)
        self._resume(about.round, about.seed)
        self._virtual, self._saved = None, self.round
        states = {
            name: pack_by_name({key: value for key, value in tensors.items() if self._whose(key, name)})
            for name in self.places.nodes
        }
        self.coordinator.start(self._mark(), states)
        self.coordinator.together(lambda ask: None)  # nobody's time runs before all are there

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s[kind] += time.perf_counter() - start


def _under(kept: Mapping[str, list[torch.Tensor]], prefix: str) -> State:
    return State((key.removeprefix(prefix), found[0]) for key, found in kept.items() if key.startswith(prefix))
