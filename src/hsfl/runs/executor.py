"""What a run is trained on where that is not a simulation in this process."""

from __future__ import annotations

from typing import Protocol

from hsfl.engine import Backend
from hsfl.engine.clock import Clock
from hsfl.runs.preparing import Prepared


class Executor(Protocol):
    """Machines that a scenario is run on, instead of a simulation in this process."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> type[Backend]: ...
    @property
    def command(self) -> str:
        """What a user types to run on these machines."""

    def begin(self, prepared: Prepared) -> Clock:
        """Bring the backend and the machines together; the clock that measures them."""

    def interrupt(self) -> None:
        """Training is asked to stop: wait no longer for machines that are not there."""
