"""Sockets, plain or encrypted, that carry messages: four bytes of length, a message, and the values of its tensors.

Tensors go from their memory into the socket, and from the socket into memory of their own.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.security import Security
from hsfl.distributed.tensors import Packed, WireError, check_declared
from hsfl.errors import HsflError

_LENGTH = struct.Struct("<I")
#: The most bytes that a message has beside its tensors; pieces up to so many bytes are sent together.
ENVELOPE_BYTES = 2**16
#: The most messages that wait to be sent; a peer that does not take them is not there.
_WAITING = 4096
#: Seconds after which a machine with nothing to send says that it is there.
SIGN_S = 20.0
#: Tensors begin where torch lets its own begin: sums may depend on it.
_ALIGNED = 64
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Arrived(NamedTuple):
    """A message, its size in bytes, when it was sent by the sender's clock, and when it came by the own."""

    message: wire.Message
    tensors: Sequence[Packed]
    size: int
    sent_s: float
    at_s: float


def frame(message: wire.Message, tensors: Sequence[Packed] = ()) -> list[memoryview]:
    """The bytes of a message that leaves now, in pieces."""
    now = wire.Message(sent_s=time.monotonic(), tensors=[tensor.about for tensor in tensors])
    head = message.SerializeToString() + now.SerializeToString()  # one after the other, they are one message
    pieces: list[memoryview] = []
    small = [_LENGTH.pack(len(head)), head]
    for _, data in tensors:
        if len(data) > ENVELOPE_BYTES:
            pieces += [memoryview(b"".join(small)), data]
            small = []
        else:
            small.append(data)
    return [*pieces, memoryview(b"".join(small))]


class Connection:
    """A connection: one thread reads and one writes at a time. Once broken or over, it raises OSError.

    An encrypted socket is not for two threads at once, so that no call on it may wait: threads wait outside.
    """

    def __init__(self, plain: socket.socket, tls: ssl.SSLContext | None, dialled: str | None = None) -> None:
        """`dialled` is the name of the machine that was dialled; None where the peer has dialled."""
        plain.settimeout(None)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        self._one: AbstractContextManager[Any] = nullcontext()
        if tls is not None:
            self._one = threading.Lock()
            self._socket = tls.wrap_socket(
                plain, server_side=dialled is None, server_hostname=dialled, do_handshake_on_connect=False
            )
        self._read = memoryview(bytearray(ENVELOPE_BYTES))
        """What was read and belongs to the next message lies here, from `_begin` to `_end`."""
        self._begin = self._end = 0

    def begin(self) -> None:
        """Before anything else, prove who this machine is and check the peer's proof, where proofs are asked for."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.do_handshake()
        self._socket.setblocking(False)

    @property
    def certified(self) -> list[str]:
        """The common names in the peer's certificate, which has been checked."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return []
        shown: dict[str, Any] = self._socket.getpeercert() or {}
        return [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]

    def write(self, pieces: list[memoryview], *, wait: bool) -> list[memoryview]:
        """Send the pieces, or, without waiting, as much as goes at once; returns what is left."""
        for index, piece in enumerate(pieces):
            while len(piece):
                try:
                    with self._one:
                        sent = self._socket.send(piece)
                    piece = piece[sent:]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                    if not wait:
                        return [piece, *pieces[index + 1 :]]
                    self._wait(error, selectors.EVENT_WRITE, None)
        return []

    def read(self, limit: int, timeout_s: float) -> Arrived:
        """The next message, of at most so many bytes; WireError if it is larger, or none.

        OSError if nothing is heard for so long.
        """
        while not (length := _LENGTH.unpack(self._exactly(_LENGTH.size, timeout_s))[0]):
            pass
        if length > limit:
            raise WireError(f"a message of {length} bytes, above the {limit} that any may have")
        try:
            message = wire.Message.FromString(self._exactly(length, timeout_s))
        except DecodeError:
            raise WireError("what is no message") from None
        size = length
        for about in message.tensors:
            check_declared(about)
            size += about.size
        if size > limit:
            raise WireError(f"a message of {size} bytes, above the {limit} that any may have")
        tensors = tuple(Packed(about, self._values(about.size, timeout_s)) for about in message.tensors)
        sent_s = message.sent_s
        message.ClearField("sent_s")
        message.ClearField("tensors")
        return Arrived(message, tensors, size, sent_s, time.monotonic())

    def finish(self) -> None:
        """Say that nothing more will be written."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def end(self) -> None:
        """Tell whoever reads or writes that the connection is over."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; for the thread that reads, once nothing else uses it."""
        self.end()
        with self._one, suppress(OSError):
            self._socket.close()

    def _exactly(self, size: int, timeout_s: float) -> bytes:
        """The next bytes, of a length that has been checked."""
        if self._begin == self._end:
            self._begin, self._end = 0, self._receive(self._read, timeout_s)
        if self._end - self._begin < size:
            return bytes(self._values(size, timeout_s))
        self._begin += size
        return bytes(self._read[self._begin - size : self._begin])

    def _values(self, size: int, timeout_s: float) -> memoryview:
        """The next bytes, in memory of their own."""
        # numpy asks for large pages, which take a fraction of the time.
        space = np.empty(size + _ALIGNED, np.uint8)
        start = -space.ctypes.data % _ALIGNED
        into = space.data[start : start + size]
        done = 0
        while done < size:
            if self._begin == self._end:
                if size - done >= len(self._read):
                    done += self._receive(into[done:], timeout_s)
                    continue
                self._begin, self._end = 0, self._receive(self._read, timeout_s)
            step = min(size - done, self._end - self._begin)
            into[done : done + step] = self._read[self._begin : self._begin + step]
            self._begin, done = self._begin + step, done + step
        return into

    def _receive(self, into: memoryview, timeout_s: float) -> int:
        while True:
            try:
                with self._one:
                    count = self._socket.recv_into(into)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self._wait(error, selectors.EVENT_READ, timeout_s)
                continue
            if not count:
                raise ConnectionError("it ended the stream")
            return count

    def _wait(self, why: OSError, event: int, timeout_s: float | None) -> None:
        """Wait until the socket can be read or written; an encrypted one may want the other first."""
        if isinstance(why, ssl.SSLWantReadError):
            event = selectors.EVENT_READ
        elif isinstance(why, ssl.SSLWantWriteError):
            event = selectors.EVENT_WRITE
        with _Selector() as selector:
            try:
                selector.register(self._socket, event)
            except ValueError:  # closed
                raise ConnectionError("the stream is closed") from None
            if not selector.select(timeout_s):
                raise TimeoutError("nothing is heard from it")


