"""The option --ray, alone or with an address, and the pool it means where runs are trained side by side."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


def _cluster(given: str | None) -> str | None:
    """The cluster as `hsfl.run` takes it: "ray", "ray:HOST:PORT" or "ray://HOST:PORT"."""
    if not given:
        return given if given is None else "ray"
    return given if given.startswith("ray://") else f"ray:{given}"


RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        callback=_cluster,
        help="On a Ray cluster: that at ADDRESS, such as 10.0.0.1:6379, ray://10.0.0.1:10001 or auto; without one, "
        "that of RAY_ADDRESS, or else one on this machine, for as long as the command runs.",
    ),
]


class AddressMayBeLeftOut(TyperCommand):
    """A command whose option --ray may stand without an address: the next word is one if it is auto or has a colon."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for at, option in enumerate(given):
            follows = "".join(given[at + 1 : at + 2])
            if option == "--ray" and (follows.startswith("-") or (follows != "auto" and ":" not in follows)):
                given[at] = "--ray="
        return super().parse_args(ctx, given)


def pool_of(cluster: str | None, on_gpu: bool) -> AbstractContextManager[Executor | None]:
    """Where runs are trained side by side, if not in processes here."""
    if cluster is None:
        return nullcontext()
    from hsfl.distributed.ray_tasks import ray_tasks

    return ray_tasks(cluster, on_gpu=on_gpu)
