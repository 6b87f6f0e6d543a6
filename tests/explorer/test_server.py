"""The server answers those who have the token, under a name of this machine, and nobody else."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest

import hsfl
from hsfl.errors import HsflError
from hsfl.explorer.server import PageServer
from hsfl.explorer.site import serve


def ask(
    server: PageServer, method: str, path: str, data: Any = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    body = None if data is None else data if isinstance(data, bytes) else json.dumps(data).encode()
    given = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, body, given | {key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_the_page_and_its_files_are_served_to_who_has_the_token(server) -> None:
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"
    for name in ("", *server.assets):
        status, text, headers = ask(server, "GET", f"/{server.token}/{name}")
        assert status == 200 and text and headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
    assert ask(server, "GET", f"/{server.token}/nothing")[0] == 404


def test_nothing_is_loaded_from_elsewhere(server) -> None:
    for name, content in server.assets.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name


@pytest.mark.parametrize("path", ["/", "/api/plan", "/wrong/", "/wrong/api/plan", "//", "/..%2f/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_the_token_nothing_is_told(server, method, path) -> None:
    for place in (path, path.replace("wrong", server.token[:-1]), path.replace("wrong", server.token.swapcase())):
        status, text, _ = ask(server, method, place, {} if method == "POST" else None)
        assert status == 403 and "the token is missing or wrong" in text and server.token not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.0.2.7"])
def test_another_name_for_this_machine_is_refused(server, host) -> None:
    status, text, _ = ask(server, "GET", f"/{server.token}/", Host=host)
    assert status == 403 and "not a name of this machine" in text
    assert ask(server, "GET", f"/{server.token}/", Host="localhost:1")[0] == 200


def test_other_sites_cannot_ask(server) -> None:
    place = f"/{server.token}/api/plan"
    own = f"http://127.0.0.1:{server.server_address[1]}"
    assert ask(server, "POST", place, {}, Origin=own)[0] == 200
    for origin in ("http://evil.example", "null", own + "0", own.replace("http", "https")):
        assert ask(server, "POST", place, {}, Origin=origin)[0] == 403
    assert ask(server, "POST", place, {}, Content_Type="text/plain")[0] == 415


def test_what_is_not_a_request_is_refused_with_a_sentence(server) -> None:
    place = f"/{server.token}/api/plan"
    for wrong in (b"", b"{", b"[]", b'{"changes": 3}', b"\xff", b'{"extra": 1}'):
        status, text, _ = ask(server, "POST", place, wrong)
        assert status == 400 and json.loads(text)["error"]
    assert ask(server, "POST", place, b"{}", Content_Length=str((1 << 20) + 1))[0] == 413
    assert ask(server, "POST", place, b"{}", Content_Length="-1")[0] == 413
    assert ask(server, "POST", f"/{server.token}/api/nothing", {})[0] == 404
    assert ask(server, "POST", f"/{server.token}/plan", {})[0] == 404


def test_a_bad_value_is_the_planners_sentence_and_its_field(server) -> None:
    changes = {"training.batch_size": "8", "tiers.device.uplink": "20 Mpbs"}
    status, text, _ = ask(server, "POST", f"/{server.token}/api/plan", {"changes": changes})
    answer = json.loads(text)
    assert status == 200 and answer["field"] == "tiers.device.uplink"
    with pytest.raises(HsflError) as raised:
        hsfl.load_scenario("paper", {"tiers.device.uplink": "20 Mpbs"})
    assert f"scenario paper: {answer['error']}" == str(raised.value)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HsflError, match=f"--port {port}: the page cannot be served there"):
            serve(None, host="127.0.0.1", port=port)
    with pytest.raises(HsflError, match=r"--host 192\.0\.2\.1"):
        serve(None, host="192.0.2.1", port=0)


def test_two_servers_have_two_tokens() -> None:
    servers = [serve(None, host="127.0.0.1", port=0) for _ in range(2)]
    assert len({server.token for server in servers}) == 2 and all(len(server.token) >= 24 for server in servers)
    for server in servers:
        server.server_close()
