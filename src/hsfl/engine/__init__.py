"""Training: backends that run rounds of hierarchical split federated learning."""

from hsfl.errors import MissingExtraError

try:
    import safetensors  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("Training", "torch") from None

from hsfl.engine.backend import Backend
from hsfl.engine.reference import ReferenceBackend
from hsfl.engine.stacked import StackedBackend

BACKENDS: dict[str, type[Backend]] = {"reference": ReferenceBackend, "stacked": StackedBackend}

__all__ = ["BACKENDS", "Backend"]
