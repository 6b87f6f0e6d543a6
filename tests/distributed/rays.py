"""A Ray cluster of several nodes on this machine, and what happens to its actors and nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hsfl
from tests.runs.conftest import TINY, write_tiny

#: Two devices below a cloud: with the fed server, four actors.
SMALL = {
    "tiers": [{**tier, "entities": count} for tier, count in zip(TINY["tiers"][::2], (2, 1), strict=True)],
    "strategy.name": "fixed",
    "strategy.cuts": [2],
    "strategy.intervals": [2, 1],
    "execution.backend": "reference",
}
#: A node that is killed is noticed within seconds, where Ray as it is takes longer; one that is only slow is let live.
QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "worker_niceness": 0,  # as all other processes of the tests
}


def small(folder: Path, **changes: Any) -> Path:
    return write_tiny(folder, {**SMALL, **changes})


@contextmanager
def cluster(head_cpus: int, *node_cpus: int) -> Iterator[Any]:
    """A head and other nodes with so many cores each; this process is connected to it, on the head."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'hsfl[ray]'")
    from ray.cluster_utils import Cluster

    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    started = Cluster()
    try:
        started.add_node(num_cpus=head_cpus, include_dashboard=False, _system_config=QUICK)
        for cpus in node_cpus:
            started.add_node(num_cpus=cpus)
        ray.init(started.address, log_to_driver=False, logging_level="ERROR")
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def actors() -> dict[str, Any]:
    """The machines of the run, by name."""
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"]: ray.get_actor(one["name"], one["namespace"]) for one in named}


def where(actor: Any) -> tuple[int, str]:
    """The process and the node of an actor."""
    import ray

    def found(self: Any) -> tuple[int, str]:
        return os.getpid(), ray.get_runtime_context().get_node_id()

    return ray.get(actor.__ray_call__.remote(found), timeout=60)


class Faults(hsfl.Callback):
    """At some rounds, an actor's process is killed, or a node with all that is on it."""

    def __init__(self, cluster: Any, plan: dict[int, str]) -> None:
        """`plan`: the machine whose process is killed after a round, "node of" it, or "node", if there is but one."""
        self.cluster, self.plan, self.happened = cluster, plan, []

    def on_round(self, record: Any) -> None:
        if (fault := self.plan.pop(record.round, None)) is None:
            return
        kind, _, name = fault.rpartition(" of ")
        nodes = self.cluster.worker_nodes
        if fault != "node":
            process, node_id = where(actors()[name])
            nodes = [node for node in nodes if node.node_id == node_id]
        if "node" in (kind, name):
            (node,) = nodes
            self.cluster.remove_node(node, allow_graceful=False)
        else:
            os.kill(process, signal.SIGKILL)
        self.happened.append(fault)
