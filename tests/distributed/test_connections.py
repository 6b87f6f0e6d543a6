"""Streams over real sockets: what arrives is what was sent, in order, both ways at once; who is silent is gone."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.certificates import write_certificates
from hsfl.distributed.connections import frame
from hsfl.distributed.membership import Connected, Gone, Heard
from hsfl.distributed.security import Security
from hsfl.distributed.streams import Dialer, Inbox, Listener
from hsfl.distributed.tensors import pack, unpacked

TOKEN = "0123456789abcdefghij"
LIMIT = 4 * 10**6
HELLO = wire.Hello(name="device-1", scenario="sum")


@contextmanager
def listener(security: Security, inbox: Inbox) -> Iterator[Listener]:
    made = Listener("127.0.0.1:0", [HELLO.name], HELLO.scenario, inbox, security, LIMIT)
    yield made
    made.close(0)


@contextmanager
def pair(above: Security, below: Security) -> Iterator[tuple[Listener, Inbox, Dialer, Inbox]]:
    up, down = Inbox(4), Inbox(4)
    with listener(above, up) as parent:
        dialer = Dialer("edge-1", lambda: f"127.0.0.1:{parent.port}", HELLO, down, below, LIMIT, print)
        assert down.get(20) == Connected("edge-1")
        yield parent, up, dialer, down
        dialer.close()


def some_tensors(number: int) -> list[torch.Tensor]:
    """Of no bytes, some, and more than a socket takes at once."""
    chance, values = random.Random(number), torch.Generator().manual_seed(number)
    sizes = [chance.choice((0, 1, 5, 3000, 16_384, 20_000, 300_000)) for _ in range(chance.randrange(4))]
    return [torch.rand(size, generator=values) for size in sizes]


@pytest.mark.parametrize("encrypted", [False, True])
def test_all_that_is_sent_arrives_in_order_both_ways_at_once(encrypted: bool, tmp_path: Path) -> None:
    above = below = Security(TOKEN)
    if encrypted:
        write_certificates(tmp_path / "keys", ["edge-1", "device-1"])
        above, below = (Security.read(name, None, tmp_path / "keys") for name in ("edge-1", "device-1"))
    with pair(above, below) as (parent, up, dialer, down):
        for number in range(40):
            packed = [pack(tensor) for tensor in some_tensors(number)]
            dialer.send(wire.Message(number=number), packed)
            parent.send(HELLO.name, wire.Message(number=number), packed)
        for number in range(40):  # both inboxes are full by now, and whoever brings more waits
            for inbox in (up, down):
                heard = inbox.get(20)
                assert isinstance(heard, Heard)
                assert heard.message == wire.Message(number=number)
                expected = some_tensors(number)
                found = [unpacked(*pair) for pair in zip(heard.tensors, expected, strict=True)]
                assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
                assert all(one.data_ptr() % 64 == 0 for one in found)


@contextmanager
def greeted(parent: Listener) -> Iterator[socket.socket]:
    """One who has said who it is, and then does as it likes."""
    hello = wire.Hello(name=HELLO.name, scenario=HELLO.scenario, token=TOKEN)
    with socket.create_connection(("127.0.0.1", parent.port), 20) as plain:
        plain.sendall(b"".join(frame(wire.Message(hello=hello))))
        assert plain.recv(2**16)
        yield plain


@pytest.mark.parametrize("declared", [{"size": 2**40, "shape": [2**38]}, {"size": 2**40, "code": "int8"}, {"size": 7}])
def test_tensors_beyond_what_is_declared_or_needed_are_not_received(declared: dict[str, object]) -> None:
    inbox = Inbox(4)
    with listener(Security(TOKEN), inbox) as parent, greeted(parent) as plain:
        tensor = wire.Tensor(**{"dtype": "float32", "shape": [1], "order": [0], **declared})
        plain.sendall(b"".join(frame(wire.Message(tensors=[tensor]))))
        assert inbox.get(20) == Gone(HELLO.name)


def test_who_is_silent_is_gone_and_who_gives_signs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsfl.distributed.connections.SIGN_S", 0.05)
    monkeypatch.setattr("hsfl.distributed.streams._GONE_S", 1.0)
    inbox = Inbox(4)
    with listener(Security(TOKEN), inbox) as parent, greeted(parent):
        assert inbox.get(20) == Gone(HELLO.name)
    with pair(Security(TOKEN), Security(TOKEN)) as (parent, up, _, down):
        assert up.get(2.0) is None
        assert down.get(0) is None
        parent.send(HELLO.name, wire.Message(epoch=1))
        assert down.get(20) == Heard("edge-1", wire.Message(epoch=1))


def test_a_greeting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly it comes."""
    monkeypatch.setattr("hsfl.distributed.streams._GREETING_S", 0.3)
    with (
        listener(Security(TOKEN), Inbox(4)) as parent,
        socket.create_connection(("127.0.0.1", parent.port), 20) as plain,
    ):
        until = time.monotonic() + 20
        with suppress(ConnectionError):
            plain.sendall(b"\x00\x10\x00\x00")
            while time.monotonic() < until:
                plain.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() < until
