"""The data on the device, and batches of it as the model takes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from hsfl.data.batches import SHIFT, Sampler
from hsfl.data.dataset import Dataset
from hsfl.errors import ScenarioError

#: Test samples evaluated at once: enough to keep the device busy, and fewer where samples are large.
_TEST_BATCH, _TEST_BYTES = {"cpu": 1000, "cuda": 2500}, 2**25


class Feed:
    """The clients' data for a backend: draws of a sampler, made inputs and targets by what a CUDA graph can capture.

    The data stays on the device as it is stored, so uint8 images take a quarter of their float32 size, and becomes
    numbers of `dtype` batch by batch. Tokens stay int64.
    """

    def __init__(
        self, dataset: Dataset, sampler: Sampler, device: torch.device | str, dtype: torch.dtype = torch.float32
    ) -> None:
        inputs = dataset.train[0]
        if sampler.augment and (inputs.dim() != 4 or inputs.dtype == torch.int64):
            raise ScenarioError(
                f"data.augment = {', '.join(sorted(sampler.augment))}: only images (channels, height, width) can be "
                f"changed, and a sample of {dataset.name} has the shape {tuple(inputs.shape[1:])}; leave augment away"
            )
        self.sampler, self.dtype, self.device = sampler, dtype, torch.device(device)
        self.train = dataset.train[0].to(device), dataset.train[1].to(device)
        self.test = dataset.test[0].to(device), dataset.test[1].to(device)
        self._scale = self._shift = None
        if dataset.mean is not None and dataset.std is not None:
            mean = torch.tensor(dataset.mean, device=device)[:, None, None]
            std = torch.tensor(dataset.std, device=device)[:, None, None]
            self._scale, self._shift = 1 / (255 * std), -mean / std
        if sampler.augment:
            self._row = torch.arange(inputs.shape[2], device=device)
            self._column = torch.arange(inputs.shape[3], device=device)

    def draws(
        self, first_round: int, count: int, clients: tuple[int, ...] | None = None, *, micro_batches: int = 1
    ) -> Tensor:
        """(count, n, k b, K) int64 on the device: what n clients, by default all, draw in some rounds."""
        return torch.from_numpy(self.sampler.draw(first_round, count, clients, micro_batches)).to(self.device)

    def probe_draws(self, round_: int, batches: int, clients: tuple[int, ...] | None = None) -> Tensor:
        """(n, batches, b) int64 on the device: samples to measure gradients on."""
        return torch.from_numpy(self.sampler.probe(round_, batches, clients)).to(self.device)

    def batch(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (N, b, ...) and targets (N, b, ...) of the draws (N, b, K) of one round."""
        index = draw[..., 0]
        if not self.sampler.augment:
            return self.samples(index)
        inputs, targets = self.train
        images = self._changed(inputs[index.flatten()], draw[..., 1:].flatten(0, -2))
        return self.normalised(images).unflatten(0, index.shape), targets[index]

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of training samples, unchanged; both have the shape of `indices` in front."""
        inputs, targets = self.train
        return self.normalised(inputs[indices]), targets[indices]

    def blank(self, count: int) -> tuple[Tensor, Tensor]:
        """So many inputs and targets of zeros, of the shapes and types of all others."""
        inputs, targets = (tensor.new_zeros((count, *tensor.shape[1:])) for tensor in self.train)
        return self.normalised(inputs), targets

    def normalised(self, inputs: Tensor) -> Tensor:
        """Stored inputs as the model takes them: images with mean 0 and deviation 1 in every channel."""
        if self._scale is not None and self._shift is not None:
            return (inputs.float() * self._scale + self._shift).to(self.dtype)
        return inputs if inputs.dtype == torch.int64 else inputs.to(self.dtype)

    def test_batches(self, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set once, in batches as the model takes them, by default as large as the device likes them."""
        if batch_size is None:
            sample = self.test[0][0].numel() * 4  # bytes, as float32
            batch_size = max(1, min(_TEST_BATCH[self.device.type], _TEST_BYTES // max(1, sample)))
        for inputs, targets in zip(*(tensor.split(batch_size) for tensor in self.test), strict=True):
            yield self.normalised(inputs), targets

    def _changed(self, images: Tensor, change: Tensor) -> Tensor:
        """Each image's window at its offset in the zero-padded image, reversed where it is flipped.

        This precedes the normalisation, so that what comes in at the edges is black like an image's own background.
        """
        down, right, flip = change[:, 0, None], change[:, 1, None], change[:, 2, None]
        rows = down + self._row
        columns = right + torch.where(flip == 1, self._column.flip(0), self._column)
        padded = functional.pad(images, (SHIFT,) * 4)
        padded = padded.gather(2, rows[:, None, :, None].expand(-1, images.shape[1], -1, padded.shape[3]))
        return padded.gather(3, columns[:, None, None, :].expand(-1, images.shape[1], images.shape[2], -1))
