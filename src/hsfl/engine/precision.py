"""How numbers are multiplied: the precision of a round, switched on for its length and back again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

PRECISIONS = ("fp32", "tf32", "bf16")
#: torch keeps two sets of switches for TF32; the older is restored first because setting it changes the newer.
_SWITCHES = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "fp32_precision"),
    (torch.backends.cudnn.conv, "fp32_precision"),  # type: ignore[attr-defined]
    (torch.backends.cudnn.rnn, "fp32_precision"),
)


@contextlib.contextmanager
def arithmetic(device: torch.device, precision: str = "fp32") -> Iterator[None]:
    """TF32 on or off for float32 products, forward and backward alike.

    The switches are the process's, as they must be for autograd's own threads; they are put back on the way out.
    `torch.backends.cudnn.benchmark` is left to the user: its search takes seconds and gigabytes before every first
    round, for a gain only where many entities hold deep layers.
    """
    if device.type != "cuda":
        yield
        return
    before = []
    for owner, name in _SWITCHES:
        with contextlib.suppress(RuntimeError):  # torch refuses to read the older set where the user mixed the two
            before.append((owner, name, getattr(owner, name)))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def casts(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Autocast to bfloat16 where asked for; for the forward pass alone, since backward follows its types."""
    if precision != "bf16":
        return contextlib.nullcontext()
    # No cache of cast weights: each is used once in a round, and a cache would cross streams.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
