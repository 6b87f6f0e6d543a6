"""Every machine of a run a process on this one, beside the coordinator."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hsfl.distributed.cluster import Cluster
from hsfl.distributed.membership import Event
from hsfl.distributed.places import Places
from hsfl.distributed.security import TOKEN_BYTES, Security
from hsfl.errors import HsflError
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.template import scenario_text

#: Seconds that machines have to end when the run is over.
_GRACE_S = 5.0


class LocalCluster(Cluster):
    """Every entity and the fed server a process of its own, over sockets of this machine."""

    name, command = "local", "hsfl run --local"

    def __init__(
        self, scenario: Scenario, data_folder: Path | None, notify: Callable[[str], None], *, as_measured: bool = False
    ) -> None:
        token = Security(secrets.token_urlsafe(TOKEN_BYTES))
        super().__init__(scenario, "127.0.0.1:0", token, notify, as_measured=as_measured)
        self._data_folder = data_folder
        self._nursery: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="hsfl-machines-"))
        """A folder for every machine: its process id, its port, its log and what it has saved."""
        self._start_nursery()
        return self

    def _opened(self, places: Places, port: int) -> None:
        self._tell_nursery({"names": places.nodes, "coordinator": f"127.0.0.1:{port}"})

    def _start_nursery(self) -> None:
        """Start the process that starts the machines, before all else: it takes a second or two to get ready."""
        place = self.folder / "scenario.toml"
        place.write_text(scenario_text(self.scenario.raw), encoding="utf-8")
        with (self.folder / "log").open("wb") as log:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "hsfl", "nursery"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the coordinator
                env={**os.environ, "HSFL_TRUST": "1", "OMP_NUM_THREADS": "1"},  # code beside it was asked for here
            )
        self._tell_nursery(
            {
                "scenario": str(place),
                "scenario_folder": None if self.scenario.folder is None else str(self.scenario.folder.resolve()),
                "data": None if self._data_folder is None else str(self._data_folder.resolve()),
                "folder": str(self.folder),
                "token": self.security.token,
            }
        )

    def _tell_nursery(self, given: dict[str, Any]) -> None:
        assert self._nursery is not None and self._nursery.stdin is not None
        with suppress(BrokenPipeError):  # then it has said why
            self._nursery.stdin.write(json.dumps(given).encode() + b"\n")
            self._nursery.stdin.flush()

    def receive(self, timeout_s: float) -> Event | None:
        event = super().receive(timeout_s)
        if event is None and self._nursery is not None and self._nursery.poll() is not None:
            raise HsflError(self._last_words())
        return event

    def _last_words(self) -> str:
        """Why machines ended: what one of them said last, or else the process that started them."""
        logs = [*self.folder.glob("*/log"), self.folder / "log"]
        for log in sorted(logs, key=lambda path: path.parent == self.folder):
            lines = log.read_text(errors="replace").splitlines()
            if lines and lines[-1].startswith("hsfl: "):
                return lines[-1].removeprefix("hsfl: ")
        return "the machines ended, and none has said why; continue with hsfl run --local --resume and the run's folder"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._nursery is not None:
            assert self._nursery.stdin is not None
            if error is None:
                with suppress(subprocess.TimeoutExpired):
                    self._nursery.wait(_GRACE_S)
            with suppress(OSError):
                self._nursery.stdin.close()
            try:
                self._nursery.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._nursery.kill()
                self._nursery.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
