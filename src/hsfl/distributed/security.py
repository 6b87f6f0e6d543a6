"""Who may speak: a token of the run or one for each of its machines, certificates that name them, or both."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hsfl.errors import HsflError

#: The bytes of a token, more than anybody guesses.
TOKEN_BYTES = 24


@dataclass(frozen=True)
class Security:
    """What a machine shows, and what it asks of others."""

    token: str | None = None
    """The run's token, or that of the machine's own name, which suffices for machines that nobody dials."""
    authority: bytes | None = None
    """The certificate that all machines' certificates are signed with; with it, streams are encrypted."""
    certificate: bytes | None = None
    key: bytes | None = None

    @classmethod
    def read(cls, name: str, token: Path | None, certificates: Path | None) -> Security:
        """Read a token from a file, and certificates from a folder, of which a machine needs only its own."""
        if token is None and certificates is None:
            raise HsflError(
                "give a token (--token FILE), certificates (--certificates DIR), or both: else anybody can join"
            )
        shown = None if token is None else _text(token)
        if certificates is None:
            return cls(shown)
        own = [_bytes(certificates / file) for file in ("authority.pem", f"{name}.pem", f"{name}.key")]
        return cls(shown, *own)

    @property
    def encrypted(self) -> bool:
        return self.authority is not None

    def objection(self, name: str, token: str, certified: Sequence[str]) -> str | None:
        """Why a caller who says that it is `name` and shows `token` is refused; None if it is not.

        `certified` are the names in its certificate, which has been checked.
        """
        if self.token is not None and not any(
            hmac.compare_digest(token.encode(), known.encode()) for known in (self.token, token_of(name, self.token))
        ):
            return f"the token is missing or wrong; give the one that the run was started with, or that of {name[:60]}"
        if self.encrypted and name not in certified:
            return f"the certificate is of {', '.join(certified) or 'nobody'}; use that of {name}"
        return None


def token_of(name: str, token: str) -> str:
    """A machine's own token, made of the run's: it tells nobody the run's, and is of no use under another name."""
    return hmac.new(token.encode(), name.encode(), "sha256").hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HsflError(f"{path}: cannot be read ({reason}); hsfl certificates writes such files") from None


def _text(path: Path) -> str:
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HsflError(f"{path}: cannot be read ({reason}); give a file with a token in it") from None
    if len(found) < 16 or not found.isprintable():
        raise HsflError(f"{path}: a token is one line of at least 16 characters; hsfl certificates writes one")
    return found


def checked_address(address: str, label: str) -> str:
    """HsflError unless it is HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 2**16):
        raise HsflError(f"{label} {address}: write HOST:PORT, such as 10.0.0.1:7000, with a port up to 65535")
    return address
