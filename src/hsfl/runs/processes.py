"""Training in several processes that torchrun started: the first one leads, the others do what it says.

Only the first has a session: it plans, evaluates, prints and writes the run folder, and hears signals. torch is loaded
when there are several, not before: commands that never train ask here too.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from hsfl.errors import HsflError
from hsfl.runs.interrupting import ignore_stops, stops_at_once
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario

if TYPE_CHECKING:
    from hsfl.engine.sharding import LostProcessError, Processes
    from hsfl.runs.executor import Executor
    from hsfl.runs.preparing import Prepared

#: What torchrun tells every process.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: How long a process that ends looks for the others' store.
_STORE_S = 5


def several() -> bool:
    """Whether this process is one of several that train together."""
    return _number("WORLD_SIZE", 1) > 1


def number_here() -> int:
    """Which one of the processes on this machine it is, from 0."""
    return _number("LOCAL_RANK", 0)


def follows() -> bool:
    """Whether this process does what another one says, and has nothing to show."""
    return several() and _number("RANK", 0) > 0


def together(
    work: Callable[[Callable[[], Prepared]], Run],
    prepare: Callable[..., Prepared],
    scenario: Scenario,
    executor: Executor | None,
) -> Run:
    """Work on what is prepared; where torchrun started several processes, in the first, and the others help."""
    if executor is not None:
        return work(lambda: prepare(executor.backend))
    processes = join(scenario)

    def prepared() -> Prepared:
        return prepare(processes=processes)

    return follow(prepared) if processes.rank else lead(processes, lambda: work(prepared))


def join(scenario: Scenario) -> Processes:
    """Meet the others, where there are any; HsflError where the scenario cannot be trained in so many processes."""
    import torch
    from torch import distributed

    from hsfl.engine.sharding import Processes

    if not several():
        return Processes()
    size, backend = _number("WORLD_SIZE", 1), scenario.spec.execution.backend
    if backend != "stacked":
        raise HsflError(
            f'{scenario.source}: execution.backend = "{backend}" trains in one process, and torchrun started {size}; '
            'take "stacked", or call hsfl train without torchrun'
        )
    if (clients := scenario.training_problem.system.num_clients) < size:
        raise HsflError(
            f"{scenario.source}: {size} processes for {clients} clients, and each needs one; give torchrun "
            f"--nproc-per-node {clients} or less"
        )
    if missing := [name for name in _NEEDED if not os.environ.get(name)]:
        raise HsflError(
            f"WORLD_SIZE is {size}, but {missing[0]} is not set, so the processes cannot find each other; start them "
            f"with torchrun --nproc-per-node {size} -m hsfl train ..., or unset WORLD_SIZE to train in one"
        )
    if not distributed.is_available():
        raise HsflError("this torch cannot talk to other processes (torch.distributed); train in one, or use another")
    if not distributed.is_initialized():
        on_cpu = scenario.spec.execution.device == "cpu" or not torch.cuda.is_available()
        try:
            distributed.init_process_group("gloo" if on_cpu else "cpu:gloo,cuda:nccl")
            atexit.register(distributed.destroy_process_group)
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise HsflError(
                f"the {size} processes do not find each other at {os.environ['MASTER_ADDR']}:"
                f"{os.environ['MASTER_PORT']} ({reason}); start them with torchrun, all at the same time"
            ) from error
    found = distributed.group.WORLD
    assert found is not None
    return Processes.of(found)


def command() -> str:
    """What a user types to train in so many processes again."""
    if not several():
        return "hsfl train"
    here, all_ = _number("LOCAL_WORLD_SIZE", 0), _number("WORLD_SIZE", 1)
    return f"torchrun {f'--nproc-per-node {here}' if here == all_ else '...'} -m hsfl train"


def lead(processes: Processes, work: Callable[[], Run]) -> Run:
    """Do the work in the first process, and let the others know how it ended."""
    if processes.size == 1:
        return work()
    try:
        with stops_at_once():
            run = work()
    except BaseException as error:
        if (lost := _lost(error)) is not None:
            _end_alone()
            raise lost from None
        kind = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        processes.told((None, (kind, str(error) if isinstance(error, HsflError | KeyboardInterrupt) else None)))
        raise
    processes.told((None, ("ended", str(run.folder))))
    return run


def follow(prepare: Callable[[], Prepared]) -> Run:
    """Do what the first process says, until its work is done: the run, or what ended it there.

    Signals are its to hear, and warnings its to say.
    """
    from hsfl.engine.sharded import ShardedBackend

    restore = ignore_stops()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = prepare().backend
            assert isinstance(backend, ShardedBackend)
            how, text = backend.follow()
    except BaseException as error:
        _end_alone()
        if (lost := _lost(error)) is not None:
            raise type(lost)(f"{lost}; continue with {command()} --resume and the folder of the run") from None
        raise
    restore()
    if how == "ended":
        return Run.load(text)
    if text is None:  # a fault, which the first process shows
        raise SystemExit(2)
    raise KeyboardInterrupt(text) if how == "stopped" else HsflError(text)


def _lost(error: BaseException | None) -> LostProcessError | None:
    """That another process was lost, if that is what an error comes from: torchrun then stops this one, too."""
    from hsfl.engine.sharding import LostProcessError

    while error is not None and not isinstance(error, LostProcessError):
        error = error.__context__
    return error


def _end_alone() -> None:
    """What is left is to say why: torchrun's signals must not prevent it, and not all can hear a goodbye."""
    from torch import distributed

    ignore_stops()
    atexit.unregister(distributed.destroy_process_group)


def says_it() -> bool:
    """Whether a process that ends early is to say why: of several, the first one that asks."""
    if not several():
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*where, is_master=False, timeout=timedelta(seconds=_STORE_S))
        return int(store.add(f"hsfl/ended/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", 1)) == 1
    except (RuntimeError, ValueError, LookupError):  # they have not met, and never will
        return True


def _number(name: str, otherwise: int) -> int:
    """A number from the environment; what is none counts as not given."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise
