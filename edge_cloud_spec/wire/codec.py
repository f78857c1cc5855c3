"""Between the dataclasses of ``messages`` and protobuf bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ..decoding.draft import MAX_NODES, Draft
from . import decode_pb2 as pb
from .channel import MAX_RETRY_S
from .fields import (
    is_chain,
    microseconds,
    milliseconds,
    read_digest,
    read_optional,
    read_path,
    read_residual,
    read_row,
    write_digest,
    write_residual,
)
from .messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
    WireError,
)
from .opening import read_alone, read_open, write_alone, write_open
from .rows import read_rows, write_rows

_FINISHES = {"": pb.GOES_ON, "end": pb.END, "length": pb.LENGTH}
_FINISH_NAMES = {number: name for name, number in _FINISHES.items()}


def encode_client(message: ClientMessage) -> bytes:
    """The bytes of a robot's message."""
    match message:
        case DraftMessage(base, draft, round_):
            body = pb.Draft(
                base=write_digest(base),
                tokens=draft.tokens,
                parents=draft.parents or (),
                rows=write_rows(draft.rows) if draft.rows else None,
                values=np.array(draft.values or (), "<f4").tobytes(),
                round=round_,
                resampled=message.resampled,
                open_at=message.open_at,
                patience_ms=milliseconds(message.patience_s),
                hint=message.hint,
                looked_up=draft.looked_up,
                without_exits=message.without_exits,
            )
            wrapped = pb.ClientMessage(draft=body)
        case Open():
            wrapped = pb.ClientMessage(open=write_open(message))
        case Generate(base, alone):
            generate = write_alone(alone)
            generate.base.CopyFrom(write_digest(base))
            wrapped = pb.ClientMessage(generate=generate)
        case Resume(session, base, secret):
            resume = pb.Resume(session=session, base=write_digest(base), secret=secret)
            wrapped = pb.ClientMessage(resume=resume)
        case Close(resampled):
            wrapped = pb.ClientMessage(close=pb.Close(resampled=resampled))
        case RowRequest(base):
            wrapped = pb.ClientMessage(row_request=pb.RowRequest(base=write_digest(base)))
    data: bytes = wrapped.SerializeToString()
    return data


def decode_client(data: bytes) -> ClientMessage:
    """Read a robot's message; raises WireError, or ValueError for a value out of range."""
    try:
        wrapped = pb.ClientMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    match wrapped.WhichOneof("kind"):
        case "draft":
            return _read_draft(wrapped.draft)
        case "open":
            return read_open(wrapped.open)
        case "generate":
            g = wrapped.generate
            return Generate(read_digest(g.base), read_alone(g))
        case "resume":
            r = wrapped.resume
            return Resume(r.session, read_digest(r.base), r.secret)
        case "close":
            return Close(read_optional(wrapped.close, "resampled"))
        case "row_request":
            return RowRequest(read_digest(wrapped.row_request.base))
    raise _unknown_kind(wrapped, "cloud")


