"""Between the dataclasses of ``messages`` and protobuf bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_NODES, Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from . import decode_pb2 as pb
from .messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Residual,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
    WireError,
)
from .rows import read_rows, write_rows

_FINISHES = {"": pb.GOES_ON, "end": pb.END, "length": pb.LENGTH}
_KINDS = {  # of a client's message, by its first byte: the tag of a field with a length
    field.number << 3 | 2: field.name for field in pb.ClientMessage.DESCRIPTOR.fields
}
_FINISH_NAMES = {number: name for name, number in _FINISHES.items()}


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _digest(digest: PrefixDigest) -> pb.Digest:
    return pb.Digest(length=digest.length, hash=digest.hash)


def _read_digest(digest: pb.Digest) -> PrefixDigest:
    return PrefixDigest(digest.length, digest.hash)


def encode_client(message: ClientMessage) -> bytes:
    """The bytes of what a robot says."""
    match message:
        case DraftMessage(base, draft, round_):
            body = pb.Draft(
                base=_digest(base),
                tokens=draft.tokens,
                parents=draft.parents or (),
                rows=write_rows(draft.rows) if draft.rows else None,
                values=np.array(draft.values or (), "<f4").tobytes(),
                round=round_,
                resampled=message.resampled,
                open_at=message.open_at,
            )
            wrapped = pb.ClientMessage(draft=body)
        case Open():
            policy = pb.Policy(
                temperature=message.policy.temperature,
                top_k=message.policy.top_k,
                top_p=message.policy.top_p,
                seed=message.policy.seed,
            )
            wrapped = pb.ClientMessage(
                open=pb.Open(
                    protocol=message.protocol,
                    nonce=message.nonce,
                    instruction=message.instruction,
                    jpeg=message.jpeg,
                    order=message.order,
                    policy=policy,
                    rule=message.rule,
                    payload=message.payload,
                    tokenizer_digest=message.tokenizer_digest,
                    draft_identity=message.draft_identity,
                    spec_digest=message.spec_digest,
                    max_tokens=message.max_tokens,
                    draft_length=message.draft_length,
                    split=_split(message.split),
                    distinct=not message.replacement,
                    predictions=message.predictions,
                    key=message.key,
                    secret=message.secret,
                )
            )
        case Generate(base, speculative, until):
            generate = pb.Generate(base=_digest(base), speculative=speculative, until=until)
            wrapped = pb.ClientMessage(generate=generate)
        case Resume(session, base, secret):
            resume = pb.Resume(session=session, base=_digest(base), secret=secret)
            wrapped = pb.ClientMessage(resume=resume)
        case Close(resampled):
            wrapped = pb.ClientMessage(close=pb.Close(resampled=resampled))
        case RowRequest(base):
            wrapped = pb.ClientMessage(row_request=pb.RowRequest(base=_digest(base)))
    data: bytes = wrapped.SerializeToString()
    return data


def kind_of(data: bytes) -> str:
    """What a client's message is (draft, open, ...), by its first byte alone; empty: unknown."""
    return _KINDS.get(data[0], "") if data else ""


def decode_client(data: bytes) -> ClientMessage:
    """Read what a robot said; raises WireError, or ValueError of a value out of range."""
    try:
        wrapped = pb.ClientMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    match wrapped.WhichOneof("kind"):
        case "draft":
            return _read_draft(wrapped.draft)
        case "open":
            o = wrapped.open
            p = o.policy
            policy = SamplingPolicy(p.temperature, p.top_k, p.top_p or 1.0, p.seed)
            return Open(
                nonce=o.nonce,
                instruction=o.instruction,
                jpeg=o.jpeg,
                order=o.order,
                policy=policy,
                rule=o.rule,
                payload=o.payload,
                tokenizer_digest=o.tokenizer_digest,
                draft_identity=o.draft_identity,
                spec_digest=o.spec_digest,
                max_tokens=o.max_tokens,
                draft_length=o.draft_length,
                protocol=o.protocol,
                split=_read_split(o.split) if o.HasField("split") else None,
                replacement=not o.distinct,
                predictions=o.predictions,
                key=o.key,
                secret=o.secret,
            )
        case "generate":
            g = wrapped.generate
            return Generate(_read_digest(g.base), g.speculative, g.until)
        case "resume":
            r = wrapped.resume
            return Resume(r.session, _read_digest(r.base), r.secret)
        case "close":
            return Close(_optional(wrapped.close, "resampled"))
        case "row_request":
            return RowRequest(_read_digest(wrapped.row_request.base))
    raise WireError("an empty message, or one of a later protocol")


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
    )
    resampled = _optional(m, "resampled")
    open_at = _optional(m, "open_at")
    return DraftMessage(_read_digest(m.base), draft, m.round, resampled, open_at)


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None


