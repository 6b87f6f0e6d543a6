"""What entities of a tier send to the fed server, and what they make of the average that comes back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from hsfl.engine.optimizer import Optimizer
from hsfl.errors import ScenarioError

Tensors = list[torch.Tensor]
#: The slot of what coded averages have left unsent.
UNSENT = "unsent"


@dataclass(frozen=True)
class Held:
    """What a rule sees: the tensors of one entity, or of all entities of a tier with one row each.

    A rule works element by element, so that it need not know which of the two it is, nor of how many layers.
    """

    weights: Tensors
    buffers: Tensors
    """The buffers of floating-point numbers, such as running statistics."""
    slots: dict[str, Tensors]
    """State beside the weights, by name: the optimiser's, the rule's own, and what coded averages have left unsent."""
    last: Tensors
    """The weights that all entities last had in common, in one row for all of them: at the start the initial ones,
    after an average those it left. Empty unless the rule `uses_last` or averages are coded."""
    round: int = 0
    """How many rounds were trained: `AveragingRule.optimizer.rates` has their learning rates."""

    def products(self, *pairs: tuple[Tensors, Tensors]) -> torch.Tensor:
        """The inner products of pairs that each have a tensor for every weight: a row for each entity.

        Only for a rule that `uses_last`, which tells one entity from the rows of several.
        """
        rows = len(self.weights[0]) if self.weights[0].shape != self.last[0].shape else 1
        return torch.stack([_inner(rows, *pair) for pair in pairs], dim=1)


class AveragingRule:
    """The plain one: weights and buffers become their mean over the tier; optimiser state stays where it is.

    A rule of one's own overrides any method. What it keeps beside every weight it names in `slots`: that starts at 0,
    is saved and loaded, and follows a layer that moves. It keeps nothing else. A tier with one entity is never
    averaged: no rule has a part in it, and nothing is kept there.
    """

    slots: tuple[str, ...] = ()
    uses_last = False
    """Whether it wants `Held.last`; all entities then leave `adopt` with the same weights."""
    server_slots: tuple[str, ...] = ()
    """What the fed server keeps of every weight of an averaged tier, likewise: no machine has it."""
    optimizer: Optimizer
    """The optimiser of the backend that the rule serves."""

    def __init__(self, *, average_state: bool = False) -> None:
        """`average_state`: the optimiser's state is averaged too."""
        self.average_state = average_state

    def serving(self, optimizer: Optimizer) -> Self:
        """The rule for a backend with this optimiser; ScenarioError where it cannot serve one."""
        rule = copy.copy(self)  # the same object may be given to several backends
        rule.optimizer = optimizer
        return rule

    def contribute(self, held: Held) -> Tensors:
        """What an entity sends to the fed server, which answers with the mean weighted by clients.

        Where what was last in common is kept, the differences of its weights to that are sent: small numbers lose
        little to rounding. A tensor for each one of `held.weights` comes first, and is what coded averages code.
        """
        changes = [own - last for own, last in zip(held.weights, held.last, strict=True)] if held.last else held.weights
        return [*changes, *self._beside(held)]

    def served(self, average: Tensors, server: dict[str, Tensors], rounds: int) -> Tensors:
        """What the fed server sends back for the mean of what was contributed for weights, in the same order.

        `server` is what it keeps of them, by name. Arguments are those of `adopt`; what is averaged beside weights goes
        back as it is.
        """
        return average

    def adopt(self, held: Held, average: Sequence[torch.Tensor], rounds: int) -> None:
        """Take over what the fed server made of what was contributed, so many rounds after the average before; in
        place.

        Layers that were last averaged at different times, as after a move, are adopted apart.
        """
        means = list(average)
        for i, last in enumerate(held.last):
            means[i] = last + means[i]
        for own, mean in zip([*held.weights, *self._beside(held)], means, strict=True):
            own.copy_(mean.expand_as(own))

    def _beside(self, held: Held) -> Tensors:
        """What is averaged beside the weights."""
        state = [t for slot in self.optimizer.slots for t in held.slots[slot]] if self.average_state else []
        return [*held.buffers, *state]

    def corrected(self, gradients: Tensors, held: Held) -> Tensors:
        """The gradients of an entity's trained weights as its step is to take them; `held` has what lies beside them.

        Where rounds are captured this is captured too: nothing but torch operations, and results of the same layout.
        """
        return gradients

    @property
    def corrects(self) -> bool:
        """Whether gradients are corrected at all."""
        return type(self).corrected is not AveragingRule.corrected


