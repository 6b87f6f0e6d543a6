"""Which samples every client has: how many, of which labels, or how their targets are spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import HsflError
from hsfl.records import Labels
from hsfl.scenario.scenario import Scenario

if TYPE_CHECKING:
    from hsfl.data import ClientData


@dataclass(frozen=True)
class Targets:
    """The samples of clients whose targets are no labels, one after the other, and where targets are numbers, those."""

    samples: list[int]
    mean: list[float | None] | None
    """The mean of a client's numbers; None for a client without samples, or where a sample has several labels."""
    deviation: list[float | None] | None
    """The standard deviation of a client's numbers."""
    least: list[float | None] | None
    greatest: list[float | None] | None

    def model_dump(self) -> dict[str, Any]:
        """What JSON holds, without what there is not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def labels_of(found: ClientData) -> Labels | None:
    """How many samples of each label every client has; None for data without one label per sample."""
    if (counts := found.label_counts()) is None:
        return None
    return Labels(labels=[str(k) for k in range(counts.shape[1])], counts=counts.tolist())


def targets_of(found: ClientData) -> Targets:
    """How many samples every client has, and how their targets are spread if they are numbers."""
    targets, sizes = found.dataset.train[1].numpy(), [len(part) for part in found.parts]
    if targets.dtype.kind != "f":
        return Targets(sizes, None, None, None, None)
    own = [targets[part].astype(float) for part in found.parts]
    each = [[float(part.mean()), float(part.std()), float(part.min()), float(part.max())] for part in own if len(part)]
    rest = iter(each)
    rows = [next(rest) if size else [None] * 4 for size in sizes]
    return Targets(sizes, *(list(column) for column in zip(*rows, strict=True)))


def scenario_samples(scenario: Scenario, data_folder: Path | None = None) -> Labels | Targets:
    """What the clients of a scenario, which is not trained, would have."""
    from hsfl.data import load_client_data

    try:
        found = load_client_data(scenario, data_folder)
        return labels_of(found) or targets_of(found)
    except HsflError as error:
        raise type(error)(f"{scenario.source}: {str(error).removeprefix(f'{scenario.source}: ')}") from error
