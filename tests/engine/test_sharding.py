"""Clients spread over processes give the numbers of one process, and its files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed

from hsfl.engine import saving
from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes, Shard
from hsfl.engine.stacked import StackedBackend
from hsfl.problem.topology import Topology
from tests.engine.sharded_process import join, make, options
from tests.engine.test_backends import RandomTree, assert_same_state, random_hosts

SIZE = 3


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """This process is the first of three."""
    store = tmp_path_factory.mktemp("group") / "store"
    command = [sys.executable, "-m", "tests.engine.sharded_process", str(store)]
    root = Path(__file__).parents[2]
    others = [subprocess.Popen([*command, str(rank), str(SIZE)], cwd=root) for rank in range(1, SIZE)]
    try:
        found = join(store, 0, SIZE)
        yield found
        found.told(None)
        distributed.destroy_process_group()
        assert [other.wait(20) for other in others] == [0] * len(others)
    finally:
        for other in others:
            other.kill()


@contextmanager
def one_and_sharded(processes: Processes, **spec: Any) -> Iterator[list[StackedBackend]]:
    """The same backend in this process, and in all of them."""
    arguments, rest = options(spec)
    processes.told(spec)
    sharded = make(spec, processes)
    yield [StackedBackend(*arguments, **rest), sharded]
    processes.told((None, None))


def random_tree(seed: int) -> tuple[RandomTree, dict[str, Any]]:
    tree = RandomTree(seed)
    return tree, {"hosts": tree.hosts, "cuts": tree.cuts(), "seed": seed}


def assert_same_files(both: list[StackedBackend], folder: Path) -> None:
    """What both save has the same names, and numbers to rounding; each goes on from the other's."""
    paths = [folder / type(backend).__name__ for backend in both]
    for backend, path in zip(both, paths, strict=True):
        backend.save(path)
    ours, theirs = (saving.read(path, both[0].topology, 5) for path in paths)
    assert ours[0] == theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for key, value in ours[1].items():
        torch.testing.assert_close(theirs[1][key], value, rtol=1e-9, atol=1e-12, msg=lambda text, k=key: f"{k}: {text}")
    for backend, path in zip(both, reversed(paths), strict=True):
        backend.load(path)


@pytest.mark.parametrize(
    ("seed", "rest"),
    [
        (0, {"model": ("batch", 0.0), "optimizer": "momentum"}),
        (1, {"model": ("group", 0.3), "optimizer": "adamw"}),
        (2, {"model": ("group", 0.3), "optimizer": "momentum", "averaging": "corrected"}),
        (3, {"model": ("none", 0.0), "optimizer": "momentum", "averaging": "corrected", "codes": "int8"}),
        (4, {"model": ("batch", 0.0), "optimizer": "sgd", "codes": "int4"}),
        (7, {"model": ("batch", 0.0), "optimizer": "momentum", "codes": "int8"}),
        (8, {"model": ("none", 0.0), "optimizer": "sgd", "averaging": "fedadam", "codes": "int8"}),
        (10, {"model": ("batch", 0.0), "optimizer": "momentum", "averaging": "corrected", "weighted": True}),
        (101, {"model": ("batch", 0.0), "optimizer": "momentum", "averaging": "corrected", "weighted": True}),
        (12, {"model": ("batch", 0.3), "optimizer": "momentum", "codes": "int8", "micro_batches": 2}),
    ],
)
def test_processes_give_the_numbers_of_one(
    processes: Processes, tmp_path: Path, seed: int, rest: dict[str, Any]
) -> None:
    """Random trees, cuts that move, averages at random intervals, through files, in float64."""
    tree, spec = random_tree(seed)
    if rest.pop("weighted", False):
        rest["weights"] = [1 + n**2 for n in range(tree.clients)]
    with one_and_sharded(processes, **spec, **rest) as both:
        for t in tree.train_alike(both, rounds=6, moves=(2, 4)):
            for tier in range(tree.tiers):
                ours, theirs = (backend.drift(tier) for backend in both)
                torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-15)
            if t == 3:
                assert_same_files(both, tmp_path)
        assert_same_state(*both)
        ours, theirs = (backend.evaluate() for backend in both)
        assert theirs == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("seed", [1, 101])
