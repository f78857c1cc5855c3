"""Faults of the link, of the verifier, and of access to it."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.messages import PROTOCOL

from ...harness.proxy import MessageFaults
from ...harness.random_checkpoint import TINY, make_pair
from ...running.running_graph import free_address, is_serving
from .poisoned import SPEAKS
from .rig import TOKEN, InjectedFault, Rig


def _instead(rig: Rig, protocol: int = PROTOCOL, **options: str) -> None:
    """Replace the verifier by one with this protocol version."""
    address = free_address()
    argv = ["env", f"{SPEAKS}={protocol}", *rig.verifier_command(address, **options)]
    rig.start_other("other_verifier", argv, lambda: is_serving(address))
    rig.proxy.redirect(address)


def _other_target(rig: Rig) -> None:
    target, _ = make_pair(rig.folder / "other", TINY, TINY, seed=rig.seed)
    _instead(rig, target=str(target))


def _own(rig: Rig) -> None:
    rig.proxy.redirect(rig.verifier_address)
    rig.endings.close()


CLOUD_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "server_killed",
        "the verifier gets SIGKILL, and is started again at the end",
        "stops",
        lambda rig: rig.kill("verifier"),
        lambda rig: rig.start_node("verifier"),
        reads="lost",
        quick=True,
    ),
    InjectedFault(
        "server_hung",
        "the verifier gets SIGSTOP",
        "stops; gives the decision up after `reply_timeout`",
        lambda rig: rig.hang("verifier"),
        lambda rig: rig.unhang("verifier"),
        lasts=3.0,
        reads="lost|degraded",
    ),
    InjectedFault(
        "out_of_memory",
        "every pass of the target raises torch's OutOfMemoryError",
        "stops; each decision fails",
        lambda rig: rig.poison("verifier", "out_of_memory"),
        lambda rig: rig.poison("verifier", ""),
        reads="(?i)OutOfMemory|memory",
    ),
    InjectedFault(
        "nan_logits",
        "every pass of the target gives logits that are no numbers",
        "stops; each decision fails",
        lambda rig: rig.poison("verifier", "nan"),
        lambda rig: rig.poison("verifier", ""),
        reads="no decision on",
    ),
    InjectedFault(
        "wrong_checkpoint",
        "the link leads to a verifier with another target",
        "stops, or is refused the session",
        _other_target,
        _own,
        reads="no decision on",
    ),
    InjectedFault(
        "older_robot_refused",
        "the link leads to a verifier of the next protocol",
        "stops",
        partial(_instead, protocol=PROTOCOL + 1),
        _own,
        reads="update edge_cloud_spec on the robot",
    ),
    InjectedFault(
        "newer_robot_refused",
        "the link leads to a verifier of the protocol before the robot's",
        "stops",
        partial(_instead, protocol=PROTOCOL - 1),
        _own,
        reads="update edge_cloud_spec on the cloud",
    ),
)


CONNECTIONS = 10_000
GARBAGE_BYTES = 64
DAY = datetime.timedelta(days=1)
EXPIRES_S = 45.0  # in which the verifier starts


def _garbage(rig: Rig) -> None:
    host, _, port = rig.verifier_address.rpartition(":")

    def connect(number: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2.0) as end:
            end.sendall(os.urandom(GARBAGE_BYTES))

    with ThreadPoolExecutor(32) as pool:
        for _ in pool.map(connect, range(CONNECTIONS)):
            pass


def _expired(rig: Rig) -> None:
    """Let robot and verifier use TLS, with a certificate that expires while it is served, as no
    verifier starts with one that has expired."""
    pem, key = rig.folder / "verifier.pem", rig.folder / "verifier.key"
    write_certificate(pem, key, days_left=EXPIRES_S / DAY.total_seconds())
    address = free_address()
    argv = rig.verifier_command(address, certificate=str(pem), key=str(key))
    rig.start_other("tls_verifier", argv, lambda: _listens(address))
    rig.endings.callback(_without_tls, rig)
    time.sleep(EXPIRES_S)
    rig.proxy.redirect(address)
    rig.kill("cloud_bridge")
    rig.restart("cloud_bridge", authority=str(pem))


def _renewed(rig: Rig) -> None:
    """Restart the verifier with a new certificate for the same key."""
    pem, key = rig.folder / "verifier.pem", rig.folder / "verifier.key"
    write_certificate(pem, key, days_left=1.0)
    rig.kill("tls_verifier")
    argv = rig.verifier_command(rig.proxy.leads_to, certificate=str(pem), key=str(key))
    rig.start("tls_verifier", argv)


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
    """Write a self-signed certificate for 127.0.0.1 that is valid for ``days_left`` days from now.

    An existing key is reused. Raises UserError if ``cryptography`` is missing.
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
    key: Any = serialization.load_pem_private_key(key_file.read_bytes(), None)
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


