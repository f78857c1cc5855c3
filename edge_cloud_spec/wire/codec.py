"""Converts between the dataclasses of ``messages`` and frames, and reads frames where bytes arrive.

Whatever a peer sends is checked here, or where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from numpy.typing import NDArray

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_NODES, Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from ..errors import refuse
from ..request import (
    DIGEST,
    LONGEST_CANDIDATE,
    MOST_CANDIDATES,
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TEXT,
    Message,
    Part,
    Picture,
    Request,
)
from . import decode_pb2 as pb
from .channel import MAX_PAUSE_S
from .frames import (
    ClientFrame,
    Head,
    ServerFrame,
    client_head,
    server_head,
)
from .messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
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

M = TypeVar("M", bound=ProtoMessage)

MAX_NUMBERS = 2**24  # in one message; more would not fit
MAX_VERIFIED = 65_536  # tokens that another verifier can continue after


def read_client(data: bytes) -> ClientFrame:
    """Bytes of a robot that have arrived, as a frame; raises WireError."""
    return ClientFrame(client_head(data), data)


def encode_client(message: ClientMessage) -> ClientFrame:
    """Serialize a robot's message."""
    match message:
        case DraftMessage():
            return _client_frame(Head("draft", message.base), _write_draft(message))
        case Open():
            return _client_frame(Head("open"), _write_open(message))
        case Generate(base, generation):
            return _client_frame(Head("generate", base), pb.Generate(**vars(generation)))
        case Resume(session, base, secret):
            return _client_frame(Head("resume", base), pb.Resume(session=session, secret=secret))
        case Close(resampled):
            return _client_frame(Head("close"), pb.Close(resampled=resampled))
        case RowRequest(base):
            return ClientFrame.of(Head("row_request", base), b"")


def _client_frame(head: Head, message: ProtoMessage) -> ClientFrame:
    return ClientFrame.of(head, message.SerializeToString())


def decode_client(frame: ClientFrame) -> ClientMessage:
    """Parse a robot's message; raises WireError, or ValueError for a value out of range."""
    base, body = frame.head.base, frame.body
    match frame.head.kind:
        case "draft":
            return _read_draft(base, _parsed(pb.Draft(), body))
        case "open":
            return _read_open(_parsed(pb.Open(), body))
        case "generate":
            return Generate(base, _read_generation(_parsed(pb.Generate(), body)))
        case "resume":
            resume = _parsed(pb.Resume(), body)
            return Resume(resume.session, base, resume.secret)
        case "close":
            close = _parsed(pb.Close(), body)
            return Close(close.resampled if close.HasField("resampled") else None)
        case _:
            return RowRequest(base)


def read_server(data: bytes) -> ServerFrame:
    """Bytes of a cloud that have arrived, as a frame; raises WireError."""
    frame = ServerFrame(server_head(data), data)
    return replace(frame, fault=_read_fault(frame.body)) if frame.head.kind == "fault" else frame


def encode_server(message: ServerMessage) -> ServerFrame:
    """Serialize a cloud's message."""
    match message:
        case Verdict():
            pass_us = _microseconds(message.verify_s)
            head = Head("verdict", message.base, message.finish, len(message.path), pass_us)
            return _server_frame(head, _write_verdict(message))
        case Prediction(base, path, token, confidence):
            head = Head("prediction", base, "", len(path), round(confidence * 1e6))
            return _server_frame(head, pb.Prediction(path=_write_path(path), token=token))
        case RowMessage(base, row):
            return _server_frame(Head("row", base), _write_rows([row]))
        case Opened():
            opened = pb.Opened(
                session=message.session,
                spec=message.spec,
                protocol=message.protocol,
                verified=message.verified,
                keeps=message.keeps,
            )
            return _server_frame(Head("opened", message.base), opened)
        case Fault():
            body = pb.Fault(
                code=message.code,
                text=message.text,
                retry_after_ms=min(math.ceil(1e3 * message.retry_after_s - 1e-6), 2**32 - 1),
                address=message.address,
                lease=message.lease,
                lease_ms=round(1e3 * message.lease_s),
            )
            return read_server(_server_frame(Head("fault"), body).data)


def _server_frame(head: Head, message: ProtoMessage) -> ServerFrame:
    return ServerFrame.of(head, message.SerializeToString())


