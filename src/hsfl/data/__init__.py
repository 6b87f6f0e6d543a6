"""Training data: read or download it, spread it over the clients, draw mini-batches and put them on the device."""

from hsfl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("Reading training data", "torch") from None

from hsfl.data.batches import Sampler
from hsfl.data.dataset import Dataset, load_dataset
from hsfl.data.feed import Feed
from hsfl.data.official_files import available

__all__ = ["Dataset", "Feed", "Sampler", "available", "load_dataset"]
