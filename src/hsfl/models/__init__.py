"""Models as chains of layers: build or load a model, cut the model into layers, profile what each layer costs."""

from hsfl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("Building or profiling a model", "torch") from None

from hsfl.models.chain import chain
from hsfl.models.profiling import example_input, peak_flops, profile, time_layers
from hsfl.models.zoo import NAMES, build, input_shape, load_factory

__all__ = [
    "NAMES",
    "build",
    "chain",
    "example_input",
    "input_shape",
    "load_factory",
    "peak_flops",
    "profile",
    "time_layers",
]
