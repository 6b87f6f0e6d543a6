"""A machine as a process: its streams, and the loop that takes what happens one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.entity_work import EntityWork
from hsfl.distributed.fed_work import FedWork
from hsfl.distributed.machines import Machines
from hsfl.distributed.membership import Connected, Gone, Heard, Send
from hsfl.distributed.node import Node
from hsfl.distributed.places import FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.security import Security
from hsfl.distributed.shapes import Crossing
from hsfl.distributed.tensors import WireError
from hsfl.errors import printable

Address = Callable[[], str | None]


@dataclass(frozen=True)
class Description:
    """What all machines of a run have in common: what entities are made of, who there is, and a checksum of it."""

    parts: Machines
    places: Places
    scenario: str

    @cached_property
    def crossing(self) -> Crossing:
        """The tensors that may cross cuts."""
        return Crossing(self.parts)

    @cached_property
    def largest_message(self) -> int:
        """Its bytes: the states of all layers with all that is kept beside them, or what crosses a cut, if more."""
        state = sum(
            value.numel() * value.element_size()
            for layer in self.parts._layers
            for value in layer.state_dict().values()
        )
        kept = (
            kept(tier) for kept in (self.parts._slots, self.parts._server_slots) for tier in range(self.parts.num_tiers)
        )
        copies = 2 + max(map(len, kept))
        return int(max(copies * state, self.crossing.largest()))

    def inbox_size(self) -> int:
        """The number of messages that may wait: more than are ever on their way at once."""
        return 4 * self.parts.chunks * self.parts.num_clients + 64


def run_node(
    name: str,
    given: Description,
    folder: Path,
    addresses: Mapping[str, Address],
    security: Security,
    *,
    listen: str,
    opened: Callable[[int], None] = lambda port: None,
    abandoned: Callable[[], bool] = lambda: False,
) -> None:
    """Be a machine until the run is over; its state is kept in `folder`.

    `addresses` are those of the machines that it dials. `opened` hears the port where it listens, if it does. It also
    ends, within seconds, when `abandoned` says that nobody wants it any more. HsflError where it is refused.
    """
    from hsfl.distributed.streams import Dialer, Inbox, Listener

    def warn(text: str) -> None:
        print(f"hsfl: {name}: {printable(text)}", file=sys.stderr, flush=True)

    with suppress(OSError):  # what ps shows, on Linux
        Path("/proc/self/comm").write_text(f"hsfl {name}"[:15])
    places, limit = given.places, given.largest_message
    saves, inbox = Saves(folder), Inbox(given.inbox_size(), limit)
    if name == FED:
        node = Node(FedWork(given.parts, places, saves), warn)
    else:
        node = Node(EntityWork(given.parts, places, name, saves, given.crossing), warn)
    node.work.bps = inbox.bps
    listener = None
    if callers := places.callers(name):
        listener = Listener(listen, callers, given.scenario, inbox, security, limit)
        opened(listener.port)
    hello = wire.Hello(name=name, scenario=given.scenario)
    dialers = {
        peer: Dialer(peer, addresses[peer], hello, inbox, security, limit, warn) for peer in places.uplinks(name)
    }

    def take_one() -> None:
        """Take one event; what it brought and what is sent are let go of before the next is waited for."""
        due_s = node.due_s
        event = inbox.get(1.0 if due_s is None else min(1.0, max(0.0, due_s - time.monotonic())))
        if isinstance(event, Connected) and {event.uplink, *node.member.connected} >= set(places.uplinks(name)):
            print(f"{name} has joined {' and '.join(places.uplinks(name))}", flush=True)
        now_s = event.at_s if isinstance(event, Heard) else time.monotonic()
        if due_s is not None and due_s <= now_s:
            send(node.overdue())
        sent = []
        try:
            if event is not None:
                sent += node.handle(event)
            sent += node.work.impatience()
        except WireError as error:
            peer = getattr(event, "name", "")
            warn(f"{peer} sent {error}, so its stream is closed")
            if peer in dialers:
                dialers[peer].refuse()
            elif listener is not None:
                listener.refuse(peer, str(error))
            sent += node.handle(Gone(peer))
        send(sent)

    def send(sent: list[Send]) -> None:
        for one in sent:
            if one.name in dialers:
                dialers[one.name].send(one.message, one.tensors)
            elif listener is not None:
                listener.send(one.name, one.message, one.tensors)

    try:
        while not node.stopped and not abandoned():
            take_one()
    finally:
        for dialer in dialers.values():
            dialer.close()
        if listener is not None:
            listener.close()


def set_threads(threads: int) -> None:
    """Give torch the number of threads that all machines have: sums depend on how many threads share them."""
    torch.set_num_threads(threads)
