"""The server of the page: files of the package and answers in JSON, to whoever has the token.

Python's own HTTP server does: one user, on this machine. Every path begins with the token; the name in Host must be one
of this machine's, so that no other site can reach it through a name that it points here; a request with data comes from
the page itself (Origin). Nothing received is run, and no file is written.
"""

from __future__ import annotations

import ipaddress
import json
import mimetypes
import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from hsfl.errors import HsflError, raised

#: Whether whoever asked has gone, so that an answer is no longer worth its time.
Gone = Callable[[], bool]
#: A function that answers: from the bytes of a request to plain values.
Answer = Callable[[bytes, Gone], Any]
_MAX_REQUEST = 1 << 20
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)


class GoneError(Exception):
    """Nobody waits for the answer any more."""


class PageServer(ThreadingHTTPServer):
    """Serves the page at `url`; `framed`: a notebook may show it."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Answer], host: str, port: int, *, framed: bool = False) -> None:
        self.answers, self.host = dict(answers), host
        self.token = secrets.token_urlsafe(18)
        self.policy = _POLICY.format(frames="*" if framed else "'none'")
        self.assets = {file.name: file.read_bytes() for file in (files("hsfl.explorer") / "page").iterdir()}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise HsflError(
                f"--host {host} --port {port}: the page cannot be served there ({reason}); choose another port, or 0 "
                "for any that is free"
            ) from None
        self.names = {host.lower(), "localhost", "127.0.0.1", "::1", socket.gethostname().lower()}

    @property
    def url(self) -> str:
        """The address with the token."""
        anywhere = self.host in ("0.0.0.0", "::", "")
        name = socket.gethostname() if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_address[1]}/{self.token}/"

    def knows(self, host: str) -> bool:
        """Whether a request for this Host can be meant for this server: one of its names, or an address."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        if name in self.names:
            return True
        with suppress(ValueError):  # a name can be made to point anywhere, an address cannot
            return bool(ipaddress.ip_address(name)) and self.host in ("0.0.0.0", "::", "")
        return False

    def start(self) -> threading.Thread:
        """Serve beside what the caller does next, until `close`."""
        thread = threading.Thread(target=self.serve_forever, name="hsfl-explore", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing where a window was closed while it was being answered."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hsfl", ""
    timeout = 60

    def do_GET(self) -> None:
        if (name := self._name()) is None:
            return
        content = self.server.assets.get(name or "index.html")
        if content is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        kind = mimetypes.guess_type(name or "index.html")[0] or "application/octet-stream"
        self._send(HTTPStatus.OK, content, f"{kind}; charset=utf-8")

    def do_POST(self) -> None:
        if (name := self._name()) is None:
            return
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            self._refuse(HTTPStatus.FORBIDDEN, "requests come from the page itself")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_REQUEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {_MAX_REQUEST} bytes")
            return
        data = self.rfile.read(int(length))
        answer = self.server.answers.get(name.removeprefix("api/"))
        if answer is None or not name.startswith("api/"):
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such answer")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request is JSON")
            return
        try:
            content, status = answer(data, self._gone), HTTPStatus.OK
        except ValueError as error:  # not of the form that the page sends
            content, status = {"error": " ".join(str(error).split())[:500]}, HTTPStatus.BAD_REQUEST
        except GoneError:
            self.close_connection = True
            return
        except Exception as error:
            content, status = {"error": f"{raised(error)}; please report it"}, HTTPStatus.INTERNAL_SERVER_ERROR
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        self._send(status, text.encode(), "application/json; charset=utf-8")

    def _name(self) -> str | None:
        """The name of what is asked for, below the token; None where the request was refused."""
        if not self.server.knows(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "this is not a name of this machine; use the address that was printed")
            return None
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong; use the address that was printed")
            return None
        return name

    def _gone(self) -> bool:
        """A browser that no longer waits closes the connection."""
        try:
            ready, _, _ = select.select([self.connection], [], [], 0)
            return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True  # whatever else was sent is not read
        self._send(status, f"hsfl explore: {reason}\n".encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for header, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", self.server.policy),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            *([("Connection", "close")] if self.close_connection else []),
        ):
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing about requests."""
