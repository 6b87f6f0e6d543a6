"""Being asked to stop."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Ctrl-C, what ends a job, and a terminal that is closed.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class InterruptedRun(KeyboardInterrupt):
    """Training was asked to stop; the folder holds a checkpoint to resume from."""

    def __init__(self, folder: Path, round_: int) -> None:
        super().__init__(f"stopped after round {round_}; continue with hsfl train --resume {shlex.quote(str(folder))}")
        self.folder, self.round = folder, round_


@contextmanager
def stops_politely(interrupt: Callable[[], None]) -> Iterator[None]:
    """The first signal to stop calls `interrupt`; a second one does what it does outside: it ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # One that is ignored stays so: nohup means it. One that is not Python's own cannot be put back.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        interrupt()
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
