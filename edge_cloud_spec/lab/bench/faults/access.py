"""Faults of who may connect: tokens, certificates, and those who have neither."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ....bringup.running_graph import free_address
from ....errors import UserError
from .fault import InjectedFault
from .rig import TOKEN, Rig

CONNECTIONS = 10_000
GARBAGE = 64  # bytes of each
DAY = datetime.timedelta(days=1)


def _garbage(rig: Rig) -> None:
    host, _, port = rig.verifier_address.rpartition(":")

    def connect(number: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2.0) as end:
            end.sendall(os.urandom(GARBAGE))

    with ThreadPoolExecutor(32) as pool:
        for _ in pool.map(connect, range(CONNECTIONS)):
            pass


def _nothing(rig: Rig) -> None:
    """It is over."""


def _wrong_token(rig: Rig) -> None:
    rig.token_file.write_text(TOKEN + " of another verifier")


def _right_token(rig: Rig) -> None:
    rig.token_file.write_text(TOKEN)


def _expired(rig: Rig) -> None:
    """Robot and verifier use TLS, and the verifier's certificate was valid until an hour ago."""
    pem, key = rig.folder / "verifier.pem", rig.folder / "verifier.key"
    write_certificate(pem, key, days_left=-1 / 24)
    address = free_address()
    argv = rig.verifier_command(address, certificate=str(pem), key=str(key))
    rig.start_other("tls_verifier", argv, lambda: _listens(address))
    rig.endings.callback(_without_tls, rig)
    rig.proxy.redirect(address)
    rig.kill("cloud_bridge")
    rig.restart("cloud_bridge", authority=str(pem))


def _renewed(rig: Rig) -> None:
    """A new certificate for the same key, and the verifier started with it."""
    pem, key = rig.folder / "verifier.pem", rig.folder / "verifier.key"
    write_certificate(pem, key, days_left=1.0)
    rig.ros.kill("tls_verifier")
    argv = rig.verifier_command(rig.proxy.leads_to, certificate=str(pem), key=str(key))
    rig.ros.start("tls_verifier", argv)


def _without_tls(rig: Rig) -> None:
    rig.proxy.redirect(rig.verifier_address)
    rig.kill("cloud_bridge")
    rig.restart("cloud_bridge")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def write_certificate(pem: Path, key_file: Path, days_left: float) -> None:
    """A self-signed certificate for 127.0.0.1 that is valid for so many days from now.

    A key that is there is used again. Raises UserError where ``cryptography`` is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise UserError("certificates need the package cryptography: pip install it") from None
    if not key_file.exists():
        key_file.write_bytes(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{key_file} holds another kind of key")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "verifier")])
    now = datetime.datetime.now(datetime.timezone.utc)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + days_left * DAY)
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


FAULTS = (
    InjectedFault(
        "wrong_token",
        "the robot's token file holds another verifier's token",
        "ends its step and stands: every session is refused",
        _wrong_token,
        _right_token,
        reads="(?i)token",
    ),
    InjectedFault(
        "expired_certificate",
        "robot and verifier use TLS, and the verifier's certificate has expired",
        "stands: no connection comes about; goes on once the certificate is renewed",
        _expired,
        _renewed,
        reads="(?i)expired|certificate|TLS",
        soak=False,
    ),
    InjectedFault(
        "garbage_connections",
        "10,000 connections of 64 random bytes each to the verifier's port",
        "goes on",
        _garbage,
        _nothing,
        lasts=0.5,
        stops=False,
        soak=False,
    ),
)
