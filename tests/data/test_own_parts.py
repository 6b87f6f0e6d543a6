"""What one client brings: files and functions, and how they must fit what others have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from safetensors.torch import save_file

from hsfl.data import Feed, Sampler, Samples, load_part
from hsfl.errors import ScenarioError

FACTORY = """\
import torch
from torch.utils.data import TensorDataset


def dataset():
    return TensorDataset(torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 1, 0]))


def four():
    return (torch.zeros(4, 3),) * 4


def lists():
    return torch.zeros(4, 3), [0, 1, 1, 0]
"""


def test_files_and_functions_give_the_same(tmp_path: Path) -> None:
    inputs, targets = torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", inputs=inputs.numpy(), targets=targets.numpy().astype(np.uint8), more=np.zeros(2))
    save_file({"inputs": inputs, "targets": targets}, tmp_path / "a.safetensors")
    (tmp_path / "parts.py").write_text(FACTORY)
    for where in ("a.npz", "a.safetensors", "parts:dataset"):
        found = load_part(where, tmp_path, tmp_path, where)
        assert torch.equal(found[0], inputs)
        assert torch.equal(found[1], targets)
        assert found[1].dtype == torch.int64
    with pytest.raises(ScenarioError, match=r"^here returned a tuple; return \(inputs, targets\) as tensors"):
        load_part("parts:four", tmp_path, None, "here")
    with pytest.raises(ScenarioError, match=r"^here returned a list for the targets; return"):
        load_part("parts:lists", tmp_path, None, "here")


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.array([{}], dtype=object), targets=np.zeros(1, int))
    with pytest.raises(ScenarioError, match=r"^here: cannot be read .*allow_pickle=False"):
        load_part("a.npz", None, tmp_path, "here")


def test_images_are_divided_by_255_and_framed() -> None:
    samples = Samples("uint8", (1, 4, 4), (), 10)
    image = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    part = samples.checked((image, torch.tensor([3, 9])), "training", "here")
    feed = Feed(samples.dataset(part, None), Sampler([np.arange(2)], 2, 0), "cpu")
    inputs, targets = feed.samples(torch.tensor([0, 1]))
    assert torch.equal(inputs.sum((1, 2, 3)), torch.tensor([4.0, 4.0]))
    assert inputs.max() == 1
    assert targets.tolist() == [3, 9]
    assert [tensor.shape for tensor in feed.blank(3)] == [(3, 1, 4, 4), (3,)]


def test_tokens_have_a_target_each() -> None:
    samples = Samples("int64", (5,), (5,), 7)
    tokens = torch.randint(0, 7, (3, 5))
    assert torch.equal(samples.checked((tokens, tokens), "training", "here")[0], tokens)
    with pytest.raises(ScenarioError, match="targets are a single number per sample, and the model's outputs need 5"):
        samples.checked((tokens, tokens[:, 0]), "training", "here")


def test_numbers_have_the_shape_of_the_outputs() -> None:
    samples = Samples("float32", (3,), (2,), None)
    inputs, targets = torch.randn(4, 3), torch.randn(4, 2)
    assert torch.equal(samples.checked((inputs, targets), "training", "here")[1], targets)
    assert samples.dataset(None, None).train[1].dtype == torch.float32
    with pytest.raises(ScenarioError, match="here: training targets hold nan"):
        samples.checked((inputs, targets / 0), "training", "here")
    with pytest.raises(ScenarioError, match=r"targets are numbers, and training.loss needs classes"):
        Samples("float32", (3,), (2,), 5).checked((inputs, targets), "training", "here")


@given(some.integers(0, 2**32), some.integers(1, 40), some.integers(0, 3), some.integers(0, 50))
def test_a_client_draws_the_same_whether_others_are_here(seed: int, size: int, client: int, round_: int) -> None:
    """With samples of its own, counted from 0."""
    together = [np.arange(100 * n, 100 * n + size) for n in range(4)]
    alone = [np.arange(size) if n == client else np.arange(0) for n in range(4)]
    here, there = (Sampler(parts, 3, seed, ["crop"]) for parts in (together, alone))
    drawn, own = (sampler.draw(round_, 2)[:, client] for sampler in (here, there))
    assert np.array_equal(drawn[..., 0] - 100 * client, own[..., 0])
    assert np.array_equal(drawn[..., 1:], own[..., 1:])
    assert np.array_equal(here.probe(round_, 2)[client] - 100 * client, there.probe(round_, 2)[client])
