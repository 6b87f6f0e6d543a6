"""Which machines a run is for: processes here, actors of a Ray cluster, or those that join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hsfl.distributed.cluster import Cluster
from hsfl.distributed.describing import brings_data, check_on_machines
from hsfl.distributed.local import LocalCluster
from hsfl.distributed.places import COORDINATOR
from hsfl.distributed.security import Security, checked_address
from hsfl.errors import HsflError, ScenarioError
from hsfl.scenario.scenario import Scenario


class Where(NamedTuple):
    """Where to run, as `hsfl.run` is told."""

    cluster: str
    data_folder: Path | None
    token: Path | None
    certificates: Path | None
    listen: str | None
    state: Path | None
    as_measured: bool


def cluster_of(scenario: Scenario, where: Where, notify: Callable[[str], None]) -> Cluster:
    """Machines that have not begun; their scenario is the one that they train."""
    check_on_machines(scenario)
    cluster, as_measured = where.cluster, where.as_measured
    if given := [kind for kind in ("model", "data") if kind in scenario.objects]:
        raise ScenarioError(
            f"{scenario.source}: the {given[0]} was given from Python, and machines are processes that cannot have it; "
            f'name a function that they can import, {given[0]}.factory = "package.module:function"'
        )
    on_ray = cluster.partition(":")[0] == "ray"
    if not on_ray and (where.listen is not None or where.state is not None):
        raise HsflError(f"cluster {cluster}: listen and state are for a Ray cluster; leave them out")
    if (cluster == "local" or on_ray) and brings_data(scenario):
        raise ScenarioError(
            f'{scenario.source}: data.name = "own": every device has its own data, and here is none; use '
            "--listen, and hsfl node --data on the devices"
        )
    if cluster == "local":
        scenario = scenario.with_overrides({"execution.device": "cpu"})
        return LocalCluster(scenario, where.data_folder, notify, as_measured=as_measured)
    if on_ray:
        from hsfl.distributed.ray_cluster import RayCluster, address_of

        scenario = scenario.with_overrides({"execution.device": "cpu"})
        return RayCluster(
            scenario,
            address_of(cluster),
            where.data_folder,
            notify,
            listen=None if where.listen is None else checked_address(where.listen, "listen"),
            state=where.state,
            as_measured=as_measured,
        )
    checked_address(cluster, "cluster")
    security = Security.read(COORDINATOR, where.token, where.certificates)
    return Cluster(scenario, cluster, security, notify, as_measured=as_measured)
