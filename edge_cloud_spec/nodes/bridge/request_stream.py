"""One request's way to the cloud: its messages in their order, on one stream."""

from __future__ import annotations

from enum import Enum

from ...edge.client import ClientStream, SessionKey

MAX_WAITING = 256  # messages that wait for an earlier one; with more, that one is given up


class Sent(Enum):
    """What became of a message."""

    SENT = "sent"
    KEPT = "kept until its turn; after a restart of the bridge that never comes"
    LAST = "sent, and it was the request's last one"
    GAP = "too many wait for one that never came: the request is lost"


class RequestStream:
    """A request's messages arrive on two topics, in any order; ``sequence`` is their own."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._key = SessionKey()
        self._next = 0
        self._waiting: dict[int, tuple[bytes, bool]] = {}  # payload, and whether it is the last

    def send(self, sequence: int, payload: bytes, last: bool) -> Sent:
        """Send all messages whose turn it is."""
        if sequence > self._next and len(self._waiting) >= MAX_WAITING:
            return Sent.GAP
        if sequence >= self._next:
            self._waiting[sequence] = (payload, last)
        outcome = Sent.KEPT
        while self._next in self._waiting:
            data, ends = self._waiting.pop(self._next)
            self._next += 1
            signed = self._key.sign(data)
            if ends:
                self._stream.close(signed)
                return Sent.LAST
            self._stream.send(signed)
            outcome = Sent.SENT
        return outcome

    def close(self) -> None:
        """End the stream."""
        self._stream.close()
