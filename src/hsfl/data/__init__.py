"""Training data: read or download it, spread it over the clients, draw mini-batches and put them on the device."""

from hsfl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("Reading training data", "torch") from None

from hsfl.data.batches import Sampler
from hsfl.data.clients import ClientData, load_client_data
from hsfl.data.dataset import Dataset, Samples, load_dataset
from hsfl.data.feed import Feed
from hsfl.data.official_files import available
from hsfl.data.own_data import load_part

__all__ = [
    "ClientData",
    "Dataset",
    "Feed",
    "Sampler",
    "Samples",
    "available",
    "load_client_data",
    "load_dataset",
    "load_part",
]
