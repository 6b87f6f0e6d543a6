"""A training and a test set that fit the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from hsfl.data import official_files, own_data
from hsfl.data.leaf import read_leaf
from hsfl.errors import ScenarioError
from hsfl.scenario.data_section import ColumnsSection, DataSection

#: The seed of what is validated on.
_VALIDATION = 113


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and targets, int64 classes or float32 numbers, (n,) or (n, ...), for training and for testing.

    Images are uint8 (n, channels, height, width), and `mean` and `std` are those of each channel over the training
    images, scaled to 0..1 and before any padding. Other inputs, floating-point numbers and int64 tokens, have neither.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    users: npt.NDArray[np.int64] | None = None
    """Whose each training sample is, counted from 0, where the data say so."""

    @property
    def num_classes(self) -> int:
        """One more than the largest target."""
        return 1 + max(int(targets.max()) for _, targets in (self.train, self.test))


def load_dataset(
    section: DataSection,
    *,
    input_shape: tuple[int, ...],
    scenario_folder: Path | None,
    data_folder: Path | None,
    given: Any = None,
) -> Dataset:
    """The data that [data] names, for a model that takes samples of `input_shape`.

    Named data is looked for in `data_folder`, in $HSFL_DATA and in the cache; a factory's module in `scenario_folder`
    first. `given` is taken instead of the factory's: see `hsfl.data.own_data.load`.
    """
    if (section.name is None) == (section.factory is None):
        given = "neither" if section.name is None else "both"
        raise ScenarioError(f"data needs exactly one of name and factory, and has {given}")
    if section.name == "own":
        raise ScenarioError(
            'data.name = "own": every device has its own, so that it cannot be trained here; use hsfl run --listen and '
            "hsfl node --data"
        )
    users = None
    if section.name == "leaf":
        if section.folder is None:
            raise ScenarioError('data.folder is missing; with data.name = "leaf" it names the folder of LEAF\'s files')
        folder = (scenario_folder or Path()) / section.folder
        label, field = "leaf", f"data.folder = {section.folder}"
        train, test, users = read_leaf(folder)
    elif section.name is not None:
        label, field = str(section.name), f"data.name = {section.name}"
        train, test = (_tensors(part) for part in official_files.read_named(section.name, data_folder))
    else:
        label, field = str(section.factory), f"data.factory = {section.factory}"
        columns = section.columns or ColumnsSection.model_validate({})
        train, test, users = own_data.load(label, scenario_folder, columns, given)
    for part, tensors in (("training", train), ("test", test)):
        _check(field, part, *tensors)
    if train[0].dtype != test[0].dtype:
        raise ScenarioError(f"{field}: training inputs are {train[0].dtype} but test inputs {test[0].dtype}")
    if train[1].dtype != test[1].dtype:
        raise ScenarioError(f"{field}: training targets are {train[1].dtype} but test targets {test[1].dtype}")
    if train[1].shape[1:] != test[1].shape[1:]:
        shapes = " but test targets ".join(_times(part[1].shape[1:]) for part in (train, test))
        raise ScenarioError(f"{field}: training targets are {shapes} per sample; make them equal")
    if section.validation:
        train, test, users = _validation(section, train, users)
    images = train[0].dtype == torch.uint8
    mean, std = _statistics(train[0]) if images else (None, None)
    train, test = ((_fit(inputs, input_shape, field), targets) for inputs, targets in (train, test))
    return Dataset(label, train, test, mean, std, users)


def _validation(
    section: DataSection, train: own_data.Part, users: npt.NDArray[np.int64] | None
) -> tuple[own_data.Part, own_data.Part, npt.NDArray[np.int64] | None]:
    """Training samples without a part of them, that part, and whose the former are."""
    if section.partition == "csv":
        raise ScenarioError(
            'data.validation: with data.partition = "csv" a file says what each sample is for; leave samples out there'
        )
    count = len(train[1])
    held = round(section.validation * count)
    if not 0 < held < count:
        raise ScenarioError(
            f"data.validation = {section.validation:g}: that is {held} of {count} training samples; both training and "
            "validation need some"
        )
    order = torch.from_numpy(np.random.default_rng(_VALIDATION).permutation(count))
    held_out, left = order[:held].sort().values, order[held:].sort().values
    part, rest = ((train[0][chosen], train[1][chosen]) for chosen in (held_out, left))
    return rest, part, None if users is None else users[left.numpy()]


class Samples(NamedTuple):
    """What samples must be like where nobody has all of them."""

    inputs: str
    """Their type."""
    shape: tuple[int, ...]
    targets: tuple[int, ...]
    """The shape of the targets of a sample."""
    classes: int | None
    """None where targets are numbers."""

    def dataset(self, train: own_data.Part | None, test: own_data.Part | None) -> Dataset:
        """What is here: checked, see `checked`, or nothing."""
        dtype = getattr(torch, self.inputs)
        of_targets = torch.float32 if self.classes is None else torch.int64
        empty = torch.zeros((0, *self.shape), dtype=dtype), torch.zeros((0, *self.targets), dtype=of_targets)
        channels = self.shape[0] if dtype == torch.uint8 else 0
        mean, std = ((0.0,) * channels, (1.0,) * channels) if channels else (None, None)
        return Dataset("own", train or empty, test or empty, mean, std)

    def checked(self, part: own_data.Part, what: str, field: str) -> own_data.Part:
        """Inputs and targets that are like this, or ScenarioError, which begins with `field`; `what` they are for."""
        inputs, targets = part
        _check(field, what, inputs, targets)
        wanted = getattr(torch, self.inputs)
        if wanted.is_floating_point and inputs.is_floating_point():
            inputs = inputs.to(wanted)
        if inputs.dtype != wanted:
            kind = str(inputs.dtype).removeprefix("torch.")
            raise ScenarioError(f"{field}: inputs are {kind}, unlike data.inputs = {self.inputs}; make them equal")
        if tuple(targets.shape[1:]) != self.targets:
            raise ScenarioError(
                f"{field}: targets are {_times(targets.shape[1:])} per sample, and the model's outputs need "
                f"{_times(self.targets)}"
            )
        if self.classes is None:
            return _fit(inputs, self.shape, field), targets.float()
        if targets.is_floating_point():
            raise ScenarioError(f"{field}: targets are numbers, and training.loss needs classes as int64")
        if int(targets.max()) >= self.classes:
            raise ScenarioError(
                f"{field}: a target is {int(targets.max())}, but the model tells {self.classes} classes apart, counted "
                "from 0"
            )
        return _fit(inputs, self.shape, field), targets


def _tensors(part: official_files.Part) -> tuple[Tensor, Tensor]:
    images, labels = part
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def _check(field: str, part: str, inputs: Tensor, targets: Tensor) -> None:
    """Refuse data that training could only fail on later."""
    if not len(inputs) or len(inputs) != len(targets):
        raise ScenarioError(
            f"{field}: {len(inputs)} {part} inputs and {len(targets)} {part} targets; give equally many of both, and "
            "at least one"
        )
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise ScenarioError(f"{field}: {part} inputs hold nan or infinite numbers; give finite ones")
    if targets.is_floating_point():
        if not bool(targets.isfinite().all()):
            raise ScenarioError(f"{field}: {part} targets hold nan or infinite numbers; give finite ones")
    elif int(targets.min()) < 0:
        raise ScenarioError(f"{field}: a {part} target is {int(targets.min())}; count classes from 0")


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, exact from the counts of its 256 values."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share = counts / counts.sum()
        mean = float(share @ levels)
        means.append(mean)
        deviations.append(float(share @ (levels - mean) ** 2) ** 0.5 or 1.0)  # a constant channel stays constant
    return tuple(means), tuple(deviations)


def _fit(inputs: Tensor, input_shape: tuple[int, ...], field: str) -> Tensor:
    """Samples of `input_shape`: smaller images get a frame of zeros, everything else must fit already."""
    shape = tuple(inputs.shape[1:])
    if shape == input_shape:
        return inputs
    wanted = f"model.input_shape = [{', '.join(map(str, input_shape))}]"
    if inputs.dtype != torch.uint8 or len(input_shape) != 3:
        raise ScenarioError(f"{field}: a sample is {_times(shape)}, unlike {wanted}; make them equal")
    if shape[0] != input_shape[0]:
        raise ScenarioError(
            f"{field}: its images have {shape[0]} channel{'s' if shape[0] > 1 else ''}, unlike {wanted}; set the first "
            f"of input_shape to {shape[0]} or use other data"
        )
    frame = [wanted_size - size for size, wanted_size in zip(shape[1:], input_shape[1:], strict=True)]
    if min(frame) < 0:
        raise ScenarioError(
            f"{field}: its images of {_times(shape[1:])} do not fit into {wanted}; make that at least as large"
        )
    top, left = frame[0] // 2, frame[1] // 2
    return functional.pad(inputs, (left, frame[1] - left, top, frame[0] - top))


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