class CorrectedRule(AveragingRule):
    """Plain averages, with what pulls each entity its own way taken out of its gradients, and momentum in common.

    How far an entity is from the mean after an interval tells how its gradient differed from the mean gradient, y. As
    much of that as is likely to last is its variate h, which its steps subtract; the momentum of all becomes that of
    their mean:

        step:     v <- mu v + (g - h) + decay w;  w <- w - lr v
        average:  y = h - (w - mean) / S;  h <- k y;  v <- (last - mean) / (lr_1 + ... + lr_I);  w, last <- mean

    S = sum_{i=1..I} lr_i (1 - mu^i) / (1 - mu) is how far I steps carry a constant gradient. The cosine c of y and h,
    over all entities of the tier, says how much of a difference lasts from one interval to the next and is no noise of
    mini-batches: k = c / (c + (1 - c) / `CANCELS`) is the part of y that leaves the least, where what remains of a
    difference counts in full and noise, which cancels in the mean, one `CANCELS`th of that. Data that are alike have
    hardly any variates, data that differ nearly all of y. Nothing is sent but what plain averages send and three
    numbers, from which all know c. The weighted mean of h over the tier is 0 and stays 0 up to rounding, because that
    of w - mean is, because k is one for all, and because a new host of a layer takes the mean over its clients.
    """

    slots = ("variate",)
    uses_last = True
    CANCELS = 8.0
    #: The least k, so that h keeps the direction of y; and c before there is a variate to compare with.
    LEAST, UNKNOWN = 0.02, 0.5

    def __init__(self) -> None:
        """The optimiser's state is not averaged: momentum is in common anyway."""
        super().__init__()

    def serving(self, optimizer: Optimizer) -> Self:
        if optimizer.name != "sgd":
            raise ScenarioError(
                f'averaging "corrected": it is for sgd, with or without momentum, and not for {optimizer.name}; take '
                'averaging "plain" or the optimizer sgd'
            )
        return super().serving(optimizer)

    def contribute(self, held: Held) -> Tensors:
        sent, variates = super().contribute(held), held.slots["variate"]
        if not held.weights:
            return sent
        changes = sent[: len(held.weights)]
        return [*sent, held.products((variates, variates), (changes, variates), (changes, changes))]

    def adopt(self, held: Held, average: Sequence[torch.Tensor], rounds: int) -> None:
        changes, rest = average[: len(held.weights)], average[len(held.weights) :]  # mean - last, and what is beside
        if changes:
            *rest, products = rest
        if changes and rounds:  # else nothing was trained since the average before
            mu, rates = self.optimizer.momentum, self.optimizer.rates(held.round - rounds, rounds)
            reach = sum(rate * (1 - mu**i) / (1 - mu) for i, rate in enumerate(rates, 1))
            lasting = self._lasting(products.flatten(), sum(change.square().sum() for change in changes), reach)
            beside = zip(held.slots["variate"], held.weights, held.last, changes, strict=True)
            for variate, own, last, change in beside:
                apart = own.sub_(last).sub_(change)  # in place of the weights, which are replaced below
                variate.sub_(apart, alpha=1 / reach).mul_(lasting)
            for slot in self.optimizer.slots:
                for momentum, change in zip(held.slots[slot], changes, strict=True):
                    momentum.copy_((change / -sum(rates)).expand_as(momentum))
        super().adopt(held, [*changes, *rest], rounds)

    def _lasting(self, products: torch.Tensor, moved: torch.Tensor | int, reach: float) -> torch.Tensor:
        """k, of the means over entities of h h, D h and D D, where D is the change of an entity's weights, and of the
        square of their mean change."""
        hh, dh, dd = products
        yh, yy = hh - dh / reach, hh - 2 * dh / reach + (dd - moved) / reach**2
        scale = (yy.clamp_min(0.0) * hh).sqrt()
        cosine = torch.where(scale > 0, (yh / scale).clamp(0.0, 1.0), self.UNKNOWN)
        return (cosine / (cosine + (1 - cosine) / self.CANCELS)).clamp_min(self.LEAST)

    def corrected(self, gradients: Tensors, held: Held) -> Tensors:
        return list(torch._foreach_sub(gradients, held.slots["variate"]))


class ProximalRule(AveragingRule):
    """FedProx (Li et al., 2020): steps minimise the loss and strength/2 |w - last|^2, so that none goes far alone."""

    uses_last = True

    def __init__(self, strength: float = 0.01, *, average_state: bool = False) -> None:
        super().__init__(average_state=average_state)
        self.strength = strength

    def corrected(self, gradients: Tensors, held: Held) -> Tensors:
        pulls = torch._foreach_sub(held.weights, held.last)
        return list(torch._foreach_add(gradients, pulls, alpha=self.strength))


class ServerMomentumRule(AveragingRule):
    """FedAvgM (Hsu et al., 2019): the fed server takes the mean change D for a gradient, and steps with momentum.

    v <- momentum v + D;  all go on at last + lr v
    """

    uses_last = True
    server_slots = ("server_momentum",)

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.9, *, average_state: bool = False) -> None:
        super().__init__(average_state=average_state)
        self.learning_rate, self.momentum = learning_rate, momentum

    def served(self, average: Tensors, server: dict[str, Tensors], rounds: int) -> Tensors:
        if not rounds:  # nothing was trained since the average before
            return average
        velocities = server["server_momentum"]
        for velocity, change in zip(velocities, average, strict=True):
            velocity.mul_(self.momentum).add_(change)
        return [self.learning_rate * velocity for velocity in velocities]


class ServerAdamRule(AveragingRule):
    """FedAdam (Reddi et al., 2021, algorithm 2): the fed server steps as Adam does, with the mean change D.

        m <- b1 m + (1 - b1) D;  v <- b2 v + (1 - b2) D^2;  all go on at last + lr m / (sqrt(v) + tau)

    v begins at tau^2 and m at 0; neither is corrected for that. What is kept of v is v - tau^2, which begins at 0.
    """

    uses_last = True
    server_slots = ("server_mean", "server_square")

    def __init__(
        self,
        learning_rate: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        tau: float = 1e-3,
        *,
        average_state: bool = False,
    ) -> None:
        super().__init__(average_state=average_state)
        self.learning_rate, self.betas, self.tau = learning_rate, betas, tau

    def served(self, average: Tensors, server: dict[str, Tensors], rounds: int) -> Tensors:
        if not rounds:  # nothing was trained since the average before
            return average
        steps = []
        for mean, kept, change in zip(server["server_mean"], server["server_square"], average, strict=True):
            mean.mul_(self.betas[0]).add_(change, alpha=1 - self.betas[0])
            square = self.next_square(kept + self.tau**2, change.square())
            kept.copy_(square - self.tau**2)
            steps.append(self.learning_rate * mean / (square.sqrt() + self.tau))
        return steps

    def next_square(self, square: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        """v, from that of the average before and D^2."""
        return self.betas[1] * square + (1 - self.betas[1]) * changed


class ServerYogiRule(ServerAdamRule):
    """FedYogi, of the same algorithm: v <- v - (1 - b2) D^2 sign(v - D^2), which falls slowly where changes shrink."""

    def next_square(self, square: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        return square - (1 - self.betas[1]) * changed * (square - changed).sign()


class ServerAdagradRule(ServerAdamRule):
    """FedAdagrad, of the same algorithm: v <- v + D^2, with m as in FedAdam; the second beta means nothing."""

    def next_square(self, square: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        return square + changed


RULES: dict[str, type[AveragingRule]] = {
    "plain": AveragingRule,
    "corrected": CorrectedRule,
    "fedprox": ProximalRule,
    "fedavgm": ServerMomentumRule,
    "fedadam": ServerAdamRule,
    "fedyogi": ServerYogiRule,
    "fedadagrad": ServerAdagradRule,
}


def averaging_rule(given: str | AveragingRule, optimizer: Optimizer) -> AveragingRule:
    """A rule by name, or one's own, for a backend with this optimiser."""
    if not isinstance(given, AveragingRule):
        if given not in RULES:
            raise ScenarioError(f"averaging {given!r}: it must be one of {', '.join(RULES)}, or an AveragingRule")
        given = RULES[given]()
    return given.serving(optimizer)


def _inner(rows: int, ones: Tensors, others: Tensors) -> torch.Tensor:
    return torch.stack([(a * b).reshape(rows, -1).sum(1) for a, b in zip(ones, others, strict=True)]).sum(0)


def joined(layers: Iterable[Held]) -> Held:
    """What a rule sees of several layers of an entity."""
    parts = list(layers)
    names = dict.fromkeys(name for part in parts for name in part.slots)
    return Held(
        [t for part in parts for t in part.weights],
        [t for part in parts for t in part.buffers],
        {name: [t for part in parts for t in part.slots[name]] for name in names},
        [t for part in parts for t in part.last],
        parts[0].round if parts else 0,
    )
