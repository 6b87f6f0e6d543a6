"""Who is left out of a round: clients whose activations are not at the top when its deadline has passed.

The top decides, once. It tells the machines below, each of which forgets what it had for those clients and steps with
the others. A machine all of whose clients are late need not say that it is done: it is behind, and what it still sends
of that round is dropped. Rounds are kept from it until it is done with that one; if it is in time then, it takes part.
Any other command waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from hsfl.distributed import wire_pb2 as wire


class Lateness:
    """What one machine knows of late clients."""

    def __init__(self) -> None:
        self.behind: dict[str, int] = {}
        """Children that owe the end of a round that went on without them, and its number."""
        self.clear()

    def clear(self) -> None:
        """Forget what belonged to the command before."""
        self.command = wire.Message()
        self.held: set[str] = set()
        """Children that it is kept from."""
        self.late: set[int] = set()
        """Clients that were left out of this round."""
        self.due_s: float | None = None
        self.overdue = False
        """Whether the deadline has passed while nobody was there."""

    def drop(self) -> None:
        """Forget what belonged to the epoch before."""
        self.clear()
        self.behind = {}

    def begin(self, command: wire.Message, children: Iterable[str]) -> tuple[str, ...]:
        """The children that get a command now."""
        self.clear()
        self.command = command
        if command.HasField("round"):
            self.held = {child for child in children if child in self.behind}
        return tuple(child for child in children if child not in self.held)

    def left_behind(self, child: str, number: int) -> None:
        """Note that all clients of a child are late in the round `number`."""
        if child in self.held:
            self.held.remove(child)  # it never got this one
        else:
            self.behind[child] = number

    def is_old(self, child: str, message: wire.Message) -> bool:
        """Whether a message belongs to a round that went on without its sender."""
        return child in self.behind and message.number <= self.behind[child] and not message.HasField("failed")

    def caught_up(self, child: str) -> wire.Message | None:
        """Note that a child is done with the round it missed; the command of now, if it was kept from the child."""
        del self.behind[child]
        if child not in self.held:
            return None
        self.held.remove(child)
        return self.command
