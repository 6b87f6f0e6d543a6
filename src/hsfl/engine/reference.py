"""The slow backend that reads like the paper: a copy per client, loops, and a message for everything that is sent."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hsfl.engine.backend import Backend, State
from hsfl.engine.per_client import seed_dropout
from hsfl.engine.precision import arithmetic, casts

_TORCH_SLOTS = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}


class ReferenceBackend(Backend):
    """Algorithm 1, line by line. `models[n][l]` is client n's copy of layer l, wherever it is hosted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.models = [copy.deepcopy(self.layers) for _ in range(self.num_clients)]
        self.optimizers = [[self._optimizer(layer) for layer in model] for model in self.models]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with arithmetic(self.device, self.precision):
            losses = [self._pass(n, inputs[n], targets[n]) for n in range(self.num_clients)]
        self.round += 1
        for entities, layers in zip(self.clients, self._tier_layers(self.cuts), strict=True):
            for clients in entities:
                for layer in layers:
                    self._update([self.models[n][layer] for n in clients], [self.optimizers[n][layer] for n in clients])
        return torch.stack(losses)

    def _pass(self, client: int, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Forward tier by tier, the loss at the top, backward tier by tier; gradients stay at the client's copies."""
        model = self.models[client]
        for module in model:
            module.zero_grad()
            seed_dropout(list(module.modules()), [client], self.seed, self.round)
        received: list[torch.Tensor] = []
        sent: list[torch.Tensor] = []
        activations = self._inputs(inputs)
        with casts(self.device, self.precision):
            for layers in self._tier_layers(self.cuts):
                activations = activations.detach().requires_grad_(bool(received))
                received.append(activations)
                for layer in layers:
                    activations = model[layer](activations)
                sent.append(activations)
            loss = self.loss(sent[-1].to(self.dtype), targets.to(self.device))
        loss.backward()
        for m in range(self.num_tiers - 2, -1, -1):
            sent[m].backward(received[m + 1].grad)
        return loss.detach()

    def _update(self, copies: list[nn.Module], optimizers: list[torch.optim.Optimizer | None]) -> None:
        """An entity: every copy steps with the mean gradient, buffers become their mean."""
        for same in zip(*(c.parameters() for c in copies), strict=True):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
            mean = torch.stack(gradients).mean(0)
            for parameter in same:
                parameter.grad = mean.clone() if parameter.requires_grad else None
        for optimizer in optimizers:
            if optimizer is not None:
                optimizer.step()
        _share_mean([list(c.buffers()) for c in copies], [1 / len(copies)] * len(copies))

    def average(self, tier: int) -> None:
        for layer in self._tier_layers(self.cuts)[tier]:
            copies = [[*model[layer].parameters(), *model[layer].buffers()] for model in self.models]
            _share_mean(copies, [1 / self.num_clients] * self.num_clients)
            if self.average_state:
                states = [list(self._slot_tensors(n, layer).values()) for n in range(self.num_clients)]
                _share_mean(states, [1 / self.num_clients] * self.num_clients)

    def move(self, cuts: Sequence[int]) -> None:
        before = [self.tier_of(layer) for layer in range(len(self.layers))]
        self.cuts = self._checked(cuts)
        for layer, old in enumerate(before):
            if (tier := self.tier_of(layer)) == old:
                continue
            for clients in self.clients[tier]:
                copies = [self.models[n][layer] for n in clients]
                _share_mean([[*c.parameters(), *c.buffers()] for c in copies], [1 / len(copies)] * len(copies))
                states = [list(self._slot_tensors(n, layer).values()) for n in clients]
                _share_mean(states, [1 / len(copies)] * len(copies))

    def drift(self, tier: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for layer in self._tier_layers(self.cuts)[tier]:
            for same in zip(*(model[layer].parameters() for model in self.models), strict=True):
                copies = torch.stack([p.detach().double() for p in same])
                total += (copies - copies.mean(0)).square().sum() / self.num_clients
        return total

    def _copies(self, tier: int, entity: int) -> list[tuple[State, State]]:
        found = []
        for client in self.clients[tier][entity]:
            state: State = OrderedDict()
            slots: State = OrderedDict()
            for layer in self._tier_layers(self.cuts)[tier]:
                state |= {f"{layer}.{k}": value for k, value in self.models[client][layer].state_dict().items()}
                slots |= self._slot_tensors(client, layer)
            found.append((state, slots))
        return found

    def _resume(self, round_: int, seed: int) -> None:
        super()._resume(round_, seed)
        for optimizer in (o for model in self.optimizers for o in model if o is not None):
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(round_)

    def _slot_tensors(self, client: int, layer: int) -> State:
        """Optimiser state of one copy of a layer; zeros stand for what its first step has yet to make."""
        optimizer, found = self.optimizers[client][layer], OrderedDict()
        for slot in self.optimizer.slots:
            for name, parameter in self.models[client][layer].named_parameters():
                assert optimizer is not None
                state = optimizer.state[parameter]
                if state.get(_TORCH_SLOTS[slot]) is None:
                    state[_TORCH_SLOTS[slot]] = torch.zeros_like(parameter)
                    if self.optimizer.name != "sgd":
                        state["step"] = torch.tensor(float(self.round))
                found[f"{slot}.{layer}.{name}"] = state[_TORCH_SLOTS[slot]]
        return found

    def _optimizer(self, layer: nn.Module) -> torch.optim.Optimizer | None:
        rule, parameters = self.optimizer, list(layer.parameters())
        if not parameters:
            return None
        if rule.name == "sgd":
            return torch.optim.SGD(parameters, lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
        kind = torch.optim.Adam if rule.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=rule.lr, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay)


@torch.no_grad()
def _share_mean(copies: Sequence[Sequence[torch.Tensor]], weights: Sequence[float]) -> None:
    """Replace the tensors of every copy by their weighted mean; whole numbers, such as counters, are equal anyway."""
    for same in zip(*copies, strict=True):
        if same[0].is_floating_point():
            mean = sum(w * tensor for w, tensor in zip(weights, same, strict=True))
            for tensor in same:
                tensor.copy_(mean)
