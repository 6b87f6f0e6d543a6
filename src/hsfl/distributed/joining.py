"""A machine that joins a run from elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hsfl.distributed.describing import NOTHING, brings_data, describe, places_of
from hsfl.distributed.places import FED, Places
from hsfl.distributed.process import run_node, set_threads
from hsfl.distributed.security import Security, checked_address
from hsfl.errors import HsflError
from hsfl.runs.preparing import Brought
from hsfl.scenario.scenario import Scenario


def join(
    scenario: Scenario,
    name: str,
    *,
    parent: str,
    fed: str | None,
    listen: str | None,
    folder: Path,
    token: Path | None,
    certificates: Path | None,
    data: str | None,
    threads: int,
) -> None:
    """Be the machine `name` of a scenario until its run is over; HsflError where it cannot be.

    `data` is a folder with data sets or, where devices have their own, the file or the function that gives them.
    """
    security = Security.read(name, token, certificates)
    places = places_of(scenario)
    places.checked(name)
    addresses = {places.parent(name): checked_address(parent, "--parent")}
    if name != FED:
        if fed is None:
            raise HsflError(f"--fed is missing: {name} sends its part of the model to the fed server; give HOST:PORT")
        addresses[FED] = checked_address(fed, "--fed")
    if places.callers(name) and listen is None:
        below = ", ".join(places.callers(name)[:3])
        raise HsflError(f"--listen is missing: {below} dial {name}; give HOST:PORT of this machine")
    brought = _brought(scenario, places, name, data)
    set_threads(threads)
    given = describe(scenario, None if data is None or brings_data(scenario) else Path(data), brought)
    run_node(
        name,
        given,
        folder,
        {peer: partial(str, address) for peer, address in addresses.items()},
        security,
        listen=checked_address(listen or "127.0.0.1:0", "--listen"),
    )


def _brought(scenario: Scenario, places: Places, name: str, data: str | None) -> Brought:
    """What a machine brings of data that nobody else has; HsflError where it has to, or cannot."""
    tier, number = places.entities.get(name, (None, 0))
    if not brings_data(scenario):
        if data is not None and not Path(data).is_dir():
            raise HsflError(
                f'--data {data}: no folder, and only with data.name = "own" in the scenario a device has its own data; '
                "give a folder with data sets, or leave it away"
            )
        return NOTHING
    if tier != 0:
        if data is not None:
            raise HsflError(f"--data {data}: {name} is no device and needs no data; leave it away")
        return NOTHING
    if data is None:
        raise HsflError(
            f"--data is missing: {name} has its own data; give a .npz or .safetensors file, or package.module:function"
        )
    return Brought(places.topology.clients[0][number][0], data)
