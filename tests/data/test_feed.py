"""Batches on the device against plain loops over single images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hsfl.data import Dataset, Feed, Sampler
from hsfl.errors import ScenarioError

MEAN, STD = (0.25, 0.5), (0.5, 0.125)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="needs a CUDA device: the feed runs inside captured rounds there"
        ),
    ),
]


def dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 2, 7, 9), dtype=torch.uint8, generator=generator)
    targets = torch.arange(30) % 4
    return Dataset("own", (images[:20], targets[:20]), (images[20:], targets[20:]), MEAN, STD)


def sampler(augment: tuple[str, ...] = ()) -> Sampler:
    return Sampler([np.arange(10), np.arange(10, 20)], 6, 3, augment)


def by_hand(image: np.ndarray, down: int, right: int, flip: int) -> np.ndarray:
    """Shift, flip and normalise one image pixel by pixel."""
    channels, height, width = image.shape
    result = np.zeros(image.shape)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                source_y = y + down - 4
                source_x = (width - 1 - x if flip else x) + right - 4
                inside = 0 <= source_y < height and 0 <= source_x < width
                pixel = image[c, source_y, source_x] / 255 if inside else 0.0
                result[c, y, x] = (pixel - MEAN[c]) / STD[c]
    return result


@pytest.mark.parametrize("device", DEVICES)
def test_crop_and_flip_against_a_loop(device: str) -> None:
    data = dataset()
    draws = sampler(("crop", "flip")).draw(0, 3)
    draws[0, 0, :2, 1:] = [[0, 8, 1], [8, 0, 0]]  # the corners
    feed = Feed(data, sampler(("crop", "flip")), device)
    for draw in draws:
        inputs, targets = feed.batch(torch.from_numpy(draw).to(device))
        assert inputs.shape == (2, 6, 2, 7, 9) and inputs.dtype == torch.float32 and inputs.device.type == device
        for client in range(2):
            for sample in range(6):
                index, down, right, flip = draw[client, sample]
                expected = by_hand(data.train[0][index].numpy(), down, right, flip)
                np.testing.assert_allclose(inputs[client, sample].cpu(), expected, atol=1e-5)
                assert targets[client, sample] == data.train[1][index]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unchanged_samples(device: str, dtype: torch.dtype) -> None:
    data = dataset()
    feed = Feed(data, sampler(), device, dtype)
    assert feed.train[0].dtype == torch.uint8
    index = torch.tensor([[3, 0, 19], [7, 7, 1]], device=device)
    inputs, targets = feed.batch(index[..., None])
    again, again_targets = feed.samples(index)
    assert inputs.dtype == dtype and torch.equal(inputs, again) and torch.equal(targets, again_targets)
    expected = np.array([[by_hand(data.train[0][i].numpy(), 4, 4, 0) for i in row] for row in index.tolist()])
    np.testing.assert_allclose(inputs.float().cpu(), expected, atol=1e-5 if dtype == torch.float32 else 0.05)
    assert targets.tolist() == [[3, 0, 3], [3, 3, 1]]
    assert feed.samples(index[0, 0])[0].shape == (2, 7, 9)


def test_samples_are_not_augmented() -> None:
    index = torch.tensor([4, 2])
    plain, augmented = (
        Feed(dataset(), sampler(augment), "cpu").samples(index)[0] for augment in ((), ("crop", "flip"))
    )
    assert torch.equal(plain, augmented)


def test_test_batches_cover_the_test_set_in_order() -> None:
    data = dataset()
    feed = Feed(data, sampler(("crop",)), "cpu")
    batches = list(feed.test_batches(4))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([targets for _, targets in batches]), data.test[1])
    expected = np.array([by_hand(image.numpy(), 4, 4, 0) for image in data.test[0]])
    np.testing.assert_allclose(torch.cat([inputs for inputs, _ in batches]), expected, atol=1e-5)
    assert torch.equal(feed.test[0], data.test[0])


def test_numbers_and_tokens_are_used_as_they_are() -> None:
    numbers, tokens = torch.randn(5, 3), torch.arange(20).reshape(5, 4)
    index = torch.tensor([[[1], [4]]])
    real = Feed(Dataset("own", (numbers, torch.arange(5)), (numbers, torch.arange(5)), None, None), sampler(), "cpu")
    assert torch.equal(real.batch(index)[0], numbers[[1, 4]][None])
    words = Feed(Dataset("own", (tokens, tokens + 1), (tokens, tokens), None, None), sampler(), "cpu", torch.bfloat16)
    inputs, targets = words.batch(index)
    assert inputs.dtype == torch.int64 and torch.equal(inputs, tokens[[1, 4]][None])
    assert torch.equal(targets, tokens[[1, 4]][None] + 1)


def test_only_images_are_augmented() -> None:
    numbers = torch.randn(5, 3)
    data = Dataset("own", (numbers, torch.arange(5)), (numbers, torch.arange(5)), None, None)
    with pytest.raises(ScenarioError, match=r"data.augment = crop: only images .* own has the shape \(3,\)"):
        Feed(data, sampler(("crop",)), "cpu")


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: the feed runs inside captured rounds there"
)
@pytest.mark.parametrize("augment", [(), ("crop", "flip")])
def test_a_cuda_graph_captures_the_feed(augment: tuple[str, ...]) -> None:
    feed = Feed(dataset(), sampler(augment), "cuda")
    draws = torch.from_numpy(Sampler([np.arange(20)], 6, 3, augment).draw(0, 5)).cuda()
    draw = draws[0].clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        feed.batch(draw)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs, targets = feed.batch(draw)
    for other in draws:
        draw.copy_(other)
        graph.replay()
        expected, expected_targets = feed.batch(other)
        assert torch.equal(inputs, expected) and torch.equal(targets, expected_targets)
