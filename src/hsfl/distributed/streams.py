"""Streams between machines: one for each child, which dials; bounded queues between them and a machine's loop."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.connections import (
    ENVELOPE_BYTES,
    SIGN_S,
    Arrived,
    Connection,
    Stream,
    dialled,
    frame,
    listening,
    tls_context,
)
from hsfl.distributed.membership import Connected, Event, Gone, Heard
from hsfl.distributed.rates import LinkMeter
from hsfl.distributed.security import Security
from hsfl.distributed.tensors import Packed, WireError
from hsfl.errors import HsflError

#: Seconds that a caller has to say who it is, and that a machine has to answer.
_GREETING_S = 10.0
#: Seconds between two attempts to dial, from the first on.
_REDIAL_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: A peer that says nothing for so many seconds is not there.
_GONE_S = 4 * SIGN_S


class RefusedError(HsflError):
    """A machine was refused; its message says why."""


class Inbox:
    """What happened, in order, until the loop of the machine takes it; whoever brings more waits.

    A stream that waits reads nothing more, so that its peer cannot send more either. A loop never waits for a stream,
    so that all that waits is taken some time.
    """

    def __init__(self, size: int, limit: float = inf) -> None:
        """At most so many messages wait, of at most `limit` bytes in all, but for one that is larger by itself."""
        self._meters: dict[str, LinkMeter] = {}
        self._events: queue.Queue[tuple[Stream | None, Event | RefusedError, int]] = queue.Queue(size)
        self._limit, self._bytes, self._room = limit, 0, threading.Condition()

    def put(self, stream: Stream, event: Event, size: int = 0) -> None:
        with self._room:
            self._room.wait_for(lambda: not (size and self._bytes) or self._bytes + size <= self._limit)
            self._bytes += size
        self._events.put((stream, event, size))

    def refused(self, error: RefusedError) -> None:
        """Note that this machine was refused."""
        self._events.put((None, error, 0))

    def hear(self, stream: Stream, arrived: Arrived) -> None:
        """Note that a message has come."""
        meter = self._meters.setdefault(stream.peer, LinkMeter())
        way_s = meter.see(arrived.size, arrived.sent_s, arrived.at_s)
        self.put(stream, Heard(stream.peer, arrived.message, arrived.tensors, arrived.at_s, way_s), arrived.size)

    def bps(self) -> dict[str, float]:
        """How fast each peer is heard, where that is known."""
        return {peer: bps for peer, meter in list(self._meters.items()) if (bps := meter.bps) is not None}

    def get(self, timeout_s: float) -> Event | None:
        """The next event of a stream that still counts; None if nothing happens. RefusedError where a machine is."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                stream, event, size = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            with self._room:
                self._bytes -= size
                self._room.notify_all()
            if isinstance(event, RefusedError):
                raise event
            if stream is None or not stream.dropped or isinstance(event, Gone):
                return event


