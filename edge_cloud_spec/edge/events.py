"""The events that an edge decoder handles, the effects that it returns, and how both travel.

Events from outside arrive in the decode's ``Inbox``; its messages leave through a ``Transport``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from ..decoding.shape import Branch
from ..models.draft_model import Drafted as Drafted
from ..wire.codec import encode_server
from ..wire.messages import COMPLETE, ClientMessage, Fault, ServerMessage

CUT = "cut"  # how a decode finishes of which the robot has heard enough
ANSWERED = (*COMPLETE, CUT)  # how decodes finish that have an answer
MAX_WAITING = 32 * 2**20  # bytes of the cloud's messages that one decode has not read
LEAST_BYTES = 4096  # that each of them counts as
FLOODED = Fault(
    "flooded",
    "the cloud sends more than any answer needs; check which program runs at its address",
)


@dataclass(frozen=True)
class PromptReady:
    """The robot has made the prompt. ``digest`` names it, ``spec_digest`` its specification.

    Tokens are below ``vocabulary``; the default is all that the wire can name. ``prefilled``: the
    draft model has read it, too; else ``Prefilled`` is due.
    """

    digest: bytes
    spec_digest: bytes
    end_tokens: tuple[int, ...]
    max_tokens: int
    vocabulary: int = 2**32
    prefilled: bool = True


@dataclass(frozen=True)
class Prefilled:
    """The draft model has read the prompt that was made last: it can draft."""


@dataclass(frozen=True)
class Received:
    """A message arrived from the cloud."""

    message: ServerMessage


@dataclass(frozen=True)
class LinkLost:
    """The stream broke; the transport reconnects by itself."""

    reason: str


@dataclass(frozen=True)
class LinkUp:
    """A new stream is connected after one was lost; ``moved``: to another verifier."""

    moved: bool = False


@dataclass(frozen=True)
class Abort:
    """The decode is not wanted any more."""

    reason: str


@dataclass(frozen=True)
class Cut:
    """What is verified is enough of an answer; the rest is not wanted."""


@dataclass(frozen=True)
class Unusable:
    """The robot itself cannot make a prompt of the request; ``text`` is why."""

    text: str


@dataclass(frozen=True)
class DrafterFailed:
    """The draft model drafts nothing more for this decode; ``text`` is why."""

    text: str


@dataclass(frozen=True)
class TimePassed:
    """The decoder's deadline may have passed."""


Event = (
    PromptReady
    | Prefilled
    | Drafted
    | Received
    | LinkLost
    | LinkUp
    | Abort
    | Cut
    | Unusable
    | DrafterFailed
    | TimePassed
)


@dataclass(frozen=True)
class Send:
    """Send this to the cloud."""

    message: ClientMessage


@dataclass(frozen=True)
class Prepare:
    """Make the prompt of this specification (empty: the drafter's own), then prefill it."""

    spec: bytes


@dataclass(frozen=True)
class Work:
    """Draft these branches in this order, several in a pass; a Drafted event for each and pass.

    They replace those of the Work before. ``verified``: the answer so far, which all extend.
    """

    verified: tuple[int, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Emit:
    """Tokens of the answer, settled by a verdict (where ``verified`` is False, by none)."""

    position: int
    tokens: tuple[int, ...]
    verified: bool


@dataclass(frozen=True)
class Finish:
    """The decode is over: end, length, cut, aborted, or what went wrong.

    ``retry_after_s``: when the cloud may be asked again, where it has no room; else 0.
    """

    reason: str
    text: str = ""
    retry_after_s: float = 0.0


Effect = Send | Prepare | Work | Emit | Finish

Item = bytes | LinkLost | LinkUp | Abort | Cut
OnReceive = Callable[[bytes | LinkLost | LinkUp], None]


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
