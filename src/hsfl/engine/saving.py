"""Files of backends: one copy of every entity's layers and optimiser state, in safetensors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import nn

from hsfl.engine.state import AttendanceRecord
from hsfl.errors import HsflError
from hsfl.problem.topology import Topology
from hsfl.records import Count, Record


def save(path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`safetensors.torch.save_file`, with an OSError for what goes wrong outside of this process."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # A copy each: safetensors refuses tensors that share memory, as rows of a tier and tied weights do.
    apart = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    try:
        save_file(apart, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(number := int(found[1]), os.strerror(number), str(path)) from None


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """What `save` wrote; OSError or ValueError where it is not as it was written."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def write(path: str | Path, about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors and a JSON description. The file is not there in one piece before this returns."""
    save(path, tensors, {"hsfl": json.dumps(about)})


class About(Record):
    """What a file says about the backend that it is of."""

    cuts: list[int]
    round: Count
    attendance: AttendanceRecord
    hosts: list[list[int]]
    seed: int


def read(path: str | Path, topology: Topology, num_layers: int) -> tuple[About, dict[str, torch.Tensor]]:
    """What `write` wrote for a backend of the same tree and as many layers."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            about = About.model_validate_json((file.metadata() or {}).get("hsfl", "{}"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise HsflError(
            f"{path}: not a saved backend ({field} is missing or wrong); give a file that save wrote"
        ) from None
    except (OSError, SafetensorError, ValueError) as error:
        raise HsflError(f"{path}: not a saved backend ({error}); give a file that save wrote") from None
    if about.hosts != [row.tolist() for row in topology.hosts]:
        raise HsflError(f"{path}: saved for other hosts; load it into a backend with the same hosts")
    if (layers := len(about.attendance.averaged_at)) != num_layers:
        raise HsflError(
            f"{path}: saved for other layers, {layers} of them where this backend has {num_layers}; "
            "load it into a matching backend"
        )
    return about, tensors


class TierKeeps(NamedTuple):
    """What the entities of a tier keep, and what is in a file of it."""

    layers: range
    entities: Sequence[str]
    """Their names, those with a copy of their own."""
    slots: Sequence[str]
    common: Sequence[str]
    """What is kept once for all of them: the weights that they last had in common, what the fed server keeps."""


def expected(layers: Sequence[nn.Module], tiers: Sequence[TierKeeps]) -> dict[str, torch.Tensor]:
    """What a file of these tiers holds: its keys, with tensors of the right shapes and types."""
    found: dict[str, torch.Tensor] = {}
    for m, tier in enumerate(tiers):
        for number in tier.layers:
            state, parameters = layers[number].state_dict(), dict(layers[number].named_parameters())
            for j in tier.entities:
                found |= {f"state.{m}.{j}.{number}.{name}": value for name, value in state.items()}
                for slot in tier.slots:
                    found |= {f"slot.{m}.{j}.{slot}.{number}.{name}": p for name, p in parameters.items()}
            for kind in tier.common:
                found |= {f"{kind}.{m}.{number}.{name}": p for name, p in parameters.items()}
    return found


def check(path: str | Path, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise unless the names, shapes and types are the expected ones."""
    if found.keys() != expected.keys():
        odd = min(found.keys() ^ expected.keys())
        where = "is not in this backend" if odd in found else "is missing"
        raise HsflError(
            f"{path}: saved for other layers, another optimiser, another averaging rule or other codes "
            f"({odd} {where}); load it into a matching backend"
        )
    for key, tensor in found.items():
        want = expected[key]
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise HsflError(f"{path}: {key} is {_kind(tensor)} and not {_kind(want)}; load it into a matching backend")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
