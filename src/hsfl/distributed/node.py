"""A machine without its sockets: what happened goes in, what to send comes out."""

from __future__ import annotations

from collections.abc import Callable

from hsfl.distributed.membership import (
    Action,
    Damaged,
    Event,
    Heard,
    Load,
    Loaded,
    Member,
    Prepare,
    Saved,
    Send,
    after,
)
from hsfl.distributed.membership import Work as WorkToDo
from hsfl.distributed.tensors import WireError
from hsfl.distributed.work import Work
from hsfl.errors import HsflError


class Node:
    """An entity or the fed server: its membership and its work."""

    def __init__(self, work: Work, warn: Callable[[str], None]) -> None:
        """`warn` hears of what went wrong and was put right."""
        self.work, self.warn = work, warn
        self.member = Member(work.children, work.places.uplinks(work.name))
        self.stopped = False
        """Whether the run is over."""

    def handle(self, event: Event) -> list[Send]:
        """What to send now; WireError if a peer sent what it may not."""
        self.member, actions = after(self.member, event)
        return [send for action in actions for send in self._do(action)]

    @property
    def due_s(self) -> float | None:
        """When `overdue` is to be called, by the clock of this machine."""
        return self.work.due_s

    def overdue(self) -> list[Send]:
        """What to send now that this moment has come."""
        try:
            return self.work.overdue()
        except HsflError as error:
            return [self.work.failed(error)]

    def _do(self, action: Action) -> list[Send]:
        match action:
            case Send():
                return [action]
            case Prepare(session):
                self.work.drop()
                self.work.saves.begin(session)
                return self.handle(Saved(self.work.saves.held()))
            case Load(restore):
                try:
                    self.work.load(restore)
                except (OSError, ValueError) as error:
                    self.warn(f"what was saved after {restore.position} commands cannot be read ({error})")
                    self.work.saves.forget(restore.position)
                    return self.handle(Damaged())
                return self.handle(Loaded())
            case WorkToDo(heard):
                return self._work(heard)
        return []

    def _work(self, heard: Heard) -> list[Send]:
        message = heard.message
        if message.HasField("stop"):
            self.stopped = True
            return [Send(child, message) for child in self.work.children]
        try:
            return self.work.take(heard)
        except WireError:
            raise
        except HsflError as error:
            return [self.work.failed(error)]
