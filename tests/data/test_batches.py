"""The sampler's promises: no state, no influence between clients, every sample once per epoch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.data import Sampler

AUGMENT = st.sampled_from([(), ("crop",), ("flip",), ("crop", "flip")])
SIZES = st.lists(st.sampled_from([1, 2, 7, 60, 1500, 2049]), min_size=1, max_size=4)


def parts_of(sizes: list[int]) -> list[np.ndarray]:
    """Scattered samples, so that an index and a position cannot be confused."""
    ends = np.cumsum([0, *sizes])
    scattered = np.random.default_rng(1).permutation(10 * ends[-1])[: ends[-1]]
    return [scattered[a:b] for a, b in itertools.pairwise(ends)]


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 40), AUGMENT, st.integers(0, 300), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_blocks_do_not_matter(
    sizes: list[int], batch: int, augment: tuple[str, ...], first: int, blocks: list[int]
) -> None:
    """One sampler that goes back and forth gives what a fresh one gives for every round by itself."""
    used = Sampler(parts_of(sizes), batch, 5, augment)
    whole = used.draw(first, sum(blocks))
    assert whole.shape == (sum(blocks), len(sizes), batch, 4 if augment else 1) and whole.dtype == np.int64
    at = 0
    for block in blocks:
        np.testing.assert_array_equal(used.draw(first + at, block), whole[at : at + block])
        at += block
    fresh = Sampler(parts_of(sizes), batch, 5, augment)
    np.testing.assert_array_equal(fresh.draw(first + at - 1, 1)[0], whole[-1])


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 40), AUGMENT, st.integers(0, 100))
def test_other_clients_do_not_matter(sizes: list[int], batch: int, augment: tuple[str, ...], first: int) -> None:
    parts = parts_of(sizes)
    alone = Sampler(parts[:1], batch, 5, augment)
    together = Sampler([parts[0], *reversed(parts[1:])], batch, 5, augment)
    np.testing.assert_array_equal(alone.draw(first, 5)[:, 0], together.draw(first, 5)[:, 0])
    np.testing.assert_array_equal(alone.probe(first, 2)[0], together.probe(first, 2)[0])


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([1, 2, 7, 60, 1500, 2049]), st.integers(1, 50))
def test_an_epoch_has_every_sample_once(size: int, batch: int) -> None:
    part = parts_of([size])[0]
    stream = Sampler([part], batch, 5).draw(0, 3 * size // batch + 1).reshape(-1)
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(stream[epoch * size : (epoch + 1) * size]), np.sort(part))


def test_epochs_clients_seeds_and_pages_differ() -> None:
    part = np.arange(64)
    stream = Sampler([part, part], 64, 5).draw(0, 40)[:, :, :, 0]
    rows = stream.reshape(-1, 64)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert not np.array_equal(Sampler([part], 64, 6).draw(0, 1)[0, 0, :, 0], stream[0, 0])


def test_batch_order_is_the_streams_order() -> None:
    part = np.arange(100)
    by_ten = Sampler([part], 10, 5).draw(0, 12)
    by_four = Sampler([part], 4, 5).draw(0, 30)
    np.testing.assert_array_equal(by_ten.reshape(-1), by_four.reshape(-1))


@pytest.mark.parametrize("augment", [("crop",), ("flip",), ("crop", "flip")])
def test_changes_are_even_and_keep_the_samples(augment: tuple[str, ...]) -> None:
    part = np.arange(500)
    draws = Sampler([part], 100, 5, augment).draw(0, 200).reshape(-1, 4)
    np.testing.assert_array_equal(draws[:, 0], Sampler([part], 100, 5).draw(0, 200).reshape(-1))
    for column in (1, 2):
        counts = np.bincount(draws[:, column], minlength=9)
        if "crop" in augment:
            assert len(counts) == 9 and counts.min() > 1900 and counts.max() < 2550  # of 2222, with deviation 44
        else:
            assert counts[4] == len(draws)
    flips = draws[:, 3].mean()
    assert set(draws[:, 3]) <= {0, 1}
    assert 0.47 < flips < 0.53 if "flip" in augment else flips == 0
    if "crop" in augment:
        assert abs(np.corrcoef(draws[:, 1], draws[:, 2])[0, 1]) < 0.05


def test_a_probe_repeats_no_sample_where_it_can() -> None:
    enough, few = np.arange(100, 140), np.arange(7)
    sampler = Sampler([enough, few], 5, 5)
    probe = sampler.probe(3, 8)
    assert probe.shape == (2, 8, 5) and probe.dtype == np.int64
    np.testing.assert_array_equal(np.sort(probe[0].ravel()), enough)
    assert set(np.bincount(probe[1].ravel(), minlength=7)) == {5, 6}
    assert not np.array_equal(probe, sampler.probe(4, 8))
    np.testing.assert_array_equal(probe, Sampler([enough, few], 5, 5).probe(3, 8))


def test_a_probe_differs_from_training_and_leaves_it_alone() -> None:
    parts = parts_of([60, 60])
    sampler = Sampler(parts, 60, 5)
    probe = sampler.probe(0, 1)
    batches = sampler.draw(0, 1)
    assert not np.array_equal(batches[0, :, :, 0], probe[:, 0])
    np.testing.assert_array_equal(batches, Sampler(parts, 60, 5).draw(0, 1))
