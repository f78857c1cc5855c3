"""Where the verifier is, and how robot and verifier authenticate each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ...errors import UserError
from ...wire.channel import DEFAULT_ADDRESS, check_address, is_loopback
from ...wire.secret_files import read_pair, read_pem, read_token


@dataclass(frozen=True)
class ClientSettings:
    """Where the verifier is. ``authority`` is a PEM file with its certificate authority (TLS).

    Off loopback TLS is used in any case, with the system's authorities where none is given.
    ``token``, or the file ``token_file`` that holds it, is what a verifier with tokens asks for;
    ``certificate`` and ``key`` are PEM files for one with a client authority. Files are read again
    when they were replaced. ``retry_s``: seconds before a broken stream reconnects.
    ``replica_hosts``: hosts beside the verifier's own that a fleet's front may send us to. Raises
    UserError.
    """

    address: str = DEFAULT_ADDRESS
    authority: str = ""
    token: str = field(default="", repr=False)
    retry_s: float = 0.2
    token_file: str = ""
    certificate: str = ""
    key: str = ""
    replica_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_address(self.address)
        if self.authority and not Path(self.authority).is_file():
            raise UserError(f"the certificate authority {self.authority} is not a file")
        if self.token and self.token_file:
            raise UserError("give the token or the file that holds it, not both")
        if bool(self.certificate) != bool(self.key):
            raise UserError("a robot's certificate needs its key, and a key its certificate")
        if self.certificate and not self.secure:
            raise UserError(
                f"a certificate is not shown to {self.address} without TLS; give the authority too"
            )

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return bool(self.authority) or not is_loopback(self.address)

    @property
    def pem_files(self) -> tuple[str, ...]:
        """The files that a channel is made of."""
        return (self.authority, self.certificate, self.key)

    def read_token(self) -> str:
        """The token to show now, empty for none; raises UserError for a file without one."""
        return read_token(self.token_file) if self.token_file else self.token

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of a new channel; None without TLS. Raises UserError for a file that cannot be used."""
        if not self.secure:
            return None
        roots = read_pem(self.authority, "certificate authority") if self.authority else None
        pair = read_pair(self.certificate, self.key) if self.certificate else (None, None)
        return grpc.ssl_channel_credentials(roots, *pair)
