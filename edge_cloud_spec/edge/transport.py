"""How a decode's messages travel: an outgoing transport, and an inbox for what arrives."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from ..wire.codec import encode_server
from ..wire.messages import ClientMessage, Fault
from .events import Abort, Cut, LinkLost, LinkUp

Item = bytes | LinkLost | LinkUp | Abort | Cut
OnReceive = Callable[[bytes | LinkLost | LinkUp], None]

MAX_WAITING = 32 * 2**20  # bytes of the cloud's messages that one decode has not read
LEAST_BYTES = 4096  # that each of them counts as
FLOODED = Fault(
    "flooded",
    "the cloud sends more than any answer needs; check which program runs at its address",
)


class Inbox(SimpleQueue[Item]):
    """What arrived for one decode, which reads it in one thread.

    A fault takes the place of the message that is too much, and nothing of the cloud comes after.
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrived = self._read = 0  # bytes, each counted in one thread
        self._is_full = False

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Add this at the end; messages of the cloud in one thread, the others in any."""
        if isinstance(item, bytes):
            if self._is_full:
                return
            self._arrived += max(len(item), LEAST_BYTES)
            if self._arrived - self._read > MAX_WAITING:
                self._is_full, item = True, encode_server(FLOODED)
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """The next one; raises Empty."""
        return self._count(super().get(block, timeout))

    def get_nowait(self) -> Item:
        """The next one; raises Empty."""
        return self._count(super().get_nowait())

    def _count(self, item: Item) -> Item:
        if isinstance(item, bytes):
            self._read += max(len(item), LEAST_BYTES)
        return item


class Transport(Protocol):
    """Where a decode's messages are sent: a gRPC stream, or the topics of the ROS bridge."""

    def send(self, message: ClientMessage) -> int:
        """Send it; returns the bytes that it takes on the wire."""

    def close(self) -> None:
        """Send and receive nothing more."""


Connect = Callable[[OnReceive], Transport]  # makes the transport of one decode
