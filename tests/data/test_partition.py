"""Partitions: complete, disjoint, as uneven as asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.data.partition import label_counts, noisy, partition
from hsfl.errors import ScenarioError
from hsfl.scenario.data_section import DataSection

LABELS = np.random.default_rng(0).integers(0, 10, 6000)


def split(
    labels: np.ndarray = LABELS, clients: int = 20, seed: int = 0, folder: Path | None = None, **fields: object
) -> list[np.ndarray]:
    return partition(DataSection.model_validate({"name": "mnist"} | fields), labels, clients, seed, folder)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["iid", "shards", "dirichlet", "quantity"]),
    labels=st.lists(st.integers(0, 5), min_size=30, max_size=90),
    clients=st.integers(1, 7),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_sample_has_one_client(kind: str, labels: list[int], clients: int, seed: int) -> None:
    parts = split(np.array(labels), clients, seed, partition=kind, alpha=5.0)
    assert len(parts) == clients and min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    if kind == "iid":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("kind", ["iid", "shards", "dirichlet", "quantity"])
def test_the_seed_decides(kind: str) -> None:
    first, again, other = (split(seed=seed, partition=kind) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_clients_have_every_label() -> None:
    counts = label_counts(split(clients=10), LABELS, 10)
    assert counts.shape == (10, 10) and counts.sum() == len(LABELS)
    assert counts.min() > 30 and counts.max() < 100


def test_label_counts_by_hand() -> None:
    parts = [np.array([0, 3]), np.array([1]), np.array([2, 4])]
    assert label_counts(parts, np.array([2, 0, 1, 2, 0]), 4).tolist() == [[0, 0, 2, 0], [1, 0, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(("shards", "most"), [(1, 2), (2, 4)])
def test_few_shards_have_few_labels(shards: int, most: int) -> None:
    """A shard smaller than a class spans two labels at most."""
    parts = split(partition="shards", shards_per_client=shards)
    kinds = (label_counts(parts, LABELS, 10) > 0).sum(axis=1)
    assert kinds.max() <= most and kinds.mean() < most
    assert max(map(len, parts)) - min(map(len, parts)) <= shards


def test_shards_are_dealt_at_random() -> None:
    counts = label_counts(split(partition="shards"), LABELS, 10)
    first = counts.argmax(axis=1)
    assert not np.array_equal(first, np.sort(first))


def test_alpha_goes_from_uneven_to_even() -> None:
    def largest_share(alpha: float) -> float:
        counts = label_counts(split(clients=8, partition="dirichlet", alpha=alpha), LABELS, 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [largest_share(alpha) for alpha in (0.1, 1.0, 1e3, 1e30)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5 and shares[-1] < 0.12
    sizes = [len(part) for part in split(clients=8, partition="dirichlet", alpha=1e30)]
    assert max(sizes) - min(sizes) <= 10


@pytest.mark.parametrize(
    ("fields", "clients", "reason"),
    [
        ({}, 6001, "data.partition = iid: 6000 training samples are too few for 6001 clients"),
        ({"partition": "shards", "shards_per_client": 301}, 20, "data.shards_per_client = 301: .* at most 300"),
        ({"partition": "dirichlet", "alpha": 1e-12}, 20, "data.alpha = 1e-12 leaves one of 20 clients without"),
        ({"partition": "csv"}, 20, "data.assignments is missing"),
        ({"partition": "csv", "assignments": "none.csv"}, 20, "none.csv: cannot be read .*No such file"),
    ],
)
def test_what_cannot_be_split(fields: dict[str, object], clients: int, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        split(clients=clients, **fields)


def test_many_targets_per_sample_are_split_without_labels() -> None:
    tokens = np.zeros((50, 4), dtype=np.int64)
    assert sum(map(len, split(tokens, 5))) == 50
    for kind in ("shards", "dirichlet"):
        with pytest.raises(ScenarioError, match=f"data.partition = {kind} needs one label per sample"):
            split(tokens, 5, partition=kind)


@pytest.mark.parametrize("text", ["sample,client\n4,1\n0,0\n2,1\n", "\ufeffclient, sample\n1,4\n\n1,2\r\n0,0\n"])
def test_a_csv_assigns_what_it_lists(tmp_path: Path, text: str) -> None:
    (tmp_path / "clients.csv").write_text(text, encoding="utf-8")
    parts = split(np.zeros(6, dtype=np.int64), 2, folder=tmp_path, partition="csv", assignments="clients.csv")
    assert [part.tolist() for part in parts] == [[0], [2, 4]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the first line is ''"),
        ("sample,device\n0,0\n", "the first line is 'sample,device'; it must be sample,client"),
        ("sample,client\n0\n", "line 2 is '0'"),
        ("sample,client\n0,0\n1,x\n", "line 3 is '1,x'"),
        ("sample,client\n0,-1\n", "line 2 is '0,-1'"),
        ("sample,client\n0,1.0\n", "line 2 is '0,1.0'"),
        ("sample,client\n0,0,0\n", "line 2 is '0,0,0'"),
        ("sample,client\n0,0\n6,1\n", "sample 6 does not exist; samples count from 0 to 5"),
        ("sample,client\n0,2\n", "client 2 does not exist; clients count from 0 to 1"),
        ("sample,client\n0,0\n0,1\n", "line 3: sample 0 is listed twice"),
        ("sample,client\n0,0\n1,0\n", "client 1 has no samples"),
    ],
)
def test_bad_assignments(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "clients.csv").write_text(text)
    with pytest.raises(ScenarioError, match=f"clients.csv: .*{reason}"):
        split(np.zeros(6, dtype=np.int64), 2, folder=tmp_path, partition="csv", assignments="clients.csv")


def test_quantities_differ_and_labels_do_not() -> None:
    """Sizes are a Dirichlet draw's; whoever has many samples has all labels in the mix of all."""
    parts = split(clients=10, partition="quantity", alpha=0.5)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 4 * np.median(sizes)
    even = [len(part) for part in split(clients=10, partition="quantity", alpha=1e6)]
    assert max(even) - min(even) <= 0.02 * len(LABELS)
    counts = label_counts(parts, LABELS, 10)[sizes.argmax()]
    assert counts.max() < 1.5 * counts.min()


