"""What links carry: codecs count their own bits, and the sizes that plans and clocks use are those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hsfl.engine.clock import SimulatedClock
from hsfl.engine.links import CODECS, Link
from hsfl.problem.codes import FP32, PLAIN, Code, LinkCodes
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.latency import aggregation_latency, client_memory, round_parts
from tests.theory.test_by_hand import by_hand


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("shape", [(4, 3, 5), (7,), (2, 1)])
def test_a_codec_gives_what_it_passes_and_counts_its_bits(name: str, shape: tuple[int, ...]) -> None:
    codec = CODECS[name]
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    data = codec.encode(tensor)
    assert torch.equal(codec.decode(data, tensor), codec.passed(tensor))
    assert codec.code.name == name and codec.bits(tensor) == 8 * len(data)
    assert codec.bits(tensor) == codec.code.sent_bits(np.array([32.0 * tensor.numel()]))[0]


def test_links_come_from_codes() -> None:
    assert Link.from_codes(PLAIN) == Link(CODECS["fp32"], CODECS["fp32"], CODECS["fp32"])


def coded(problem: Problem, codes: list[LinkCodes]) -> Problem:
    tiers = [replace(tier, codes=code) for tier, code in zip(problem.system.tiers, codes, strict=True)]
    return replace(problem, system=System(tuple(tiers)))


def test_what_is_sent_shrinks_and_what_is_held_does_not() -> None:
    """Half the bits up from the devices, a quarter down to the edges, an eighth of the edges' averages."""
    plain, half = by_hand(), Code("half", 16.0)
    codes = [LinkCodes(up=half), LinkCodes(down=Code("byte", 8.0), average=Code("nibble", 4.0)), PLAIN]
    problem, cuts = coded(plain, codes), (1, 2)
    ours, theirs = round_parts(problem, cuts), round_parts(plain, cuts)
    np.testing.assert_allclose(ours.uplink_s, theirs.uplink_s * [0.5, 1.0])
    np.testing.assert_allclose(ours.downlink_s, theirs.downlink_s * [1.0, 0.25])
    np.testing.assert_allclose(ours.compute_s, theirs.compute_s)
    np.testing.assert_allclose(aggregation_latency(problem, cuts), aggregation_latency(plain, cuts) * [1, 0.125, 1])
    np.testing.assert_array_equal(client_memory(problem, cuts), client_memory(plain, cuts))
    clocks = [SimulatedClock(p) for p in (problem, plain)]
    for clock in clocks:
        clock.split(cuts)
        clock.average(cuts, 1)
    share = {"device.up": 0.5, "edge.down": 0.25, "edge.fed_up": 0.125, "edge.fed_down": 0.125}
    assert clocks[0].bits == {link: bits * share.get(link, 1) for link, bits in clocks[1].bits.items()}
    assert FP32.value_bits == 32
