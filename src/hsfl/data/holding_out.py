"""Samples that a client has and does not train on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsfl.data.partition import Indices

#: What separates this random stream from others with the same seed.
_HELD_OUT = 109


def held_out(parts: Sequence[Indices], share: float, seed: int) -> tuple[list[Indices], list[Indices]]:
    """What is left to train on of each client's samples, and what is held out: so much of them, drawn from the seed.

    At least one of each, where a client has two; one alone is trained on.
    """
    left, held = [], []
    for client, part in enumerate(parts):
        count = min(len(part) - 1, max(1, round(share * len(part)))) if len(part) else 0
        chosen = np.zeros(len(part), dtype=bool)
        chosen[np.random.default_rng([seed, _HELD_OUT, client]).permutation(len(part))[:count]] = True
        left.append(part[~chosen])
        held.append(part[chosen])
    return left, held