@settings(deadline=None, max_examples=60)
@given(
    users=st.lists(st.integers(0, 9), min_size=40, max_size=90).map(lambda u: np.array([*range(10), *u])),
    clients=st.integers(1, 10),
    each=st.integers(1, 10) | st.none(),
    seed=st.integers(0, 1000),
)
def test_users_go_to_clients_as_a_whole(users: np.ndarray, clients: int, each: int | None, seed: int) -> None:
    section = DataSection.model_validate({"name": "leaf", "partition": "natural", "users_per_client": each})
    if (each or 1) * clients > 10:
        with pytest.raises(ScenarioError, match=f"need {(each or 1) * clients} users, and the data have 10"):
            partition(section, users, clients, seed, None, users)
        return
    parts = partition(section, users, clients, seed, None, users)
    owners = [set(users[part]) for part in parts]
    assert all(len(part) == sum((users == user).sum() for user in own) for part, own in zip(parts, owners, strict=True))
    dealt = [user for own in owners for user in own]
    assert len(dealt) == len(set(dealt)) == (10 if each is None else each * clients)
    assert max(map(len, owners)) - min(map(len, owners)) <= 1


def test_natural_needs_users() -> None:
    with pytest.raises(ScenarioError, match="nothing says whose each sample is"):
        split(partition="natural")


def test_every_client_has_noise_of_its_own() -> None:
    """Of a deviation that grows evenly from none to the level; images stay images, and the rest is left alone."""
    parts = [np.arange(0, 200), np.arange(200, 400), np.arange(400, 600)]
    numbers, grey = torch.zeros(700, 50), torch.full((700, 1, 5, 5), 128, dtype=torch.uint8)
    changed = noisy(numbers, parts, 2.0, seed=1)
    assert [float(changed[part].std()) for part in parts] == pytest.approx([0, 1, 2], rel=0.05)
    assert not changed[600:].any() and not numbers.any()
    assert torch.equal(changed, noisy(numbers, parts, 2.0, seed=1))
    assert not torch.equal(changed, noisy(numbers, parts, 2.0, seed=2))
    images = noisy(grey, parts, 0.1, seed=1)
    assert images.dtype == torch.uint8 and torch.equal(images[parts[0]], grey[parts[0]])
    assert float(images[parts[2]].float().std()) == pytest.approx(25.5, rel=0.05)
    assert int(noisy(grey, parts, 10.0, seed=1)[parts[2]].min()) == 0
    with pytest.raises(ScenarioError, match=r"data\.feature_noise: tokens"):
        noisy(torch.zeros(600, 3, dtype=torch.int64), parts, 0.1, seed=0)
