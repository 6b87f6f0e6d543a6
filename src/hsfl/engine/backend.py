"""The seam between the algorithm and what executes it: one interface, several backends, the same numbers.

In this interface tiers, entities, clients and layers count from 0, like `hosts`; cuts count layers. Every entity holds
one copy of its tier's layers and one optimiser state, stepped with the mean gradient of the clients it hosts.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hsfl.engine import saving
from hsfl.engine.optimizer import Optimizer
from hsfl.engine.per_client import with_clients
from hsfl.engine.precision import PRECISIONS, arithmetic, casts
from hsfl.errors import HsflError, ScenarioError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
State = OrderedDict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Feed = Callable[[torch.Tensor], Batch]


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean loss of classes given by the last axis of `outputs`: of images, or of every token of a text."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class Backend(ABC):
    """Runs rounds of hierarchical split federated training.

    A round is one `step`; averaging a tier over its entities and moving layers between tiers are up to the caller.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        hosts: Sequence[Sequence[int]],
        cuts: Sequence[int],
        optimizer: Mapping[str, Any],
        *,
        loss: Loss = cross_entropy,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        seed: int = 0,
        capture: bool | None = None,
        average_state: bool = False,
    ) -> None:
        """The model's layers on every entity of the tree `hosts`, cut at `cuts`.

        `precision` is that of products in float32: "tf32" matters on CUDA only. `seed` is dropout's. `capture` asks for
        a whole round as one CUDA graph, where the backend can (None: yes); elsewhere it is ignored. `average_state`:
        averaging a tier averages its optimiser state too.
        """
        if precision not in PRECISIONS:
            raise ScenarioError(f"precision {precision!r}: it must be one of {', '.join(PRECISIONS)}")
        self.hosts = [[int(j) for j in row] for row in hosts]
        self.clients = _clients_by_entity(self.hosts)
        self.optimizer = Optimizer.from_settings(optimizer)
        self.loss, self.seed, self.round = loss, int(seed), 0
        self.device, self.dtype, self.precision = torch.device(device), dtype, precision
        self.capture, self.average_state = capture, average_state
        self.layers = [
            with_clients(copy.deepcopy(layer), number).to(self.device, dtype).train()
            for number, layer in enumerate(layers)
        ]
        self.cuts = self._checked(cuts)
        self._evaluated: nn.ModuleList | None = None

    @property
    def num_tiers(self) -> int:
        return len(self.hosts)

    @property
    def num_clients(self) -> int:
        return len(self.hosts[0])

    def tier_of(self, layer: int) -> int:
        """The tier that holds a layer."""
        return sum(cut <= layer for cut in self.cuts)

    @abstractmethod
    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One round on a mini-batch per client, (N, b, ...) and (N, b, ...): the losses (N,) before the update.

        On CUDA the losses are on the device and may still be on their way: reading them waits for the round.
        """

    def step_from(self, feed: Feed, draw: torch.Tensor) -> torch.Tensor:
        """One round on what `feed` makes of `draw`: mini-batches as `step` takes them, from data on the device.

        `draw` is int64, (N, b, K), on the backend's device: what was drawn for every sample, such as its index and how
        to augment it. Where rounds are captured, `feed` is captured with them: pass the same callable every round, let
        it do nothing but torch operations on device tensors, and change those tensors in place only.
        """
        return self.step(*feed(draw))

    @abstractmethod
    def average(self, tier: int) -> None:
        """The fed server's mean of a tier over its entities, weighted by their clients: weights and buffers.

        Optimiser state stays with its entity, unless the backend was made with `average_state`.
        """

    @abstractmethod
    def move(self, cuts: Sequence[int]) -> None:
        """Change the cuts: a layer's new host takes the mean over its own clients of their copies, state alike."""

    @abstractmethod
    def drift(self, tier: int) -> torch.Tensor:
        """How far a tier's entities are apart: their mean squared distance from their mean, weighted by clients.

        sum_j N_m^j/N |w_j - w|^2 over the tier's parameters: a float64 scalar on the device, not waited for.
        """

    @abstractmethod
    def _copies(self, tier: int, entity: int) -> Sequence[tuple[State, State]]:
        """Every copy the backend holds of an entity, all equal, as tensors that can be written to.

        Parameters and buffers by "LAYER.NAME", in the order of the layers, and optimiser state by "SLOT.LAYER.NAME".
        """

    def client_state(self, client: int) -> State:
        """What a client computes with now: parameters and buffers by "LAYER.NAME", in the order of the layers."""
        state: State = OrderedDict()
        for tier, row in enumerate(self.hosts):
            found, _ = self._copies(tier, row[client])[0]
            state |= {key: value.detach().clone() for key, value in found.items()}
        return state

    @torch.no_grad()
    def global_state(self) -> State:
        """The virtual average over clients of every layer: the model that is evaluated."""
        total: State = OrderedDict()
        for tier, entities in enumerate(self.clients):
            for entity, clients in enumerate(entities):
                share = len(clients) / self.num_clients
                state, _ = self._copies(tier, entity)[0]
                for key, value in state.items():
                    if value.is_floating_point():
                        total[key] = total[key] + share * value if key in total else share * value
                    else:
                        total.setdefault(key, value)
        return total

    @torch.no_grad()
    def evaluate(self, data: Batch | Iterable[Batch], batch_size: int = 1000) -> dict[str, float]:
        """Loss and accuracy of the virtual average.

        `data` is inputs and targets, (n, ...) and (n, ...), taken `batch_size` at a time, or an iterable of such pairs,
        each a batch. The result is waited for once, at the end.
        """
        if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], torch.Tensor):
            inputs, targets = data
            data = zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
        if self._evaluated is None:
            self._evaluated = nn.ModuleList(copy.deepcopy(self.layers)).eval()
        self._evaluated.load_state_dict(self.global_state())
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        count = labels = 0
        with self._arithmetic():
            for inputs, targets in data:
                x, targets = self._inputs(inputs), targets.to(self.device)
                for layer in self._evaluated:
                    x = layer(x)
                loss = self.loss(x.to(self.dtype), targets).double() * len(targets)
                sums += torch.stack((loss, (x.argmax(-1) == targets).sum().double()))
                count, labels = count + len(targets), labels + targets.numel()
        if not count:
            raise HsflError("evaluate: there are no samples; give at least one")
        total, right = sums.tolist()
        return {"loss": total / count, "accuracy": right / labels}

    def save(self, path: str | Path) -> None:
        """Write everything to a file (safetensors): cuts, round and one copy of every entity's layers and state.

        Keys are "state.TIER.ENTITY.LAYER.NAME" and "slot.TIER.ENTITY.SLOT.LAYER.NAME".
        """
        about = {"cuts": self.cuts, "round": self.round, "hosts": self.hosts, "seed": self.seed}
        tensors: dict[str, torch.Tensor] = {}
        for tier, entity in self._entities():
            for kind, found in zip(("state", "slot"), self._copies(tier, entity)[0], strict=True):
                tensors |= {f"{kind}.{tier}.{entity}.{key}": value for key, value in found.items()}
        saving.write(path, about, tensors)

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Continue from a file that any backend with the same layers, hosts and optimiser saved; bit for bit."""
        about, tensors = saving.read(path)
        if about.get("hosts") != self.hosts:
            raise HsflError(f"{path}: saved for other hosts; load it into a backend with the same hosts")
        cuts = self._checked(about["cuts"])
        saving.check(path, tensors, self._expected(cuts))
        self.move(cuts)
        self._resume(int(about["round"]), int(about["seed"]))
        for tier, entity in self._entities():
            for copies in self._copies(tier, entity):
                for kind, found in zip(("state", "slot"), copies, strict=True):
                    for key, value in found.items():
                        value.copy_(tensors[f"{kind}.{tier}.{entity}.{key}"])

    def _resume(self, round_: int, seed: int) -> None:
        """Go on after a round of a run with this seed."""
        self.round, self.seed = round_, seed

    def _entities(self) -> Iterator[tuple[int, int]]:
        return ((tier, entity) for tier, entities in enumerate(self.clients) for entity in range(len(entities)))

    def _expected(self, cuts: Sequence[int]) -> dict[str, torch.Tensor]:
        """What a file saved at these cuts holds: its keys, with tensors of the right shapes and types."""
        found: dict[str, torch.Tensor] = {}
        held = self._tier_layers(cuts)
        for tier, entity in self._entities():
            for number in held[tier]:
                layer, place = self.layers[number], f"{tier}.{entity}"
                found |= {f"state.{place}.{number}.{name}": value for name, value in layer.state_dict().items()}
                for slot in self.optimizer.slots:
                    found |= {f"slot.{place}.{slot}.{number}.{name}": p for name, p in layer.named_parameters()}
        return found

    def _checked(self, cuts: Sequence[int]) -> tuple[int, ...]:
        cuts = tuple(int(c) for c in cuts)
        if len(cuts) != self.num_tiers - 1:
            raise ScenarioError(f"cuts {list(cuts)}: {self.num_tiers} tiers need {self.num_tiers - 1} cuts")
        if list(cuts) != sorted(cuts) or cuts[0] < 1 or cuts[-1] > len(self.layers):
            raise ScenarioError(f"cuts {list(cuts)}: they must not fall and lie between 1 and {len(self.layers)}")
        return cuts

    def _tier_layers(self, cuts: Sequence[int]) -> list[range]:
        edges = (0, *cuts, len(self.layers))
        return [range(edges[m], edges[m + 1]) for m in range(self.num_tiers)]

    def _inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.device, self.dtype) if inputs.is_floating_point() else inputs.to(self.device)

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """The precision of the forward pass, with TF32 where it is asked for."""
        with arithmetic(self.device, self.precision), casts(self.device, self.precision):
            yield


def _clients_by_entity(hosts: list[list[int]]) -> list[list[list[int]]]:
    """For every tier and entity the clients it hosts, those of the same entity below next to each other."""
    if len(hosts) < 2 or len({len(row) for row in hosts}) != 1 or not hosts[0]:
        raise ScenarioError("hosts: give at least two tiers, each with the entity of every client")
    order = list(range(len(hosts[0])))
    clients: list[list[list[int]]] = []
    for m, row in enumerate(hosts):
        count = max(row) + 1
        if sorted(set(row)) != list(range(count)):
            raise ScenarioError(f"hosts: tier {m} leaves an entity without clients; number its entities from 0 on")
        below = clients[-1] if clients else [[n] for n in order]
        entities: list[list[int]] = [[] for _ in range(count)]
        for group in below:
            above = {row[n] for n in group}
            if len(above) > 1:
                raise ScenarioError(
                    f"hosts: an entity of tier {m - 1} has several entities above it in tier {m}; give it one"
                )
            entities[above.pop()] += group
        clients.append(entities)
    return clients
