"""Which training samples each client has."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hsfl.errors import ScenarioError
from hsfl.files import MAX_CSV, read_text
from hsfl.scenario.data_section import DataSection

Indices = npt.NDArray[np.int64]

#: What separates these random streams from others with the same seed.
_PARTITION, _NOISE = 100, 103
_REDRAWS = 1000


def partition(
    section: DataSection,
    labels: npt.NDArray[np.integer],
    num_clients: int,
    seed: int,
    scenario_folder: Path | None,
    users: Indices | None = None,
) -> Sequence[Indices]:
    """The samples of each client, as data.partition says: at least one for everybody.

    They are disjoint, unless every client draws its own (data.samples_per_client). `labels` are the training targets.
    Shards and Dirichlet shares need one label per sample. `users` says whose each sample is, where that is known.
    """
    kind, own = section.partition, section.samples_per_client is not None
    if own and kind not in ("iid", "shards", "dirichlet"):
        raise ScenarioError(f"data.samples_per_client: partition = {kind} says who has what; remove one of them")
    if own and section.feature_noise:
        raise ScenarioError("data.feature_noise: with samples_per_client a sample has no client of its own; remove it")
    if kind == "csv":
        return _from_csv(section, len(labels), num_clients, scenario_folder)
    if not own and len(labels) < num_clients:
        raise ScenarioError(
            f"data.partition = {kind}: {len(labels)} training samples are too few for {num_clients} clients; use more "
            "data or fewer devices, or let clients share samples with data.samples_per_client"
        )
    if kind in ("shards", "dirichlet") and labels.dtype.kind == "f":
        raise ScenarioError(
            f"data.partition = {kind}: it goes by classes, and the targets are numbers; use iid, quantity, natural or "
            "csv"
        )
    if kind in ("shards", "dirichlet") and labels.ndim != 1:
        raise ScenarioError(
            f"data.partition = {kind} needs one label per sample, and here are many; use iid, quantity, natural or csv"
        )
    if own:
        return OwnDraws(section, labels, num_clients, seed)
    generator = np.random.default_rng([seed, _PARTITION])
    if kind == "shards":
        return _shards(section.shards_per_client, labels, num_clients, generator)
    if kind == "dirichlet":
        return _dirichlet(section.alpha, labels, num_clients, generator)
    if kind == "quantity":
        return _quantity(section.alpha, len(labels), num_clients, generator)
    if kind == "natural":
        return _natural(section.users_per_client, users, num_clients, generator)
    return np.array_split(generator.permutation(len(labels)), num_clients)


class OwnDraws(Sequence[Indices]):
    """Clients that draw their samples from all there are, each by its own seed: those of several may be the same.

    What a client has is worked out when it is asked for, so that any number of clients takes no memory. Of a Dirichlet
    partition it draws shares of labels for itself, of shards it draws labels, one for each shard.
    """

    def __init__(self, section: DataSection, labels: npt.NDArray[np.integer], num_clients: int, seed: int) -> None:
        assert section.samples_per_client is not None
        self._section, self._num_clients, self._seed = section, num_clients, seed
        self._count, self._samples = section.samples_per_client, len(labels)
        kinds = () if section.partition == "iid" else np.unique(labels).tolist()
        self._classes = [np.flatnonzero(labels == label) for label in kinds]
        if section.partition == "shards" and section.shards_per_client > len(self._classes):
            raise ScenarioError(
                f"data.shards_per_client = {section.shards_per_client}: with samples_per_client it is a number of "
                f"labels, and there are {len(self._classes)}; give at most so many"
            )

    def __len__(self) -> int:
        return self._num_clients

    @overload
    def __getitem__(self, client: int) -> Indices: ...
    @overload
    def __getitem__(self, client: slice) -> list[Indices]: ...
    def __getitem__(self, client: int | slice) -> Indices | list[Indices]:
        if isinstance(client, slice):
            return [self[n] for n in range(*client.indices(len(self)))]
        if not 0 <= client < len(self):
            raise IndexError(client)
        generator, section = np.random.default_rng([self._seed, _PARTITION, client]), self._section
        if section.partition == "iid":
            return _some(generator, np.arange(self._samples), self._count)
        if section.partition == "shards":
            kinds = generator.choice(len(self._classes), section.shards_per_client, replace=False)
            counts = np.bincount(np.resize(kinds, self._count), minlength=len(self._classes))
        else:
            shares = generator.dirichlet(np.full(len(self._classes), section.alpha))
            counts = generator.multinomial(self._count, shares)
        drawn = [_some(generator, members, count) for members, count in zip(self._classes, counts, strict=True)]
        return np.concatenate(drawn)


def _some(generator: np.random.Generator, members: Indices, count: int) -> Indices:
    """So many of them, each at most once unless there are too few."""
    return generator.choice(members, count, replace=count > len(members))


def label_counts(parts: Sequence[Indices], labels: npt.NDArray[np.integer], num_classes: int) -> npt.NDArray[np.int64]:
    """How often each client has each label, (clients, classes)."""
    return np.array([np.bincount(labels[part].ravel(), minlength=num_classes) for part in parts], dtype=np.int64)


def _shards(
    per_client: int, labels: npt.NDArray[np.integer], num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    """Cut the samples, sorted by label, into equal shards and deal them."""
    count = per_client * num_clients
    if count > len(labels):
        raise ScenarioError(
            f"data.shards_per_client = {per_client}: {num_clients} clients would need {count} shards, more than the "
            f"{len(labels)} training samples; use at most {len(labels) // num_clients}"
        )
    shards = np.array_split(np.argsort(labels, kind="stable"), count)
    dealt = generator.permutation(count).reshape(num_clients, per_client)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _dirichlet(
    alpha: float, labels: npt.NDArray[np.integer], num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    """Share the samples of each label out by a Dirichlet draw; draw again as long as a client would have none."""
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    sizes = np.array([len(members) for members in classes])
    for _ in range(_REDRAWS):
        shares = generator.dirichlet(np.full(num_clients, alpha), size=len(classes))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]).astype(np.int64)
        ends = np.column_stack([np.zeros_like(sizes), np.minimum(cuts, sizes[:, None]), sizes])
        if np.diff(ends).sum(axis=0).min() > 0:
            break
    else:
        raise ScenarioError(
            f"data.alpha = {alpha:g} leaves one of {num_clients} clients without samples in each of {_REDRAWS} draws; "
            "use a larger alpha or fewer devices"
        )
    pieces = [np.split(generator.permutation(m), cut[1:-1]) for m, cut in zip(classes, ends, strict=True)]
    return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


def _quantity(alpha: float, num_samples: int, num_clients: int, generator: np.random.Generator) -> list[Indices]:
    """One sample for everybody, and of the rest shares by a Dirichlet draw; which they are is left to chance."""
    shares = generator.dirichlet(np.full(num_clients, alpha))
    ends = np.arange(1, num_clients + 1) + np.rint(np.cumsum(shares) * (num_samples - num_clients)).astype(np.int64)
    return np.split(generator.permutation(num_samples), np.minimum(ends, num_samples)[:-1])


def _natural(
    per_client: int | None, users: Indices | None, num_clients: int, generator: np.random.Generator
) -> list[Indices]:
    """Users dealt to clients in an order that is drawn: as many to each, or all of them as evenly as that goes."""
    if users is None:
        raise ScenarioError(
            'data.partition = natural: nothing says whose each sample is; that is known of data.name = "leaf", and of '
            "a factory's data where data.columns.client names the column"
        )
    count = int(users.max()) + 1
    wanted = (per_client or 1) * num_clients
    if wanted > count:
        each = f" with data.users_per_client = {per_client}" if per_client else ""
        raise ScenarioError(
            f"data.partition = natural: {num_clients} clients{each} need {wanted} users, and the data have {count}; "
            "use fewer devices"
        )
    order = generator.permutation(count)[: wanted if per_client else count]
    by_user = np.split(np.argsort(users, kind="stable"), np.cumsum(np.bincount(users, minlength=count))[:-1])
    return [np.concatenate([by_user[user] for user in order[n::num_clients]]) for n in range(num_clients)]


def noisy(inputs: Tensor, parts: Sequence[Indices], level: float, seed: int) -> Tensor:
    """Training inputs with noise that is each client's own: Gaussian, of a deviation from 0 for the first to `level`.

    Images count from 0 to 1, and stay images: what goes beyond is cut off.
    """
    if inputs.dtype == torch.int64:
        raise ScenarioError("data.feature_noise: tokens cannot be changed a little; leave it away")
    found = inputs.clone()
    for n, part in enumerate(parts[1:], start=1):
        generator = np.random.default_rng([seed, _NOISE, n])
        indices = torch.from_numpy(part)
        added = torch.from_numpy(generator.standard_normal((len(part), *inputs.shape[1:]), dtype=np.float32))
        added *= level * n / (len(parts) - 1)
        if inputs.dtype == torch.uint8:
            found[indices] = (inputs[indices] + 255 * added).round().clamp(0, 255).to(torch.uint8)
        else:
            found[indices] += added.to(inputs.dtype)
    return found


def _from_csv(section: DataSection, num_samples: int, num_clients: int, scenario_folder: Path | None) -> list[Indices]:
    if section.assignments is None:
        raise ScenarioError("data.assignments is missing; with data.partition = csv it names a file sample,client")
    path = (scenario_folder or Path()) / section.assignments
    rows = _read_rows(path)
    client_of = np.full(num_samples, -1, dtype=np.int64)
    for line, (sample, client) in rows:
        if not sample < num_samples:
            raise ScenarioError(
                f"{path}: line {line}: sample {sample} does not exist; samples count from 0 to {num_samples - 1}"
            )
        if not client < num_clients:
            raise ScenarioError(
                f"{path}: line {line}: client {client} does not exist; clients count from 0 to {num_clients - 1}"
            )
        if client_of[sample] >= 0:
            raise ScenarioError(f"{path}: line {line}: sample {sample} is listed twice; give it to one client")
        client_of[sample] = client
    # A stable sort keeps each client's samples in ascending order, whatever the order of the lines.
    counts = np.bincount(client_of + 1, minlength=num_clients + 1)
    if not counts[1:].all():
        raise ScenarioError(
            f"{path}: client {int(np.argmin(counts[1:]))} has no samples; give each of the {num_clients} clients one"
        )
    return np.split(np.argsort(client_of, kind="stable"), np.cumsum(counts)[:-1])[1:]


def _read_rows(path: Path) -> list[tuple[int, tuple[int, int]]]:
    """The lines' numbers and their two numbers."""
    try:
        table = list(csv.reader(io.StringIO(read_text(path, MAX_CSV)), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(
            f"data.assignments = {path}: cannot be read as a CSV text file ({reason}); name one with the columns "
            "sample,client"
        ) from None
    header = [cell.strip() for cell in table[0]] if table else []
    if sorted(header) != ["client", "sample"]:
        raise ScenarioError(f"{path}: the first line is {','.join(header)!r}; it must be sample,client")
    rows = []
    for line, cells in enumerate(table[1:], start=2):
        if not any(cell.strip() for cell in cells):
            continue
        values = [int(cell) for cell in cells if cell.strip().isascii() and cell.strip().isdigit() and len(cell) < 19]
        if len(cells) != 2 or len(values) != 2:
            raise ScenarioError(f"{path}: line {line} is {','.join(cells)!r}; it must be two whole numbers from 0 on")
        rows.append((line, (values[header.index("sample")], values[header.index("client")])))
    return rows
