"""A machine of a run as a Ray actor: Ray places it, starts it again, and shows it; its streams are its own."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray
import ray.util
from ray.exceptions import GetTimeoutError, RayError

from hsfl.distributed.describing import describe
from hsfl.distributed.places import COORDINATOR
from hsfl.distributed.process import Address, run_node, set_threads
from hsfl.distributed.security import Security
from hsfl.errors import HsflError
from hsfl.scenario.scenario import Scenario

#: Seconds that a machine has to say where it listens before it is asked again.
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Common:
    """What all machines of a run are told."""

    scenario: Scenario
    data_folder: Path | None
    folder: Path | None
    """A folder that all nodes share, for what machines save; else each saves among what its node has for a while."""
    token: str
    namespace: str
    """Ray's namespace, in which an actor is found by the name of its machine."""
    host: str | None
    """The host where all machines listen, if all are on one computer; None where each listens on its node."""


@ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=2)  # one call runs, another asks where it listens
class Machine:
    """An entity or the fed server. Where Ray starts it anew, perhaps elsewhere, it runs again as it was told."""

    def __init__(self, name: str, device: str, common: Common) -> None:
        self._name, self._device, self._common = name, device, common
        base = Path(tempfile.gettempdir()) if common.folder is None else common.folder
        self._folder = base / common.namespace / name
        self._address: str | None = None
        self._left = threading.Event()

    def __repr__(self) -> str:
        """The name of the actor in Ray's logs and dashboard."""
        return self._name

    def run(self, coordinator: str) -> str:
        """Be the machine until the run is over; why it cannot be, or nothing."""
        uplinks: dict[str, Address] = {COORDINATOR: partial(str, coordinator)}
        try:
            set_threads(1)
            scenario = self._common.scenario.with_overrides({"execution.device": self._device})
            given = describe(scenario, self._common.data_folder)
            uplinks |= {
                peer: partial(_listens_at, peer, self._common.namespace)
                for peer in given.places.uplinks(self._name)
                if peer != COORDINATOR
            }
            run_node(
                self._name,
                given,
                self._folder,
                uplinks,
                Security(self._common.token),
                listen=own_address(self._common.host),
                opened=self._opened,
                abandoned=self._left.is_set,
            )
        except HsflError as error:
            return str(error)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # others may still be there
                self._folder.parent.rmdir()
        return ""

    def _opened(self, port: int) -> None:
        self._address = own_address(self._common.host, port)

    def address(self) -> str | None:
        """The address where the machine listens, once it does."""
        return self._address

    def leave(self) -> None:
        """End: the run does not go on with this machine."""
        self._left.set()


def own_address(host: str | None, port: int = 0) -> str:
    """HOST:PORT of this process: at the host if one is given, else as nodes of the cluster reach it."""
    if host is None:
        me = None if ray.util.client.ray.is_connected() else ray.get_runtime_context().get_node_id()
        host = next((node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == me), None)
        host = host or ray.util.get_node_ip_address()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listens_at(peer: str, namespace: str) -> str | None:
    """Where a machine listens now: one that was started anew may be on another node."""
    try:
        found: str | None = ray.get(ray.get_actor(peer, namespace).address.remote(), timeout=_ANSWER_S)
    except (ValueError, RayError, GetTimeoutError):  # not there yet, or not any more
        return None
    return found