def decode_server(frame: ServerFrame) -> ServerMessage:
    """Parse a cloud's message; raises WireError."""
    if frame.fault is not None:
        return frame.fault
    head, body = frame.head, frame.body
    match head.kind:
        case "verdict":
            return _read_verdict(head, _parsed(pb.Verdict(), body))
        case "prediction":
            prediction = _parsed(pb.Prediction(), body)
            if head.millionths > 10**6:
                raise WireError("a prediction that is surer than certain")
            path = _read_path(head, prediction)
            return Prediction(head.base, path, prediction.token, head.millionths * 1e-6)
        case "opened":
            opened = _parsed(pb.Opened(), body)
            return Opened(
                opened.session,
                opened.spec,
                head.base,
                opened.protocol,
                opened.verified,
                opened.keeps,
            )
        case _:
            return RowMessage(head.base, _read_row(_parsed(pb.Rows(), body)))


def _read_fault(body: bytes) -> Fault:
    fault = _parsed(pb.Fault(), body)
    pause_s, lease_s = min(fault.retry_after_ms / 1e3, MAX_PAUSE_S), fault.lease_ms / 1e3
    return Fault(fault.code, fault.text, pause_s, fault.address, fault.lease, lease_s)


def _parsed(message: M, body: bytes) -> M:
    """Parse these bytes into ``message``."""
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    return message


# Robot's messages


def _write_open(opening: Open) -> pb.Open:
    split, generation = opening.split, opening.generation
    return pb.Open(
        protocol=opening.protocol,
        oldest_protocol=opening.oldest_protocol,
        nonce=opening.nonce,
        policy=pb.Policy(**vars(opening.policy)),
        rule=opening.rule,
        payload=opening.payload,
        tokenizer_digest=opening.tokenizer_digest,
        draft_identity=opening.draft_identity,
        spec_digest=opening.spec_digest,
        max_tokens=opening.max_tokens,
        draft_length=opening.draft_length,
        split=None if split is None else pb.Split(**vars(split)),
        distinct=not opening.replacement,
        predictions=opening.predictions,
        key=opening.key,
        secret=opening.secret,
        preset=opening.preset,
        verified=opening.verified,
        generate=None if generation is None else pb.Generate(**vars(generation)),
        lookup=opening.lookup,
        messages=[
            pb.Message(role=message.role, parts=map(_write_part, message.parts))
            for message in opening.request.messages
        ],
        after=opening.after,
        candidates=opening.request.candidates,
        whole=opening.request.whole,
        continues=opening.request.continues,
        log_probs=opening.log_probs,
    )


def _read_open(opening: pb.Open) -> Open:
    refuse(
        (len(opening.verified) > MAX_VERIFIED, f"an answer has at most {MAX_VERIFIED} tokens"),
        (len(opening.after) not in (0, DIGEST), f"messages are named by {DIGEST} bytes"),
        error=WireError,
    )
    policy, split = opening.policy, opening.split
    return Open(
        opening.nonce,
        _read_request(opening),
        SamplingPolicy(
            policy.temperature, policy.top_k, policy.top_p or 1.0, policy.seed, policy.grammar
        ),
        opening.rule,
        payload=opening.payload,
        tokenizer_digest=opening.tokenizer_digest,
        draft_identity=opening.draft_identity,
        spec_digest=opening.spec_digest,
        max_tokens=opening.max_tokens,
        draft_length=opening.draft_length,
        protocol=opening.protocol,
        oldest_protocol=opening.oldest_protocol,
        split=Split(split.residual, split.top_k, split.tail) if opening.HasField("split") else None,
        replacement=not opening.distinct,
        predictions=opening.predictions,
        key=opening.key,
        secret=opening.secret,
        preset=opening.preset,
        verified=tuple(opening.verified),
        generation=_read_generation(opening.generate) if opening.HasField("generate") else None,
        lookup=opening.lookup,
        after=opening.after,
        log_probs=opening.log_probs,
    )


def _write_part(part: Part) -> pb.Part:
    if isinstance(part, str):
        return pb.Part(text=part)
    width, height = part.size
    picture = pb.Picture(digest=part.digest, data=part.data, width=width, height=height)
    return pb.Part(picture=picture)


