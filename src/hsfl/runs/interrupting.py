"""Being asked to stop."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Ctrl-C, what ends a job, and a terminal that is closed.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class InterruptedRun(KeyboardInterrupt):
    """Training was asked to stop; the folder holds a checkpoint to resume from."""

    def __init__(self, folder: Path, round_: int, command: str = "hsfl train") -> None:
        super().__init__(f"stopped after round {round_}; continue with {command} --resume {shlex.quote(str(folder))}")
        self.folder, self.round = folder, round_


@contextmanager
def stops_politely(interrupt: Callable[[], None]) -> Iterator[None]:
    """The first signal to stop calls `interrupt`; a second one does what it does outside: it ends at once."""

    def handle(number: int, frame: object) -> None:
        interrupt()
        restore()

    restore = _handle(handle)
    try:
        yield
    finally:
        restore()


@contextmanager
def stops_at_once() -> Iterator[None]:
    """All signals to stop do what Ctrl-C does: they raise KeyboardInterrupt."""
    restore = _handle(signal.default_int_handler)
    try:
        yield
    finally:
        restore()


def ignore_stops() -> Callable[[], None]:
    """From now on no signal to stop does anything; how to let them again."""
    return _handle(lambda number, frame: None)


def _handle(handler: Callable[[int, FrameType | None], None]) -> Callable[[], None]:
    """Handle the signals to stop, and hand back how to put back what handled them before."""
    in_main = threading.current_thread() is threading.main_thread()  # no other may handle signals
    before = {number: signal.getsignal(number) for number in _SIGNALS if in_main}
    # One that is ignored stays so: nohup means it. One that is not Python's own cannot be put back.
    before = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)

    def restore() -> None:
        for number, was in before.items():
            signal.signal(number, was)

    return restore
