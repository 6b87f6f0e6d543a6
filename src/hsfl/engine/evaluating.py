"""What a backend says of its models on data: mean loss and metrics, taken in batches and waited for once."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hsfl.engine.losses import Loss, Metric, by_sample
from hsfl.engine.precision import arithmetic, casts
from hsfl.engine.running import run_layer
from hsfl.engine.training_data import Batch, TrainingData
from hsfl.errors import HsflError

#: Samples of clients that are evaluated at once.
_AT_ONCE = 1000


def in_batches(data: Batch | Iterable[Batch], batch_size: int) -> Iterable[Batch]:
    """A pair of inputs and targets in batches of so many; batches as they are."""
    if isinstance(data, torch.Tensor):
        raise HsflError("evaluate takes one pair: evaluate((inputs, targets)), or batches of such pairs")
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], torch.Tensor):
        inputs, targets = data
        return zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
    return data


@dataclass(frozen=True)
class Evaluator:
    """What is counted, and how it is computed."""

    loss: Loss
    metrics: Mapping[str, Metric]
    prepare: Callable[[torch.Tensor], torch.Tensor]
    """Makes of a batch's inputs what the first layer takes."""
    dtype: torch.dtype
    device: torch.device
    precision: str

    @property
    def names(self) -> tuple[str, ...]:
        return ("loss", *self.metrics)

    def values(self, layers: Sequence[nn.Module], batch: Batch) -> torch.Tensor:
        """(samples, names): the loss and the metrics of every sample of a batch, in float64 on the device."""
        inputs, targets = batch
        x, targets = self.prepare(inputs), targets.to(self.device)
        with arithmetic(self.device, self.precision), casts(self.device, self.precision):
            for number, layer in enumerate(layers):
                x = run_layer(number, layer, x, several=number == len(layers) - 1)
        found = [by_sample(self.loss, x, targets, self.dtype)]
        found += [by_sample(each, x, targets, self.dtype, f"metric {name}") for name, each in self.metrics.items()]
        return torch.stack([one.double().mean(1) for one in found], 1)

    def mean(self, layers: Sequence[nn.Module], batches: Iterable[Batch]) -> dict[str, float]:
        """The means over all samples, by name."""
        sums = torch.zeros(len(self.names), dtype=torch.float64, device=self.device)
        count = 0
        for batch in batches:
            sums += self.values(layers, batch).sum(0)
            count += len(batch[1])
        if not count:
            raise HsflError("evaluate: there are no samples; give at least one")
        return dict(zip(self.names, (sums / count).tolist(), strict=True))


class Evaluating(ABC):
    """The part of a backend that evaluates."""

    loss: Loss
    metrics: Mapping[str, Metric]
    device: torch.device
    dtype: torch.dtype
    precision: str
    _layers: list[nn.Module]
    _evaluated: nn.Sequential | None = None
    """Holds whichever model is being evaluated."""

    @torch.no_grad()
    def evaluate(self, data: Batch | Iterable[Batch] | None = None, batch_size: int = 1000) -> dict[str, float]:
        """Loss and metrics of the virtual average, on the backend's test data or on what is given.

        `data` is inputs and targets, (n, ...) and (n, ...), taken `batch_size` at a time, or an iterable of such pairs,
        each a batch. The result is waited for once, at the end.
        """
        batches = self._data().test_batches() if data is None else in_batches(data, batch_size)
        return self._evaluator.mean(list(self._with(self.global_state())), batches)

    @torch.no_grad()
    def evaluate_clients(self, held: Sequence[torch.Tensor], *, own: bool = False) -> dict[str, list[float]]:
        """Loss and metrics on training samples of every client, whose numbers are `held`; NaN where it has none.

        The model is the virtual average or, with `own`, what each client computes with now: its path up the tree.
        """
        evaluator, data = self._evaluator, self._data()

        def values(layers: Sequence[nn.Module], samples: torch.Tensor) -> torch.Tensor:
            found = [evaluator.values(layers, data.samples(part)) for part in samples.split(_AT_ONCE) if len(part)]
            nothing = torch.zeros(0, len(evaluator.names), dtype=torch.float64, device=self.device)
            return torch.cat([nothing, *found])

        if own:
            models = (list(self._with(self.client_state(client))) for client in range(len(held)))
            each = [values(layers, samples) for layers, samples in zip(models, held, strict=True)]
        else:
            together = values(list(self._with(self.global_state())), torch.cat(list(held)))
            each = list(together.split([len(samples) for samples in held]))
        means = torch.stack([one.mean(0) for one in each])
        return dict(zip(evaluator.names, means.T.tolist(), strict=True))

    @torch.no_grad()
    def model(self) -> nn.Module:
        """The virtual average: a model of its own, which training leaves alone, for inputs as batches have them."""
        return copy.deepcopy(self._with(self.global_state()))

    @property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.loss, self.metrics, self._inputs, self.dtype, self.device, self.precision)

    def _with(self, state: Mapping[str, torch.Tensor]) -> nn.Sequential:
        """The layers with these parameters and buffers, by "LAYER.NAME"; until it is called again."""
        if self._evaluated is None:
            self._evaluated = nn.Sequential(*copy.deepcopy(self._layers)).eval()
        self._evaluated.load_state_dict(state)
        return self._evaluated

    @abstractmethod
    def global_state(self) -> OrderedDict[str, torch.Tensor]: ...

    @abstractmethod
    def client_state(self, client: int) -> OrderedDict[str, torch.Tensor]: ...

    @abstractmethod
    def _inputs(self, inputs: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _data(self) -> TrainingData: ...
