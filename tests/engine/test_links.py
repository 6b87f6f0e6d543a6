"""What links carry: codecs count their own bits, and the sizes that plans and clocks use are those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hsfl
from hsfl.engine.clock import SimulatedClock
from hsfl.engine.links import CODECS, Codec, IntegerCodec, Link
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.codes import CODES, FP32, PLAIN, Code, LinkCodes
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.theory.latency import aggregation_latency, client_memory, round_parts
from tests.engine.test_backends import OPTIMIZERS, layers
from tests.theory.test_by_hand import by_hand

INTEGERS = [name for name, codec in CODECS.items() if isinstance(codec, IntegerCodec)]
SAMPLES = {
    "images": torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)),
    "channels last": torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last),
    "sequences": torch.randn(3, 7, 6),
    "rectified": torch.randn(5, 9).relu(),
    "negative": -torch.rand(5, 9) - 1,
    "one value each": torch.randn(7),
    "one value": torch.randn(1, 1),
    "constants": torch.tensor([[2.0] * 3, [-3.0] * 3, [0.0] * 3]),
    "zeros": torch.zeros(2, 4),
    "tiny": torch.tensor([[1e-30, -3e-31], [1e-44, 0.0], [3e-39, -1e-38]]),
    "far apart": torch.tensor([[1e30, -1.0, 1e-9], [1.0, -1.0, 0.5]]),
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("what", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_codec_gives_what_it_passes_and_counts_its_bits(name: str, what: str, dtype: torch.dtype) -> None:
    codec, tensor = CODECS[name], SAMPLES[what].to(dtype)
    if name == "fp32" and dtype == torch.float64:
        tensor = tensor.float().double()
    before, data, passed = tensor.clone(), codec.encode(tensor), codec.passed(tensor)
    assert torch.equal(codec.decode(data, tensor), passed)
    assert torch.equal(tensor, before)
    assert (passed.dtype, passed.shape, passed.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert codec.code is CODES[name] and codec.bits(tensor) == 8 * len(data)
    held = 32.0 * tensor.numel() / len(tensor)
    assert codec.bits(tensor) == len(tensor) * codec.code.crossing_bits(np.array([held]))[0]


@pytest.mark.parametrize("name", INTEGERS)
def test_values_arrive_within_half_a_step_and_zero_as_zero(name: str) -> None:
    tensor = torch.rand(50, 400, generator=torch.Generator().manual_seed(1)) * 3 - torch.rand(50, 1) * 4
    tensor[:, ::5] = 0
    passed, levels = CODECS[name].passed(tensor), 2 ** CODES[name].value_bits
    step = (tensor.amax(1).clamp_min(0) - tensor.amin(1).clamp_max(0)) / (levels - 1)
    assert ((passed - tensor).abs() <= 0.52 * step[:, None]).all()
    assert (passed[:, ::5] == 0).all()
    counts = [len(row.unique()) for row in passed]
    assert max(counts) <= levels and max(counts) >= min(levels, 160)


@pytest.mark.parametrize("name", INTEGERS)
def test_samples_do_not_touch_each_other(name: str) -> None:
    """Whatever batch a sample is in, it arrives the same: backends that take clients together and apart agree."""
    tensor = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 6)[:, None, None]
    whole = CODECS[name].passed(tensor)
    for one, sample in zip(whole, tensor, strict=True):
        assert torch.equal(one, CODECS[name].passed(sample[None])[0])


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.mark.parametrize("name", [n for n in CODECS if n != "fp32"])
@given(values=arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=finite))
@example(values=np.array([[-2.5, 12.5, 3.0]], dtype=np.float32))
@example(values=np.array([[-0.5, 2.5, 1.0], [-1.5, 1.5, 0.5]], dtype=np.float32))
@example(values=np.array([[-1e-38, 1e-38, 3e-39]], dtype=np.float32))
@settings(max_examples=300, deadline=None)
def test_what_has_passed_passes_unchanged(name: str, values: np.ndarray) -> None:
    for tensor in (torch.from_numpy(values), torch.from_numpy(values).double()):
        once = CODECS[name].passed(tensor)
        assert torch.equal(CODECS[name].passed(once), once)
        assert torch.equal(CODECS[name].decode(CODECS[name].encode(once), once), once)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows(name: str, wrong: float) -> None:
    tensor = torch.randn(3, 2, 4)
    tensor[1, 0, 2] = wrong
    passed = CODECS[name].passed(tensor)
    assert not passed[1].isfinite().any() and passed[[0, 2]].isfinite().all()
    with pytest.raises(HsflError, match=f"sample 1 of 3 has values that are not finite, which {name} cannot write"):
        CODECS[name].encode(tensor)
    assert CODECS["bf16"].passed(tensor)[1, 0, 2].isfinite().logical_not()


@pytest.mark.parametrize("name", CODECS)
def test_integers_pass_as_they_are(name: str) -> None:
    tokens = torch.arange(12).view(3, 4)
    assert CODECS[name].passed(tokens) is tokens


def test_four_bits_are_two_values_a_byte_after_scale_and_zero_point() -> None:
    """Scale 2 and zero point -1 (levels -1 to 14): -2, 0, 4, 28 are 0, 1, 3 and 15."""
    data = CODECS["int4"].encode(torch.tensor([[-2.0, 0.0, 4.0, 28.0]]))
    assert np.frombuffer(data[:4], np.float32)[0] == 2.0 and np.frombuffer(data[4:8], np.int32)[0] == -1
    assert data[8:] == bytes([0x01, 0x3F])
    assert CODECS["int4"].encode(torch.tensor([[-2.0, 0.0, 28.0]]))[8:] == bytes([0x01, 0xF0])


def test_links_come_from_codes() -> None:
    assert Link.from_codes(PLAIN) == Link(CODECS["fp32"], CODECS["fp32"], CODECS["fp32"], codes_averages=False)
    link = Link.from_codes(LinkCodes(up=CODES["int4"], down=CODES["bf16"]))
    assert (link.up, link.down) == (CODECS["int4"], CODECS["bf16"])
    with pytest.raises(ScenarioError, match="code 'ternary': there is no codec of it; known are fp32, bf16, int8"):
        Link.from_codes(LinkCodes(up=Code("ternary", 2)))


HOSTS = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]


def names(codes: object) -> list[tuple[str, str, str]]:
    backend = hsfl.backend("stacked", layers(), HOSTS, (1, 3), OPTIMIZERS["sgd"], codes=codes)
    return [(link.up.code.name, link.down.code.name, link.average.code.name) for link in backend.links]


def test_a_backend_takes_codes_as_scenarios_do() -> None:
    plain = ("fp32", "fp32", "fp32")
    assert names(None) == names("fp32") == [plain] * 3
    given = [{"up": "int4", "down": "int8"}, LinkCodes(up=CODES["bf16"]), "int8"]
    assert names(given) == [("int4", "int8", "fp32"), ("bf16", "fp32", "fp32"), plain]


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ("int5", "codes = 'int5': no such code (did you mean"),
        (["int8", "int8"], "codes: 2 are given for 3 tiers; give one for each"),
        ([{"up": "int9"}, "fp32", "fp32"], "'int9' is no code of up; known are fp32, bf16, int8, int4"),
        (["fp32", "fp32", {"down": "int8"}], 'codes[2].down = "int8": the tier has no machine above it; remove it'),
    ],
)
def test_codes_that_do_not_fit_are_one_sentence(codes: object, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        names(codes)
    assert said in str(caught.value)


def coded(problem: Problem, codes: list[LinkCodes]) -> Problem:
    tiers = [replace(tier, codes=code) for tier, code in zip(problem.system.tiers, codes, strict=True)]
    return replace(problem, system=System(tuple(tiers)))


def test_what_is_sent_shrinks_and_what_is_held_does_not() -> None:
    """Half the bits up from the devices; 8 bits down to the edges and 4 in their averages, with their scales."""
    small = by_hand()
    profile = replace(
        small.profile, **{c: 320 * getattr(small.profile, c) for c in ("activation_bits", "gradient_bits")}
    )
    profile = replace(profile, parameter_bits=np.array([32.0, 32 * 300 + 64, 32]), buffer_bits=np.array([0.0, 64, 0]))
    plain = replace(small, profile=profile)
    codes = [LinkCodes(up=CODES["bf16"]), LinkCodes(down=CODES["int8"], average=CODES["int4"]), PLAIN]
    problem, cuts = coded(plain, codes), (1, 2)
    down = (320 + 64) / 1280  # 40 values, a scale and a zero point
    averaged = (150 * 8 + 2 * 32 + 64) / (32 * 300 + 64)  # two blocks of up to 256 values; buffers as they are
    ours, theirs = round_parts(problem, cuts), round_parts(plain, cuts)
    np.testing.assert_allclose(ours.uplink_s, theirs.uplink_s * [0.5, 1.0])
    np.testing.assert_allclose(ours.downlink_s, theirs.downlink_s * [1.0, down])
    np.testing.assert_allclose(ours.compute_s, theirs.compute_s)
    np.testing.assert_allclose(aggregation_latency(problem, cuts), aggregation_latency(plain, cuts) * [1, averaged, 1])
    as_held = coded(plain, [replace(code, average=FP32) for code in codes])  # coded averages keep something
    np.testing.assert_array_equal(client_memory(as_held, cuts), client_memory(plain, cuts))
    clocks = [SimulatedClock(p) for p in (problem, plain)]
    for clock in clocks:
        clock.split(cuts)
        clock.average(cuts, 1)
    share = {"device.up": 0.5, "edge.down": down, "edge.fed_up": averaged, "edge.fed_down": averaged}
    assert clocks[0].bits == {link: round(bits * share.get(link, 1)) for link, bits in clocks[1].bits.items()}
    clocks = [SimulatedClock(p) for p in (as_held, plain)]
    for clock in clocks:  # layers that change tiers travel as they are held
        clock.move(cuts, (2, 2))
    assert clocks[0].bits == clocks[1].bits and any(clocks[0].bits.values())


def test_optimiser_state_that_is_averaged_is_sent_as_it_is() -> None:
    problem = replace(by_hand(), average_optimizer=True)
    held = replace(problem.profile, parameter_bits=np.full(3, 320.0), optimizer_bits=np.full(3, 640.0))
    problem = coded(replace(problem, profile=held), [LinkCodes(average=CODES["int8"]), PLAIN, PLAIN])
    assert np.diff(problem.averaged_bits[0]).tolist() == [(80 + 32) + 640] * 3
    assert np.diff(problem.averaged_bits[1]).tolist() == [960.0] * 3


def test_nothing_takes_no_bits() -> None:
    """A layer without a gradient or without parameters sends none, and so no scale either."""
    for code in CODES.values():
        assert code.crossing_bits(np.zeros(1)) == code.averaged_bits(np.zeros(1)) == 0
    assert isinstance(CODECS["fp32"], Codec) and CODECS["fp32"].code is FP32