def _read_draft(m: pb.Draft) -> DraftMessage:
    size = max(len(m.tokens), len(m.parents), len(m.values) // 4)
    if size > MAX_NODES:
        raise WireError(f"a draft has at most {MAX_NODES} tokens, not {size}")
    tokens, parents = tuple(m.tokens), tuple(m.parents) or None
    if len(m.values) % 4:
        raise WireError("the tokens' probabilities are not whole float32 numbers")
    draft = Draft(
        tokens,
        parents,
        read_rows(m.rows) if m.HasField("rows") else None,
        tuple(np.frombuffer(m.values, "<f4").tolist()) or None,
        m.looked_up,
    )
    resampled = read_optional(m, "resampled")
    open_at = read_optional(m, "open_at")
    base, patience_s = read_digest(m.base), m.patience_ms / 1e3
    return DraftMessage(
        base, draft, m.round, resampled, open_at, patience_s, m.hint, m.without_exits
    )


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of a cloud's message."""
    match message:
        case Prediction(base, path, token, confidence, layer):
            chain = is_chain(path)
            prediction = pb.Prediction(
                base=write_digest(base),
                path=() if chain else path,
                accepted=len(path) if chain else 0,
                token=token,
                confidence=confidence,
                layer=layer,
            )
            wrapped = pb.ServerMessage(prediction=prediction)
        case Verdict():
            chain = is_chain(message.path)
            wrapped = pb.ServerMessage(
                verdict=pb.Verdict(
                    base=write_digest(message.base),
                    path=() if chain else message.path,
                    accepted=len(message.path) if chain else 0,
                    token=message.token,
                    tokens=message.tokens,
                    finish=_FINISHES[message.finish],
                    verify_us=microseconds(message.verify_s),
                    queue_us=microseconds(message.queue_s),
                    drafted=message.drafted,
                    draft_us=microseconds(message.draft_s),
                    residual=write_residual(message.residual),
                    leads_to=message.leads_to,
                    alone=message.alone,
                )
            )
        case RowMessage(base, row):
            wrapped = pb.ServerMessage(row=pb.Row(base=write_digest(base), row=write_rows([row])))
        case Opened(session, spec, base, protocol, verified):
            opened = pb.Opened(
                session=session,
                spec=spec,
                base=write_digest(base),
                protocol=protocol,
                verified=verified,
            )
            wrapped = pb.ServerMessage(opened=opened)
        case Fault(code, text, retry_after_s, address, lease, lease_s):
            retry_ms = min(math.ceil(1e3 * retry_after_s - 1e-6), 2**32 - 1)
            wrapped = pb.ServerMessage(
                fault=pb.Fault(
                    code=code,
                    text=text,
                    retry_after_ms=retry_ms,
                    address=address,
                    lease=lease,
                    lease_ms=round(1e3 * lease_s),
                )
            )
    data: bytes = wrapped.SerializeToString()
    return data


def decode_server(data: bytes) -> ServerMessage:
    """Read a cloud's message; raises WireError."""
    try:
        wrapped = pb.ServerMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    match wrapped.WhichOneof("kind"):
        case "verdict":
            return _read_verdict(wrapped.verdict)
        case "prediction":
            p = wrapped.prediction
            path = read_path(p.path, p.accepted)
            return Prediction(read_digest(p.base), path, p.token, p.confidence, p.layer)
        case "row":
            return RowMessage(read_digest(wrapped.row.base), read_row(wrapped.row.row))
        case "opened":
            o = wrapped.opened
            return Opened(o.session, o.spec, read_digest(o.base), o.protocol, o.verified)
        case "fault":
            fault = wrapped.fault
            return Fault(
                fault.code,
                fault.text,
                min(fault.retry_after_ms / 1e3, MAX_RETRY_S),
                fault.address,
                fault.lease,
                fault.lease_ms / 1e3,
            )
    raise _unknown_kind(wrapped, "robot")


def _unknown_kind(wrapped: Any, side: str) -> WireError:
    """The error of a message without a kind that this side knows."""
    fields: Any = UnknownFieldSet(wrapped)
    if not len(fields):
        return WireError("an empty message")
    text = f"a message of kind {fields[0].field_number} belongs to a later protocol"
    return WireError(f"{text}; update edge_cloud_spec on the {side}")


def _read_verdict(v: pb.Verdict) -> Verdict:
    if max(len(v.path), len(v.tokens)) > MAX_NODES or v.finish not in _FINISH_NAMES:
        raise WireError("a verdict that accepts more than a draft holds, or of a later protocol")
    return Verdict(
        read_digest(v.base),
        read_path(v.path, v.accepted),
        read_optional(v, "token"),
        _FINISH_NAMES[v.finish],
        tuple(v.tokens),
        v.drafted,
        v.verify_us * 1e-6,
        v.queue_us * 1e-6,
        v.draft_us * 1e-6,
        read_residual(v.residual) if v.HasField("residual") else None,
        v.leads_to,
        v.alone,
    )