def _read_request(opening: pb.Open) -> Request:
    messages, candidates = opening.messages, tuple(opening.candidates)
    refuse(
        (
            len(messages) > MOST_MESSAGES or any(len(each.parts) > MOST_PARTS for each in messages),
            f"a request has at most {MOST_MESSAGES} messages of {MOST_PARTS} parts",
        ),
        (
            len(candidates) > MOST_CANDIDATES
            or any(len(c) > LONGEST_CANDIDATE for c in candidates),
            f"a request has at most {MOST_CANDIDATES} candidates of {LONGEST_CANDIDATE} characters",
        ),
        error=WireError,
    )
    read = tuple(Message(each.role, tuple(map(_read_part, each.parts))) for each in messages)
    if sum(len(message.text) for message in read) > MOST_TEXT:
        raise WireError(f"a request has at most {MOST_TEXT} characters of text")
    return Request(read, candidates, opening.whole, opening.continues)


def _read_part(part: pb.Part) -> Part:
    match part.WhichOneof("kind"):
        case "text":
            return part.text
        case "picture" if len(part.picture.digest) == DIGEST:
            shown = part.picture
            return Picture(shown.digest, shown.data, (shown.width, shown.height))
        case "picture":
            raise WireError(f"a picture is named by {DIGEST} bytes")
        case _:
            raise WireError("a part of a message is of a later protocol; update the verifier")


def _write_draft(message: DraftMessage) -> pb.Draft:
    draft = message.draft
    return pb.Draft(
        tokens=draft.tokens,
        parents=draft.parents,
        rows=_write_rows(draft.rows) if draft.rows else None,
        round=message.round,
        values=_write_floats(draft.values or ()),
        resampled=message.resampled,
        open_at=message.open_at,
        reply_timeout_ms=round(1e3 * min(max(0.0, message.reply_timeout_s), 4e6)),  # a uint32
        hint=message.hint,
        looked_up=draft.looked_up,
        without_exits=message.without_exits,
    )