class Listener:
    """Takes the streams of those who may call, one of each; the newest counts."""

    def __init__(
        self, address: str, callers: Sequence[str], scenario: str, inbox: Inbox, security: Security, limit: int
    ) -> None:
        """`address` is HOST:PORT; port 0 is any free one. `scenario` is a checksum that callers must have too."""
        self._callers, self._scenario, self._inbox, self._security = frozenset(callers), scenario, inbox, security
        self._limit = limit + ENVELOPE_BYTES
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._strangers = threading.Semaphore(2 * len(callers) + 16)
        """How many more may dial before one of them has said who it is."""
        self._alive: set[threading.Thread] = set()
        self._tls = tls_context(security, listens=True)
        self._socket = listening(address)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, name: str, message: wire.Message, tensors: Sequence[Packed] = ()) -> None:
        if (stream := self._streams.get(name)) is not None:
            stream.send(message, tensors)

    def refuse(self, name: str, reason: str) -> None:
        """End the stream of a caller that sent what it may not; it may call again."""
        if (stream := self._streams.pop(name, None)) is not None:
            stream.drop()

    def close(self, grace_s: float = 2.0) -> None:
        """Take no more streams, send what waits, and give callers so long to hang up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits there
        self._socket.close()
        until = time.monotonic() + grace_s
        for stream in list(self._streams.values()):
            stream.finish()
        for thread in list(self._alive):
            thread.join(max(0.0, until - time.monotonic()))
        for stream in list(self._streams.values()):
            stream.end()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.05)  # no room for one more, or one that hung up already
                continue
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._attach, args=(plain,), daemon=True).start()
            else:
                plain.close()

    def _attach(self, plain: socket.socket) -> None:
        """Serve one who dialled, until it is gone."""
        self._alive.add(threading.current_thread())
        try:
            try:
                stream = self._greeted(plain)
            finally:
                self._strangers.release()
            if stream is not None:
                self._listen(stream)
        finally:
            self._alive.discard(threading.current_thread())

    def _greeted(self, plain: socket.socket) -> Stream | None:
        """The stream of one who dialled, if it may call."""
        try:
            connection = Connection(plain, self._tls)
        except OSError:  # it has hung up already
            plain.close()
            return None
        try:
            with _in_time(connection):
                connection.begin()
                hello = connection.read(ENVELOPE_BYTES, _GREETING_S).message.hello
            objection = self._objection(hello, connection.certified)
            if objection is not None:
                connection.write(frame(wire.Message(refused=wire.Refused(reason=objection))), wait=False)
                connection.finish()
        except (OSError, WireError):
            objection = "it has not said who it is"
        if objection is not None:
            connection.close()
            return None
        stream = Stream(hello.name, connection)
        stream.send(wire.Message(welcome=wire.Welcome()))
        with self._lock:
            before, self._streams[hello.name] = self._streams.get(hello.name), stream
            if before is not None:
                reason = f"another machine has joined as {hello.name}; start each name once"
                before.send(wire.Message(refused=wire.Refused(reason=reason)))
                before.dropped = True
                before.finish()
                self._inbox.put(before, Gone(hello.name))
        return stream

    def _objection(self, hello: wire.Hello, certified: Sequence[str]) -> str | None:
        if (objection := self._security.objection(hello.name, hello.token, certified)) is not None:
            return objection
        if hello.name not in self._callers:
            return f"{hello.name[:60]!r} does not belong here; give it its own parent"
        if hello.scenario != self._scenario:
            return "it has another scenario, or another hsfl; start all machines with the same"
        return None

    def _listen(self, stream: Stream) -> None:
        with suppress(OSError, WireError):  # when a stream breaks, or brings what is no message
            while not stream.dropped:
                self._inbox.hear(stream, stream.connection.read(self._limit, _GONE_S))
        with self._lock:
            if self._streams.get(stream.peer) is stream:
                del self._streams[stream.peer]
                self._inbox.put(stream, Gone(stream.peer))
        stream.end()
        stream.connection.close()


class Dialer:
    """Keeps a stream open to a machine, dialling again whenever it breaks."""

    def __init__(
        self,
        peer: str,
        address: Callable[[], str | None],
        hello: wire.Hello,
        inbox: Inbox,
        security: Security,
        limit: int,
        warn: Callable[[str], None],
    ) -> None:
        """`address` is asked at every attempt: HOST:PORT, or None as long as it is not known.

        `warn` hears when it cannot be reached for some time.
        """
        self.peer, self._address, self._inbox, self._warn = peer, address, inbox, warn
        self._hello = wire.Hello(name=hello.name, scenario=hello.scenario, token=security.token or "")
        self._limit, self._tls = limit + ENVELOPE_BYTES, tls_context(security, listens=False)
        self._stream: Stream | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def send(self, message: wire.Message, tensors: Sequence[Packed] = ()) -> None:
        if (stream := self._stream) is not None:
            stream.send(message, tensors)

    def refuse(self) -> None:
        if (stream := self._stream) is not None:
            stream.drop()

    def close(self) -> None:
        self._closed.set()
        if (stream := self._stream) is not None:
            stream.finish()

    def _keep(self) -> None:
        attempt, since = 0, time.monotonic()
        while not self._closed.is_set():
            address, why = self._address(), "its address is not known yet"
            if address is not None:
                welcome, why = self._talk(address)
                if welcome:
                    attempt, since = 0, time.monotonic()
            if time.monotonic() - since > _GREETING_S:
                since = time.monotonic()
                self._warn(f"{self.peer} cannot be reached at {address} ({why}); trying on")
            self._closed.wait(_REDIAL_S[min(attempt, len(_REDIAL_S) - 1)])
            attempt += 1

    def _talk(self, address: str) -> tuple[bool, str]:
        """Keep one stream until it is over; whether it ever was one, and why it is over."""
        stream = None
        try:
            connection = Connection(dialled(address, _GREETING_S), self._tls, self.peer)
            try:
                if self._welcome(connection, address):
                    stream = self._stream = Stream(self.peer, connection)
                    if self._closed.is_set():
                        stream.finish()
                    self._inbox.put(stream, Connected(self.peer))
                    while not stream.dropped:
                        arrived = connection.read(self._limit, _GONE_S)
                        if arrived.message.HasField("refused"):
                            self._refused(arrived.message.refused.reason, address)
                            break
                        self._inbox.hear(stream, arrived)
            finally:
                if stream is not None:
                    stream.end()
                connection.close()
        except (OSError, WireError, UnicodeError) as error:  # the last of hosts that no host can be called
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        else:
            why = "it ended the stream"
        if stream is not None:
            self._inbox.put(stream, Gone(self.peer))
        return stream is not None, why

    def _welcome(self, connection: Connection, address: str) -> bool:
        """Say who calls; returns whether it may."""
        with _in_time(connection):
            connection.begin()
            connection.write(frame(wire.Message(hello=self._hello)), wait=True)
            answer = connection.read(ENVELOPE_BYTES, _GREETING_S).message
        if answer.HasField("refused"):
            self._refused(answer.refused.reason, address)
        return answer.HasField("welcome")

    def _refused(self, reason: str, address: str) -> None:
        self._closed.set()
        self._inbox.refused(RefusedError(f"{self._hello.name}: refused by {self.peer} at {address}: {reason}"))


@contextmanager
def _in_time(connection: Connection) -> Iterator[None]:
    """A context that ends the connection where greeting takes too long."""
    timer = threading.Timer(_GREETING_S, connection.end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
