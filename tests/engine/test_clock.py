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


def test_the_way_back_to_the_devices_takes_every_link(problem: Problem) -> None:
    """Layer 1 and layer 3 on the devices, layer 2 on the cloud, edges that relay."""
    there_and_back = replace(problem, system=System.returning(problem.system.tiers))
    clock, act, grad = SimulatedClock(there_and_back), problem.profile.activation_bits, problem.profile.gradient_bits
    cuts, samples = (1, 1, 2), 5 * 3 * problem.batch_size
    clock.split(cuts, rounds=5)
    assert clock.bits == {
        "device.up": samples * (act[0] + grad[1]),
        "device.down": samples * (grad[0] + act[1]),
        "device.fed_up": 0,
        "device.fed_down": 0,
        "edge.up": samples * (act[0] + grad[1]),
        "edge.down": samples * (grad[0] + act[1]),
        "edge.fed_up": 0,
        "edge.fed_down": 0,
    }
    # Client 1: 60 + 180 FLOPs at 10 and 120 at 300/3; 16 + 8 bits up at 4 and 40/2, and as many down at 16 and 20/2.
    assert clock.time_s == pytest.approx(5 * (240 / 10 + 120 / 100 + 24 / 4 + 24 / 20 + 24 / 16 + 24 / 10))
    clock.average(cuts, 3)
    clock.average(cuts, 3, senders=[0, 2], receivers=[])
    assert (clock.bits["device.fed_up"], clock.bits["device.fed_down"]) == (5 * 300, 3 * 300)


def test_layers_move_between_top_and_tail_over_every_link(problem: Problem) -> None:
    """Up go the copies of all devices, down one over every link; of those that have copies of their own."""
    problem = replace(problem, system=System.returning(problem.system.tiers))
    size = problem.profile.parameter_bits[1]
    up, down, few = (SimulatedClock(problem) for _ in range(3))
    up.move((1, 1, 1), (1, 1, 2))
    assert up.bits["device.up"] == up.bits["edge.up"] == 3 * size and up.bits["edge.down"] == 0
    assert up.time_s == pytest.approx(size / 2 + size / 10)
    down.move((1, 1, 2), (1, 1, 1))
    assert (down.bits["device.down"], down.bits["edge.down"], down.bits["edge.up"]) == (3 * size, 2 * size, 0)
    assert down.time_s == pytest.approx(size / 16 + size / 20)
    few.move((1, 1, 1), (1, 1, 2), holders=[[0, 1], [0], [0], [0, 1]])
    assert few.bits["device.up"] == few.bits["edge.up"] == 2 * size
    assert few.time_s == pytest.approx(size / 4 + 2 * size / 40)