ACCESS_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "wrong_token",
        "the robot's token file holds another verifier's token",
        "stops: every session is refused",
        lambda rig: rig.token_file.write_text(TOKEN + " of another verifier"),
        lambda rig: rig.token_file.write_text(TOKEN),
        reads="(?i)token",
    ),
    InjectedFault(
        "expired_certificate",
        "the verifier's TLS certificate has expired",
        "stops: no connection comes about",
        _expired,
        _renewed,
        reads="(?i)expired|certificate|TLS",
    ),
    InjectedFault(
        "garbage_connections",
        "10,000 connections of 64 random bytes each to the verifier's port",
        "goes on",
        _garbage,
        lasts=0.5,
        stops=False,
    ),
)


DELAY_MS = 5_000.0


def _outage(rig: Rig) -> None:
    """An outage of two seconds, which ends before the fault is cleared."""
    rig.proxy.set_out(True)
    time.sleep(2.0)
    rig.proxy.set_out(False)


def _no_delay(rig: Rig) -> None:
    rig.proxy.set_delay(1.0)
    rig.proxy.redirect(rig.verifier_address)  # what is under way would still take its five seconds


def _messages(name: str, injected: str, robot: str, faults: MessageFaults) -> InjectedFault:
    """Apply one fault to every message between robot and cloud, both ways."""

    def inject(rig: Rig) -> None:
        rig.messages.faults = faults
        rig.proxy.redirect(rig.messages.address)

    def clear(rig: Rig) -> None:
        rig.proxy.redirect(rig.verifier_address)

    return InjectedFault(name, injected, robot, inject, clear, lasts=6.0, stops=False)


DECIDES_ANEW = "goes on; decisions that miss a message are made anew"

LINK_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "link_cut",
        "connections to the cloud break, and none can be made",
        "stops",
        lambda rig: rig.proxy.set_out(True),
        lambda rig: rig.proxy.set_out(False),
        reads="lost",
    ),
    InjectedFault(
        "outage_2s",
        "the same for 2 s",
        "stops, then resumes the decision",
        _outage,
        lasts=0.5,
        stops=False,
    ),
    InjectedFault(
        "half_open",
        "all bytes are lost both ways, and neither end notices",
        "stops; gives the decision up after `reply_timeout`",
        lambda rig: rig.proxy.set_silent(True),
        lambda rig: rig.proxy.set_silent(False),
        lasts=3.0,
        reads="lost|degraded",
    ),
    InjectedFault(
        "delay_5s",
        "every byte takes 5 s each way",
        "stops; gives decisions up after `reply_timeout`",
        lambda rig: rig.proxy.set_delay(DELAY_MS),
        _no_delay,
        lasts=3.0,
        reads="lost|degraded",
    ),
    _messages("loss_30", "30 % of all messages are lost", DECIDES_ANEW, MessageFaults(lost=0.3)),
    _messages(
        "duplicated", "half of all messages come twice", DECIDES_ANEW, MessageFaults(repeated=0.5)
    ),
    _messages(
        "reordered",
        "half of all messages come up to 0.3 s late, after others",
        DECIDES_ANEW,
        MessageFaults(reordered=0.5),
    ),
    replace(
        _messages(
            "corrupted",
            "one bit of every second message is flipped",
            DECIDES_ANEW,
            MessageFaults(corrupted=0.5),
        ),
        quick=True,
    ),
    _messages(
        "truncated", "every second message ends early", DECIDES_ANEW, MessageFaults(truncated=0.5)
    ),
)

FAULTS_BEYOND_ROBOT = (*LINK_FAULTS, *CLOUD_FAULTS, *ACCESS_FAULTS)
