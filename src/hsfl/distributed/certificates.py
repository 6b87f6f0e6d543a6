"""Certificates for the machines of a run: an authority for the run, and a certificate that names each machine."""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hsfl.distributed.security import TOKEN_BYTES, token_of
from hsfl.errors import HsflError

_DAYS = 365


def write_certificates(folder: Path, names: Sequence[str]) -> None:
    """Write authority.pem and .key, the run's token, and each machine's NAME.pem, .key and .token, into a new folder.

    Keys are for their owner only. The authority's key signs more machines; nobody needs it to run.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise HsflError(f"{folder}: exists already; choose another name or remove it first") from None
    except OSError as error:
        raise HsflError(f"{folder}: cannot be made ({error.strerror}); choose another place") from None
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hsfl authority")])
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    try:
        _write(folder, "authority", authority, authority_key)
        for name in names:
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            certificate = (
                _builder(subject, authority_name, key)
                .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .sign(authority_key, hashes.SHA256())
            )
            _write(folder, name, certificate, key)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        for name, own in [("token", token), *((f"{name}.token", token_of(name, token)) for name in names)]:
            _private(folder / name, own.encode() + b"\n")
    except OSError as error:
        raise HsflError(f"{folder}: cannot be written ({error.strerror}); choose another place") from None


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _private(folder / f"{name}.key", key.private_bytes(encoding, form, serialization.NoEncryption()))


def _private(path: Path, data: bytes) -> None:
    """A file that only its owner can read, from the first moment on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
