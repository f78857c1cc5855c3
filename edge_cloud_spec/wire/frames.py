"""A message on the wire: a head of fixed size, and its protobuf.

The head is read once, where the bytes arrive (``codec.read_client``, ``codec.read_server``). From
there on the frame goes with its head, and a relay passes it on without parsing the rest. All
numbers are little-endian::

    kind        u8    which message follows (``CLIENT_KINDS``, ``SERVER_KINDS``)
    zero        u8    0; before protocol 5 was released it said whether times follow the head
    length      u32   the message's base, a prefix digest: the number of verified tokens ...
    hash        u64   ... and their rolling hash; both 0 for a message without a base

    finish      u8    from the cloud only: how a verdict ends the answer (``FINISHES``)
    accepted    u16   how many tokens a verdict accepts, or a prediction expects it to accept
    millionths  u32   of a second: a verdict's pass; of 1: a prediction's confidence

A protobuf ``oneof`` with the same fields takes about as many bytes (docs/architecture.md has both),
but a relay would have to parse a verdict as a whole, dense rows included, to know that it is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar

from ..decoding.digest import PrefixDigest
from ..errors import refuse
from .messages import COMPLETE, Fault, WireError

CLIENT_KINDS = ("", "open", "draft", "generate", "resume", "close", "row_request")
SERVER_KINDS = ("", "opened", "verdict", "fault", "row", "prediction")
FINISHES = ("", *COMPLETE)
EARLIER = range(10, 51, 8)  # first bytes of frames before protocol 4, which were plain protobuf
NO_BASE = PrefixDigest(0, 0)  # the base of messages without one

_CLIENT = Struct("<BBIQ")
_SERVER = Struct("<BBIQBHI")


@dataclass(frozen=True)
class Head:
    """The head of a frame; a robot's has only kind and base."""

    kind: str
    base: PrefixDigest = NO_BASE
    finish: str = ""
    accepted: int = 0
    millionths: int = 0

    @property
    def ends_decode(self) -> bool:
        """Whether this message is the last: a verdict that ends the answer, or a fault."""
        return self.kind == "fault" or bool(self.finish)


@dataclass(frozen=True)
class MessageFrame:
    """A message as it travels: its head, and its bytes, which begin with the head."""

    head: Head
    data: bytes
    _layout: ClassVar[Struct]

    def __len__(self) -> int:
        return len(self.data)

    @property
    def body(self) -> bytes:
        """Its protobuf."""
        return self.data[self._layout.size :]


class ClientFrame(MessageFrame):
    """A robot's message."""

    _layout = _CLIENT

    @classmethod
    def of(cls, head: Head, body: bytes) -> ClientFrame:
        """The frame with this head and this protobuf."""
        base, kind = head.base, CLIENT_KINDS.index(head.kind)
        return cls(head, _CLIENT.pack(kind, 0, base.length, base.hash) + body)


@dataclass(frozen=True)
class ServerFrame(MessageFrame):
    """A cloud's message; of a fault also what it says, which relays act on."""

    _layout = _SERVER
    fault: Fault | None = None

    @classmethod
    def of(cls, head: Head, body: bytes) -> ServerFrame:
        """The frame with this head and this protobuf; without what a fault says."""
        base, kind, finish = head.base, SERVER_KINDS.index(head.kind), FINISHES.index(head.finish)
        numbers = (finish, head.accepted, head.millionths)
        return cls(head, _SERVER.pack(kind, 0, base.length, base.hash, *numbers) + body)


def client_head(data: bytes) -> Head:
    """The head of a robot's frame; raises WireError."""
    kind, base, _ = _read(data, _CLIENT, CLIENT_KINDS, "cloud")
    return Head(kind, base)


def server_head(data: bytes) -> Head:
    """The head of a cloud's frame; raises WireError."""
    kind, base, (finish, accepted, millionths) = _read(data, _SERVER, SERVER_KINDS, "robot")
    if finish >= len(FINISHES) or (finish and kind != "verdict"):
        raise WireError("a message that ends the answer and must not, or of a later protocol")
    return Head(kind, base, FINISHES[finish], accepted, millionths)


def _read(
    data: bytes, head: Struct, kinds: tuple[str, ...], side: str
) -> tuple[str, PrefixDigest, list[int]]:
    """The kind, the base and the rest of a head; ``side`` reads it."""
    if len(data) < head.size:
        raise WireError("not a message of this protocol: it has no whole head")
    kind, zero, length, digest, *rest = head.unpack_from(data)
    refuse(
        (
            kind in EARLIER or (zero and kind < len(kinds)),
            "a message of an earlier protocol; update edge_cloud_spec on both sides (a bag is read "
            "by the version that recorded it)",
        ),
        (
            not 0 < kind < len(kinds),
            f"a message of kind {kind} belongs to a later protocol; update edge_cloud_spec on the "
            f"{side}",
        ),
        error=WireError,
    )
    return kinds[kind], PrefixDigest(length, digest), rest
