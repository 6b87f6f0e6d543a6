"""The seam between the algorithm and what executes it: one interface, several backends, the same numbers.

In this interface tiers, entities, clients and layers count from 0, like `hosts`; cuts count layers. Every entity holds
one copy of its tier's layers and one optimiser state, stepped with the mean gradient of the clients it hosts.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hsfl.engine import saving
from hsfl.engine.averaging import UNSENT, AveragingRule, averaging_rule
from hsfl.engine.checks import checked_batch, checked_clients, checked_cuts, checked_dtype, checked_layers
from hsfl.engine.coded_averages import all_finite, check_unsent
from hsfl.engine.entity import State, add_share
from hsfl.engine.evaluating import Evaluating
from hsfl.engine.links import coded, links
from hsfl.engine.losses import Loss, Metric, cross_entropy, usual_metrics
from hsfl.engine.optimizer import Optimizer
from hsfl.engine.per_client import with_clients
from hsfl.engine.precision import PRECISIONS
from hsfl.engine.probe import Measurement, VirtualModel, measure
from hsfl.engine.sharding import Shard
from hsfl.engine.training_data import Draws, TrainingData
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.codes import GivenCodes, LinkCodes
from hsfl.problem.topology import Topology, tier_layers, tier_of


class Backend(Evaluating, ABC):
    """Runs rounds of hierarchical split federated training, on command.

    Averaging a tier over its entities and moving layers between tiers are commands of their own.
    """

    together: bool  # whether an entity works on the samples of several clients at once
    data_elsewhere = False  # whether clients may have their data where nobody else has it

    def __init__(
        self,
        layers: Sequence[nn.Module],
        hosts: Sequence[Sequence[int]],
        cuts: Sequence[int],
        optimizer: Mapping[str, Any],
        *,
        data: TrainingData | None = None,
        loss: Loss = cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        averaging: str | AveragingRule = "plain",
        weights: Sequence[float] | None = None,
        codes: str | Sequence[LinkCodes | GivenCodes] | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        seed: int = 0,
        capture: bool | None = None,
    ) -> None:
        """The model's layers on every entity of the tree `hosts`, cut at `cuts`.

        `data` is what `train_round`, `probe` and `evaluate` work on; without it, `step` and `evaluate` are given data.
        `metrics` is what evaluations count, by name (default: accuracy with cross entropy, else nothing but the loss).
        `averaging` is the rule of averages. `weights` is what every client counts, such as its number of samples
        (default: all the same). `codes` is how what crosses links is written: one code for all of them, or for each
        tier what `tiers.TIER.code` of a scenario takes (default: as it is). `precision` is that of products in float32:
        "tf32" matters on CUDA only. `seed` is dropout's. `capture` asks for a whole round as one CUDA graph, where the
        backend can (None: yes); elsewhere it is ignored.
        """
        if precision not in PRECISIONS:
            raise ScenarioError(f"precision {precision!r}: it must be one of {', '.join(PRECISIONS)}")
        self.topology = Topology.from_hosts(hosts).weighted(weights)
        self.shard = Shard(self.topology)
        self.optimizer = Optimizer.from_settings(optimizer)
        self.averaging = averaging_rule(averaging, self.optimizer)
        self.links = links(codes, self.topology)
        self.coded = coded(self.links, self.topology)
        """For every tier whether its averages are coded, now or by another plan."""
        self.data, self.loss, self.seed, self.round = data, loss, int(seed), 0
        self.metrics = usual_metrics(loss) if metrics is None else dict(metrics)
        self.left_out: tuple[int, ...] = ()  # of the last round
        self.device, self.dtype = torch.device(device), checked_dtype(dtype)
        self.precision, self.capture = precision, capture
        self._layers = [
            with_clients(copy.deepcopy(layer), number, together=self.together).to(self.device, self.dtype).train()
            for number, layer in enumerate(checked_layers(layers))
        ]
        self.cuts = checked_cuts(cuts, self.num_tiers, len(self._layers))
        self._averaged_at = [0] * len(self._layers)
        """The round each layer was last averaged in, or left a tier with one entity."""
        self._draws: Draws | None = None

    @property
    def num_tiers(self) -> int:
        return self.topology.num_tiers

    @property
    def num_clients(self) -> int:
        return self.topology.num_clients

    @property
    def runs_ahead(self) -> bool:
        """Whether results may still be on their way when a command returns: reading them waits."""
        return self.device.type != "cpu"

    def train_round(self, clients: Sequence[int] | None = None) -> torch.Tensor:
        """One round on the data the backend was made with: the losses (N,) before the update.

        `clients` are those who take part (default: all); the others' losses are NaN. An entity steps with the mean over
        those it hosts; one without any stays as it is. On CUDA the losses may still be on their way."""
        present = checked_clients(clients, self.num_clients, together=self.together)
        losses = self._round_from(self.drawn(), present)
        self.left_out, self.round = tuple(sorted(set(range(self.num_clients)) - set(present))), self.round + 1
        return losses

    def drawn(self) -> torch.Tensor:
        """What every client draws in this round."""
        self._draws = self._draws or Draws(self._data())
        return self._draws.of(self.round)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One round on a mini-batch per client, (N, b, ...) and (N, b, ...): the losses (N,) before the update."""
        checked_batch(inputs, targets, self.num_clients)
        losses = self._round(inputs, targets, tuple(range(self.num_clients)))
        self.round += 1
        return losses

    def _round_from(self, draw: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        return self._round(*self._data().batch(draw), clients)

    @abstractmethod
    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: tuple[int, ...]) -> torch.Tensor:
        """A round of these clients on mini-batches of all, without counting it."""

    def average(self, tier: int) -> None:
        """Average a tier over its entities, weighted by their clients, as the averaging rule says."""
        if tier not in range(self.num_tiers):
            raise HsflError(f"tier {tier}: there are {self.num_tiers}, counted from 0 to {self.num_tiers - 1}")
        ages: dict[int, list[int]] = {}
        for layer in self._tier_layers()[tier]:
            ages.setdefault(self.round - self._averaged_at[layer], []).append(layer)
            self._averaged_at[layer] = self.round
        if self.topology.averaged[tier]:
            for rounds, layers in ages.items():
                self._average(tier, layers, rounds)
        if not self.runs_ahead:
            self.check_sent()

    @abstractmethod
    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        """Average some layers of a tier with several entities, so many rounds after the average before."""

    def move(self, cuts: Sequence[int]) -> None:
        """Change the cuts: a layer's new host takes the mean over its own clients of their copies, slots alike.

        What a layer's hosts last had in common goes with it, to the bit, and so does what the fed server keeps of it.
        """
        cuts = checked_cuts(cuts, self.num_tiers, len(self._layers))
        if cuts == self.cuts:
            return
        before, self.cuts = self._tier_by_layer(), cuts
        for layer, (old, new) in enumerate(zip(before, self._tier_by_layer(), strict=True)):
            if old != new and not self.topology.averaged[old]:
                self._averaged_at[layer] = self.round
        self._move(before)

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        """Change the codes of links; whether any is another one. What is left unsent will be sent in the new code."""
        found = links(codes, self.topology)
        if coded(found, self.topology) != self.coded:
            raise HsflError("codes: whether averages are coded cannot change; let their code be planned from the start")
        before, self.links = self.links, found
        return found != before

    @abstractmethod
    def _move(self, before: Sequence[int]) -> None:
        """Move the layers from the tiers that they were in to those of the current cuts."""

    @abstractmethod
    def drift(self, tier: int) -> torch.Tensor:
        """How far a tier's entities are apart: their mean squared distance from their mean, weighted by clients.

        sum_j N_m^j/N |w_j - w|^2 over the tier's parameters: a float64 scalar on the device, not waited for.
        """

    @abstractmethod
    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        """What an entity holds, as tensors that can be written to.

        Parameters and buffers by "LAYER.NAME", in the order of the layers, and slots by "SLOT.LAYER.NAME": the
        optimiser's state and the averaging rule's.
        """

    @abstractmethod
    def _last(self, tier: int) -> list[State]:
        """All copies there are of the weights that the tier's entities last had in common, by "LAYER.NAME"."""

    @abstractmethod
    def _of_server(self, tier: int, slot: str) -> list[State]:
        """What the fed server keeps of the tier's layers under a name, by "LAYER.NAME"; empty where that is nothing."""

    def client_state(self, client: int) -> State:
        """What a client computes with now: parameters and buffers by "LAYER.NAME", in the order of the layers."""
        state: State = OrderedDict()
        for tier, row in enumerate(self.topology.hosts):
            found, _ = self._held(tier, int(row[client]))
            state |= {key: value.detach().clone() for key, value in found.items()}
        return state

    @torch.no_grad()
    def global_state(self) -> State:
        """The virtual average over clients of every layer: the model that is evaluated."""
        total: State = OrderedDict()
        for tier, entity in self.topology.each_entity():
            add_share(total, self._held(tier, entity)[0], float(self.topology.shares[tier][entity]))
        return total

    def not_finite(self) -> int | None:
        """A client whose weights are not finite; None if all are."""
        names = [f"{n}.{name}" for n, layer in enumerate(self._layers) for name, _ in layer.named_parameters()]
        virtual = self.global_state()
        if all_finite(virtual[name] for name in names):
            return None
        states = enumerate(self.client_state(n) for n in range(self.num_clients))
        return next((n for n, state in states if not all_finite(state[name] for name in names)), 0)

    def check_sent(self) -> None:
        """DivergedError if what an entity sent to a coded average was not finite; waits for the device.

        Coding leaves NaN of it unsent, with entity and fed server: an average asks at once on a CPU; where results are
        on their way, whoever reads them does.
        """
        for tier, clients in enumerate(self.topology.clients):
            if not all_finite(left for row in self._of_server(tier, UNSENT) for left in row.values()):
                slots = (self._held(tier, entity)[1] for entity in range(len(clients)))
                check_unsent(slots, clients, self.links[tier].average.code)

    def probe(self, batches: int, step: float | None = None, *, coding: bool = False) -> Measurement:
        """Measure the constants of the convergence bound at the virtual average; trains nothing.

        On so many mini-batches of every client; `step` is the effective gamma, with which the smoothness is measured.
        `coding`: the noise of codes, too.
        """
        model = VirtualModel(
            self._layers, self.global_state(), self._data().samples, self.loss, self.seed, self.device, self.precision
        )
        return measure(model, self.shard, self._data().probe_draws(self.round, batches), step, coding=coding)

    def save(self, path: str | Path) -> None:
        """Write everything to a file (safetensors): cuts, round and what every entity holds.

        Keys: "state.TIER.ENTITY.LAYER.NAME", "slot.TIER.ENTITY.SLOT.LAYER.NAME", "last.TIER.LAYER.NAME" and, of the fed
        server, "SLOT.TIER.LAYER.NAME".
        """
        about = {
            "cuts": self.cuts,
            "round": self.round,
            "averaged_at": self._averaged_at,
            "hosts": [row.tolist() for row in self.topology.hosts],
            "seed": self.seed,
        }
        saving.write(path, about, {key: copies[0] for key, copies in self._kept().items()})

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Go on from a file of a backend with the same layers, hosts, optimiser, rule and codes; bit for bit."""
        about, tensors = saving.read(path, self.topology, len(self._layers))
        cuts = checked_cuts(about.cuts, self.num_tiers, len(self._layers))
        tiers = [
            saving.TierKeeps(layers, self.topology.entities[tier], self._slots(tier), self._keeps_once(tier))
            for tier, layers in enumerate(tier_layers(cuts, len(self._layers)))
        ]
        saving.check(path, tensors, saving.expected(self._layers, tiers))
        self._take(cuts, about, tensors)

    def _take(self, cuts: Sequence[int], about: saving.About, tensors: Mapping[str, torch.Tensor]) -> None:
        self.move(cuts)
        self._averaged_at = list(about.averaged_at)
        self._resume(about.round, about.seed)
        for key, copies in self._kept().items():
            for value in copies:
                value.copy_(tensors[key])

    def _kept(self) -> dict[str, list[torch.Tensor]]:
        """All that is held, by the keys of a file: every copy there is, all of them the same."""
        found: dict[str, list[torch.Tensor]] = {}
        for tier, entity in self.topology.each_entity():
            for kind, state in zip(("state", "slot"), self._held(tier, entity), strict=True):
                found |= {f"{kind}.{tier}.{entity}.{key}": [value] for key, value in state.items()}
        for tier in range(self.num_tiers):
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

    def _inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.device, self.dtype) if inputs.is_floating_point() else inputs.to(self.device)

    def _data(self) -> TrainingData:
        if self.data is None:
            raise HsflError("the backend was made without data; give it data, or call step and evaluate with batches")
        return self.data