def test_processes_draw_and_measure_as_one(processes: Processes, seed: int) -> None:
    tree, spec = random_tree(seed)
    weights = None if seed % 2 else [1 + n**2 for n in range(tree.clients)]
    with one_and_sharded(processes, **spec, model=("batch", 0.3), optimizer="momentum", weights=weights) as both:
        for _ in range(2):
            ours, theirs = (backend.train_round() for backend in both)
            torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=0)
        one, other = (vars(backend.probe(3, 0.1, coding=True)) for backend in both)
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-8, atol=1e-12, err_msg=name)
        assert one["smoothness"] > 0 and one["coding_noise"].max() > 0
        assert_same_state(*both)


def test_what_is_not_finite_is_found_where_it_is(processes: Processes) -> None:
    """The last client's weights, which are in another process."""
    hosts = [[0, 1, 2, 3], [0] * 4]
    spec = {"hosts": hosts, "cuts": [2], "model": ("none", 0.0), "optimizer": "sgd"}
    with one_and_sharded(processes, **spec) as both:
        inputs = torch.zeros(4, 4, 2, 6, 6, dtype=torch.float64)
        inputs[3, 0, 0, 0, 0] = float("nan")
        for backend in both:
            assert backend.not_finite() is None
            backend.move([5])  # the rest of the model is then every client's own, too
            losses = backend.step(inputs, torch.zeros(4, 4, dtype=torch.int64))
            assert losses.isfinite().tolist() == [True, True, True, False]
            assert backend.not_finite() == 3


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 12), st.integers(1, 5))
def test_shards_are_parts_of_the_tree(seed: int, tiers: int, clients: int, size: int) -> None:
    """Together they have every client once, and count every entity once."""
    size = min(size, clients)
    hosts = random_hosts(np.random.default_rng(seed), tiers, clients, single_top=bool(seed % 2))
    topology = Topology.from_hosts(hosts)
    shards = [Shard(topology, Processes(rank, size)) for rank in range(size)]
    assert [n for shard in shards for n in shard.clients] == list(topology.order)
    assert max(len(shard.clients) for shard in shards) - min(len(shard.clients) for shard in shards) <= 1
    for tier in range(tiers):
        counted, rows = np.zeros(topology.entities[tier]), np.zeros(topology.entities[tier], dtype=int)
        for shard in shards:
            assert shard.local.order == tuple(range(len(shard.clients)))  # so that every entity's are a slice
            np.add.at(counted, shard.entities[tier], shard.shares(tier))
            np.add.at(rows, shard.entities[tier], 1)
            for row, entity in enumerate(shard.entities[tier].tolist()):
                assert shard.row(tier, entity) == row
        np.testing.assert_allclose(counted, topology.shares[tier])
        assert np.flatnonzero(rows > 1).tolist() == shards[0].shared(tier)
        for other in range(tiers):
            total = np.zeros((topology.entities[tier], topology.entities[other]))
            for shard in shards:
                total[np.ix_(shard.entities[tier], shard.entities[other])] += shard.part(tier, other)
            np.testing.assert_allclose(total, topology.part(tier, other))


def test_rounds_in_several_processes_are_not_captured() -> None:
    """Where they would be: a CUDA graph cannot wait for another process."""
    spec = {"hosts": [[0, 1], [0, 0]], "cuts": [2], "model": ("none", 0.0), "optimizer": "sgd"}
    arguments, rest = options(spec)
    backend = ShardedBackend(*arguments, processes=Processes(0, 2), capture=True, **rest)
    assert backend.capture is False
