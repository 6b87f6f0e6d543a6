"""Machines measure the constants as the reference backend does, each on what it has, whatever is lost meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from hsfl.engine.probe import Measurement
from tests.distributed.network import Task, connected
from tests.distributed.test_same_numbers import assert_same


def assert_close(ours: Measurement, theirs: Measurement) -> None:
    """To rounding in float32; what is a small difference of large numbers, to that of those."""
    scale = theirs.gradient_second_moment
    assert_allclose(ours.initial_gap, theirs.initial_gap, rtol=1e-5)
    assert_allclose(ours.smoothness, theirs.smoothness, rtol=1e-5)
    assert_allclose(ours.gradient_second_moment, scale, rtol=1e-5)
    assert_allclose(ours.gradient_variance / scale, theirs.gradient_variance / scale, rtol=1e-5, atol=1e-6)
    assert_allclose(ours.gradient_dissimilarity / scale, theirs.gradient_dissimilarity / scale, rtol=1e-5, atol=1e-6)
    if theirs.coding_noise is None:
        assert ours.coding_noise is None
    else:
        assert_allclose(ours.coding_noise, theirs.coding_noise, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_machines_measure_what_the_reference_does(seed: int, tmp_path: Path) -> None:
    """Random trees and cuts, links and averages coded or not, after rounds that let machines drift apart."""
    codes, norm = "int8" if seed % 3 == 2 else None, ("batch", "group")[seed % 2]
    task = Task(seed, norm=norm, codes=codes, weighted=seed in (0, 3))
    machines, _ = connected(task, tmp_path, random.Random(seed))
    reference = task.reference()
    for _ in range(2):
        assert torch.equal(machines.train_round(), reference.train_round())
    step, coding = (0.05 if seed % 2 else None), seed in (2, 3)
    ours, theirs = (one.probe(3, step, coding=coding) for one in (machines, reference))
    assert_close(ours, theirs)
    assert np.isfinite(theirs.smoothness) == (step is not None)
    assert torch.equal(machines.train_round(), reference.train_round())
    assert_same(machines, reference)


def test_a_measurement_is_taken_again_after_a_loss(tmp_path: Path) -> None:
    task = Task(3)
    machines, network = connected(task, tmp_path, random.Random(3))
    reference = task.reference()
    for one in (machines, reference):
        one.train_round()
        one.average(0)
    undisturbed = machines.probe(2, 0.05)
    network.faults = 6
    ours = machines.probe(2, 0.05)
    assert not network.faults
    for name, value in vars(undisturbed).items():
        assert np.array_equal(getattr(ours, name), value), name
    assert_close(ours, reference.probe(2, 0.05))
    assert_same(machines, reference)
