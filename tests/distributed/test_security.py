"""Who may not join does not: each with a sentence; and what nobody may send ends a stream, not a machine."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.certificates import write_certificates
from hsfl.distributed.membership import Connected, Event, Gone, Heard
from hsfl.distributed.security import Security, checked_address, token_of
from hsfl.distributed.streams import Dialer, Inbox, Listener, RefusedError
from hsfl.errors import HsflError

TOKEN = "0123456789abcdefghij"
LIMIT = 100_000
Join = Callable[..., Event | None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "own"
    write_certificates(folder, ["edge-1", "device-1", "device-2"])
    return folder


class Edge:
    """A machine that listens, and callers for it."""

    def __init__(self, security: Security) -> None:
        self.inbox = Inbox(10)
        self.listener = Listener("127.0.0.1:0", ["device-1", "device-2"], "sum", self.inbox, security, LIMIT)
        self.dialers: list[Dialer] = []
        self.warned: list[str] = []

    def call(self, security: Security, name: str = "device-1", scenario: str = "sum") -> tuple[Dialer, Inbox]:
        inbox, hello = Inbox(10), wire.Hello(name=name, scenario=scenario)
        address = f"127.0.0.1:{self.listener.port}"
        dialer = Dialer("edge-1", lambda: address, hello, inbox, security, LIMIT, self.warned.append)
        self.dialers.append(dialer)
        return dialer, inbox

    def close(self) -> None:
        for dialer in self.dialers:
            dialer.close()
        self.listener.close(0)


@pytest.fixture
def edge() -> Iterator[Callable[[Security], Edge]]:
    made: list[Edge] = []

    def make(security: Security) -> Edge:
        made.append(Edge(security))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refusal(inbox: Inbox) -> str:
    with pytest.raises(RefusedError) as caught:
        inbox.get(20)
    return str(caught.value)


def test_who_belongs_there_joins_and_is_heard(edge: Callable[[Security], Edge], authority: Path) -> None:
    for own, theirs in (
        (Security(TOKEN), Security(TOKEN)),
        (Security.read("edge-1", None, authority), Security.read("device-1", None, authority)),
        (
            Security.read("edge-1", authority / "token", authority),
            Security.read("device-1", authority / "token", authority),
        ),
        (
            Security.read("edge-1", authority / "token", None),
            Security.read("device-1", authority / "device-1.token", None),
        ),
    ):
        machine = edge(own)
        dialer, inbox = machine.call(theirs)
        assert inbox.get(20) == Connected("edge-1")
        dialer.send(wire.Message(epoch=3, round=wire.Round(round=7)))
        heard = machine.inbox.get(20)
        assert heard == Heard("device-1", wire.Message(epoch=3, round=wire.Round(round=7)))
        machine.listener.send("device-1", wire.Message(epoch=4))
        assert inbox.get(20) == Heard("edge-1", wire.Message(epoch=4))


@pytest.mark.parametrize(
    ("caller", "sentence"),
    [
        ({"security": Security("wrong-token-wrong-token")}, "the token is missing or wrong"),
        ({"security": Security()}, "the token is missing or wrong"),
        ({"security": Security(token_of("device-2", TOKEN))}, "the token is missing or wrong; .*, or that of device-1"),
        ({"name": "edge-2"}, "'edge-2' does not belong here; give it its own parent"),
        ({"name": "edge-1"}, "'edge-1' does not belong here"),
        ({"name": ""}, "'' does not belong here"),
        ({"scenario": "other"}, "it has another scenario, or another hsfl"),
    ],
)
def test_who_does_not_belong_there_is_told_why(
    caller: dict[str, object], sentence: str, edge: Callable[[Security], Edge]
) -> None:
    machine = edge(Security(TOKEN))
    _, inbox = machine.call(**{"security": Security(TOKEN), **caller})
    assert re.search(sentence, refusal(inbox))
    assert machine.inbox.get(0.1) is None


def test_a_certificate_is_for_one_name(edge: Callable[[Security], Edge], authority: Path) -> None:
    """A device cannot speak as another machine, with whatever token."""
    machine = edge(Security.read("edge-1", authority / "token", authority))
    _, inbox = machine.call(Security.read("device-2", authority / "token", authority), name="device-1")
    assert "the certificate is of device-2; use that of device-1" in refusal(inbox)


def test_other_authorities_and_plain_callers_get_nowhere(
    edge: Callable[[Security], Edge], authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsfl.distributed.streams._GREETING_S", 0.3)
    write_certificates(tmp_path / "other", ["device-1", "edge-1"])
    machine = edge(Security.read("edge-1", None, authority))
    for security in (Security.read("device-1", None, tmp_path / "other"), Security(TOKEN)):
        _, inbox = machine.call(security)
        assert inbox.get(1.0) is None
    assert machine.inbox.get(0.1) is None
    assert any("edge-1 cannot be reached at 127.0.0.1" in text for text in machine.warned)
    _, inbox = machine.call(Security.read("device-1", None, authority))
    assert inbox.get(20) == Connected("edge-1")  # it still takes who belongs there


def test_a_parent_with_another_name_is_not_dialled(edge: Callable[[Security], Edge], authority: Path) -> None:
    """A device that has a certificate cannot stand in for the edge."""
    machine = edge(Security.read("device-2", None, authority))
    _, inbox = machine.call(Security.read("device-1", None, authority))
    assert inbox.get(1.0) is None


def test_messages_above_the_limit_end_the_stream(edge: Callable[[Security], Edge]) -> None:
    machine = edge(Security(TOKEN))
    hello = wire.Message(hello=wire.Hello(name="device-1", scenario="sum", token=TOKEN))
    large = wire.Message(refused=wire.Refused(reason="x" * 10 * LIMIT))
    raw(machine, [hello.SerializeToString(), large.SerializeToString()])
    assert machine.inbox.get(20) == Gone("device-1")


def test_garbage_ends_the_stream_and_nothing_else(edge: Callable[[Security], Edge]) -> None:
    machine = edge(Security(TOKEN))
    raw(machine, [b"\xff\xff\xff garbage"])  # instead of a greeting
    with socket.create_connection(("127.0.0.1", machine.listener.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
    assert machine.inbox.get(0.2) is None
    hello = wire.Message(hello=wire.Hello(name="device-1", scenario="sum", token=TOKEN))
    raw(machine, [hello.SerializeToString(), b"\xff\xff\xff garbage"])
    assert machine.inbox.get(20) == Gone("device-1")
    _, inbox = machine.call(Security(TOKEN))
    assert inbox.get(20) == Connected("edge-1")


def test_a_second_stream_of_a_machine_takes_the_place_of_the_first(edge: Callable[[Security], Edge]) -> None:
    """As when a connection was half open; what the first still brings does not count."""
    machine = edge(Security(TOKEN))
    first, inbox = machine.call(Security(TOKEN))
    assert inbox.get(20) == Connected("edge-1")
    first.close()  # it would dial again
    second, inbox = machine.call(Security(TOKEN))
    assert inbox.get(20) == Connected("edge-1")
    assert machine.inbox.get(20) == Gone("device-1")
    second.send(wire.Message(epoch=1))
    assert machine.inbox.get(20) == Heard("device-1", wire.Message(epoch=1))


def test_a_machine_whose_place_was_taken_is_told(edge: Callable[[Security], Edge]) -> None:
    """Two of one name would take each other's place for ever."""
    machine = edge(Security(TOKEN))
    _, first = machine.call(Security(TOKEN))
    assert first.get(20) == Connected("edge-1")
    _, second = machine.call(Security(TOKEN))
    assert second.get(20) == Connected("edge-1")
    with pytest.raises(RefusedError, match="another machine has joined as device-1; start each name once"):
        first.get(20)
    assert machine.inbox.get(20) == Gone("device-1")
    assert second.get(0.2) is None


