"""How a decode's messages travel: an outgoing transport, and an inbox for what arrives."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from ..wire.messages import ClientMessage
from .events import Abort, Cut, LinkLost, LinkUp

Item = bytes | LinkLost | LinkUp | Abort | Cut
Inbox = SimpleQueue[Item]
OnReceive = Callable[[bytes | LinkLost | LinkUp], None]


class Transport(Protocol):
    """Where a decode's messages are sent: a gRPC stream, or the topics of the ROS bridge."""

    def send(self, message: ClientMessage) -> int:
        """Send it; returns the bytes that it takes on the wire."""

    def close(self) -> None:
        """Send and receive nothing more."""


Connect = Callable[[OnReceive], Transport]  # makes the transport of one decode
