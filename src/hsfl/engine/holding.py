"""What a backend holds: the copies of entities, what lies beside them, and files of it all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from hsfl.engine import saving
from hsfl.engine.attendance import Attendance
from hsfl.engine.averaging import UNSENT, AveragingRule
from hsfl.engine.checks import checked_cuts
from hsfl.engine.layer_copy import State
from hsfl.engine.optimizer import Optimizer
from hsfl.problem.topology import Topology, tier_layers, tier_of

#: What stands for the entities without a copy of their own, in files.
REST = "rest"


class Holding(ABC):
    """A backend, as far as it holds things."""

    topology: Topology
    attendance: Attendance
    optimizer: Optimizer
    averaging: AveragingRule
    cuts: tuple[int, ...]
    round: int
    seed: int
    coded: list[bool]
    """For every tier whether its averages are coded, now or by another plan."""
    _layers: list[nn.Module]

    @property
    def num_tiers(self) -> int:
        return self.topology.num_tiers

    @property
    def num_clients(self) -> int:
        return self.topology.num_clients

    @abstractmethod
    def move(self, cuts: Sequence[int]) -> None: ...

    @abstractmethod
    def _seat(self) -> None: ...

    @abstractmethod
    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        """What an entity holds, as tensors that can be written to.

        Parameters and buffers by "LAYER.NAME", in the order of the layers, and slots by "SLOT.LAYER.NAME": the
        optimiser's state and the averaging rule's.
        """

    def _rest(self, tier: int) -> list[tuple[State, State]]:
        """The same of all copies there are of what the entities hold that have no copy of their own."""
        return []

    @abstractmethod
    def _last(self, tier: int) -> list[State]:
        """All copies there are of the weights that the tier's entities last had in common, by "LAYER.NAME"."""

    @abstractmethod
    def _of_server(self, tier: int, slot: str) -> list[State]:
        """What the fed server keeps of the tier's layers under a name, by "LAYER.NAME"; empty where that is nothing."""

    def save(self, path: str | Path) -> None:
        """Write everything to a file (safetensors): cuts, round and what every entity holds.

        Keys: "state.TIER.ENTITY.LAYER.NAME", where "rest" stands for all entities that have no copy of their own,
        "slot.TIER.ENTITY.SLOT.LAYER.NAME", "last.TIER.LAYER.NAME" and, of the fed server, "SLOT.TIER.LAYER.NAME".
        """
        about = {
            "cuts": self.cuts,
            "round": self.round,
            "attendance": self.attendance.state().model_dump(),
            "hosts": [row.tolist() for row in self.topology.hosts],
            "seed": self.seed,
        }
        saving.write(path, about, {key: copies[0] for key, copies in self._kept().items()})

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Go on from a file of a backend with the same layers, hosts, optimiser, rule and codes; bit for bit."""
        about, tensors = saving.read(path, self.topology, len(self._layers))
        cuts = checked_cuts(about.cuts, self.topology, len(self._layers))
        saving.check(path, tensors, saving.expected(self._layers, self._keeps(cuts, about)))
        self._take(cuts, about, tensors)

    def _keeps(self, cuts: Sequence[int], about: saving.About) -> list[saving.TierKeeps]:
        """What there is in a file."""
        then = Attendance(self.topology, len(self._layers), cuts)
        then.restore(about.attendance, about.round, cuts)
        return [
            saving.TierKeeps(layers, self._names(then, tier), self._slots(tier), self._keeps_once(tier))
            for tier, layers in enumerate(tier_layers(cuts, len(self._layers)))
        ]

    def _names(self, attendance: Attendance, tier: int) -> list[str]:
        """The entities of a tier that have a copy of their own, and what stands for the others."""
        found = [str(entity) for entity in attendance.needed(tier)]
        return found if len(found) == self.topology.entities[tier] else [*found, REST]

    def _take(self, cuts: Sequence[int], about: saving.About, tensors: Mapping[str, torch.Tensor]) -> None:
        self.move(cuts)
        self.attendance.restore(about.attendance, about.round, cuts)
        if about.attendance.cohort is not None:
            self._seat()
        self._resume(about.round, about.seed)
        for key, copies in self._kept().items():
            for value in copies:
                value.copy_(tensors[key])

    def _kept(self) -> dict[str, list[torch.Tensor]]:
        """All that is held, by the keys of a file: every copy there is, all of them the same."""
        found: dict[str, list[torch.Tensor]] = {}
        for tier in range(self.num_tiers):
            for name in self._names(self.attendance, tier):
                for held in self._rest(tier) if name == REST else [self._held(tier, int(name))]:
                    for kind, state in zip(("state", "slot"), held, strict=True):
                        for key, value in state.items():
                            found.setdefault(f"{kind}.{tier}.{name}.{key}", []).append(value)
            for kind in self._keeps_once(tier):
                copies = self._last(tier) if kind == "last" else self._of_server(tier, kind)
                for key, value in (item for one in copies for item in one.items()):
                    found.setdefault(f"{kind}.{tier}.{key}", []).append(value)
        return found

    def _resume(self, round_: int, seed: int) -> None:
        """Go on after a round of a run with this seed."""
        self.round, self.seed = round_, seed

    def _slots(self, tier: int) -> tuple[str, ...]:
        """What is kept beside every parameter: the optimiser's state, the averaging rule's, and what is unsent."""
        own = self.averaging.slots if self.topology.averaged[tier] else ()
        return (*self.optimizer.slots, *own, *((UNSENT,) if self.coded[tier] else ()))

    def _own_slots(self) -> tuple[str, ...]:
        """What an entity that is not needed any more loses: what averages do not make the same for all."""
        return (*(() if self.averaging.average_state else self.optimizer.slots), UNSENT)

    def _keeps_once(self, tier: int) -> tuple[str, ...]:
        """What is kept once for all entities of a tier."""
        return (*(("last",) if self._keeps_last(tier) else ()), *self._server_slots(tier))

    def _server_slots(self, tier: int) -> tuple[str, ...]:
        own = self.averaging.server_slots if self.topology.averaged[tier] else ()
        return (*own, *((UNSENT,) if self.coded[tier] else ()))

    def _keeps_last(self, tier: int) -> bool:
        """Whether something needs the weights that the tier's entities last had in common; one entity's are its own.

        Coded averages do, and a layer may come to them from any tier.
        """
        return bool(self.topology.averaged[tier]) and (self.averaging.uses_last or any(self.coded))

    def _tier_layers(self) -> list[range]:
        return tier_layers(self.cuts, len(self._layers))

    def _tier_by_layer(self) -> list[int]:
        return [tier_of(self.cuts, layer) for layer in range(len(self._layers))]
