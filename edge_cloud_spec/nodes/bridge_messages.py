"""Converts wire messages to ROS messages: typed fields for people, and the serialized payload."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from rclpy.duration import Duration

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ..edge.events import LinkLost, LinkUp
from ..wire.codec import decode_server, encode_client
from ..wire.frames import server_head
from ..wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Resume,
    RowRequest,
    WireError,
)

MOVED = b"\1"  # the payload of LINK_UP at another verifier, where the robot opens its decode again

_KINDS = {
    Open: DecodeRequest.OPEN,
    Resume: DecodeRequest.RESUME,
    Generate: DecodeRequest.GENERATE,
    Close: DecodeRequest.CLOSE,
    RowRequest: DecodeRequest.ROW_REQUEST,
}
_ANSWERS = {"verdict": Verdict.VERDICT, "opened": Verdict.OPENED, "row": Verdict.ROW}


def to_draft(message: DraftMessage, words: list[str], draft_s: float) -> Draft:
    """A draft for the topic ``draft``; the sender sets header, request and sequence."""
    return Draft(
        round=message.round,
        base_length=message.base.length,
        base_hash=message.base.hash,
        words=words,
        draft_time=Duration(seconds=draft_s).to_msg(),
        payload=encode_client(message),
    )


def to_request(message: ClientMessage, preset: str) -> DecodeRequest:
    """Any message but a draft, for the topic ``decode_request``."""
    request = DecodeRequest(
        kind=_KINDS[type(message)], preset=preset, payload=encode_client(message)
    )
    if isinstance(message, Open):
        request.rule = message.rule
        request.temperature = message.policy.temperature
        request.seed = message.policy.seed
    return request


def to_topic(item: bytes | LinkLost | LinkUp, stamp: Time, request_id: str) -> Verdict | Prediction:
    """A cloud's message or a link event for the topic ``verdict`` or ``prediction``."""
    message: Verdict | Prediction
    if isinstance(item, LinkLost):
        message = Verdict(kind=Verdict.LINK_LOST, text=item.reason)
    elif isinstance(item, LinkUp):
        text, payload = ("at another verifier", MOVED) if item.moved else ("", b"")
        message = Verdict(kind=Verdict.LINK_UP, text=text, payload=payload)
    else:
        message = _server_message(item)
        message.payload = item
    message.header.stamp = stamp
    message.request_id = request_id
    return message


def from_topic(message: Verdict | Prediction) -> bytes | LinkLost | LinkUp:
    """The inverse of ``to_topic``."""
    payload: bytes = message.payload.tobytes()
    if isinstance(message, Verdict) and message.kind == Verdict.LINK_LOST:
        return LinkLost(message.text)
    if isinstance(message, Verdict) and message.kind == Verdict.LINK_UP:
        return LinkUp(moved=payload == MOVED)
    return payload


def _server_message(data: bytes) -> Verdict | Prediction:
    """The typed fields of a cloud's message, from its head; a malformed one becomes a fault."""
    try:
        head = server_head(data)
        if head.kind == "fault":
            fault = decode_server(data)
            return Verdict(kind=Verdict.FAULT, text=fault.text if isinstance(fault, Fault) else "")
    except WireError as error:
        return Verdict(kind=Verdict.FAULT, text=str(error))
    out: Verdict | Prediction
    if head.kind == "prediction":
        out = Prediction(confidence=head.millionths * 1e-6)
    else:
        out = Verdict(kind=_ANSWERS[head.kind], accepted=head.accepted)
        out.verify_time = Duration(seconds=head.millionths * 1e-6).to_msg()
    out.base_length, out.base_hash = head.base.length, head.base.hash
    return out
