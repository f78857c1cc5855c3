"""Between the dataclasses of ``messages`` and protobuf bytes."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from . import decode_pb2 as pb
from .messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    ServerMessage,
    Verdict,
    WireError,
)


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
            dense = b"" if draft.rows is None else draft.rows.astype("<f4").tobytes()
            body = pb.Draft(
                base=_digest(base),
                tokens=draft.tokens,
                parents=draft.parents or (),
                dense=dense,
                round=round_,
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
                )
            )
        case Generate(base, speculative):
            generate = pb.Generate(base=_digest(base), speculative=speculative)
            wrapped = pb.ClientMessage(generate=generate)
        case Resume(session, base):
            wrapped = pb.ClientMessage(resume=pb.Resume(session=session, base=_digest(base)))
        case Close():
            wrapped = pb.ClientMessage(close=pb.Close())
    data: bytes = wrapped.SerializeToString()
    return data


def decode_client(data: bytes) -> ClientMessage:
    """Read what a robot said; raises WireError, or ValueError of a value out of range."""
    try:
        wrapped = pb.ClientMessage.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    match wrapped.WhichOneof("kind"):
        case "draft":
            m = wrapped.draft
            rows = None
            if m.dense:
                if not m.tokens or len(m.dense) % (4 * len(m.tokens)):
                    raise WireError("the dense rows are not whole float32 rows, one for each token")
                rows = np.frombuffer(m.dense, "<f4").reshape(len(m.tokens), -1)
            parents = tuple(m.parents) or None
            return DraftMessage(
                _read_digest(m.base), Draft(tuple(m.tokens), parents, rows), m.round
            )
        case "open":
            o = wrapped.open
            p = o.policy
            policy = SamplingPolicy(p.temperature, p.top_k, p.top_p or 1.0, p.seed)
            return Open(
                o.nonce,
                o.instruction,
                o.jpeg,
                o.order,
                policy,
                o.rule,
                o.payload,
                o.tokenizer_digest,
                o.draft_identity,
                o.spec_digest,
                o.max_tokens,
                o.draft_length,
                o.protocol,
            )
        case "generate":
            return Generate(_read_digest(wrapped.generate.base), wrapped.generate.speculative)
        case "resume":
            return Resume(wrapped.resume.session, _read_digest(wrapped.resume.base))
        case "close":
            return Close()
    raise WireError("an empty message, or one of a later protocol")


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of what a cloud says."""
    match message:
        case Verdict():
            wrapped = pb.ServerMessage(
                verdict=pb.Verdict(
                    base=_digest(message.base),
                    path=message.path,
                    token=message.token,
                    tokens=message.tokens,
                    finish=message.finish,
                    round=message.round,
                    verify_us=_microseconds(message.verify_s),
                    queue_us=_microseconds(message.queue_s),
                    drafted=message.drafted,
                    draft_us=_microseconds(message.draft_s),
                )
            )
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
            v = wrapped.verdict
            return Verdict(
                _read_digest(v.base),
                tuple(v.path),
                v.token if v.HasField("token") else None,
                v.round,
                v.finish,
                tuple(v.tokens),
                v.drafted,
                v.verify_us * 1e-6,
                v.queue_us * 1e-6,
                v.draft_us * 1e-6,
            )
        case "opened":
            o = wrapped.opened
            return Opened(o.session, o.spec, _read_digest(o.base))
        case "fault":
            return Fault(wrapped.fault.code, wrapped.fault.text)
    raise WireError("an empty message, or one of a later protocol")
