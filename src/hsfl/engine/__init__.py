"""Training: backends that run rounds of hierarchical split federated learning."""

from collections.abc import Mapping, Sequence
from typing import Any

from hsfl.errors import MissingExtraError, ScenarioError

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("Training", "torch") from None

from hsfl.engine.backend import Backend
from hsfl.engine.reference import ReferenceBackend
from hsfl.engine.stacked import StackedBackend

BACKENDS: dict[str, type[Backend]] = {"reference": ReferenceBackend, "stacked": StackedBackend}


def backend(
    kind: str,
    layers: Sequence[Any],
    hosts: Sequence[Sequence[int]],
    cuts: Sequence[int],
    optimizer: Mapping[str, Any],
    **options: Any,
) -> Backend:
    """A new backend; see `hsfl.backend`."""
    if kind not in BACKENDS:
        raise ScenarioError(f"backend {kind!r}: it must be one of {', '.join(BACKENDS)}")
    return BACKENDS[kind](layers, hosts, cuts, optimizer, **options)


__all__ = ["BACKENDS", "Backend", "backend"]
