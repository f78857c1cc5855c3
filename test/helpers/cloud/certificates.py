"""Certificates for tests: of an authority of their own, for any host, valid or not."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates; ``path`` is its own, as PEM."""

    def __init__(self, folder: Path, name: str = "authority", ends: float = 60) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key, -1, ends)
        ca = x509.BasicConstraints(ca=True, path_length=0)
        certificate = builder.add_extension(ca, critical=True).sign(self._key, hashes.SHA256())
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(
        self, name: str, host: str = "127.0.0.1", begins: float = -1, ends: float = 60
    ) -> dict[str, str]:
        """Files ``certificate`` and ``key`` for a host; ``begins``, ``ends``: days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            where: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            where = x509.DNSName(host)
        builder = _builder(_name(name), self._name, key, begins, ends)
        builder = builder.add_extension(x509.SubjectAlternativeName([where]), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return {"certificate": str(paths[0]), "key": str(paths[1])}


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: float,
    ends: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + ends * DAY)
    )
