"""The machines of a run, as its coordinator has them: those that join from elsewhere, at an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.clock import MeasuredClock
from hsfl.distributed.coordinator import Coordinator
from hsfl.distributed.describing import described
from hsfl.distributed.machines import Machines
from hsfl.distributed.membership import Event
from hsfl.distributed.places import COORDINATOR, Places
from hsfl.distributed.security import Security
from hsfl.distributed.streams import Inbox, Listener
from hsfl.distributed.tensors import Packed
from hsfl.runs.preparing import Prepared
from hsfl.scenario.scenario import Scenario


class Cluster:
    """Machines that dial the coordinator. An executor of `runs.training`, and the coordinator's transport."""

    backend = Machines

    def __init__(
        self,
        scenario: Scenario,
        address: str,
        security: Security,
        notify: Callable[[str], None],
        *,
        as_measured: bool = False,
    ) -> None:
        """The coordinator listens at `address`, HOST:PORT. `notify` hears who is waited for.

        `as_measured`: plans are made for the machines as they are measured.
        """
        self.scenario, self.security, self._address, self._notify = scenario, security, address, notify
        self._as_measured = as_measured
        self._listener: Listener | None = None
        self._machines: Machines | None = None

    @property
    def name(self) -> str:
        return self._address

    @property
    def command(self) -> str:
        return f"hsfl run --listen {self._address}"

    def __enter__(self) -> Self:
        return self

    def begin(self, prepared: Prepared) -> MeasuredClock:
        """Listen, and let the backend command whoever comes."""
        given = described(self.scenario, prepared)
        callers, limit = given.places.children(COORDINATOR), given.largest_message
        self._inbox = Inbox(given.inbox_size(), limit)
        self._listener = Listener(self._address, callers, given.scenario, self._inbox, self.security, limit)
        self._opened(given.places, self._listener.port)
        self._machines = given.parts
        given.parts.deadline_s = self.scenario.spec.execution.deadline or 0.0
        given.parts.connect(Coordinator(self, given.places, self._notify))
        return MeasuredClock(prepared.task.problem, given.parts, as_measured=self._as_measured)

    def interrupt(self) -> None:
        if self._machines is not None:
            self._machines.coordinator.leaving = True

    def _opened(self, places: Places, port: int) -> None:
        """Listen, as the coordinator."""

    def send(self, name: str, message: wire.Message, tensors: Sequence[Packed] = ()) -> None:
        if self._listener is not None:
            self._listener.send(name, message, tensors)

    def receive(self, timeout_s: float) -> Event | None:
        return self._inbox.get(timeout_s)

    def refuse(self, name: str, reason: str) -> None:
        self._notify(f"{name} sent {reason}, so its stream is closed")
        if self._listener is not None:
            self._listener.refuse(name, reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run, or interrupt it: then machines wait until it is resumed."""
        if self._machines is not None and self._listener is not None:
            if error is None:
                self._machines.coordinator.stop()
            self._listener.close()
