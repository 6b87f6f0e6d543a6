"""What entities of a tier send to the fed server, and what they make of the average that comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hsfl.errors import ScenarioError

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Held:
    """What a rule sees: the tensors of one entity, or of all entities of a tier with one row each.

    A rule works element by element, so that it need not know which of the two it is.
    """

    weights: Tensors
    buffers: Tensors
    """The buffers of floating-point numbers, such as running statistics."""
    slots: dict[str, Tensors]
    """State beside the weights, by name: the optimiser's, and the rule's own."""


class AveragingRule:
    """The plain one: weights and buffers become their mean over the tier; optimiser state stays where it is.

    A rule of one's own overrides any method. What it keeps beside every weight it names in `slots`: that starts at 0,
    is saved and loaded, and follows a layer that moves. It keeps nothing else.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, *, average_state: bool = False) -> None:
        """`average_state`: the optimiser's state is averaged too."""
        self.average_state = average_state

    def contribute(self, held: Held) -> Tensors:
        """What an entity sends to the fed server, which answers with the mean weighted by clients."""
        state = [t for name, tensors in held.slots.items() if name not in self.slots for t in tensors]
        return [*held.weights, *held.buffers, *(state if self.average_state else [])]

    def adopt(self, held: Held, average: Sequence[torch.Tensor], rounds: int) -> None:
        """Take over the average of what was contributed, so many rounds after the one before; in place."""
        for own, mean in zip(self.contribute(held), average, strict=True):
            own.copy_(mean.expand_as(own))

    def corrected(self, gradients: Tensors, slots: dict[str, Tensors]) -> Tensors:
        """The gradients of an entity's trained weights as its step is to take them; `slots` lie beside them.

        Where rounds are captured this is captured too: nothing but torch operations, and results of the same layout.
        """
        return gradients


RULES: dict[str, type[AveragingRule]] = {"plain": AveragingRule}


def averaging_rule(given: str | AveragingRule) -> AveragingRule:
    """A rule by name, or one's own."""
    if isinstance(given, AveragingRule):
        return given
    if given not in RULES:
        raise ScenarioError(f"averaging {given!r}: it must be one of {', '.join(RULES)}, or an AveragingRule")
    return RULES[given]()
