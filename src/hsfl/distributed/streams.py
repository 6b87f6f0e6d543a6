"""gRPC streams: one for each child, which dials; bounded queues between them and the loop of a machine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Connected, Event, Gone, Heard
from hsfl.distributed.rates import LinkMeter
from hsfl.distributed.security import Security
from hsfl.errors import HsflError

_METHOD = "/hsfl.Tree/Attach"
#: Seconds that a caller has to say who it is, and that a machine has to answer.
_GREETING_S = 10.0
#: Seconds between two attempts to dial, from the first on.
_REDIAL_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: The most messages that wait to be sent; who does not take them is not there.
_WAITING = 4096
#: What a message has beside its tensors, at most, for each of them and once.
_ENVELOPE_BYTES = 2**16


class RefusedError(HsflError):
    """A machine was refused; its message says why."""


class _Arrived(NamedTuple):
    """A message, its size in bytes, when it was sent by the sender's clock, and when it came by the own."""

    message: wire.Message
    size: int
    sent_s: float
    at_s: float


def _arrived(data: bytes) -> _Arrived:
    message = wire.Message.FromString(data)
    sent_s = message.sent_s
    message.ClearField("sent_s")
    return _Arrived(message, len(data), sent_s, time.monotonic())


def _sent(message: wire.Message) -> bytes:
    """The bytes of a message that leaves now; if others send the same one, each sets its own moment."""
    message.sent_s = time.monotonic()
    return message.SerializeToString()


class Stream:
    """One end of a stream: what is to be sent waits here."""

    def __init__(self, peer: str) -> None:
        self.peer, self.open = peer, True
        self.dropped = False
        """Whether what it still brings does not count: another took its place, or the peer sent what it may not."""
        self._outgoing: queue.Queue[wire.Message | None] = queue.Queue(_WAITING)

    def send(self, message: wire.Message) -> None:
        try:
            self._outgoing.put_nowait(message)
        except queue.Full:
            self.end()

    def drop(self) -> None:
        self.dropped = True
        self.end()

    def end(self) -> None:
        """Nothing more is sent."""
        self.open = False
        with suppress(queue.Full):
            self._outgoing.put_nowait(None)

    def outgoing(self) -> Iterator[wire.Message]:
        """Until the end; after a failed put the queue is full and ends when it is empty."""
        while True:
            try:
                message = self._outgoing.get(timeout=None if self.open else 0)
            except queue.Empty:
                return
            if message is None:
                return
            yield message


