"""Averaging rules of one's own, on both backends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hsfl
from hsfl.engine.averaging import AveragingRule, Held
from hsfl.errors import HsflError
from tests.engine.test_backends import OPTIMIZERS, assert_same_state, batch, layers, random_hosts

KINDS = ("reference", "stacked")


class ServerMomentum(AveragingRule):
    """The tier moves on by a part of its last move, and gradients are pulled back to the last average.

    Uses all that a rule may use: state of its own, the last average, the optimiser, more than the mean, gradients
    corrected.
    """

    slots = ("velocity",)
    uses_last = True

    def adopt(self, held: Held, average: list[torch.Tensor], rounds: int) -> None:
        changes, buffers = average[: len(held.weights)], average[len(held.weights) :]
        for own, velocity, last, change in zip(held.weights, held.slots["velocity"], held.last, changes, strict=True):
            velocity.copy_(0.5 * velocity + change)
            own.copy_(last + change + self.optimizer.lr * rounds * velocity)
        for buffer, to in zip(held.buffers, buffers, strict=True):
            buffer.copy_(to.expand_as(buffer))

    def corrected(self, gradients: list[torch.Tensor], held: Held) -> list[torch.Tensor]:
        beside = zip(gradients, held.weights, held.last, held.slots["velocity"], strict=True)
        return [gradient + 0.1 * (weight - last) + 0.01 * velocity for gradient, weight, last, velocity in beside]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_rule_of_ones_own_is_the_same_on_both_backends(seed: int, optimizer: str, tmp_path) -> None:
    """On random trees, with moves of cuts, and through a file."""
    rng = np.random.default_rng(seed)
    hosts = random_hosts(rng, 3, 5, single_top=False)
    options = {"dtype": torch.float64, "averaging": ServerMomentum()}
    both = [hsfl.backend(k, layers("batch"), hosts, (1, 3), OPTIMIZERS[optimizer], **options) for k in KINDS]
    plain = hsfl.backend("stacked", layers("batch"), hosts, (1, 3), OPTIMIZERS[optimizer], dtype=torch.float64)
    for t in range(1, 9):
        inputs, targets = batch(rng, 5)
        for backend in (*both, plain):
            backend.step(inputs, targets)
            for tier in range(3):
                if t % (tier + 1) == 0:
                    backend.average(tier)
            if t == 4:
                backend.move((2, 4))
        if t == 6:
            both[0].save(tmp_path / "file")
            both[0] = hsfl.backend("reference", layers("batch"), hosts, (1, 3), OPTIMIZERS[optimizer], **options)
            both[0].load(tmp_path / "file")
        assert_same_state(*both)
        assert_same_last(*both)
    theirs = plain.client_state(0)
    apart = [(value - theirs[key]).abs().max() for key, value in both[1].client_state(0).items()]
    assert max(map(float, apart)) > 1e-4  # the rule does something


def test_a_file_of_another_rule_is_refused(tmp_path) -> None:
    hosts = [[0, 1], [0, 0]]
    hsfl.backend("stacked", layers(), hosts, (1,), OPTIMIZERS["sgd"], averaging=ServerMomentum()).save(tmp_path / "f")
    with pytest.raises(HsflError, match="is not in this backend"):
        hsfl.backend("stacked", layers(), hosts, (1,), OPTIMIZERS["sgd"]).load(tmp_path / "f")


def assert_same_last(one: hsfl.engine.Backend, other: hsfl.engine.Backend) -> None:
    """What all entities last had in common: the same to the bit in all copies of a backend, and in both of them."""
    for tier in range(one.num_tiers):
        copies = [*one._last(tier), *other._last(tier)]
        for copied in copies:
            assert list(copied) == list(copies[0])
            for key, value in copied.items():
                torch.testing.assert_close(value, copies[0][key], rtol=0, atol=1e-9)
        for backend in (one, other):
            first, *rest = backend._last(tier) or [{}]
            assert all(torch.equal(value, copied[key]) for copied in rest for key, value in first.items())
