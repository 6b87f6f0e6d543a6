"""Coded averages: the protocol of their text on both backends, what is kept of it, and what is known of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import hsfl
from hsfl.engine.averaging import AveragingRule
from hsfl.engine.coded_averages import send
from hsfl.engine.links import AVERAGE_CODECS, BlockCodec
from hsfl.errors import DivergedError, HsflError
from hsfl.problem.codes import BLOCK, CODES, LinkCodes
from hsfl.problem.system import System
from tests.engine.test_averaging import ServerMomentum
from tests.engine.test_backends import OPTIMIZERS, RandomTree, batch, layers, swap_through_files
from tests.engine.test_corrected import KINDS, UNEQUAL, parabola, variates
from tests.engine.test_speed_paths import assert_equal, everything
from tests.theory.test_by_hand import CUTS, by_hand

CODED = [name for name in AVERAGE_CODECS if name != "fp32"]
INTEGERS = [name for name, codec in AVERAGE_CODECS.items() if isinstance(codec, BlockCodec)]
ROWS = {
    "one value": torch.randn(1, 1),
    "less than a block": torch.randn(3, 77),
    "blocks": torch.randn(2, 2 * BLOCK),
    "blocks and a rest": torch.randn(4, 2 * BLOCK + 5) * torch.logspace(-6, 6, 2 * BLOCK + 5),
    "zeros": torch.zeros(2, 300),
    "tiny": torch.tensor([[1e-30, -3e-31, 1e-44, 0.0], [3e-39, -1e-38, 2e-36, 0.0]]),
}


def close(one: hsfl.engine.Backend, other: hsfl.engine.Backend) -> None:
    """All state is the same in both, with what averages keep."""
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9, msg=lambda text, k=key: f"{k}: {text}")


def make(kind: str, code: object = "int8", optimizer: str = "momentum", hosts=UNEQUAL, cuts=(1, 3), **options):
    codes = [{"average": code} if max(row) else "fp32" for row in hosts] if isinstance(code, str) else code
    options = {"dtype": torch.float64, "codes": codes} | options
    return hsfl.backend(kind, layers("batch"), hosts, cuts, OPTIMIZERS[optimizer], **options)


@pytest.mark.parametrize("name", AVERAGE_CODECS)
@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_codec_gives_what_it_passes_and_counts_its_bits(name: str, what: str, dtype: torch.dtype) -> None:
    codec, rows = AVERAGE_CODECS[name], ROWS[what].to(dtype)
    before, data, passed = rows.clone(), codec.encode(rows), codec.passed(rows)
    assert torch.equal(codec.decode(data, rows), passed) and torch.equal(rows, before)
    assert (passed.dtype, passed.shape) == (rows.dtype, rows.shape)
    for one, row in zip(passed, rows, strict=True):  # each is written for itself
        assert torch.equal(one, codec.passed(row[None])[0])
    held = np.array([32.0 * rows.shape[1]])
    assert codec.code is CODES[name] and codec.bits(rows) == len(rows) * codec.code.averaged_bits(held)[0]


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.mark.parametrize("name", CODED)
@given(values=arrays(np.float32, st.tuples(st.integers(1, 2), st.integers(1, 300)), elements=finite))
@example(values=np.array([[-2.5, 12.5, 3.0]], dtype=np.float32))
@example(values=np.array([[127.0, 63.5, 1e-38]], dtype=np.float32))
@settings(max_examples=200, deadline=None)
def test_what_has_passed_passes_unchanged(name: str, values: np.ndarray) -> None:
    for rows in (torch.from_numpy(values), torch.from_numpy(values).double()):
        once = AVERAGE_CODECS[name].passed(rows)
        assert torch.equal(AVERAGE_CODECS[name].passed(once), once)
        assert torch.equal(AVERAGE_CODECS[name].decode(AVERAGE_CODECS[name].encode(once), once), once)


def test_four_bits_are_two_values_a_byte_after_the_scales_of_blocks() -> None:
    """Levels -7 to 7, written as 0 to 14, times the greatest magnitude of a block over 7."""
    row = torch.zeros(1, BLOCK + 3)
    row[0, :3], row[0, BLOCK:] = torch.tensor([14.0, -14.0, 4.9]), torch.tensor([-0.5, 3.5, 0.2])
    data = AVERAGE_CODECS["int4"].encode(row)
    assert np.frombuffer(data[:8], np.float32).tolist() == [2.0, 0.5]
    assert data[8:11] == bytes([0xE0, 0x97, 0x77]) and data[-2:] == bytes([0x6E, 0x70])
    assert AVERAGE_CODECS["int4"].passed(row)[0, [0, 1, 2, 3, 256, 257, 258]].tolist() == [14, -14, 4, 0, -0.5, 3.5, 0]


def half_steps(sent: torch.Tensor, bits: int) -> torch.Tensor:
    """For every value of a row half the step of its block."""
    blocks = nn.functional.pad(sent, (0, -len(sent) % BLOCK)).view(-1, BLOCK)
    return (0.5 * blocks.abs().amax(1) / (2 ** (bits - 1) - 1)).repeat_interleave(BLOCK)[: len(sent)]


@pytest.mark.parametrize("name", INTEGERS)
@given(
    drift=st.floats(0, 1),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 6),
)
@settings(max_examples=25, deadline=None)
def test_what_is_unsent_stays_bounded(name: str, drift: float, sizes: list[int], seed: int, spread: float) -> None:
    """Over 50 averages: never more than half a step, and all that was ever meant to be sent arrives but for it."""
    rng = torch.Generator().manual_seed(seed)
    unsent = [[torch.zeros(size, dtype=torch.float64)] for size in sizes]
    meant = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    arrived = [torch.zeros_like(total) for total in meant]
    for _ in range(50):
        noise = [torch.randn(size, dtype=torch.float64, generator=rng) for size in sizes]
        changes = [(drift + n) * 10 ** (spread * (torch.rand((), generator=rng) - 0.5)) for n in noise]
        wanted = [change + left[0] for change, left in zip(changes, unsent, strict=True)]
        got = send(AVERAGE_CODECS[name], changes, unsent)
        for i, want in enumerate(wanted):
            limit = half_steps(want, CODES[name].value_bits)
            assert (unsent[i][0].abs() <= 1.001 * limit).all()
            meant[i] += changes[i]
            arrived[i] += got[i]
    for total, so_far, left in zip(meant, arrived, unsent, strict=True):
        torch.testing.assert_close(so_far + left[0], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CODED)
def test_averages_by_hand(kind: str, name: str) -> None:
    """Two entities of 3 clients and 1, five averages: what is sent, what is kept, and what all then have."""
    hosts, codec = [[0, 0, 0, 1], [0, 0, 0, 0]], AVERAGE_CODECS[name]
    backend = make(kind, name, hosts=hosts, cuts=(1,))
    rng = np.random.default_rng(0)
    keys = [f"0.{part}" for part in ("0.weight", "0.bias", "1.weight", "1.bias")]

    def flat(found: dict[str, torch.Tensor], before: str = "") -> torch.Tensor:
        return torch.cat([found[before + key].detach().flatten() for key in keys])[None].clone()

    last = flat(backend._held(0, 0)[0])
    unsent, server = [torch.zeros_like(last), torch.zeros_like(last)], torch.zeros_like(last)
    for _ in range(5):
        backend.step(*batch(rng, 4))
        meant = [flat(backend._held(0, j)[0]) - last + unsent[j] for j in (0, 1)]
        sent = [codec.passed(m) for m in meant]
        unsent = [m - q for m, q in zip(meant, sent, strict=True)]
        mean = 0.75 * sent[0] + 0.25 * sent[1] + server
        change = codec.passed(mean)
        server, last = mean - change, last + change
        backend.average(0)
        (kept,) = backend._of_server(0, "unsent")
        torch.testing.assert_close(flat(kept), server, rtol=0, atol=1e-12)
        for j in (0, 1):
            state, slots = backend._held(0, j)
            torch.testing.assert_close(flat(state), last, rtol=0, atol=1e-12)
            torch.testing.assert_close(flat(slots, "unsent."), unsent[j], rtol=0, atol=1e-12)
            assert torch.equal(flat(state), flat(backend._held(0, 0)[0]))
        assert server.abs().max() > 0 and unsent[0].abs().max() > 0


@pytest.mark.parametrize("code", CODED)
@pytest.mark.parametrize("averaging", ["plain", "corrected", "own"])
@pytest.mark.parametrize("seed", [0, 1, 101])
def test_stacked_equals_reference(seed: int, averaging: str, code: str, tmp_path) -> None:
    """Random trees, also with several top entities, unequal clients, moves of cuts, and through files."""
    tree, rule = RandomTree(seed), ServerMomentum() if averaging == "own" else averaging
    cuts = tree.cuts()
    both = [make(kind, code, hosts=tree.hosts, cuts=cuts, averaging=rule) for kind in KINDS]
    for t in tree.train_alike(both, rounds=10, moves=(3, 5, 8)):
        if t == 6:
            swap_through_files(both, tmp_path)
        close(*both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("averaging", ["plain", "corrected"])
def test_all_have_the_same_average_to_the_bit(kind: str, averaging: str) -> None:
    for dtype in (torch.float32, torch.float64):
        backend = make(kind, "int4", dtype=dtype, averaging=averaging)
        rng = np.random.default_rng(1)
        for _ in range(4):
            inputs, targets = batch(rng, 5)
            backend.step(inputs.to(dtype), targets)
            for tier in range(3):
                backend.average(tier)
        for client in range(1, 5):
            ours, first = backend.client_state(client), backend.client_state(0)
            parameters = [key for key in ours if not key.split(".")[-1].startswith(("running", "num"))]
            assert parameters and all(torch.equal(ours[key], first[key]) for key in parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_and_optimiser_state_are_averaged_as_they_are(kind: str) -> None:
    rule = AveragingRule(average_state=True)
    coded, plain = (make(kind, code, averaging=rule) for code in ("int4", "fp32"))
    inputs, targets = batch(np.random.default_rng(2), 5)
    for backend in (coded, plain):
        backend.step(inputs, targets)
        backend.average(0)
    ours, theirs = everything(coded), everything(plain)
    same = [key for key in theirs if key.startswith("slot.0.") or key.endswith(("running_mean", "running_var"))]
    for key in same:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=1e-14)
    assert len(same) >= 5 * 4 and not torch.equal(ours["state.0.0.0.0.weight"], theirs["state.0.0.0.0.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_unsent_moves_with_a_layer(kind: str) -> None:
    """An entity's like its other state, the fed server's as it is; there is none where averages are not coded."""
    hosts = [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    backend = make(kind, [{"average": "int8"}, {"average": "int4"}, "fp32"], hosts=hosts, cuts=(2, 4))
    backend.step(*batch(np.random.default_rng(3), 4))
    backend.average(0)
    key = "1.0.weight"
    before = [backend._held(0, j)[1][f"unsent.{key}"].clone() for j in range(4)]
    server = backend._of_server(0, "unsent")[0][key].clone()
    assert server.any() and all(left.any() for left in before)
    backend.move((1, 4))
    means = [sum(before[:3]) / 3, before[3]]
    for j, mean in enumerate(means):
        torch.testing.assert_close(backend._held(1, j)[1][f"unsent.{key}"], mean, rtol=0, atol=1e-15)
    assert (
        torch.equal(backend._of_server(1, "unsent")[0][key], server) and key not in backend._of_server(0, "unsent")[0]
    )
    backend.move((1, 1))  # to the only machine at the top, which keeps none, and back
    assert not backend._of_server(2, "unsent") and "unsent" not in "".join(backend._held(2, 0)[1])
    backend.move((1, 4))
    assert not backend._of_server(1, "unsent")[0][key].any() and not backend._held(1, 0)[1][f"unsent.{key}"].any()


@pytest.mark.parametrize(("kind", "other"), list(itertools.product(KINDS, KINDS)))
def test_files_go_on_to_the_bit(kind: str, other: str, tmp_path) -> None:
    from safetensors.torch import load_file

    rng = np.random.default_rng(4)
    rounds = [batch(rng, 5) for _ in range(6)]
    straight = make(kind, "int4", averaging="corrected")
    for inputs, targets in rounds[:3]:
        straight.step(inputs, targets)
        straight.average(0)
    straight.move((2, 4))
    straight.save(tmp_path / "file")
    resumed = make(other, "int4", averaging="corrected")
    resumed.load(tmp_path / "file")
    assert_equal(everything(straight), everything(resumed))
    once = [key for key in load_file(tmp_path / "file") if key.startswith("unsent.0.")]
    assert len(once) == len(set(once)) == 8  # two layers of four parameters each, for all five devices
    for inputs, targets in rounds[3:]:
        for backend in (straight, resumed):
            backend.step(inputs, targets)
            backend.average(0)
            backend.average(1)
    if kind == other:
        assert_equal(everything(straight), everything(resumed))
    close(straight, resumed)
    with pytest.raises(HsflError, match=r"or other codes \(.*unsent.* is not in this backend\)"):
        make(kind, "fp32", averaging="corrected").load(tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_named(kind: str, name: str, wrong: float) -> None:
    backend = make(kind, name)
    backend.step(*batch(np.random.default_rng(5), 5))
    backend.average(0)
    backend.average(1)
    backend._held(1, 2)[0]["2.0.weight"][1, 2, 0, 1] = wrong
    with pytest.raises(DivergedError) as caught:
        backend.average(1)
    assert str(caught.value) == (
        f"layer 3 of client 5 has weights that are not finite, which an average in {name} cannot carry; lower "
        "training.learning_rate, or check the data of that client"
    )
    with pytest.raises(DivergedError, match="layer 3 of client 5"):
        backend.check_sent()  # as it is asked where results come later
    with pytest.raises(HsflError, match="not finite") if name in INTEGERS else pytest.raises(AssertionError):
        data = AVERAGE_CODECS[name].encode(torch.full((1, 3), wrong))
        assert torch.frombuffer(bytearray(data), dtype=torch.bfloat16).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interval", [1, 3])
def test_variates_of_coded_averages_keep_a_bounded_mean(kind: str, interval: int) -> None:
    """Coding errors enter the mean of the variates, but only those of the moment: they do not add up."""
    backend = make(kind, "int4", optimizer="sgd", averaging="corrected")
    rng = np.random.default_rng(6)
    rounds = [batch(rng, 5) for _ in range(6)]
    seen = []
    for t in range(1, 121):
        backend.step(*rounds[t % 6])
        if t % interval == 0:
            backend.average(0)
            of_tiers = (of_tier for place, of_tier in variates(backend).items() if place.startswith("0."))
            seen.append(max(float(sum(share * h for share, h in of_tier).abs().max()) for of_tier in of_tiers))
    assert max(seen[-20:]) <= 2 * max(seen[:20]) and max(seen) > 0


class Shifts(nn.Module):
    """Adds a parameter to every coordinate of the input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(count, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


@pytest.mark.parametrize("kind", KINDS)
def test_coded_averages_find_the_optimum(kind: str) -> None:
    """Clients with optima of their own: around sum a b / sum a, which is known, if what is unsent is sent later.

    Thrown away, it is missing in every average, always on the same side, and the mean stops far from the optimum.
    """
    rng = torch.Generator().manual_seed(0)
    curvature = torch.rand(5, 40, dtype=torch.float64, generator=rng) + 0.5
    optimum = 3 * torch.randn(5, 40, dtype=torch.float64, generator=rng)
    known = (curvature * optimum).sum(0) / curvature.sum(0)
    inputs, targets = torch.zeros(5, 1, 40, dtype=torch.float64), torch.stack((curvature, optimum), -1)[:, None]
    errors = {}
    for kept in (True, False):
        backend = hsfl.backend(
            kind,
            [Shifts(40)],
            [[0, 1, 2, 3, 4], [0] * 5],
            (1,),
            {"name": "sgd", "lr": 0.05},
            loss=parabola,
            dtype=torch.float64,
            codes=[{"average": "int4"}, "fp32"],
        )
        means = []
        for _ in range(300):
            backend.step(inputs, targets)
            backend.average(0)
            means.append(backend.global_state()["0.shift"].clone())
            if not kept:
                for left in (*backend._of_server(0, "unsent"), *(backend._held(0, j)[1] for j in range(5))):
                    for tensor in left.values():
                        tensor.zero_()
        errors[kept] = (torch.stack(means[-100:]).mean(0) - known).abs().max()
    assert errors[True] < 0.02 and errors[False] > 0.2


@pytest.mark.parametrize(
    ("averaging", "codes", "copies"),
    [
        ("plain", ("fp32", "fp32"), [0, 0, 0]),
        ("plain", ("int8", "int4"), [2, 2, 0]),
        ("plain", ("int8", "fp32"), [2, 1, 0]),
        ("corrected", ("fp32", "fp32"), [2, 2, 0]),
        ("corrected", ("fp32", "bf16"), [2, 3, 0]),
    ],
)
def test_the_planner_counts_what_is_kept(averaging: str, codes: tuple[str, str], copies: list[int]) -> None:
    """As many copies as both backends keep, in memory and on the way of layers that move."""
    plain = by_hand()
    tiers = [
        replace(tier, codes=LinkCodes(average=CODES[code]))
        for tier, code in zip(plain.system.tiers, (*codes, "int8"), strict=True)
    ]
    problem = replace(plain, system=System(tuple(tiers)), averaging=averaging)
    assert problem.averaging_copies.tolist() == copies
    held = hsfl.theory.latency.client_memory
    parameters = np.array([plain.profile.parameter_bits[layers].sum() for layers in ([0], [1], [2])])
    np.testing.assert_allclose(held(problem, CUTS) - held(plain, CUTS), copies * parameters)
    for kind in KINDS:
        hosts = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
        backend = make(kind, [{"average": c} for c in codes] + ["fp32"], "sgd", hosts=hosts, averaging=averaging)
        for tier, count in enumerate(copies):
            slots = {key.split(".")[0] for key in backend._held(tier, 0)[1]}
            assert len(slots) + bool(backend._last(tier)) == count
