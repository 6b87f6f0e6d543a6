"""All machines of a local run: one process that has everything ready forks them, and again whenever one dies."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hsfl.distributed.places import COORDINATOR, FED
from hsfl.distributed.process import Description, run_node
from hsfl.distributed.security import Security
from hsfl.errors import HsflError, printable
from hsfl.files import write_whole

#: A machine that dies so often, each time within so many seconds, is given up.
_TRIES, _SOON_S = 20, 1.0
#: The exit code of a machine that says why it cannot run.
_CANNOT = 2


def raise_machines(
    given: Description, names: Sequence[str], folder: Path, coordinator: str, security: Security
) -> None:
    """Run the machines `names` until the run is over or standard input ends. HsflError where one cannot run.

    `folder` has a folder for each, with its saved state, its process id and its port; `coordinator` is HOST:PORT.
    """
    import hsfl.distributed.streams  # noqa: F401  so that not every machine has to import it

    _ = given.largest_message
    alive: dict[int, tuple[str, float]] = {}
    tries: dict[str, int] = {}
    me = os.getpid()

    def start(name: str) -> None:
        (folder / name).mkdir(exist_ok=True)
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be(name, given, folder, coordinator, security, me)
        alive[pid] = name, time.monotonic()
        write_whole(folder / name / "pid", str(pid).encode(), replace=True)

    gone = False
    try:
        for name in names:
            start(name)
        while alive:
            ready, _, _ = select.select([0], [], [], 0.02)
            if ready and not os.read(0, 4096):  # the coordinator is gone, and with it who would clear up
                gone = True
                return
            while alive:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                name, since = alive.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                if code == 0:
                    continue
                tries[name] = tries.get(name, 0) + 1 if time.monotonic() - since < _SOON_S else 0
                if code == _CANNOT or tries[name] > _TRIES:
                    raise HsflError(f"{name} ended with code {code}; what it said is in {folder / name / 'log'}")
                start(name)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        for pid in alive:
            os.waitpid(pid, 0)
        if gone:
            shutil.rmtree(folder, ignore_errors=True)


def _be(name: str, given: Description, folder: Path, coordinator: str, security: Security, parent: int) -> None:
    """Be a machine, in the new process; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(folder / name / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(0)

        def address(peer: str) -> str | None:
            try:
                return f"127.0.0.1:{int((folder / peer / 'port').read_text())}"
            except (OSError, ValueError):
                return None

        addresses = {FED: lambda: address(FED), given.places.parent(name): lambda: address(given.places.parent(name))}
        run_node(
            name,
            given,
            folder / name / "state",  # its own: it clears away there what a killed one left
            addresses | {COORDINATOR: lambda: coordinator},
            security,
            listen="127.0.0.1:0",
            opened=lambda port: write_whole(folder / name / "port", str(port).encode(), replace=True),
            abandoned=lambda: os.getppid() != parent,
        )
        code = 0
    except HsflError as error:
        print(f"hsfl: {printable(str(error))}", file=sys.stderr, flush=True)
        code = _CANNOT
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
