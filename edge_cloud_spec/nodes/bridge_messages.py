"""Wire messages as ROS messages: what people want to read in typed fields, the rest opaque."""

from __future__ import annotations

from builtin_interfaces.msg import Duration, Time

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ..edge.events import LinkLost, LinkUp
from ..wire.codec import decode_server, encode_client
from ..wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    RowMessage,
    RowRequest,
    WireError,
)
from ..wire.messages import Prediction as WirePrediction
from ..wire.messages import Verdict as WireVerdict

_KINDS = {
    Open: DecodeRequest.OPEN,
    Resume: DecodeRequest.RESUME,
    Generate: DecodeRequest.GENERATE,
    Close: DecodeRequest.CLOSE,
    RowRequest: DecodeRequest.ROW_REQUEST,
}


def duration(seconds: float) -> Duration:
    """Seconds as a ROS duration."""
    whole = int(seconds)
    return Duration(sec=whole, nanosec=int((seconds - whole) * 1e9))


def to_draft(message: DraftMessage, words: list[str], draft_s: float) -> Draft:
    """A draft for the topic ``draft``; header, request and sequence are the sender's."""
    return Draft(
        round=message.round,
        base_length=message.base.length,
        base_hash=message.base.hash,
        words=words,
        draft_time=duration(draft_s),
        payload=encode_client(message),
    )


def to_request(message: ClientMessage, preset: str) -> DecodeRequest:
    """Any other message for the topic ``decode_request``."""
    request = DecodeRequest(
        kind=_KINDS[type(message)], preset=preset, payload=encode_client(message)
    )
    if isinstance(message, Open):
        request.instruction = message.instruction
        request.rule = message.rule
        request.temperature = message.policy.temperature
        request.seed = message.policy.seed
    return request


def to_verdict(item: bytes | LinkLost | LinkUp, stamp: Time, request_id: str) -> Verdict:
    """What came from the cloud (or from the link itself) for the topic ``verdict``."""
    verdict = Verdict(request_id=request_id)
    verdict.header.stamp = stamp
    if isinstance(item, LinkLost):
        verdict.kind, verdict.text = Verdict.LINK_LOST, item.reason
        return verdict
    if isinstance(item, LinkUp):
        verdict.kind = Verdict.LINK_UP
        return verdict
    verdict.payload = item
    try:
        message = decode_server(item)
    except WireError as error:
        verdict.kind, verdict.text = Verdict.FAULT, str(error)
        return verdict
    match message:
        case WireVerdict():
            verdict.accepted = len(message.path)
            verdict.verify_time = duration(message.verify_s)
        case RowMessage():
            verdict.kind = Verdict.ROW
        case Opened():
            verdict.kind = Verdict.OPENED
        case Fault():
            verdict.kind, verdict.text = Verdict.FAULT, message.text
    if not isinstance(message, Fault):
        verdict.base_length, verdict.base_hash = message.base.length, message.base.hash
    return verdict


def to_prediction(message: WirePrediction, item: bytes, stamp: Time, request_id: str) -> Prediction:
    """An exit's guess, which came as ``item``, for the topic ``prediction``."""
    prediction = Prediction(request_id=request_id, confidence=message.confidence, payload=item)
    prediction.base_length, prediction.base_hash = message.base.length, message.base.hash
    prediction.header.stamp = stamp
    return prediction


def from_verdict(verdict: Verdict) -> bytes | LinkLost | LinkUp:
    """What ``to_verdict`` was made from."""
    if verdict.kind == Verdict.LINK_LOST:
        return LinkLost(verdict.text)
    if verdict.kind == Verdict.LINK_UP:
        return LinkUp()
    return verdict.payload.tobytes()
