"""A machine that joins a run from elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hsfl.distributed.describing import describe
from hsfl.distributed.places import FED
from hsfl.distributed.process import run_node, set_threads
from hsfl.distributed.security import Security, checked_address
from hsfl.errors import HsflError
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
    data_folder: Path | None,
    threads: int,
) -> None:
    """Be the machine `name` of a scenario until its run is over; HsflError where it cannot be."""
    security = Security.read(name, token, certificates)
    set_threads(threads)
    given = describe(scenario, data_folder)
    places = given.places
    places.checked(name)
    addresses = {places.parent(name): checked_address(parent, "--parent")}
    if name != FED:
        if fed is None:
            raise HsflError(f"--fed is missing: {name} sends its part of the model to the fed server; give HOST:PORT")
        addresses[FED] = checked_address(fed, "--fed")
    if places.callers(name) and listen is None:
        below = ", ".join(places.callers(name)[:3])
        raise HsflError(f"--listen is missing: {below} dial {name}; give HOST:PORT of this machine")
    run_node(
        name,
        given,
        folder,
        {peer: partial(str, address) for peer, address in addresses.items()},
        security,
        listen=checked_address(listen or "127.0.0.1:0", "--listen"),
    )
