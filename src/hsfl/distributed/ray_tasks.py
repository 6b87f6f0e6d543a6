"""Functions that run as tasks of a Ray cluster, with the interface of a pool of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from hsfl.distributed.ray_cluster import address_of, connected
from hsfl.errors import HsflError

#: Seconds that tasks have to end when they are told to.
_GRACE_S = 10.0


@contextmanager
def ray_tasks(cluster: str, *, on_gpu: bool) -> Iterator[RayTasks]:
    """A pool on a cluster, named as `hsfl.run` names it; each task takes a core, or a GPU with `on_gpu`."""
    with connected(address_of(cluster)):
        yield RayTasks(on_gpu)


class RayTasks(Executor):
    """Ray must be connected. What a task raises is raised as it is, without Ray's report around it."""

    def __init__(self, on_gpu: bool) -> None:
        import ray

        self._call = ray.remote(_call).options(num_cpus=1, num_gpus=float(on_gpu))
        self._tasks: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task, found = self._call.remote(fn, *args, **kwargs), Future[Any]()
        self._tasks.append(task)

        def ended(given: Future[Any]) -> None:
            error = given.exception()
            if error is None:
                found.set_result(given.result())
            else:
                lost = HsflError(f"a task of the Ray cluster was lost ({type(error).__name__}); give the command again")
                found.set_exception(getattr(error, "cause", None) or lost)

        task.future().add_done_callback(ended)
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Tasks that are cancelled hear a KeyboardInterrupt, and have some seconds."""
        import ray

        if cancel_futures:
            for task in self._tasks:
                ray.cancel(task)
        if self._tasks:
            ray.wait(self._tasks, num_returns=len(self._tasks), timeout=_GRACE_S if cancel_futures else None)
        self._tasks = []


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)