def test_keys_are_for_their_owner_and_folders_are_new(authority: Path) -> None:
    assert {path.stat().st_mode & 0o077 for path in (*authority.glob("*.key"), *authority.glob("*token"))} == {0}
    with pytest.raises(HsflError, match="exists already; choose another name"):
        write_certificates(authority, ["edge-1"])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda path: Security.read("a", None, None), "give a token (--token FILE), certificates"),
        (lambda path: Security.read("a", path / "none", None), "none: cannot be read (No such file or directory)"),
        (lambda path: Security.read("a", path / "short", None), "a token is one line of at least 16 characters"),
        (lambda path: Security.read("a", None, path), "authority.pem: cannot be read"),
        (lambda path: checked_address("here", "--parent"), "--parent here: write HOST:PORT, such as 10.0.0.1:7000"),
        (lambda path: checked_address("host:99999", "--parent"), "write HOST:PORT"),
    ],
)
def test_what_is_missing_is_named(call: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(HsflError) as caught:
        call(tmp_path)
    assert sentence in str(caught.value)


def raw(machine: Edge, messages: list[bytes]) -> None:
    """Send bytes as they are, each after its length, and wait until the other side has ended the stream."""
    with socket.create_connection(("127.0.0.1", machine.listener.port), 20) as plain, suppress(ConnectionError):
        plain.sendall(b"".join(struct.pack("<I", len(message)) + message for message in messages))
        while plain.recv(2**16):
            pass
