"""Rounds in which some clients take no part: the mean is over those who do, and whoever has none stays as it is."""

from __future__ import annotations

import pytest
import torch

import hsfl
from hsfl.engine.reference import ReferenceBackend
from hsfl.errors import HsflError
from tests.distributed.network import Task
from tests.engine.test_backends import OPTIMIZERS, RandomTree, layers
from tests.engine.test_backends import batch as batch_of


def test_who_trains_clients_together_trains_all_of_them() -> None:
    backend = Task(1)._made(hsfl.engine.BACKENDS["stacked"])
    with pytest.raises(HsflError, match=r"this backend trains all . together; reference trains some of them"):
        backend.train_round([0, 2])


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_entity_steps_with_the_mean_of_those_who_take_part(optimizer: str) -> None:
    """Like one that never had the others; one without any keeps every bit, and its optimiser's time goes on."""
    hosts, tree = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]], RandomTree(0)
    inputs, targets = batch_of(tree.rng, 4)

    def made(hosts: list[list[int]]) -> ReferenceBackend:
        return ReferenceBackend(layers(), hosts, [2, 3], OPTIMIZERS[optimizer], dtype=torch.float64)

    whole, part = made(hosts), made([[0, 1], [0, 0], [0, 0]])
    before = [whole._held(tier, entity) for tier, entity in ((0, 2), (0, 3), (1, 1))]
    before = [[{key: value.clone() for key, value in state.items()} for state in one] for one in before]
    for _ in range(3):
        losses = whole._round(inputs, targets, (0, 1))
        whole.round += 1
        assert torch.equal(losses[:2], part.step(inputs[:2], targets[:2]))
        assert losses[2:].isnan().all()
    for tier, entity in ((0, 0), (0, 1), (1, 0), (2, 0)):
        for ours, theirs in zip(whole._held(tier, entity), part._held(tier, entity), strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    for (tier, entity), states in zip(((0, 2), (0, 3), (1, 1)), before, strict=True):
        for ours, theirs in zip(whole._held(tier, entity), states, strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert [layer.steps for layer in whole.entities[tier][entity].layers] == [3] * len(
            whole.entities[tier][entity].layers
        )
