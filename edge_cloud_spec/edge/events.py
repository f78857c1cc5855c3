"""The decoder's events and effects, its inbox, and the transport of its messages.

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
from ..wire.frames import ServerFrame
from ..wire.messages import COMPLETE, CUT, ClientMessage, Code, Fault, ServerMessage

ANSWERED = (*COMPLETE, CUT)  # reasons of decodes with an answer
MAX_UNREAD_BYTES = 32 * 2**20  # unread bytes of the cloud's messages per decode
LEAST_MESSAGE_BYTES = 4096  # the least size counted per message
FLOODED = Fault(
    Code.FLOODED,
    "the cloud sends more than any answer needs; check which program runs at its address",
)


@dataclass(frozen=True)
class PromptReady:
    """The robot has made the prompt. ``digest`` identifies it, ``spec_digest`` its specification.

    Tokens are below ``vocabulary`` (by default, all that fit in 32 bits). A ``Prefilled`` event
    follows once the draft model has read the prompt.
    """

    digest: bytes
    spec_digest: bytes
    end_tokens: tuple[int, ...]
    max_tokens: int
    vocabulary: int = 2**32


@dataclass(frozen=True)
class Prefilled:
    """The draft model has read the latest prompt, and can draft."""


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
    """The decode is cancelled; its answer is not wanted."""

    reason: str


@dataclass(frozen=True)
class Cut:
    """Stop here: the verified tokens are enough of an answer."""


@dataclass(frozen=True)
class Unusable:
    """The robot cannot make a prompt from the request; ``text`` says why."""

    text: str


@dataclass(frozen=True)
class DrafterFailed:
    """The draft model failed for the rest of this decode; ``text`` says why."""

    text: str


@dataclass(frozen=True)
class TimePassed:
    """The decoder's deadline may have passed."""


Event = (
    PromptReady
    | Prefilled
    | Drafted
    | ServerMessage
    | LinkLost
    | LinkUp
    | Abort
    | Cut
    | Unusable
    | DrafterFailed
    | TimePassed
)


@dataclass(frozen=True)
class Prepare:
    """Make the prompt by this specification (empty: the drafter's default), then prefill it."""

    spec: bytes


@dataclass(frozen=True)
class Work:
    """Draft these branches, in this order, several per pass; a Drafted event follows per branch and
    pass.

    They replace earlier branches. ``verified``: the answer so far, a prefix of all of them.
    """

    verified: tuple[int, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Emit:
    """New tokens of the answer, from ``position`` on; ``verified`` is False without a cloud.

    ``log_probs``: as the decode asks for them (``wire.messages.LOG_PROBS``).
    """

    position: int
    tokens: tuple[int, ...]
    verified: bool
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finish:
    """The decode is over. ``reason``: a code, of ``wire.messages`` or of a fault; ``text``: why,
    for people.

    ``retry_after_s``: when a cloud without room may be asked again; else 0.
    """

    reason: str
    text: str = ""
    retry_after_s: float = 0.0


Effect = ClientMessage | Prepare | Work | Emit | Finish

Item = ServerFrame | LinkLost | LinkUp | Abort | Cut
OnReceive = Callable[[ServerFrame | LinkLost | LinkUp], None]


class Inbox(SimpleQueue[Item]):
    """The queue of events for one decode, read by one thread.

    It bounds the cloud's unread bytes: a message beyond becomes a fault, and later ones are
    dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrived = self._read = 0  # bytes; each counter is written by one thread
        self._is_full = False

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Append an item; the cloud's messages from one thread only, others from any."""
        if isinstance(item, ServerFrame):
            if self._is_full:
                return
            self._arrived += max(len(item), LEAST_MESSAGE_BYTES)
            if self._arrived - self._read > MAX_UNREAD_BYTES:
                self._is_full, item = True, encode_server(FLOODED)
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """The next item; raises Empty."""
        return self._count(super().get(block, timeout))

    def get_nowait(self) -> Item:
        """The next item; raises Empty."""
        return self._count(super().get_nowait())

    def _count(self, item: Item) -> Item:
        if isinstance(item, ServerFrame):
            self._read += max(len(item), LEAST_MESSAGE_BYTES)
        return item


class Transport(Protocol):
    """Sends a decode's messages: over a gRPC stream, or the topics of the ROS bridge."""

    def send(self, message: ClientMessage) -> int:
        """Send a message; returns its size in bytes on the wire."""

    def close(self) -> None:
        """Stop sending and receiving."""


Connect = Callable[[OnReceive], Transport]  # makes the transport of one decode
