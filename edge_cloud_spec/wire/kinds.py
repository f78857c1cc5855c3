"""The kind of an encoded message, without decoding it."""

from __future__ import annotations

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
