"""The head of each message, for a relay that passes the message on without parsing it.

A frame is a head of fixed size, optional times, and the message's protobuf. All numbers are
little-endian::

    kind        u8    which message follows (``CLIENT_KINDS``, ``SERVER_KINDS``)
    timed       u8    1: times stand between head and message
    length      u32   the message's base, a prefix digest: the number of verified tokens ...
    hash        u64   ... and their rolling hash; both 0 for a message without a base

    finish      u8    from the cloud only: how a verdict ends the answer (``FINISHES``)
    accepted    u16   how many tokens a verdict accepts, or a prediction expects it to accept
    millionths  u32   of a second: a verdict's pass; of 1: a prediction's confidence

The times are u64 in ns: the robot's clock at sending; in the cloud's answer that time again, then
the cloud's clock at arrival and at the answer. From them the robot estimates the offset of the two
clocks, as NTP does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from ..decoding.digest import PrefixDigest
from .messages import COMPLETE, WireError

CLIENT_KINDS = ("", "open", "draft", "generate", "resume", "close", "row_request")
SERVER_KINDS = ("", "opened", "verdict", "fault", "row", "prediction")
FINISHES = ("", *COMPLETE)
EARLIER = range(10, 51, 8)  # first bytes of frames before protocol 4, which were plain protobuf
NOWHERE = PrefixDigest(0, 0)  # the base of messages without one
# A larger message takes long to send in one direction, which would look like a clock offset.
MAX_STAMPED = 4096  # bytes; larger messages get no times

_CLIENT = Struct("<BBIQ")
_SERVER = Struct("<BBIQBHI")
_SENT = Struct("<Q")
_ECHO = Struct("<QQQ")


@dataclass(frozen=True)
class Head:
    """The head of a frame; a robot's has only kind and base."""

    kind: str
    base: PrefixDigest = NOWHERE
    finish: str = ""
    accepted: int = 0
    millionths: int = 0

    @property
    def ends_decode(self) -> bool:
        """Whether this message is the last: a verdict that ends the answer, or a fault."""
        return self.kind == "fault" or bool(self.finish)


def client_frame(head: Head, message: bytes) -> bytes:
    """A robot's frame, without times."""
    base, kind = head.base, CLIENT_KINDS.index(head.kind)
    return _CLIENT.pack(kind, 0, base.length, base.hash) + message


def server_frame(head: Head, message: bytes) -> bytes:
    """A cloud's frame, without times."""
    base, kind, finish = head.base, SERVER_KINDS.index(head.kind), FINISHES.index(head.finish)
    numbers = (finish, head.accepted, head.millionths)
    return _SERVER.pack(kind, 0, base.length, base.hash, *numbers) + message


def read_client(data: bytes) -> tuple[Head, bytes]:
    """The head and the protobuf of a robot's frame; raises WireError."""
    _check_size(data, _CLIENT, _SENT)
    kind, timed, length, digest = _CLIENT.unpack_from(data)
    _check_kind(kind, CLIENT_KINDS, "cloud")
    head = Head(CLIENT_KINDS[kind], PrefixDigest(length, digest))
    return head, data[_CLIENT.size + timed * _SENT.size :]


def read_server(data: bytes) -> tuple[Head, bytes]:
    """The head and the protobuf of a cloud's frame; raises WireError."""
    return server_head(data), data[_SERVER.size + data[1] * _ECHO.size :]


def server_head(data: bytes) -> Head:
    """The head of a cloud's frame; raises WireError."""
    _check_size(data, _SERVER, _ECHO)
    number, _, length, digest, finish, accepted, millionths = _SERVER.unpack_from(data)
    _check_kind(number, SERVER_KINDS, "robot")
    kind = SERVER_KINDS[number]
    if finish >= len(FINISHES) or (finish and kind != "verdict"):
        raise WireError("a message that ends the answer and must not, or of a later protocol")
    return Head(kind, PrefixDigest(length, digest), FINISHES[finish], accepted, millionths)


def _check_size(data: bytes, head: Struct, times: Struct) -> None:
    """Raise WireError for a frame too short for its head and times."""
    timed = data[1] if len(data) > 1 else 0
    if timed > 1 or len(data) < head.size + timed * times.size:
        raise WireError("not a message of this protocol: it has no whole head")


def _check_kind(kind: int, kinds: tuple[str, ...], side: str) -> None:
    if kind in EARLIER:
        text = "a message of a protocol before 4"
        raise WireError(f"{text}; it can be read by the edge_cloud_spec that made it")
    if not 0 < kind < len(kinds):
        text = f"a message of kind {kind} belongs to a later protocol"
        raise WireError(f"{text}; update edge_cloud_spec on the {side}")


def kind_of(data: bytes) -> str:
    """The kind of a robot's frame (draft, open, ...) by its first byte; empty if unknown."""
    return CLIENT_KINDS[data[0]] if data and data[0] < len(CLIENT_KINDS) else ""


def server_kind_of(data: bytes) -> str:
    """The kind of a cloud's frame (verdict, fault, ...) by its first byte; empty if unknown."""
    return SERVER_KINDS[data[0]] if data and data[0] < len(SERVER_KINDS) else ""


# Times


@dataclass(frozen=True)
class Echo:
    """When the robot sent a message (robot's clock), and when the cloud received and answered it
    (cloud's clock); ns."""

    sent_ns: int
    received_ns: int
    answered_ns: int


def with_sent(data: bytes, sent_ns: int) -> bytes:
    """Add the time of sending (ns, robot's clock) to a robot's frame."""
    return _timed(data, _CLIENT.size, _SENT.pack(sent_ns))


def sent_of(data: bytes) -> int:
    """When the robot sent this frame (ns, robot's clock); 0 if the frame has no time."""
    if len(data) < _CLIENT.size + _SENT.size or data[1] != 1:
        return 0
    return int(_SENT.unpack_from(data, _CLIENT.size)[0])


def with_echo(data: bytes, echo: Echo) -> bytes:
    """Add the times of the robot's last message to a cloud's frame."""
    times = _ECHO.pack(echo.sent_ns, echo.received_ns, echo.answered_ns)
    return _timed(data, _SERVER.size, times)


def echo_of(data: bytes) -> Echo | None:
    """The times in a cloud's frame; None if it has none."""
    if len(data) < _SERVER.size + _ECHO.size or data[1] != 1:
        return None
    return Echo(*_ECHO.unpack_from(data, _SERVER.size))


def _timed(data: bytes, head_bytes: int, times: bytes) -> bytes:
    """Add or replace a frame's times; unchanged if it has no valid head."""
    if len(data) < head_bytes or data[1]:
        return data
    return data[:1] + b"\1" + data[2:head_bytes] + times + data[head_bytes:]
