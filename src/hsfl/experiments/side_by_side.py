"""Work done side by side: in processes here, a GPU each where there are several, or by a pool of other machines."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

from hsfl.errors import HsflError

T = TypeVar("T")
R = TypeVar("R")
#: In a process that works: it was asked to stop, and begins nothing more.
_stopped = threading.Event()


@dataclass
class RunCounts:
    """What people are told: of how many runs so many are done, and which one is being trained."""

    total: int = 0
    done: int = 0
    trained: int = 0
    current: str = ""


def each(
    work: Callable[[T], R], items: Sequence[T], *, jobs: int, pool: Executor | None = None, gpus: Sequence[str] = ()
) -> Iterator[tuple[T, R]]:
    """Every item with what became of it, as they are done: in so many processes, each on one core, or in the pool.

    `gpus`: the names of GPUs, as CUDA_VISIBLE_DEVICES has them; processes take them in turn. What ends this ends all.
    """
    with pool or processes(jobs, gpus) as used:
        futures = {used.submit(_work, work, item): item for item in items}
        try:
            for future in as_completed(futures):
                try:
                    found = future.result()
                except BrokenProcessPool:
                    raise HsflError(
                        "a process that trained was ended from outside, perhaps for lack of memory; the same command "
                        f"goes on from here, with --jobs {max(1, jobs - 1)} in less memory"
                    ) from None
                if found is None:
                    raise HsflError("a process that trained was asked to stop; the same command goes on from here")
                yield futures[future], found
        except BaseException:
            used.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def processes(jobs: int, gpus: Sequence[str] = ()) -> ProcessPoolExecutor:
    """A pool here; its processes end with this one."""
    context = multiprocessing.get_context("spawn")
    places: SimpleQueue[str] = context.SimpleQueue()
    for number in range(jobs if gpus else 0):
        places.put(gpus[number % len(gpus)])
    return ProcessPoolExecutor(jobs, context, _begin_process, (places if gpus else None,))


def gpus_for(device: str) -> list[str]:
    """The GPUs that processes may share out: all that can be seen, unless the device says which one."""
    import torch

    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _work(work: Callable[[T], R], item: T) -> R | None:
    """Work in a process of its own; None where it was asked to stop."""
    import torch

    if _stopped.is_set():
        return None
    torch.set_num_threads(1)
    try:
        return work(item)
    except KeyboardInterrupt:  # what was done is kept as far as it is
        _stopped.set()
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(130)  # or it would wait for more to do, forever
    return None


def _begin_process(places: Any = None) -> None:
    """Set up a process that works: its parent handles Ctrl-C and passes it on, and it ends with its parent."""
    if places is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = places.get()
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
