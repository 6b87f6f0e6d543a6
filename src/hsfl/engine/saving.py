"""Files of backends: one copy of every entity's layers and optimiser state, in safetensors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hsfl.errors import HsflError


def save(path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`safetensors.torch.save_file`, with an OSError for what goes wrong outside of this process."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(number := int(found[1]), os.strerror(number), str(path)) from None


def write(path: str | Path, about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors and a JSON description. The file is not there in one piece before this returns."""
    # A copy each: safetensors refuses tensors that share memory, and rows of a tier do.
    apart = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    save(path, apart, {"hsfl": json.dumps(about)})


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What `write` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("hsfl", "{}"))
            return about, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise HsflError(f"{path}: not a saved backend ({error}); give a file that save wrote") from None


def check(path: str | Path, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise unless the names, shapes and types are the expected ones."""
    if found.keys() != expected.keys():
        odd = min(found.keys() ^ expected.keys())
        where = "is not in this backend" if odd in found else "is missing"
        raise HsflError(
            f"{path}: saved for other layers or another optimiser ({odd} {where}); load it into a matching backend"
        )
    for key, tensor in found.items():
        want = expected[key]
        if tensor.shape != want.shape or tensor.dtype != want.dtype:
            raise HsflError(f"{path}: {key} is {_kind(tensor)} and not {_kind(want)}; load it into a matching backend")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