class Stream:
    """One end of a stream. What cannot be sent at once waits here, for a thread that sends it.

    A machine never waits for that, so that no two can wait for each other; what waits is bounded all the same: in a
    round, one message of each client and direction, and the next round begins when all have come.
    """

    def __init__(self, peer: str, connection: Connection) -> None:
        self.peer, self.connection = peer, connection
        self.dropped = False
        """Whether what it still brings does not count: another took its place, or the peer sent what it may not."""
        self._waiting: deque[list[memoryview]] = deque()
        """The first is being sent."""
        self._changed = threading.Condition()
        self._open = True
        threading.Thread(target=self._send_waiting, daemon=True).start()

    def send(self, message: wire.Message, tensors: Sequence[Packed] = ()) -> None:
        pieces = frame(message, tensors)
        with self._changed:
            if not self._open:
                return
            try:
                if not self._waiting and not (pieces := self.connection.write(pieces, wait=False)):
                    return
            except OSError:
                self._over()
                return
            self._waiting.append(pieces)
            if len(self._waiting) > _WAITING:
                self._over()
            self._changed.notify()

    def drop(self) -> None:
        self.dropped = True
        self.end()

    def end(self) -> None:
        """Send and hear nothing more."""
        with self._changed:
            self._over()

    def finish(self) -> None:
        """Send what waits, and nothing more."""
        with self._changed:
            self._open = False
            self._changed.notify()

    def _over(self) -> None:
        self._open = False
        self._waiting.clear()
        self.connection.end()
        self._changed.notify()

    def _send_waiting(self) -> None:
        """Send what waits, until the end; where nothing does, a sign now and then that this machine is there."""
        with suppress(OSError):
            while True:
                with self._changed:
                    if not self._waiting and self._open and not self._changed.wait(SIGN_S):
                        self._waiting.append([memoryview(_LENGTH.pack(0))])  # a message of nothing
                    if not self._waiting:
                        if self._open:
                            continue
                        break
                    pieces = self._waiting[0]
                self.connection.write(pieces, wait=True)
                with self._changed:
                    if self._waiting:
                        self._waiting.popleft()
        self.connection.finish()


def listening(address: str) -> socket.socket:
    """A socket at HOST:PORT; HsflError where there can be none."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, dualstack_ipv6=host == "::")
    except (OSError, ValueError, OverflowError):
        raise HsflError(f"{address}: cannot listen there; give HOST:PORT with a free port of this machine") from None


def dialled(address: str, timeout_s: float) -> socket.socket:
    """A socket to HOST:PORT; OSError where there is none."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)


def tls_context(security: Security, *, listens: bool) -> ssl.SSLContext | None:
    """How a machine proves its name and checks others', if it does; HsflError if its certificates cannot be used."""
    if security.authority is None or security.certificate is None or security.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=security.authority.decode("ascii"))
        with tempfile.NamedTemporaryFile(prefix="hsfl-") as file:  # for its owner only, and ssl takes nothing else
            file.write(security.certificate + b"\n" + security.key)
            file.flush()
            context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise HsflError(f"the certificates cannot be used ({error}); hsfl certificates writes such files") from None
    return context
