"""What proves to the cloud that a session is this robot's: a secret that is on no topic."""

from __future__ import annotations

import secrets
from dataclasses import replace

from ..wire.codec import decode_client, encode_client
from ..wire.frames import kind_of
from ..wire.messages import Open, Resume, key_of


class SessionKey:
    """The secret of one decode, added to its messages where they leave for the cloud.

    The first Open carries only its hash, so that whoever sees that message cannot take the session
    over; a message that continues a session (Resume, or a repeated Open) carries the secret itself.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._opened = False

    def sign(self, data: bytes) -> bytes:
        """The bytes of a robot's message as they are sent to the cloud."""
        if kind_of(data) not in ("open", "resume"):
            return data
        try:
            message = decode_client(data)
        except ValueError:  # the cloud reports what is wrong with it
            return data
        if isinstance(message, Open):
            secret = self._secret if self._opened else b""
            self._opened = True
            return encode_client(replace(message, key=key_of(self._secret), secret=secret))
        if isinstance(message, Resume):
            return encode_client(replace(message, secret=self._secret))
        return data
