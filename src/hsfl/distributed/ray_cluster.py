"""Every machine of a run an actor of a Ray cluster, the coordinator beside it."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hsfl.distributed.cluster import Cluster
from hsfl.distributed.membership import Event
from hsfl.distributed.places import FED, Places
from hsfl.distributed.security import TOKEN_BYTES, Security
from hsfl.errors import HsflError, MissingExtraError
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.schema import PlaceSection
from hsfl.scenario.toml_format import toml_value

if find_spec("ray") is None:
    raise MissingExtraError("Running on Ray", "ray")

#: The address that stands for a cluster of this process, on this machine.
EMBEDDED = "local"
#: Seconds that machines have to end when the run is over.
_GRACE_S = 5.0


def address_of(cluster: str) -> str | None:
    """Ray's address in "ray", "ray:ADDRESS" or "ray://HOST:PORT"; None where there is none."""
    return cluster if cluster.startswith("ray://") else cluster.partition(":")[2] or None


@contextmanager
def connected(address: str | None) -> Iterator[bool]:
    """Ray, at an address, at that of RAY_ADDRESS, or as a cluster of its own; as it is where it has been begun.

    Whether it is its own.
    """
    address = address or os.environ.get("RAY_ADDRESS") or EMBEDDED
    if address == EMBEDDED:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # before ray reads it; Ray makes a token where there is none
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield False
        return
    host = address.removeprefix("ray://").rpartition(":")[0]
    try:
        if host:
            socket.getaddrinfo(host, None)  # Ray itself would try for minutes
    except (OSError, UnicodeError):
        raise HsflError(f"--ray {address}: there is no host called {host}; give the address of a Ray cluster") from None
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise HsflError(
            f"--ray {address}: there is no Ray cluster ({reason[0][:200]}); give the address of one that ray start "
            "--head began, such as 10.0.0.1:6379 or ray://10.0.0.1:10001, or none, for one on this machine"
        ) from None
    try:
        yield address == EMBEDDED
    finally:
        ray.shutdown()


