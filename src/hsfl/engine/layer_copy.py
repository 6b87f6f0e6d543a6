"""A layer on one machine: its module, its optimiser, and what averages need beside it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import compress

import torch
from torch import nn

from hsfl.engine.averaging import Held, Tensors
from hsfl.engine.optimizer import TORCH_SLOTS, Optimizer

State = OrderedDict[str, torch.Tensor]


class LayerCopy:
    """A layer as one entity holds it: the module, its optimiser, and what averages need beside it."""

    def __init__(
        self,
        number: int,
        template: nn.Module,
        update: Optimizer,
        steps: int,
        *,
        own_slots: Sequence[str] = (),
        keeps_last: bool = False,
    ) -> None:
        """A copy of `template`, after so many `steps` of training by the rule `update`.

        `own_slots` are those of the averaging rule. `keeps_last`: it also keeps the weights that all entities last had
        in common.
        """
        self.number, self.update, self.steps = number, update, steps
        self.module = copy.deepcopy(template)
        parameters = list(self.module.parameters())
        self.optimizer = update.for_torch(parameters) if parameters else None
        self.own = {slot: [torch.zeros_like(p) for p in parameters] for slot in own_slots}
        self.last = [p.detach().clone() for p in parameters] if keeps_last else []

    def state(self) -> State:
        """Parameters and buffers by "LAYER.NAME"."""
        return OrderedDict((f"{self.number}.{k}", value) for k, value in self.module.state_dict().items())

    def slots(self) -> dict[str, Tensors]:
        """What lies beside each parameter, by name; zeros stand for what the first step has yet to make."""
        parameters = list(self.module.parameters())
        return {slot: [self._slot(slot, p) for p in parameters] for slot in self.update.slots} | self.own

    def named_slots(self) -> State:
        """The slots by "SLOT.LAYER.NAME"."""
        names = [name for name, _ in self.module.named_parameters()]
        return OrderedDict(
            (f"{slot}.{self.number}.{name}", tensor)
            for slot, tensors in self.slots().items()
            for name, tensor in zip(names, tensors, strict=True)
        )

    def named_last(self) -> State:
        """The weights that all entities last had in common by "LAYER.NAME", where they are kept."""
        names = (f"{self.number}.{name}" for name, _ in self.module.named_parameters())
        return OrderedDict(zip(names, self.last, strict=False))

    def keep_last(self) -> None:
        """From now on all entities have these weights in common."""
        for last, parameter in zip(self.last, self.module.parameters(), strict=False):
            last.copy_(parameter)

    def held(self, *, trained: bool = False) -> Held:
        """What a rule sees of the layer; `trained`: of its trained parameters only, and no buffers."""
        parameters = list(self.module.parameters())
        kept = [p.requires_grad or not trained for p in parameters]
        buffers = (owner._buffers[name] for owner, name in self.buffer_owners() if not trained)
        return Held(
            [p.detach() for p in compress(parameters, kept)],
            [b for b in buffers if b is not None and b.is_floating_point()],
            {slot: list(compress(tensors, kept)) for slot, tensors in self.slots().items()},
            list(compress(self.last, kept)),
            self.steps,
        )

    def clear(self, slots: Iterable[str]) -> None:
        """Forget what these slots hold."""
        found = self.slots()
        for tensor in (tensor for slot in slots for tensor in found.get(slot, ())):
            tensor.zero_()

    def buffer_owners(self) -> list[tuple[nn.Module, str]]:
        """The module that each buffer belongs to, and its name there."""
        return [
            (module, name)
            for module in self.module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def _slot(self, slot: str, parameter: nn.Parameter) -> torch.Tensor:
        assert self.optimizer is not None
        state = self.optimizer.state[parameter]
        if state.get(TORCH_SLOTS[slot]) is None:
            state[TORCH_SLOTS[slot]] = torch.zeros_like(parameter)
            if self.update.name != "sgd":
                state["step"] = torch.tensor(float(self.steps))
        found: torch.Tensor = state[TORCH_SLOTS[slot]]
        return found

    def step(self) -> None:
        """One step of its optimiser with the gradients that are there, at the learning rate of the round."""
        if self.optimizer is not None:
            if self.update.schedule is not None:
                (self.optimizer.param_groups[0]["lr"],) = self.update.rates(self.steps)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.steps += 1

    def resume(self, steps: int) -> None:
        """Go on after so many steps."""
        self.steps = steps
        for state in self.optimizer.state.values() if self.optimizer is not None else ():
            if "step" in state:
                state["step"].fill_(steps)
