"""Converts wire messages to ROS messages: typed fields for people, and the serialized payload."""

from __future__ import annotations

from array import array

from builtin_interfaces.msg import Time
from rclpy.duration import Duration

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ..edge.events import LinkLost, LinkUp
from ..wire.codec import encode_client, read_server
from ..wire.frames import ServerFrame
from ..wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Generate,
    Open,
    Resume,
    RowRequest,
)

_KINDS = {
    Open: DecodeRequest.OPEN,
    Resume: DecodeRequest.RESUME,
    Generate: DecodeRequest.GENERATE,
    Close: DecodeRequest.CLOSE,
    RowRequest: DecodeRequest.ROW_REQUEST,
}
_ANSWERS = {
    "verdict": Verdict.VERDICT,
    "opened": Verdict.OPENED,
    "row": Verdict.ROW,
    "fault": Verdict.FAULT,
}


def to_draft(message: DraftMessage, words: list[str], draft_s: float) -> Draft:
    """A draft for the topic ``draft``; the sender sets header, request and sequence."""
    return Draft(
        round=message.round,
        base_length=message.base.length,
        base_hash=message.base.hash,
        words=words,
        draft_time=Duration(seconds=draft_s).to_msg(),
        payload=_payload(encode_client(message).data),
    )


def to_request(message: ClientMessage, preset: str) -> DecodeRequest:
    """Any message but a draft, for the topic ``decode_request``."""
    request = DecodeRequest(
        kind=_KINDS[type(message)],
        preset=preset,
        payload=_payload(encode_client(message).data),
    )
    if isinstance(message, Open):
        request.rule = message.rule
        request.temperature = message.policy.temperature
        request.seed = message.policy.seed
    return request


def to_topic(
    item: ServerFrame | LinkLost | LinkUp, stamp: Time, request_id: str
) -> Verdict | Prediction:
    """A cloud's frame or a link event for the topic ``verdict`` or ``prediction``."""
    message: Verdict | Prediction
    match item:
        case LinkLost(reason):
            message = Verdict(kind=Verdict.LINK_LOST, text=reason)
        case LinkUp(moved):
            message = Verdict(kind=Verdict.LINK_MOVED if moved else Verdict.LINK_UP)
        case ServerFrame():
            message = _typed(item)
    message.header.stamp = stamp
    message.request_id = request_id
    return message


def from_topic(message: Verdict | Prediction) -> ServerFrame | LinkLost | LinkUp:
    """The inverse of ``to_topic``; raises WireError."""
    if isinstance(message, Verdict):
        match message.kind:
            case Verdict.LINK_LOST:
                return LinkLost(message.text)
            case Verdict.LINK_UP | Verdict.LINK_MOVED:
                return LinkUp(moved=message.kind == Verdict.LINK_MOVED)
    return read_server(message.payload.tobytes())


def _typed(frame: ServerFrame) -> Verdict | Prediction:
    """The payload with typed fields, from its head."""
    head = frame.head
    out: Verdict | Prediction
    if head.kind == "prediction":
        out = Prediction(confidence=head.millionths * 1e-6)
    else:
        out = Verdict(kind=_ANSWERS[head.kind], accepted=head.accepted)
        out.text = "" if frame.fault is None else frame.fault.text
        out.verify_time = Duration(seconds=head.millionths * 1e-6).to_msg()
    out.base_length, out.base_hash = head.base.length, head.base.hash
    out.payload = _payload(frame.data)
    return out


def _payload(data: bytes) -> array[int]:
    """Humble checks each byte of a field that is given bytes, for milliseconds, and no array's."""
    return array("B", data)
