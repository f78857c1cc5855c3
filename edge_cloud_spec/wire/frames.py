"""What is read from an encoded message, or added to it, without decoding all of it.

A stamp is a few bytes behind an encoded message: a field of its own, which older peers skip. So a
message is stamped where it leaves, and nothing is encoded again. The robot compares its clock with
the cloud's by these times, which are integers in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from . import decode_pb2 as pb

# By the first byte: the tag of a field with a length.
_CLIENT = {field.number << 3 | 2: field.name for field in pb.ClientMessage.DESCRIPTOR.fields}
_SERVER = {field.number << 3 | 2: field.name for field in pb.ServerMessage.DESCRIPTOR.fields}


def kind_of(data: bytes) -> str:
    """The kind of a client's message (draft, open, ...), by its first byte; empty: unknown."""
    return _CLIENT.get(data[0], "") if data else ""


def server_kind_of(data: bytes) -> str:
    """The kind of a cloud's message (verdict, fault, ...), by its first byte; empty: unknown."""
    return _SERVER.get(data[0], "") if data else ""


def ends_decode(data: bytes) -> bool:
    """Whether a cloud's message is the last of a decode: a verdict that ends it, or a fault."""
    kind = server_kind_of(data)
    if kind != "verdict":
        return kind == "fault"
    try:
        return bool(pb.ServerMessage.FromString(data).verdict.finish != pb.GOES_ON)
    except DecodeError:
        return False


# A larger message takes long to send, one way only, which would pass for a difference of clocks.
MAX_STAMPED = 4096  # bytes
_SENT_BYTES = pb.ClientMessage(sent_ns=1).ByteSize()
_SENT_TAG = pb.ClientMessage(sent_ns=1).SerializeToString()[:1]


@dataclass(frozen=True)
class Echo:
    """What the cloud says of a stamped message: the robot's own time, and two of the cloud's."""

    sent_ns: int
    received_ns: int
    answered_ns: int


def with_sent(data: bytes, sent_ns: int) -> bytes:
    """A robot's message with the time at which it is sent."""
    stamp: bytes = pb.ClientMessage(sent_ns=sent_ns).SerializeToString()
    return data + stamp


def sent_of(data: bytes) -> int:
    """When the robot sent this message, by its clock; 0: it does not say."""
    if len(data) > MAX_STAMPED + _SENT_BYTES or data[-_SENT_BYTES:][:1] != _SENT_TAG:
        return 0
    try:
        return int(pb.ClientMessage.FromString(data).sent_ns)
    except DecodeError:
        return 0


def with_echo(data: bytes, echo: Echo) -> bytes:
    """A cloud's message with the times of the robot's message before it."""
    stamp: bytes = pb.ServerMessage(
        echo=pb.Echo(
            sent_ns=echo.sent_ns, received_ns=echo.received_ns, answered_ns=echo.answered_ns
        )
    ).SerializeToString()
    return data + stamp


def echo_of(data: bytes) -> Echo | None:
    """The times in a cloud's message, where it has some."""
    try:
        message = pb.ServerMessage.FromString(data)
    except DecodeError:
        return None
    if not message.HasField("echo"):
        return None
    echo = message.echo
    return Echo(echo.sent_ns, echo.received_ns, echo.answered_ns)