class Inbox:
    """What happened, in order, until the loop of the machine takes it; whoever brings more waits."""

    def __init__(self, size: int) -> None:
        self._meters: dict[str, LinkMeter] = {}
        self._events: queue.Queue[tuple[Stream, Event | Exception]] = queue.Queue(size)

    def put(self, stream: Stream, event: Event | Exception) -> None:
        self._events.put((stream, event))

    def hear(self, stream: Stream, arrived: _Arrived) -> None:
        """A message has come."""
        self._meters.setdefault(stream.peer, LinkMeter()).see(arrived.size, arrived.sent_s, arrived.at_s)
        self.put(stream, Heard(stream.peer, arrived.message))

    def bps(self) -> dict[str, float]:
        """How fast each peer is heard, where that is known."""
        return {peer: bps for peer, meter in list(self._meters.items()) if (bps := meter.bps) is not None}

    def get(self, timeout_s: float) -> Event | None:
        """The next event of a stream that still counts; None if nothing happens. RefusedError where a machine is."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                stream, event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if isinstance(event, Exception):
                raise event
            if not stream.dropped or isinstance(event, Gone):
                return event


def _options(limit: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", limit + _ENVELOPE_BYTES),
        ("grpc.max_receive_message_length", limit + _ENVELOPE_BYTES),
        ("grpc.http2.max_frame_size", 2**20),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 60_000),  # on a slow link an answer waits behind what is sent
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),  # a slow link is no reason to hang up
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


class Listener:
    """Takes the streams of those who may call, one of each; the newest counts."""

    def __init__(
        self, address: str, callers: Sequence[str], scenario: str, inbox: Inbox, security: Security, limit: int
    ) -> None:
        """`address` is HOST:PORT; port 0 is any free one. `scenario` is a checksum that callers must have too."""
        self._callers, self._scenario, self._inbox, self._security = frozenset(callers), scenario, inbox, security
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(2 * len(callers) + 4, "streams"), options=_options(limit), compression=None
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach,
            request_deserializer=_arrived,
            response_serializer=_sent,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hsfl.Tree", {"Attach": handler}),))
        try:
            if security.encrypted:
                credentials = grpc.ssl_server_credentials(
                    [(security.key, security.certificate)], security.authority, require_client_auth=True
                )
                self.port = self._server.add_secure_port(address, credentials)
            else:
                self.port = self._server.add_insecure_port(address)
        except (RuntimeError, ValueError):
            raise HsflError(
                f"{address}: cannot listen there; give HOST:PORT with a free port of this machine"
            ) from None
        self._server.start()

    def send(self, name: str, message: wire.Message) -> None:
        if (stream := self._streams.get(name)) is not None:
            stream.send(message)

    def refuse(self, name: str, reason: str) -> None:
        """End the stream of a caller that sent what it may not; it may call again."""
        if (stream := self._streams.pop(name, None)) is not None:
            stream.drop()

    def close(self, grace_s: float = 2.0) -> None:
        for stream in list(self._streams.values()):
            stream._outgoing.put(None)  # behind what is still to be sent
        self._server.stop(grace_s).wait()

    def _attach(self, incoming: Iterator[_Arrived], context: Any) -> Iterator[wire.Message]:
        timer = threading.Timer(_GREETING_S, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            hello = next(incoming, _arrived(b"")).message.hello
        except grpc.RpcError:
            return
        finally:
            timer.cancel()
        objection = self._objection(hello, context)
        if objection is not None:
            yield wire.Message(refused=wire.Refused(reason=objection))
            return
        stream = Stream(hello.name)
        with self._lock:
            before, self._streams[hello.name] = self._streams.get(hello.name), stream
            if before is not None:
                before.drop()
                self._inbox.put(before, Gone(hello.name))
        context.add_callback(stream.end)
        threading.Thread(target=self._listen, args=(stream, incoming), daemon=True).start()
        yield wire.Message(welcome=wire.Welcome())
        yield from stream.outgoing()

    def _objection(self, hello: wire.Hello, context: Any) -> str | None:
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        named = [name.decode() for name in context.auth_context().get("x509_common_name", [])]
        if (objection := self._security.objection(hello.name, metadata, named)) is not None:
            return objection
        if hello.name not in self._callers:
            return f"{hello.name[:60]!r} does not belong here; give it its own parent"
        if hello.scenario != self._scenario:
            return "it has another scenario, or another hsfl; start all machines with the same"
        return None

    def _listen(self, stream: Stream, incoming: Iterator[_Arrived]) -> None:
        with suppress(Exception):  # of grpc, when a stream breaks
            for arrived in incoming:
                if stream.dropped:
                    break
                self._inbox.hear(stream, arrived)
        with self._lock:
            if self._streams.get(stream.peer) is stream:
                del self._streams[stream.peer]
                self._inbox.put(stream, Gone(stream.peer))
        stream.end()


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
        self.peer, self._address, self._hello, self._inbox = peer, address, hello, inbox
        self._security, self._limit, self._warn = security, limit, warn
        self._stream = Stream(peer)
        self._stream.end()
        self._closed = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def send(self, message: wire.Message) -> None:
        self._stream.send(message)

    def refuse(self) -> None:
        self._stream.drop()

    def close(self) -> None:
        self._closed.set()
        self._stream._outgoing.put(None)

    def _keep(self) -> None:
        attempt, since = 0, time.monotonic()
        while not self._closed.is_set():
            address, self._why = self._address(), "its address is not known yet"
            if address is not None and self._talk(address):
                attempt, since = 0, time.monotonic()
            if time.monotonic() - since > _GREETING_S:
                since = time.monotonic()
                self._warn(f"{self.peer} cannot be reached at {address} ({self._why}); trying on")
            self._closed.wait(_REDIAL_S[min(attempt, len(_REDIAL_S) - 1)])
            attempt += 1

    def _talk(self, address: str) -> bool:
        """One stream, until it is over; whether it ever was one."""
        stream, self._why = Stream(self.peer), "it ended the stream"
        try:
            with self._channel(address) as channel:
                welcome = self._stay(channel, stream, address)
        except grpc.RpcError as error:
            self._why = str(error.details() if isinstance(error, grpc.Call) else error)
            welcome = stream is self._stream
        stream.end()
        if welcome:
            self._inbox.put(stream, Gone(self.peer))
        return welcome

    def _stay(self, channel: Any, stream: Stream, address: str) -> bool:
        stream.send(wire.Message(hello=self._hello))
        attach = channel.stream_stream(
            _METHOD,
            request_serializer=_sent,
            response_deserializer=_arrived,
        )
        call = attach(stream.outgoing(), metadata=self._security.metadata())
        for arrived in call:
            if stream is not self._stream:
                message = arrived.message
                if message.HasField("refused"):
                    self._closed.set()
                    refusal = f"{self._hello.name}: refused by {self.peer} at {address}: {message.refused.reason}"
                    self._inbox.put(stream, RefusedError(refusal))
                    return False
                self._stream = stream
                self._inbox.put(stream, Connected(self.peer))
            elif stream.dropped:
                call.cancel()
                break
            else:
                self._inbox.hear(stream, arrived)
        return stream is self._stream

    def _channel(self, address: str) -> Any:
        options = _options(self._limit)
        if not self._security.encrypted:
            return grpc.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(
            self._security.authority, self._security.key, self._security.certificate
        )
        return grpc.secure_channel(address, credentials, [*options, ("grpc.ssl_target_name_override", self.peer)])
