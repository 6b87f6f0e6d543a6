"""Seconds and bits against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsfl.engine.clock import SimulatedClock
from hsfl.errors import HsflError
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.latency import aggregation_latency, split_latency
from tests.theory.test_by_hand import by_hand


@pytest.fixture
def problem() -> Problem:
    return by_hand()


def test_a_round_costs_the_split_latency(problem: Problem) -> None:
    clock = SimulatedClock(problem)
    clock.split((1, 2))
    assert clock.time_s == pytest.approx(float(split_latency(problem, (1, 2))))
    clock.split((2, 2), rounds=3)
    assert clock.time_s == pytest.approx(float(split_latency(problem, (1, 2)) + 3 * split_latency(problem, (2, 2))))


def test_bits_of_every_link(problem: Problem) -> None:
    clock, profile = SimulatedClock(problem), problem.profile
    clock.split((1, 2), rounds=5)
    samples = 5 * 3 * problem.batch_size  # rounds, clients, mini-batch
    assert clock.bits == {
        "device.up": samples * profile.activation_bits[0],
        "device.down": samples * profile.gradient_bits[0],
        "device.fed_up": 0,
        "device.fed_down": 0,
        "edge.up": samples * profile.activation_bits[1],
        "edge.down": samples * profile.gradient_bits[1],
        "edge.fed_up": 0,
        "edge.fed_down": 0,
    }
    clock.average((1, 2), 1)
    assert clock.bits["edge.fed_up"] == clock.bits["edge.fed_down"] == 2 * profile.parameter_bits[1]
    assert clock.bytes["device.up"] == samples * profile.activation_bits[0] // 8


def test_an_average_costs_the_aggregation_latency(problem: Problem) -> None:
    clock = SimulatedClock(problem)
    clock.average((1, 2), 0)
    clock.average((1, 2), 1)
    assert clock.time_s == pytest.approx(aggregation_latency(problem, (1, 2)).sum())


def test_layers_cross_every_cut_that_moves(problem: Problem) -> None:
    """Layer 2 goes down to the devices and layer 3 to the edges, then both go back up."""
    size = problem.profile.parameter_bits + problem.profile.optimizer_bits
    clock = SimulatedClock(problem)
    clock.move((1, 2), (2, 3))
    assert clock.time_s == pytest.approx(size[1] / 16 + size[2] / 20)  # the slowest downlinks
    assert clock.bits["device.down"] == 3 * size[1] and clock.bits["edge.down"] == 2 * size[2]
    assert clock.bits["device.up"] == clock.bits["edge.up"] == 0
    clock = SimulatedClock(problem)
    clock.move((2, 3), (1, 2))
    assert clock.time_s == pytest.approx(size[1] / 2 + size[2] / 10)  # the slowest uplinks
    clock.move((1, 2), (1, 2))
    assert clock.bits["device.up"] == 3 * size[1]


def test_what_averages_keep_moves_between_tiers_of_several(problem: Problem) -> None:
    """Layer 2 goes down with two more copies of its parameters; layer 3 comes from the top, where there are none."""
    parameters, state = problem.profile.parameter_bits, problem.profile.optimizer_bits
    clock = SimulatedClock(replace(problem, averaging="corrected"))
    clock.move((1, 2), (2, 3))
    assert clock.bits["device.down"] == 3 * (3 * parameters[1] + state[1])
    assert clock.bits["edge.down"] == 2 * (parameters[2] + state[2])


def test_time_stays_finite(problem: Problem) -> None:
    """Machines that stand still are named rather than waited for for ever."""
    tiers = list(problem.system.tiers)
    tiers[0] = replace(tiers[0], compute_flops=0 * tiers[0].compute_flops)
    clock = SimulatedClock(replace(problem, system=System(tuple(tiers))))
    with np.errstate(divide="ignore"), pytest.raises(HsflError, match="split training takes inf simulated seconds"):
        clock.split((1, 2))
    assert clock.time_s == 0.0


def test_the_machines_of_the_moment_count(problem: Problem) -> None:
    clock = SimulatedClock(problem)
    tiers = list(problem.system.tiers)
    tiers[0] = replace(tiers[0], compute_flops=tiers[0].compute_flops / 10)
    slower = System(tuple(tiers))
    clock.see(slower)
    clock.split((1, 2))
    assert clock.time_s == pytest.approx(float(split_latency(replace(problem, system=slower), (1, 2))))
    assert clock.time_s > float(split_latency(problem, (1, 2)))
    assert np.isfinite(clock.time_s)