def _read_draft(base: PrefixDigest, message: pb.Draft) -> DraftMessage:
    size = max(len(message.tokens), len(message.parents), len(message.values) // 4)
    if size > MAX_NODES:
        raise WireError(f"a draft has at most {MAX_NODES} tokens, not {size}")
    draft = Draft(
        tuple(message.tokens),
        tuple(message.parents) or None,
        _read_rows(message.rows) if message.HasField("rows") else None,
        _read_floats(message.values) or None,
        message.looked_up,
    )
    return DraftMessage(
        base,
        draft,
        message.round,
        message.resampled if message.HasField("resampled") else None,
        message.open_at if message.HasField("open_at") else None,
        message.reply_timeout_ms / 1e3,
        message.hint,
        message.without_exits,
    )


def _read_generation(generate: pb.Generate) -> Generation:
    return Generation(generate.speculative, generate.may_speculate)


# Cloud's messages


def _write_verdict(verdict: Verdict) -> pb.Verdict:
    return pb.Verdict(
        path=_write_path(verdict.path),
        token=verdict.token,
        tokens=verdict.tokens,
        queue_us=_microseconds(verdict.queue_s),
        drafted=verdict.drafted,
        draft_us=_microseconds(verdict.draft_s),
        residual=None if verdict.residual is None else _write_residual(verdict.residual),
        leads_to=verdict.leads_to,
        alone=verdict.generated,
        log_probs=_write_floats(verdict.log_probs),
    )


def _read_verdict(head: Head, verdict: pb.Verdict) -> Verdict:
    log_probs = _read_floats(verdict.log_probs)
    refuse(
        (len(verdict.tokens) > MAX_NODES, "a verdict that accepts more than a draft holds"),
        (not all(each <= 0 for each in log_probs), "a probability that is not from 0 to 1"),
        error=WireError,
    )
    return Verdict(
        head.base,
        _read_path(head, verdict),
        verdict.token if verdict.HasField("token") else None,
        head.finish,
        tuple(verdict.tokens),
        verdict.drafted,
        head.millionths * 1e-6,
        verdict.queue_us * 1e-6,
        verdict.draft_us * 1e-6,
        _read_residual(verdict.residual) if verdict.HasField("residual") else None,
        verdict.leads_to,
        verdict.alone,
        log_probs,
    )


# Parts of messages


def _write_path(path: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes of a path in a tree; empty for a prefix of a chain, which its length identifies."""
    return () if path == tuple(range(len(path))) else path


def _read_path(head: Head, message: pb.Verdict | pb.Prediction) -> tuple[int, ...]:
    """The inverse of ``_write_path``: from nodes (tree) or length (chain)."""
    if head.accepted > MAX_NODES:  # first: a chain of 65535 nodes would take milliseconds
        raise WireError("more is accepted than a draft holds")
    path = tuple(message.path) or tuple(range(head.accepted))
    if len(path) != head.accepted:
        raise WireError(f"a path of {len(path)} nodes whose head says {head.accepted}")
    return path


def _write_floats(numbers: Sequence[float]) -> bytes:
    return np.array(numbers, "<f4").tobytes() if numbers else b""


def _read_floats(data: bytes) -> tuple[float, ...]:
    if len(data) % 4:
        raise WireError("probabilities are not whole float32 numbers")
    return tuple(np.frombuffer(data, "<f4").tolist())


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _write_residual(residual: Residual) -> pb.Residual:
    """Serialize a residual of any form of ``Split``."""
    if isinstance(residual, TokenDistribution):
        return pb.Residual(top=_write_rows([residual]))
    top = TokenDistribution(residual.top_probabilities, residual.top)
    tail = TokenDistribution(
        np.array(residual.tail_probabilities), np.array(residual.tail_tokens, np.int64)
    )
    return pb.Residual(
        top=_write_rows([top]), tail_mass=residual.tail_mass, tail=_write_rows([tail])
    )


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


def _write_rows(rows: Sequence[TokenDistribution]) -> pb.Rows:
    """Serialize distributions: float32 probabilities, and ids in as few bits as possible.

    If one is sparse, all carry their ids.
    """
    numbers = b"".join(row.probabilities.astype("<f4").tobytes() for row in rows)
    sizes = [len(row.probabilities) for row in rows]
    if all(row.ids is None for row in rows):
        return pb.Rows(sizes=sizes, probabilities=numbers)
    ids = np.concatenate(
        [np.arange(len(r.probabilities)) if r.ids is None else r.ids for r in rows]
    )
    bits = max(1, int(ids.max(initial=0)).bit_length())
    return pb.Rows(sizes=sizes, probabilities=numbers, ids=pack_ids(ids, bits), id_bits=bits)


def _read_rows(rows: pb.Rows) -> tuple[TokenDistribution, ...]:
    """The inverse of ``_write_rows``; raises WireError."""
    if len(rows.sizes) > MAX_NODES:  # first: to add up millions of them would take seconds
        raise WireError(f"a draft has at most {MAX_NODES} rows, not {len(rows.sizes)}")
    total = sum(rows.sizes)
    if total > MAX_NUMBERS or len(rows.probabilities) != 4 * total:
        raise WireError(f"the rows hold {len(rows.probabilities)} bytes for {total} numbers")
    numbers = np.frombuffer(rows.probabilities, "<f4")
    ids = unpack_ids(rows.ids, total, rows.id_bits) if rows.id_bits else None
    ends = np.cumsum(rows.sizes, dtype=np.int64).tolist()
    return tuple(
        TokenDistribution(numbers[end - size : end], None if ids is None else ids[end - size : end])
        for size, end in zip(rows.sizes, ends, strict=True)
    )


def _read_row(rows: pb.Rows) -> TokenDistribution:
    found = _read_rows(rows)
    if len(found) != 1:
        raise WireError(f"one row is expected, not {len(found)}")
    return found[0]


def pack_ids(ids: NDArray[np.int64], bits: int) -> bytes:
    """Pack ids [n], each below 2^bits, as ``bits`` bits per id, lowest bit first."""
    each = (ids[:, None] >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).ravel(), bitorder="little").tobytes()


def unpack_ids(data: bytes, count: int, bits: int) -> NDArray[np.int64]:
    """The inverse of ``pack_ids``: ids [count]; raises WireError."""
    if not 1 <= bits <= 31 or len(data) != (count * bits + 7) // 8:
        raise WireError(f"{len(data)} bytes are not {count} ids of {bits} bits each")
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits]
    each = each.reshape(count, bits)
    ids = np.zeros(count, np.int64)
    # One bit at a time, as all bits as int64 take 64 times the message's memory.
    for bit in range(bits):
        ids |= each[:, bit].astype(np.int64) << bit
    return ids
