"""TLS and tokens: which robots the verifier accepts."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot

from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.toy import toy_worker


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A self-signed certificate for 127.0.0.1, its key, and another one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("pem")

    def make(name: str) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(here, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])

    certificate, key = make("verifier")
    return SimpleNamespace(certificate=certificate, key=key, other=make("stranger")[0])


@pytest.fixture
def guarded(pem: Any) -> Iterator[Cloud]:
    with Cloud(toy_worker(), certificate=pem.certificate, key=pem.key, token="secret") as running:
        yield running


def ask(address: str, patience: float = 60.0, **client_settings: Any) -> Outcome:
    link = VerifierClient(ClientSettings(address, **client_settings))
    chosen = replace(settings("dsd", "coupled"), patience=patience)
    outcome = toy_robot().run(REQUEST, chosen, 1, link.connect)
    link.close()
    return outcome


def test_tls_and_the_right_token_let_a_robot_in(guarded: Cloud, pem: Any) -> None:
    assert ask(guarded.address, authority=pem.certificate, token="secret").tokens == OWN


@pytest.mark.parametrize("token", ["", "wrong", "secret2", "SECRET"])
def test_a_wrong_token_is_a_fault_that_says_what_to_do(
    guarded: Cloud, pem: Any, token: str
) -> None:
    outcome = ask(guarded.address, authority=pem.certificate, token=token)
    assert outcome.reason == "unauthenticated"
    assert "give the robot the verifier's token" in outcome.text
    assert outcome.tokens == ()


def test_a_robot_without_tls_or_with_another_authority_does_not_get_in(
    guarded: Cloud, pem: Any
) -> None:
    for authority in ("", pem.other):
        outcome = ask(guarded.address, patience=5.0, authority=authority, token="secret")
        assert outcome.reason == "timeout"
        assert f"cannot reach the cloud at {guarded.address}" in outcome.text


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50151", "robot.example.org:1"]
)
def test_off_loopback_tls_and_a_token_are_required(address: str, pem: Any) -> None:
    for given in ({}, {"token": "x"}, {"certificate": pem.certificate, "key": pem.key}):
        with pytest.raises(UserError, match="give --certificate, --key and --token"):
            ServerSettings(address, **given)
    ServerSettings(address, pem.certificate, pem.key, "secret")
    assert ClientSettings(address).secure


def test_a_certificate_that_cannot_be_used_is_named(pem: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no PEM")
    for certificate, key, complaint in (
        (str(tmp_path / "missing"), pem.key, "missing cannot be read"),
        (pem.certificate, str(tmp_path / "missing"), "missing cannot be read"),
        (str(broken), pem.key, "no PEM pair"),
        (pem.other, pem.key, "no PEM pair"),
    ):
        with pytest.raises(UserError, match=complaint):
            Cloud(toy_worker(), certificate=certificate, key=key)
    with pytest.raises(UserError, match="both --certificate and --key"):
        ServerSettings(certificate=pem.certificate)
    with pytest.raises(UserError, match="is not a file"):
        ClientSettings(authority=str(tmp_path / "missing"))
