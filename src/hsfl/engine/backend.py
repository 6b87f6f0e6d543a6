"""The seam between the algorithm and what executes it: one interface, several backends, the same numbers.

In this interface tiers, entities, clients and layers count from 0, like `hosts`; cuts count layers. Every entity holds
one copy of its tier's layers and one optimiser state, stepped with the mean gradient of the clients it hosts.
"""

from __future__ import annotations

import contextlib
import copy
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hsfl.engine.clients import with_clients
from hsfl.engine.optimizer import Optimizer
from hsfl.errors import HsflError, ScenarioError

PRECISIONS = ("fp32", "tf32", "bf16")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
State = OrderedDict[str, torch.Tensor]


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
    ) -> None:
        if precision not in PRECISIONS:
            raise ScenarioError(f"precision {precision!r}: it must be one of {', '.join(PRECISIONS)}")
        self.hosts = [[int(j) for j in row] for row in hosts]
        self.clients = _clients_by_entity(self.hosts)
        self.optimizer = Optimizer.of(optimizer)
        self.loss, self.seed, self.round = loss, int(seed), 0
        self.device, self.dtype, self.precision = torch.device(device), dtype, precision
        self.layers = [
            with_clients(copy.deepcopy(layer), number).to(self.device, dtype).train()
            for number, layer in enumerate(layers)
        ]
        self.cuts = self._checked(cuts)

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
        """One round on a mini-batch per client, (N, b, ...) and (N, b, ...): the losses (N,) before the update."""

    @abstractmethod
    def average(self, tier: int) -> None:
        """The fed server's mean of a tier over its entities, weighted by their clients: weights and buffers.

        Optimiser state stays with its entity.
        """

    @abstractmethod
    def move(self, cuts: Sequence[int]) -> None:
        """Change the cuts: a layer's new host takes the mean over its own clients of their copies, state alike."""

    @abstractmethod
    def client_state(self, client: int) -> State:
        """What a client computes with now: parameters and buffers by "LAYER.NAME", in the order of the layers."""

    @abstractmethod
    def _slots(self, client: int) -> State:
        """The optimiser state beside a client's parameters, by "SLOT.LAYER.NAME"."""

    @abstractmethod
    def _restore(
        self, states: Sequence[Mapping[str, torch.Tensor]], slots: Sequence[Mapping[str, torch.Tensor]]
    ) -> None:
        """Take over what `client_state` and `_slots` gave for every client, at the current cuts."""

    def global_state(self) -> State:
        """The virtual average over clients of every layer: the model that is evaluated."""
        total: State = OrderedDict()
        for client in range(self.num_clients):
            for key, value in self.client_state(client).items():
                if value.is_floating_point():
                    total[key] = total[key] + value if key in total else value.clone()
                else:
                    total.setdefault(key, value)
        return OrderedDict((k, v / self.num_clients if v.is_floating_point() else v) for k, v in total.items())

    def evaluate(self, data: tuple[torch.Tensor, torch.Tensor], batch_size: int = 1000) -> dict[str, float]:
        """Loss and accuracy of the virtual average on inputs and targets, (n, ...) and (n, ...)."""
        model = nn.ModuleList(copy.deepcopy(self.layers)).eval()
        model.load_state_dict(self.global_state())
        loss = right = count = labels = 0.0
        with torch.no_grad(), self._arithmetic():
            for inputs, targets in zip(*(part.split(batch_size) for part in data), strict=True):
                x, targets = self._inputs(inputs), targets.to(self.device)
                for layer in model:
                    x = layer(x)
                loss += float(self.loss(x.to(self.dtype), targets)) * len(targets)
                right += float((x.argmax(-1) == targets).sum())
                count, labels = count + len(targets), labels + targets.numel()
        return {"loss": loss / count, "accuracy": right / labels}

    def save(self, path: str | Path) -> None:
        """Write everything to a file: weights, buffers, optimiser state, cuts and round (safetensors)."""
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        for client in range(self.num_clients):
            for kind, state in (("state", self.client_state(client)), ("slot", self._slots(client))):
                tensors |= {f"{kind}.{client}.{key}": value.contiguous() for key, value in state.items()}
        about = {"cuts": self.cuts, "round": self.round, "hosts": self.hosts, "seed": self.seed}
        save_file({k: v.clone() for k, v in tensors.items()}, str(path), metadata={"hsfl": json.dumps(about)})

    def load(self, path: str | Path) -> None:
        """Continue from a file that any backend with the same layers, hosts and optimiser saved."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("hsfl", "{}"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            raise HsflError(f"{path}: not a saved backend ({error}); give a file that save wrote") from None
        if about.get("hosts") != self.hosts:
            raise HsflError(f"{path}: saved for other hosts; load it into a backend with the same hosts")
        self.move(about["cuts"])
        self.round, self.seed = int(about["round"]), int(about["seed"])
        states: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_clients)]
        slots: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_clients)]
        for key, value in tensors.items():
            kind, client, name = key.split(".", 2)
            (states if kind == "state" else slots)[int(client)][name] = value.to(self.device)
        if states[0].keys() != self.client_state(0).keys() or slots[0].keys() != self._slots(0).keys():
            raise HsflError(f"{path}: saved for other layers or another optimiser; load it into a matching backend")
        self._restore(states, slots)

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

    def _arithmetic(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
        return contextlib.nullcontext()


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