class RayCluster(Cluster):
    """Every entity and the fed server an actor, named as the machine; tensors travel over its own streams."""

    name = "ray"

    def __init__(
        self,
        scenario: Scenario,
        address: str | None,
        data_folder: Path | None,
        notify: Callable[[str], None],
        *,
        listen: str | None = None,
        state: Path | None = None,
        as_measured: bool = False,
    ) -> None:
        """`address` is the cluster's; `listen` is where its nodes reach this process, if that is not to be found out.

        `state` is a folder that all nodes share: without, machines save on the disk of their node.
        """
        token = Security(secrets.token_urlsafe(TOKEN_BYTES))
        super().__init__(scenario, listen or "", token, notify, as_measured=as_measured)
        self._ray_address, self._data_folder, self._state = address, data_folder, state
        self._connected = connected(address)
        self.machines: dict[str, Any] = {}
        """Handles of the actors, by name."""
        self._running: dict[Any, str] = {}
        """Who runs, by the result that it will have."""

    @property
    def command(self) -> str:
        return " ".join(["hsfl run --ray", *([self._ray_address] if self._ray_address else [])])

    def __enter__(self) -> Self:
        own = self._connected.__enter__()
        try:
            self._start_machines("127.0.0.1" if own else None)
        except BaseException:
            self._connected.__exit__(None, None, None)
            raise
        return self

    def _start_machines(self, host: str | None) -> None:
        """Start the machines, before all else: that takes seconds. All listen at `host`, or else each on its node."""
        import ray

        from hsfl.distributed.ray_machine import Common, Machine, own_address

        self._address = self._address or own_address(host)
        stem = re.sub("[^A-Za-z0-9]+", "-", self.scenario.name)
        common = Common(
            replace(self.scenario, folder=_resolved(self.scenario.folder)),
            _resolved(self._data_folder),
            _resolved(self._state),
            str(self.security.token),
            namespace=f"hsfl-{stem}-{secrets.token_hex(4)}",
            host=host,
        )
        nodes = [node for node in ray.nodes() if node["Alive"]]
        hosts = cycle([node["NodeID"] for node in nodes if node["Resources"].get("CPU")] or [None])
        for name, place in self._places_by_name(nodes).items():
            device = "cuda" if place.gpus else "cpu"
            try:
                actor = Machine.options(  # type: ignore[attr-defined]
                    name=name, namespace=common.namespace, **_options(place, next(hosts))
                )
                self.machines[name] = actor.remote(name, device, common)
            except ValueError as error:
                raise HsflError(f"the place of {name}: Ray cannot take it ({error})") from None

    def _places_by_name(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, PlaceSection]:
        """What machines take of the cluster, by name; a warning where no node has it."""
        tiers = self.scenario.spec.tiers
        places = Places(self.scenario.system.topology, [tier.name for tier in tiers])
        usual = PlaceSection.model_validate({})
        for tier in tiers:
            if tier.place is not None and not any(_fits(tier.place, node) for node in nodes):
                asked = toml_value(tier.place.model_dump(exclude_defaults=True))
                self._notify(f"tiers.{tier.name}.place = {asked}: no node of the Ray cluster has that; waiting for one")
        return {name: usual if name == FED else tiers[places.entities[name][0]].place or usual for name in places.nodes}

    def _opened(self, places: Places, port: int) -> None:
        host = self._address.rpartition(":")[0]
        self._running = {actor.run.remote(f"{host}:{port}"): name for name, actor in self.machines.items()}

    def receive(self, timeout_s: float) -> Event | None:
        event = super().receive(timeout_s)
        if event is None:
            self._look_after()
        return event

    def _look_after(self) -> None:
        """HsflError where a machine cannot run; Ray starts again those that died."""
        import ray

        for one in _ended(self._running, 0):
            name = self._running.pop(one)
            try:
                why = ray.get(one)
            except ray.exceptions.RayError as error:
                why = (
                    f"Ray gave {name} up ({_last_line(error)}); correct that, then continue with {self.command} "
                    "--resume and the run's folder"
                )
            if why:
                raise HsflError(why)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        try:
            super().__exit__(kind, error, trace)
            if error is not None:
                for actor in self.machines.values():
                    actor.leave.remote()
            _ended(self._running, _GRACE_S)
            for actor in self.machines.values():
                ray.kill(actor)
        finally:
            self._connected.__exit__(None, None, None)


def _ended(calls: Iterable[Any], timeout_s: float) -> list[Any]:
    """The machines that have ended by then; returns as soon as all have."""
    import ray

    waited = list(calls)
    ended: list[Any] = ray.wait(waited, num_returns=len(waited), timeout=timeout_s)[0] if waited else []
    return ended


def _options(place: PlaceSection, host: str | None) -> dict[str, Any]:
    """How Ray is asked for a machine; `host` is the node that it gets, and goes back to, where it does not matter."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    anywhere = not (place.gpus or place.resources or place.labels or host is None)
    strategy = NodeAffinitySchedulingStrategy(str(host), soft=True, _spill_on_unavailable=True)
    return {
        "num_cpus": place.cpus,
        "num_gpus": place.gpus,
        "resources": dict(place.resources),
        "label_selector": dict(place.labels) or None,
        "scheduling_strategy": strategy if anywhere else "SPREAD",
    }


def _fits(place: PlaceSection, node: Mapping[str, Any]) -> bool:
    """Whether a node has what a machine takes, if nobody else is there."""
    asked = {"CPU": place.cpus, "GPU": place.gpus, **place.resources}
    labels = node.get("Labels", {})
    return all(node["Resources"].get(name, 0) >= amount for name, amount in asked.items()) and all(
        labels.get(name) == value for name, value in place.labels.items()
    )


def _resolved(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
