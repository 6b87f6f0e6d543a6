"""Tensors on the wire: what arrives is what was sent, memory order included, and what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hsfl
from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.tensors import Packed, WireError, check_declared, pack, pack_by_name, unpacked, unpacked_by_name
from hsfl.engine.links import CODECS, Codec


def received(tensor: torch.Tensor, codec: Codec | None = None) -> Packed:
    """As it arrives, in memory of its own."""
    about, data = pack(tensor, codec)
    check_declared(about)
    assert len(data) == about.size
    return Packed(wire.Tensor.FromString(about.SerializeToString()), memoryview(bytearray(data)))


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn, floating: bool = False) -> torch.Tensor:
    """Of any type and shape, its axes in any order in memory."""
    shape = draw(st.lists(st.integers(0 if not floating else 1, 4), min_size=int(floating), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    dtype = torch.float32 if floating else draw(st.sampled_from(DTYPES))
    values = torch.randn(
        [shape[axis] for axis in order], generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    return (values * 3).to(dtype).permute([order.index(axis) for axis in range(len(shape))])


@settings(deadline=None)
@given(tensor=tensors())
def test_what_arrives_is_what_was_sent(tensor: torch.Tensor) -> None:
    found = unpacked(received(tensor), tensor.to("meta"))
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)
    dense = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    if tensor.numel():
        assert [found.stride(axis) for axis in dense] == [tensor.stride(axis) for axis in dense]


@settings(deadline=None)
@given(tensor=tensors(floating=True), name=st.sampled_from(sorted(CODECS)))
def test_coded_tensors_arrive_as_codecs_pass_them(tensor: torch.Tensor, name: str) -> None:
    codec = CODECS[name]
    passed = codec.passed(tensor)
    found = unpacked(received(tensor, codec), tensor, codec)
    assert torch.equal(found, passed)
    dense = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    assert [found.stride(axis) for axis in dense] == [passed.stride(axis) for axis in dense]


GOOD = pack(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dtype": "float64"}, "a tensor of float64 (2, 3), expected float32 (2, 3)"),
        ({"dtype": "object"}, "a tensor of object"),
        ({"shape": [2**40, 2**40]}, "expected float32 (2, 3)"),
        ({"shape": [3, 2]}, "expected float32 (2, 3)"),
        ({"order": [0, 0]}, "memory order (0, 0)"),
        ({"order": [0, 7]}, "memory order (0, 7)"),
        ({"order": []}, "memory order ()"),
        ({"code": "int8"}, "which is not the code of this link"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], sentence: str) -> None:
    fields = {name: getattr(GOOD.about, name) for name in ("dtype", "shape", "order", "size")}
    with pytest.raises(WireError) as caught:
        unpacked(Packed(wire.Tensor(**{**fields, **change}), GOOD.data), torch.zeros(2, 3))
    assert sentence in str(caught.value)


def test_other_sizes_are_refused() -> None:
    with pytest.raises(WireError, match=r"5 bytes for a tensor of \(2, 3\), expected 24"):
        unpacked(Packed(GOOD.about, memoryview(bytearray(5))), torch.zeros(2, 3))


@pytest.mark.parametrize(
    "change", [{"size": 25}, {"size": 2**60}, {"shape": [2**40, 2**40]}, {"shape": []}, {"dtype": "object"}]
)
def test_what_is_declared_has_to_fit_together(change: dict[str, object]) -> None:
    """Before memory is taken for it."""
    fields = {name: getattr(GOOD.about, name) for name in ("dtype", "shape", "order", "size")}
    with pytest.raises(WireError, match="tensor of"):
        check_declared(wire.Tensor(**{**fields, **change}))


def test_coded_tensors_of_another_size_are_refused() -> None:
    about, data = pack(torch.ones(2, 3), CODECS["int4"])
    with pytest.raises(WireError, match="bytes for a tensor of"):
        unpacked(Packed(about, memoryview(bytes(data) + b"1")), torch.ones(2, 3), CODECS["int4"])
    with pytest.raises(WireError, match="not the code of this link"):
        unpacked(pack(torch.ones(2, 3)), torch.ones(2, 3), CODECS["int4"])


def test_other_names_are_refused() -> None:
    own = {"a": torch.ones(2), "b": torch.zeros(())}
    assert torch.equal(unpacked_by_name(pack_by_name(own), own)["a"], own["a"])
    for odd in ({"a": own["a"]}, {**own, "c": own["b"]}, {"a": own["a"], "c": own["b"]}):
        with pytest.raises(WireError, match="other names"):
            unpacked_by_name(pack_by_name(odd), own)


def test_the_generated_code_is_that_of_the_file(tmp_path: Path) -> None:
    """make protos writes it."""
    source = Path(hsfl.__file__).parent.parent
    made = ["--python_out", str(tmp_path), "--pyi_out", str(tmp_path), "hsfl/distributed/wire.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *made], cwd=source, check=True)
    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        path = Path("hsfl", "distributed", name)
        assert (tmp_path / path).read_text() == (source / path).read_text(), "run make protos"