def _split(split: Split | None) -> pb.Split | None:
    if split is None:
        return None
    return pb.Split(residual=split.residual, top_k=split.top_k, tail=split.tail)


def _read_split(split: pb.Split) -> Split:
    return Split(split.residual, split.top_k, split.tail)


def _residual(residual: Residual | None) -> pb.Residual | None:
    if residual is None:
        return None
    if isinstance(residual, TokenDistribution):
        return pb.Residual(top=write_rows([residual]))
    top = TokenDistribution(residual.top_probabilities, residual.top)
    tail = TokenDistribution(
        np.array(residual.tail_probabilities), np.array(residual.tail_tokens, np.int64)
    )
    return pb.Residual(top=write_rows([top]), tail_mass=residual.tail_mass, tail=write_rows([tail]))


def _read_residual(residual: pb.Residual) -> Residual:
    top = _read_row(residual.top)
    if not residual.HasField("tail"):
        return top
    tail = _read_row(residual.tail)
    if top.ids is None or tail.ids is None:
        raise WireError("a residual's short form needs the ids of its numbers")
    return SparseResidual(
        top.ids,
        top.probabilities,
        residual.tail_mass,
        tuple(tail.ids.tolist()),
        tuple(tail.probabilities.tolist()),
    )


def _read_row(rows: pb.Rows) -> TokenDistribution:
    found = read_rows(rows)
    if len(found) != 1:
        raise WireError(f"one row is expected, not {len(found)}")
    return found[0]


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of what a cloud says."""
    match message:
        case Prediction(base, path, token, confidence, layer):
            is_chain = _is_chain(path)
            prediction = pb.Prediction(
                base=_digest(base),
                path=() if is_chain else path,
                accepted=len(path) if is_chain else 0,
                token=token,
                confidence=confidence,
                layer=layer,
            )
            wrapped = pb.ServerMessage(prediction=prediction)
        case Verdict():
            is_chain = _is_chain(message.path)
            wrapped = pb.ServerMessage(
                verdict=pb.Verdict(
                    base=_digest(message.base),
                    path=() if is_chain else message.path,
                    accepted=len(message.path) if is_chain else 0,
                    token=message.token,
                    tokens=message.tokens,
                    finish=_FINISHES[message.finish],
                    verify_us=_microseconds(message.verify_s),
                    queue_us=_microseconds(message.queue_s),
                    drafted=message.drafted,
                    draft_us=_microseconds(message.draft_s),
                    residual=_residual(message.residual),
                    leads_to=message.leads_to,
                )
            )
        case RowMessage(base, row):
            wrapped = pb.ServerMessage(row=pb.Row(base=_digest(base), row=write_rows([row])))
        case Opened(session, spec, base):
            opened = pb.Opened(session=session, spec=spec, base=_digest(base))
            wrapped = pb.ServerMessage(opened=opened)
        case Fault(code, text):
            wrapped = pb.ServerMessage(fault=pb.Fault(code=code, text=text))
    data: bytes = wrapped.SerializeToString()
    return data


def decode_server(data: bytes) -> ServerMessage:
    """Read what a cloud said; raises WireError."""
    try:
        wrapped = pb.ServerMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    match wrapped.WhichOneof("kind"):
        case "verdict":
            return _read_verdict(wrapped.verdict)
        case "prediction":
            p = wrapped.prediction
            path = _read_path(p.path, p.accepted)
            return Prediction(_read_digest(p.base), path, p.token, p.confidence, p.layer)
        case "row":
            return RowMessage(_read_digest(wrapped.row.base), _read_row(wrapped.row.row))
        case "opened":
            o = wrapped.opened
            return Opened(o.session, o.spec, _read_digest(o.base))
        case "fault":
            return Fault(wrapped.fault.code, wrapped.fault.text)
    raise WireError("an empty message, or one of a later protocol")


def _is_chain(path: tuple[int, ...]) -> bool:
    return path == tuple(range(len(path)))


def _read_path(path: Sequence[int], accepted: int) -> tuple[int, ...]:
    """A tree's path is named, a chain's counted."""
    if max(accepted, len(path)) > MAX_NODES:
        raise WireError("more is accepted than a draft holds")
    return tuple(path) or tuple(range(accepted))


def _read_verdict(v: pb.Verdict) -> Verdict:
    if max(len(v.path), len(v.tokens)) > MAX_NODES or v.finish not in _FINISH_NAMES:
        raise WireError("a verdict that accepts more than a draft holds, or of a later protocol")
    return Verdict(
        _read_digest(v.base),
        _read_path(v.path, v.accepted),
        _optional(v, "token"),
        _FINISH_NAMES[v.finish],
        tuple(v.tokens),
        v.drafted,
        v.verify_us * 1e-6,
        v.queue_us * 1e-6,
        v.draft_us * 1e-6,
        _read_residual(v.residual) if v.HasField("residual") else None,
        v.leads_to,
    )
