"""The seam between the algorithm and what executes it: one interface, several backends, the same numbers.

In this interface tiers, entities, clients and layers count from 0, like `hosts`; cuts count layers. Every entity holds
one copy of its tier's layers and one optimiser state, stepped with the mean gradient of the clients it hosts.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hsfl.engine.attendance import Attendance, Shares, Sources
from hsfl.engine.averaging import UNSENT, AveragingRule, averaging_rule
from hsfl.engine.checks import (
    check_statistics,
    checked_batch,
    checked_clients,
    checked_count,
    checked_cuts,
    checked_dtype,
    checked_layers,
)
from hsfl.engine.coded_averages import all_finite, check_unsent
from hsfl.engine.entity import add_share
from hsfl.engine.evaluating import Evaluating
from hsfl.engine.holding import Holding
from hsfl.engine.layer_copy import State
from hsfl.engine.links import UNCODED, Link, coded, links
from hsfl.engine.losses import Loss, Metric, cross_entropy, usual_metrics
from hsfl.engine.optimizer import Optimizer
from hsfl.engine.per_client import with_clients
from hsfl.engine.precision import PRECISIONS
from hsfl.engine.probe import Measurement, measure
from hsfl.engine.sharding import Shard
from hsfl.engine.training_data import Draws, TrainingData
from hsfl.engine.virtual_model import VirtualModel
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.codes import GivenCodes, LinkCodes
from hsfl.problem.topology import Clients, Topology


class Backend(Evaluating, Holding):
    """Runs rounds of hierarchical split federated training, on command.

    Averaging a tier over its entities and moving layers between tiers are commands of their own.
    """

    together: bool  # whether an entity works on the samples of several clients at once
    data_elsewhere = False  # whether clients may have their data where nobody else has it
    counts_rounds = True  # whether an average weighs clients by the rounds that they took part in; else all alike

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
        weights: Sequence[float] | None = None,
        averaging: str | AveragingRule = "plain",
        codes: str | Sequence[LinkCodes | GivenCodes] | None = None,
        micro_batches: int = 1,
        chunks: int = 1,
        dtype: torch.dtype | str = torch.float32,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        seed: int = 0,
        capture: bool | None = None,
        cohort: Sequence[int] | None = None,
    ) -> None:
        """The model's layers on every entity of the tree `hosts`, cut at `cuts`.

        Where its last tier is the first once more, the devices hold the last layers, too, and compute the loss.
        `data` is what `train_round`, `probe` and `evaluate` work on; without it, `step` and `evaluate` are given data.
        `metrics` is what evaluations count, by name (default: accuracy with cross entropy, else nothing but the loss).
        `averaging` is the rule of averages. `weights` is what every client counts, such as its number of samples
        (default: all the same). `codes` is how what crosses links is written: one code for all of them, or
        for each tier what `tiers.TIER.code` of a scenario takes (default: as it is). `micro_batches` is how many
        mini-batches of every client a round has, whose gradients are accumulated; `chunks` is in how many parts they
        go through the tiers, which `stacked` need not do.
        `precision` is that of products in float32: "tf32" matters on CUDA only. `seed` is dropout's. `capture` asks for
        a whole round as one CUDA graph, where the backend can (None: yes); elsewhere it is ignored. `cohort` are the
        clients that are enrolled at first, see `enrol` (default: all).
        """
        if precision not in PRECISIONS:
            raise ScenarioError(f"precision {precision!r}: it must be one of {', '.join(PRECISIONS)}")
        self.topology = Topology.from_hosts(hosts).weighted(weights)
        self.shard = Shard(self.topology)
        self.optimizer = Optimizer.from_settings(optimizer)
        self.averaging = averaging_rule(averaging, self.optimizer)
        self.links = links(codes, self.topology)
        self.coded = coded(self.links, self.topology)
        self.data, self.loss, self.seed, self.round = data, loss, int(seed), 0
        self.micro_batches, self.chunks = checked_count(micro_batches), checked_count(chunks, "chunks")
        self.metrics = usual_metrics(loss) if metrics is None else dict(metrics)
        self.took_part: tuple[int, ...] = ()  # in the last round
        self.device, self.dtype, self.precision = torch.device(device), checked_dtype(dtype), precision
        self.capture = capture
        self._layers = [
            with_clients(copy.deepcopy(layer), number, together=self.together).to(self.device, self.dtype).train()
            for number, layer in enumerate(checked_layers(layers))
        ]
        check_statistics(self._layers, self.chunks)
        self.cuts = checked_cuts(cuts, self.topology, len(self._layers))
        enrolled = None if cohort is None else checked_clients(cohort, range(self.num_clients))
        self.attendance = Attendance(self.topology, len(self._layers), self.cuts, enrolled)
        self._draws: Draws | None = None

    @property
    def runs_ahead(self) -> bool:
        """Whether results may still be on their way when a command returns: reading them waits."""
        return self.device.type != "cpu"

    def enrol(self, clients: Sequence[int] | None) -> None:
        """From now on these clients take part in rounds (None: all). Memory is taken for them, not for all.

        An entity none of whose clients is among them keeps its copy until its tier is averaged, and then nothing of its
        own: once it is needed again, it starts with what all others have in common, its optimiser anew.
        """
        found = None if clients is None else checked_clients(clients, range(self.num_clients))
        if found is not None and len(found) == self.num_clients:
            found = None
        if found != self.attendance.cohort:
            self.attendance.cohort = found
            self._seat()

    def _seat(self) -> None:
        """Take memory for the entities that need a copy of their own, and free that of others."""
        raise HsflError("this backend trains all clients; leave the cohort away")

    def train_round(self, clients: Sequence[int] | None = None) -> torch.Tensor:
        """One round on the data the backend was made with: the losses of those who take part, before the update.

        `clients` are those, in order (default: all who are enrolled). An entity steps with the mean over those it
        hosts; one without any stays as it is. On CUDA the losses may still be on their way."""
        present = self._present(clients)
        losses = self._round_from(self.drawn(present), present)
        self._count(present)
        return losses

    def drawn(self, clients: Clients | None = None) -> torch.Tensor:
        """What clients who are enrolled, by default all of them, draw in this round."""
        self._draws = self._draws or Draws(self._data())
        enrolled = self.attendance.enrolled
        present = enrolled if clients is None else clients
        return self._draws.of(self.round, self.attendance.cohort, present, self.micro_batches)

    def _present(self, clients: Sequence[int] | None) -> Clients:
        enrolled = self.attendance.enrolled
        if clients is None or len(clients) == len(enrolled):
            return enrolled if clients is None or tuple(clients) == enrolled else checked_clients(clients, enrolled)
        return checked_clients(clients, enrolled)

    def _count(self, present: Clients) -> None:
        """A round is over."""
        self.took_part, self.round = present, self.round + 1
        self.attendance.trained(present if self.counts_rounds else self.attendance.enrolled)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One round on a mini-batch of every client that is enrolled, (n, b, ...) and (n, b, ...): losses before it.

        With several mini-batches (n, k b, ...) each, one after the other; a loss is then the mean of theirs.
        """
        present = self.attendance.enrolled
        checked_batch(inputs, targets, len(present), self.micro_batches, self.chunks)
        losses = self._round(inputs, targets, present)
        self._count(present)
        return losses

    def _round_from(self, draw: torch.Tensor, clients: Clients) -> torch.Tensor:
        return self._round(*self._data().batch(draw), clients)

    @abstractmethod
    def _round(self, inputs: torch.Tensor, targets: torch.Tensor, clients: Clients) -> torch.Tensor:
        """A round of these clients on the mini-batches of each, without counting it: their losses."""

    def average(self, tier: int) -> None:
        """Average a tier over the entities that took part since the average before, as the averaging rule says.

        They are weighted by the clients that did, and by the rounds. All entities adopt it.
        """
        if tier not in range(self.num_tiers):
            raise HsflError(f"tier {tier}: there are {self.num_tiers}, counted from 0 to {self.num_tiers - 1}")
        layers, attendance = self._tier_layers()[tier], self.attendance
        if self.topology.averaged[tier]:
            for averaged_at, group in self._by_age(layers).items():
                if attendance.complete(group[0]) or attendance.shares(tier, group[0]):
                    self._average(tier, group, self.round - averaged_at)
        attendance.averaged(layers)
        if not self.runs_ahead:
            self.check_sent()

    def _by_age(self, layers: Iterable[int]) -> dict[int, list[int]]:
        """Layers by the round of their last average."""
        found: dict[int, list[int]] = {}
        for layer in layers:
            found.setdefault(self.attendance.averaged_at[layer], []).append(layer)
        return found

    @abstractmethod
    def _average(self, tier: int, layers: Sequence[int], rounds: int) -> None:
        """Average some layers of a tier with several entities, so many rounds after the average before."""

    def move(self, cuts: Sequence[int]) -> None:
        """Change the cuts: a layer's new host takes the mean over its own clients of their copies, slots alike.

        Where not all clients took part since the layer was averaged, the mean is over those who did; a host of none of
        them takes what an average would make of the layer. What a layer's hosts last had in common goes with it, to the
        bit, and so does what the fed server keeps of it.
        """
        cuts = checked_cuts(cuts, self.topology, len(self._layers))
        if cuts == self.cuts:
            return
        before, self.cuts = self._tier_by_layer(), cuts
        tiers = enumerate(zip(before, self._tier_by_layer(), strict=True))
        sources = {layer: self.attendance.sources(layer, old, new) for layer, (old, new) in tiers if old != new}
        self.attendance.moved(cuts)
        self._move(before, sources)

    def recode(self, codes: Sequence[LinkCodes]) -> bool:
        """Change the codes of links; whether any is another one. What is left unsent will be sent in the new code."""
        found = links(codes, self.topology)
        if coded(found, self.topology) != self.coded:
            raise HsflError("codes: whether averages are coded cannot change; let their code be planned from the start")
        before, self.links = self.links, found
        return found != before

    def rebatch(self, micro_batches: int) -> None:
        """Change how many mini-batches a round has."""
        self.micro_batches = checked_count(micro_batches)

    def link_above(self, tier: int) -> Link:
        """The link between a tier and the one above, for what crosses the cut there: uncoded where no layer lies above.

        The loss could then be computed below, and nothing would have to cross.
        """
        return self.links[tier] if self.cuts[tier] < len(self._layers) else UNCODED

    @abstractmethod
    def _move(self, before: Sequence[int], sources: Mapping[int, Sources]) -> None:
        """Move the layers from the tiers that they were in to those of the current cuts; `sources` are of those."""

    @abstractmethod
    def drift(self, tier: int) -> torch.Tensor:
        """How far a tier's entities are apart: their mean squared distance from their mean, weighted as averages are.

        sum_j N_m^j/N |w_j - w|^2 over the tier's parameters: a float64 scalar on the device, not waited for.
        """

    def client_state(self, client: int) -> State:
        """What a client computes with now: parameters and buffers by "LAYER.NAME", in the order of the layers."""
        state: State = OrderedDict()
        for tier, row in enumerate(self.topology.hosts):
            found, _ = self._held(tier, int(row[client]))
            state |= {key: value.detach().clone() for key, value in found.items()}
        return state

    @torch.no_grad()
    def global_state(self) -> State:
        """The virtual average of every layer, what an average now would make of it: the model that is evaluated."""
        total: State = OrderedDict()
        for tier, layers in enumerate(self._tier_layers()):
            for group in self._by_age(layers).values():
                names = {f"{layer}.{name}" for layer in group for name in self._layers[layer].state_dict()}
                for entity, share in self._shares_of(tier, group[0]).items():
                    held, _ = self._held(tier, entity)
                    add_share(total, State((key, held[key]) for key in held if key in names), share)
        return total

    def _shares_of(self, tier: int, layer: int) -> Shares:
        """The weights of entities in the virtual average of a layer; of any one, where all have it in common."""
        if self.attendance.complete(layer):
            return dict(enumerate(self.topology.shares[tier].tolist()))
        return self.attendance.shares(tier, layer) or {0: 1.0}

    def not_finite(self) -> int | None:
        """A client whose weights are not finite; None if all are."""
        names = [f"{n}.{name}" for n, layer in enumerate(self._layers) for name, _ in layer.named_parameters()]
        virtual = self.global_state()
        if all_finite(virtual[name] for name in names):
            return None
        clients = self.attendance.enrolled or (0,)
        states = ((n, self.client_state(n)) for n in clients)
        return next((n for n, state in states if not all_finite(state[name] for name in names)), clients[0])

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

        On so many mini-batches of every client that is enrolled. `step` is the effective gamma, with which the
        smoothness is measured.
        `coding`: the noise of codes, too.
        """
        model = VirtualModel(
            self._layers,
            self.global_state(),
            self._data().samples,
            self.loss,
            self.seed,
            self.device,
            self.precision,
            capture=self.capture is not False,
        )
        clients, data = self.attendance.cohort, self._data()
        if clients is None:
            return measure(model, self.shard, data.probe_draws(self.round, batches), step, coding=coding)
        if not clients:
            raise HsflError("nobody is enrolled, so nothing can be measured")
        _, part = self.topology.of(clients)
        counted = self.topology.weights
        shard = Shard(part if counted is None else part.weighted(counted[list(clients)].tolist()))
        return measure(model, shard, data.probe_draws(self.round, batches, clients), step, coding=coding)

    def _inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.device, self.dtype) if inputs.is_floating_point() else inputs.to(self.device)

    def _data(self) -> TrainingData:
        if self.data is None:
            raise HsflError("the backend was made without data; give it data, or call step and evaluate with batches")
        return self.data
