"""Latency, memory, bound and objective against numbers worked out by hand from the paper's equations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hsfl.planner.result import evaluate_plan
from hsfl.problem.codes import CODES, LinkCodes
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import LayerProfile
from hsfl.problem.system import System, Tier
from hsfl.theory.coding import USUAL_NOISE, coding_noise, of_all_codes, usual_coding_noise
from hsfl.theory.convergence import (
    bound,
    drift,
    loss_target,
    margin,
    noise_floor,
    predicted_drift,
    rounds_needed,
)
from hsfl.theory.latency import (
    aggregation_latency,
    client_memory,
    fits_memory,
    round_parts,
    slowest_round,
    split_latency,
)
from hsfl.theory.objective import objective, total_latency

CUTS, INTERVALS = (1, 2), (2, 3, 1)


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.fixture
def problem() -> Problem:
    return by_hand()


def by_hand() -> Problem:
    """Three devices, two edges (the first hosts two of them), a cloud; three layers; mini-batches of 2."""
    none = math.inf
    devices = Tier(
        "device",
        compute_flops=array(10, 20, 15),
        memory_bits=array(1000, 1000, 1000),
        uplink_bps=array(4, 8, 2),
        downlink_bps=array(16, 16, 16),
        fed_uplink_bps=array(50, 100, 100),
        fed_downlink_bps=array(200, 100, 400),
        parents=np.array([0, 0, 1]),
    )
    edges = Tier(
        "edge",
        compute_flops=array(100, 50),
        memory_bits=array(433, 1000),
        uplink_bps=array(40, 10),
        downlink_bps=array(20, 20),
        fed_uplink_bps=array(100, 50),
        fed_downlink_bps=array(100, 100),
        parents=np.array([0, 0]),
    )
    cloud = Tier("cloud", array(300), array(none), array(none), array(none), array(none), array(none), None)
    profile = LayerProfile(
        ("a", "b", "c"),
        forward_flops=array(10, 20, 30),
        backward_flops=array(20, 40, 60),
        activation_bits=array(8, 4, 2),
        gradient_bits=array(8, 4, 2),
        parameter_bits=array(100, 200, 300),
        optimizer_bits=array(0, 0, 0),
    )
    constants = Constants(
        smoothness=2.0,
        initial_gap=1.0,
        target=5.0,
        gradient_variance=array(0.3, 0.3, 0.3),
        gradient_second_moment=array(1, 2, 3),
        gradient_dissimilarity=np.array([[0.6, 9, 9], [9, 0.3, 9], [9, 9, 9]]),
        drift="paper",
    )
    return Problem("hand", System((devices, edges, cloud)), profile, constants, batch_size=2, learning_rate=0.1)


def test_split_latency_of_every_client_and_part(problem: Problem) -> None:
    """Section V-A, (a) to (d). Work per layer for a mini-batch of 2: 60, 120, 180 FLOPs; bits after the cuts: 16, 8.

    An entity's compute and links are shared evenly: edge 1 gives each of its two devices 50 FLOP/s and 20 bit/s up.
    """
    parts = round_parts(problem, CUTS)
    assert parts.compute_s == pytest.approx(np.array([[6, 2.4, 1.8], [3, 2.4, 1.8], [4, 2.4, 1.8]]))
    assert parts.uplink_s == pytest.approx(np.array([[4, 0.4], [2, 0.4], [8, 0.8]]))
    assert parts.downlink_s == pytest.approx(np.array([[1, 0.8], [1, 0.8], [1, 0.4]]))
    assert parts.total_s == pytest.approx([16.4, 11.4, 18.4])
    assert split_latency(problem, CUTS) == pytest.approx(18.4)
    assert slowest_round(problem, CUTS)[0] == 2


def test_aggregation_latency(problem: Problem) -> None:
    """Section V-A, (e) and (g): the slowest entity up plus the slowest down; fed links are not shared."""
    assert aggregation_latency(problem, CUTS) == pytest.approx([100 * (1 / 50 + 1 / 100), 200 * (1 / 50 + 1 / 100), 0])


def test_many_plans_at_once_equal_one_by_one(problem: Problem) -> None:
    cuts = np.array([[1, 2], [1, 1], [2, 2], [2, 3]])
    intervals = np.array([[1, 1, 1], [2, 3, 1], [4, 1, 1], [1, 2, 1]])
    for function in (split_latency, aggregation_latency, client_memory):
        assert function(problem, cuts) == pytest.approx(np.array([function(problem, c) for c in cuts]))
    for function in (drift, rounds_needed, objective, total_latency):
        alone = np.array([function(problem, c, i) for c, i in zip(cuts, intervals, strict=True)])
        assert function(problem, cuts, intervals) == pytest.approx(alone)


def test_memory(problem: Problem) -> None:
    """C5 with the mini-batch counted: 2 * 16 + 100, 2 * 8 + 200, 2 * 4 + 300 bits for one client.

    Edge 1 hosts two clients and needs 432 bits: 433 are enough, 432 would not be, as C5 is strict.
    """
    assert client_memory(problem, CUTS) == pytest.approx([132, 216, 308])
    assert fits_memory(problem, CUTS).tolist() == [True, True, True]
    tiers = problem.system.tiers
    tight = replace(problem, system=System((tiers[0], replace(tiers[1], memory_bits=array(432, 1000)), tiers[2])))
    assert fits_memory(tight, CUTS).tolist() == [True, False, True]


def test_memory_of_what_averages_keep(problem: Problem) -> None:
    """Two more copies of 100 and 200 bits; none at the top, where one machine is never averaged."""
    assert client_memory(replace(problem, averaging="corrected"), CUTS) == pytest.approx([132 + 200, 216 + 400, 308])


def test_bound_of_theorem_1(problem: Problem) -> None:
    """beta gamma sum sigma^2 / N = 2 * 0.1 * 0.9 / 3; 4 beta^2 gamma^2 I_m^2 sum G^2 = 0.16 * (4 * 1, 9 * 2)."""
    assert noise_floor(problem) == pytest.approx(0.06)
    assert drift(problem, CUTS, INTERVALS) == pytest.approx([0.64, 2.88, 0])
    assert bound(problem, 100, CUTS, INTERVALS) == pytest.approx(2 / (0.1 * 100) + 0.06 + 3.52)


def test_rounds_and_objective(problem: Problem) -> None:
    """Corollary 1: R = 2 / (0.1 * 1.42); Theta = R (18.4 + 3/2 + 6/3); T = 15 * 18.4 + 7 * 3 + 5 * 6."""
    assert margin(problem, CUTS, INTERVALS) == pytest.approx(1.42)
    assert rounds_needed(problem, CUTS, INTERVALS) == pytest.approx(20 / 1.42)
    assert objective(problem, CUTS, INTERVALS) == pytest.approx(20 / 1.42 * 21.9)
    assert total_latency(problem, CUTS, INTERVALS) == pytest.approx(276 + 21 + 30)
    evaluation = evaluate_plan(problem, Plan(CUTS, INTERVALS))
    assert (evaluation.rounds, evaluation.slowest_client) == (15, 2)
    assert evaluation.memory_bits == pytest.approx((132, 432, 924))
    first = evaluation.limits[0]
    assert (first.kind, first.tier, first.seconds, first.share) == (
        "uplink",
        0,
        pytest.approx(8),
        pytest.approx(8 / 21.9),
    )


def test_refined_drift(problem: Problem) -> None:
    """a = (J - 1)/N sum sigma^2 = 0.2, 0.1; b = 0.6, 0.3; 0.04 * (a (I-1)/2 + b (I-1)(2I-1)/6) for I = 2 and 3."""
    refined = replace(problem, constants=replace(problem.constants, drift="refined"))
    assert drift(refined, CUTS, INTERVALS) == pytest.approx([0.04 * (0.1 + 0.3), 0.04 * (0.1 + 0.5), 0])
    assert drift(refined, CUTS, (1, 1, 1)) == pytest.approx([0, 0, 0])


def test_energy_drift(problem: Problem) -> None:
    """The refined drift with beta = 1/gamma and its random part over J = 3, 2; the margin 4.2/3 2 theta/gamma."""
    energy = replace(problem, constants=replace(problem.constants, drift="energy"))
    assert drift(energy, CUTS, INTERVALS) == pytest.approx([0.1 / 3 + 0.3, 0.1 / 2 + 0.5, 0])
    assert loss_target(energy) == pytest.approx(4.2 / 3 * 2 * 1.0 / 0.1)
    weighed = replace(energy, constants=replace(energy.constants, target=loss_target(energy)))
    assert margin(weighed, CUTS, INTERVALS) == pytest.approx(28 - 0.1 / 3 - 0.1 / 2 - 0.8)
    # Without dissimilarity drift hardly harms, however far apart machines are: predicted drift stays what it is.
    assert predicted_drift(energy, CUTS, 4)["refined"] == pytest.approx(0.01 * np.array([0.8 + 9.6, 0.4 + 4.8, 0]))
    # With a loss of 1 left of 4 a quarter of that; 0.15 is left at least; a loss that has risen counts as it is.
    for first, left in ((4.0, 0.25), (40.0, 0.15 * 6), (0.5, 1.0)):
        later = replace(energy, constants=replace(energy.constants, first_loss=first))
        assert loss_target(later) == pytest.approx(28 * left)
    # Drift is at least what the first gradients say, layer by layer, whatever training has seen since.
    sigma2, zeta2 = energy.constants.gradient_variance, energy.constants.gradient_dissimilarity
    assert zeta2 is not None
    little = replace(energy.constants, drift_correction=np.full(3, 1e-6), first_gradients=np.vstack([sigma2, zeta2]))
    assert drift(replace(energy, constants=little), CUTS, INTERVALS) == pytest.approx(drift(energy, CUTS, INTERVALS))


def coded(problem: Problem) -> Problem:
    """What crosses the first cut in int4 up and int8 down, the second in fp32 up and int4 down; averages as named."""
    int8, int4 = CODES["int8"], CODES["int4"]
    codes = (LinkCodes(int4, int8, int4), LinkCodes(down=int4, average=int8), LinkCodes())
    noise = of_all_codes(np.array([[3.0, 6.0, 9.0], [1.5, 3.0, 4.5]]))
    known = replace(problem, constants=replace(problem.constants, coding_noise=noise))
    return known.as_planned(Plan(CUTS, INTERVALS, codes))


def test_noise_of_codes(problem: Problem) -> None:
    """beta gamma / N = 0.2 / 3 times what they add: 3 and 1.5 / 289 over the first cut, 0 and 3 over the second."""
    added = 3 + 1.5 / 289 + 3
    assert coding_noise(coded(problem), CUTS) == pytest.approx(0.2 / 3 * added)
    assert coding_noise(problem, CUTS) == 0
    energy = replace(coded(problem), constants=replace(coded(problem).constants, drift="energy"))
    assert coding_noise(energy, CUTS) == pytest.approx(added / 3)


def test_what_coded_averages_leave_unsent(problem: Problem) -> None:
    """g^2 = G^2 - sigma^2 = 0.7, 1.7; rho 0.04 ((1 + 1/J) g^2 I^2 + 2 sigma^2 / N I), J = 3, 2, at I = 1 too."""
    rho = CODES["int4"].average_noise, CODES["int8"].average_noise
    once = [rho[0] * (4 / 3 * 0.7 + 0.2), rho[1] * (3 / 2 * 1.7 + 0.2), 0]
    assert drift(coded(problem), CUTS, (1, 1, 1)) == pytest.approx(0.04 * np.array(once))
    later = [rho[0] * (4 / 3 * 0.7 * 4 + 0.2 * 2), rho[1] * (3 / 2 * 1.7 * 9 + 0.2 * 3), 0]
    plain = drift(problem, CUTS, INTERVALS)
    assert drift(coded(problem), CUTS, INTERVALS) == pytest.approx(plain + 0.04 * np.array(later))
    left = 5.0 - 0.06 - float(coding_noise(coded(problem), CUTS)) - float(plain.sum()) - 0.04 * sum(later)
    assert margin(coded(problem), CUTS, INTERVALS) == pytest.approx(left)


def test_what_is_usual_of_noise() -> None:
    """A part of all variance up, and of that below the cut down; int8 adds less, fp32 nothing."""
    noise = of_all_codes(usual_coding_noise(array(1, 2, 3)))
    up, down = USUAL_NOISE
    assert noise[0, -1] == pytest.approx(up * array(6, 6, 6)) and noise[1, -1] == pytest.approx(down * array(1, 3, 6))
    assert (noise[:, 2] < 0.1 * noise[:, 3]).all() and not noise[:, 0].any()


def test_a_plan_that_drifts_too_far_never_arrives(problem: Problem) -> None:
    far = (100, 1, 1)
    assert margin(problem, CUTS, far) < 0
    assert rounds_needed(problem, CUTS, far) == math.inf
    assert objective(problem, CUTS, far) == total_latency(problem, CUTS, far) == math.inf
    assert evaluate_plan(problem, Plan(CUTS, far)).rounds is None


def test_top_tier_with_several_entities_is_averaged_too(problem: Problem) -> None:
    """Client-edge SFL: without the cloud the two edges are the top, and the sums run over it as well."""
    two = problem.without_top_tier()
    assert aggregation_latency(two, (1,)) == pytest.approx([3, 500 * (1 / 50 + 1 / 100)])
    assert drift(two, (1,), (1, 2)) == pytest.approx([0, 0.16 * 4 * 5])
