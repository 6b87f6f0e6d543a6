"""The fast backend: one copy per entity, one flat tensor per tier, one autograd graph over the whole tree.

Tier m has J_m distinct copies of its layers, not N, and each works on all its clients' samples at once, so a round
costs little more than one centralised step on the same samples. An entity's parameters are views of its row of the
tier's flat tensor: averaging is one weighted mean over rows, an update a few operations on the whole tier.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hsfl.engine.backend import Backend, State, cross_entropy
from hsfl.engine.clients import seed_dropout

_ALIGNMENT = 64


@dataclass(frozen=True)
class _Place:
    """Where a parameter or buffer of a layer lies in an entity's row."""

    layer: int
    name: str
    shape: torch.Size
    start: int

    def view(self, row: torch.Tensor) -> torch.Tensor:
        return row[self.start : self.start + self.shape.numel()].view(self.shape)


class _Tier:
    """The entities of a tier: rows of parameters, buffers and optimiser state, and modules that are views of them."""

    def __init__(self, templates: Sequence[nn.Module], layers: range, slots: Sequence[str], like: torch.Tensor) -> None:
        """As many entities as `like` has rows, each a copy of the templates, in its type and on its device."""
        entities = len(like)
        self.layers = layers
        self.parameters = _places(layers, [t.named_parameters() for t in templates])
        self.buffers = _places(layers, [_float_buffers(t) for t in templates])
        self.weights = like.new_zeros(entities, _width(self.parameters))
        self.gradients = torch.zeros_like(self.weights)
        self.statistics = like.new_zeros(entities, _width(self.buffers))
        self.slots = {slot: torch.zeros_like(self.weights) for slot in slots}
        self.entities = [copy.deepcopy(list(templates)) for _ in range(entities)]
        self.modules = [[m for layer in entity for m in layer.modules()] for entity in self.entities]
        for j, entity in enumerate(self.entities):
            for place in self.parameters:
                owner, name = _owner(entity[place.layer - layers.start], place.name)
                view = place.view(self.weights[j])
                view.copy_(owner._parameters[name].detach())  # type: ignore[union-attr]
                owner._parameters[name] = nn.Parameter(view)
            for place in self.buffers:
                owner, name = _owner(entity[place.layer - layers.start], place.name)
                # .data: a version counter of its own, or one layer's statistics would invalidate another's graph.
                view = place.view(self.statistics[j]).data
                view.copy_(owner._buffers[name])  # type: ignore[arg-type]
                owner._buffers[name] = view
        self.leaves = [[p for layer in entity for p in layer.parameters()] for entity in self.entities]
        self.gradient_views = [[place.view(row) for place in self.parameters] for row in self.gradients]

    def rows(self, layer: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views (J, numel) of a layer: its state (parameters, buffers) and its optimiser state, slot by slot."""
        own = [p for p in self.parameters if p.layer == layer]
        state = [_columns(self.weights, p) for p in own]
        state += [_columns(self.statistics, p) for p in self.buffers if p.layer == layer]
        return state, [_columns(slot, p) for slot in self.slots.values() for p in own]


class StackedBackend(Backend):
    """See the module's text. Gives the numbers of the reference backend."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parents = [
            [[j for j, members in enumerate(below) if members[0] in set(group)] for group in above]
            for below, above in zip(self.clients, self.clients[1:], strict=False)
        ]
        counts = [torch.tensor([len(c) for c in tier], dtype=self.dtype, device=self.device) for tier in self.clients]
        self._shares = [count / self.num_clients for count in counts]
        self._scales = [1 / count[:, None] for count in counts]
        self._tiers = self._built(self.cuts)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs, targets = self._inputs(inputs), targets.to(self.device)
        with self._arithmetic():
            passed = [inputs[clients].flatten(0, 1) for clients in self.clients[0]]
            for m, tier in enumerate(self._tiers):
                if m:
                    passed = [torch.cat([passed[j] for j in children]) for children in self._parents[m - 1]]
                for j, clients in enumerate(self.clients[m]):
                    seed_dropout(tier.modules[j], clients, self.seed, self.round)
                    for layer in tier.entities[j]:
                        passed[j] = layer(passed[j])
            losses = torch.empty(self.num_clients, dtype=self.dtype, device=self.device)
            total = inputs.new_zeros((), dtype=self.dtype)
            for outputs, clients in zip(passed, self.clients[-1], strict=True):
                of_clients = self._losses(outputs.to(self.dtype).unflatten(0, (len(clients), -1)), targets[clients])
                losses[clients] = of_clients.detach()
                total = total + of_clients.sum()
        self.round += 1
        self._update(total)
        return losses

    def _losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(clients,): each client's mean loss."""
        if self.loss is cross_entropy:
            flat = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
            return flat.view(len(outputs), -1).mean(1)
        return torch.stack([self.loss(o, t) for o, t in zip(outputs, targets, strict=True)])

    def _update(self, total: torch.Tensor) -> None:
        leaves = [leaf for tier in self._tiers for entity in tier.leaves for leaf in entity]
        views = [view for tier in self._tiers for entity in tier.gradient_views for view in entity]
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        with torch.no_grad():
            for view, gradient in zip(views, gradients, strict=True):
                view.zero_() if gradient is None else view.copy_(gradient)
            for tier, scale in zip(self._tiers, self._scales, strict=True):
                self.optimizer.step(tier.weights, tier.gradients.mul_(scale), tier.slots, self.round)

    @torch.no_grad()
    def average(self, tier: int) -> None:
        for flat in (self._tiers[tier].weights, self._tiers[tier].statistics):
            flat.copy_((self._shares[tier] @ flat).expand_as(flat))

    @torch.no_grad()
    def move(self, cuts: Sequence[int]) -> None:
        cuts = self._checked(cuts)
        if cuts == self.cuts:
            return
        before, old_tiers = [self.tier_of(layer) for layer in range(len(self.layers))], self._tiers
        self.cuts, self._tiers = cuts, self._built(cuts)
        for layer, old in enumerate(before):
            new = self.tier_of(layer)
            share = self._shares_of(old, new)
            for source, target in zip(old_tiers[old].rows(layer), self._tiers[new].rows(layer), strict=True):
                for a, b in zip(source, target, strict=True):
                    b.copy_(share @ a)
            whole = dict(_whole_buffers(old_tiers[old].entities[0][layer - old_tiers[old].layers.start]))
            for entity in self._tiers[new].entities:
                for name, buffer in _whole_buffers(entity[layer - self._tiers[new].layers.start]):
                    buffer.copy_(whole[name])

    def client_state(self, client: int) -> State:
        state: State = OrderedDict()
        for m, tier in enumerate(self._tiers):
            for number, layer in zip(tier.layers, tier.entities[self.hosts[m][client]], strict=True):
                state |= {f"{number}.{name}": value.detach().clone() for name, value in layer.state_dict().items()}
        return state

    @torch.no_grad()
    def global_state(self) -> State:
        state = self.client_state(0)
        for share, tier in zip(self._shares, self._tiers, strict=True):
            for flat, places in ((tier.weights, tier.parameters), (tier.statistics, tier.buffers)):
                mean = share @ flat
                for place in places:
                    key = f"{place.layer}.{place.name}"
                    if key in state:
                        state[key] = place.view(mean).clone()
        return state

    def _slots(self, client: int) -> State:
        found: State = OrderedDict()
        for layer in range(len(self.layers)):
            m = self.tier_of(layer)
            for slot, flat in self._tiers[m].slots.items():
                for place in self._tiers[m].parameters:
                    if place.layer == layer:
                        found[f"{slot}.{layer}.{place.name}"] = place.view(flat[self.hosts[m][client]]).clone()
        return found

    @torch.no_grad()
    def _restore(
        self, states: Sequence[Mapping[str, torch.Tensor]], slots: Sequence[Mapping[str, torch.Tensor]]
    ) -> None:
        for m, tier in enumerate(self._tiers):
            for j, clients in enumerate(self.clients[m]):
                for number, layer in zip(tier.layers, tier.entities[j], strict=True):
                    for name, tensor in layer.state_dict().items():
                        tensor.copy_(states[clients[0]][f"{number}.{name}"])
                for slot, flat in tier.slots.items():
                    for place in tier.parameters:
                        place.view(flat[j]).copy_(slots[clients[0]][f"{slot}.{place.layer}.{place.name}"])

    def _built(self, cuts: Sequence[int]) -> list[_Tier]:
        with torch.no_grad():
            return [
                _Tier([self.layers[i] for i in layers], layers, self.optimizer.slots, share)
                for layers, share in zip(self._tier_layers(cuts), self._shares, strict=True)
            ]

    def _shares_of(self, old: int, new: int) -> torch.Tensor:
        """(J_new, J_old): what part of a new host's clients each old host serves."""
        share = torch.zeros(len(self.clients[new]), len(self.clients[old]), dtype=self.dtype, device=self.device)
        for client in range(self.num_clients):
            share[self.hosts[new][client], self.hosts[old][client]] += 1
        return share / share.sum(1, keepdim=True)


def _places(layers: range, named: Sequence[Any]) -> list[_Place]:
    places, start = [], 0
    for layer, tensors in zip(layers, named, strict=True):
        for name, tensor in tensors:
            places.append(_Place(layer, name, tensor.shape, start))
            start += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT
    return places


def _width(places: list[_Place]) -> int:
    return places[-1].start + -(-places[-1].shape.numel() // _ALIGNMENT) * _ALIGNMENT if places else 0


def _columns(flat: torch.Tensor, place: _Place) -> torch.Tensor:
    return flat[:, place.start : place.start + place.shape.numel()]


def _float_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]


def _whole_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(n, b) for n, b in module.named_buffers() if not b.is_floating_point() and not n.endswith("keys")]


def _owner(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    parent, _, name = path.rpartition(".")
    return module.get_submodule(parent), name
