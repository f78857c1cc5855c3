"""Between the dataclasses of ``messages`` and protobuf bytes: a table of fields for each message.

A field has the same name on both sides and is copied, or the table says its other name and how it
is converted in either direction. Whatever a peer sends is checked here, or where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields as fields_of
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_NODES, Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from . import decode_pb2 as pb
from .channel import MAX_RETRY_S
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

MAX_NUMBERS = 2**24  # numbers in one message; more do not fit one anyway
MAX_VERIFIED = 65_536  # tokens with which an answer goes on at another verifier
_FINISHES = ("", "end", "length")  # by their numbers in decode.proto
_FINISH_NUMBERS = range(len(_FINISHES))

Fields = dict[str, Any]  # of a protobuf message, by name; None: absent
Convert = Callable[[Any], Any]


# Converters


def pack_ids(ids: NDArray[np.int64], bits: int) -> bytes:
    """Ids [n] below 2^bits as ``bits`` bits each, lowest bit first."""
    each = (ids[:, None] >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).ravel(), bitorder="little").tobytes()


def unpack_ids(data: bytes, count: int, bits: int) -> NDArray[np.int64]:
    """The inverse of ``pack_ids``, ids [count]; raises WireError."""
    if not 1 <= bits <= 31 or len(data) != (count * bits + 7) // 8:
        raise WireError(f"{len(data)} bytes are not {count} ids of {bits} bits each")
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits]
    each = each.reshape(count, bits)
    ids = np.zeros(count, np.int64)
    for bit in range(bits):  # one by one: all bits as int64 are 64 times what the message has
        ids |= each[:, bit].astype(np.int64) << bit
    return ids


def write_rows(rows: Sequence[TokenDistribution]) -> Fields:
    """Rows of probabilities: float32, and ids of as many bits as they need.

    Where one row is sparse, all carry their ids.
    """
    numbers = b"".join(row.probabilities.astype("<f4").tobytes() for row in rows)
    sizes = [len(row.probabilities) for row in rows]
    if all(row.ids is None for row in rows):
        return {"sizes": sizes, "probabilities": numbers}
    ids = np.concatenate(
        [np.arange(len(r.probabilities)) if r.ids is None else r.ids for r in rows]
    )
    bits = max(1, int(ids.max(initial=0)).bit_length())
    packed = pack_ids(ids, bits)
    return {"sizes": sizes, "probabilities": numbers, "ids": packed, "id_bits": bits}


def read_rows(rows: pb.Rows) -> tuple[TokenDistribution, ...]:
    """The inverse of ``write_rows``; raises WireError."""
    if len(rows.sizes) > MAX_NODES:
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
    found = read_rows(rows)
    if len(found) != 1:
        raise WireError(f"one row is expected, not {len(found)}")
    return found[0]


def _write_residual(residual: Residual) -> Fields:
    """Write a residual of any form that a ``Split`` has."""
    if isinstance(residual, TokenDistribution):
        return {"top": write_rows([residual])}
    top = TokenDistribution(residual.top_probabilities, residual.top)
    tail = TokenDistribution(
        np.array(residual.tail_probabilities), np.array(residual.tail_tokens, np.int64)
    )
    mass = residual.tail_mass
    return {"top": write_rows([top]), "tail_mass": mass, "tail": write_rows([tail])}


def _read_residual(residual: pb.Residual) -> Residual:
    top = _read_row(residual.top)
    if not residual.HasField("tail"):
        return top
    tail = _read_row(residual.tail)
    if top.ids is None or tail.ids is None:
        raise WireError("a residual's short form needs the ids of its numbers")
    tokens, chances = tail.ids.tolist(), tail.probabilities.tolist()
    mass = residual.tail_mass
    return SparseResidual(top.ids, top.probabilities, mass, tuple(tokens), tuple(chances))


def _write_digest(digest: PrefixDigest) -> Fields:
    return {"length": digest.length, "hash": digest.hash}


def _read_digest(digest: pb.Digest) -> PrefixDigest:
    return PrefixDigest(digest.length, digest.hash)


def _is_chain(path: tuple[int, ...]) -> bool:
    """Whether a path is the beginning of a chain, so that its length names it."""
    return path == tuple(range(len(path)))


def _read_path(message: Any) -> tuple[int, ...]:
    """A path from its nodes (of a tree) or its length (of a chain)."""
    path, accepted = tuple(message.path), message.accepted
    if max(accepted, len(path)) > MAX_NODES:
        raise WireError("more is accepted than a draft holds")
    return path or tuple(range(accepted))


def _whole_milliseconds(seconds: float) -> int:
    """The longest that a uint32 holds where it is longer."""
    return round(1e3 * min(max(0.0, seconds), 4e6))


# Tables of fields


class _Field(NamedTuple):
    """A field of the .proto, and how an attribute's value is written and read; None: as it is.

    ``optional``: it is absent where the attribute is None. Without a ``name`` it is not written,
    and ``read`` is given the whole message.
    """

    name: str
    write: Convert | None = None
    read: Convert | None = None
    optional: bool = False


class _Table:
    """What a dataclass is on the wire.

    ``copied``: attributes that have the same name and value there. ``fields``: the others; a table
    among them has its fields beside these, and no message of its own. ``written``: fields that are
    made of the whole dataclass. ``check`` refuses a message before it is read.
    """

    def __init__(
        self,
        kind: Any,
        copied: str = "",
        written: dict[str, Convert] | None = None,
        check: Convert | None = None,
        **fields: _Field | _Table,
    ) -> None:
        same: dict[str, _Field | _Table] = {name: _Field(name) for name in copied.split()}
        self._fields = same | fields
        # Both ways become one expression, as dataclasses are made: each verdict waits for them.
        known: dict[str, Any] = {}

        def call(function: Callable[..., Any] | None, value: str) -> str:
            if function is None:
                return value
            known[f"f{len(known)}"] = function
            return f"f{len(known) - 1}({value})"

        def read_of(attribute: str, field: _Field | _Table) -> str:
            if isinstance(field, _Table) or not field.name:
                return f"{attribute}{call(field.read, 'm')}"
            value = call(field.read, f"m.{field.name}")
            absent = f" if m.HasField({field.name!r}) else None" if field.optional else ""
            return f"{attribute}{value}{absent}"

        def write_of(field: _Field, value: str) -> str:
            absent = f"None if {value} is None else " if field.optional and field.write else ""
            return f"{field.name!r}: {absent}{call(field.write, value)}"

        writes = [write_of(*each) for each in self._places("m")]
        writes += [f"{name!r}: {call(make, 'm')}" for name, make in (written or {}).items()]
        reads = call(
            kind,
            ", ".join(
                read_of(f"{each.name}=" if each.kw_only else "", self._fields[each.name])
                for each in fields_of(kind)
            ),
        )
        refused = f"{call(check, 'm')} or " if check else ""
        #: The fields of the protobuf message.
        self.write: Callable[[Any], Fields] = eval(f"lambda m: {{{', '.join(writes)}}}", known)
        #: The dataclass; raises WireError, or ValueError for a value out of range.
        self.read: Convert = eval(f"lambda m: {refused}{reads}", known)

    def _places(self, at: str) -> Iterator[tuple[_Field, str]]:
        """The wire fields, and where the value of each is found."""
        for attribute, field in self._fields.items():
            if isinstance(field, _Table):
                yield from field._places(f"{at}.{attribute}")
            elif field.name:
                yield field, f"{at}.{attribute}"


def _seconds(name: str) -> _Field:
    """A time in us."""
    return _Field(name, lambda s: max(0, round(s * 1e6)), (1e-6).__mul__)


def _message(name: str, table: _Table) -> _Field:
    return _Field(name, table.write, table.read, True)


_BASE = _Field("base", _write_digest, _read_digest)
_PATH = _Field("", None, _read_path)
_WRITTEN_PATH: dict[str, Convert] = {
    "path": lambda message: () if _is_chain(message.path) else message.path,
    "accepted": lambda message: len(message.path) if _is_chain(message.path) else 0,
}
_ROW = _Field("row", lambda row: write_rows([row]), _read_row)


def _check_draft(draft: pb.Draft) -> None:
    size = max(len(draft.tokens), len(draft.parents), len(draft.values) // 4)
    if size > MAX_NODES:
        raise WireError(f"a draft has at most {MAX_NODES} tokens, not {size}")
    if len(draft.values) % 4:
        raise WireError("the tokens' probabilities are not whole float32 numbers")


def _check_open(opening: pb.Open) -> None:
    if len(opening.verified) > MAX_VERIFIED:
        raise WireError(f"an answer has at most {MAX_VERIFIED} tokens")


def _check_verdict(verdict: pb.Verdict) -> None:
    size = max(len(verdict.path), len(verdict.tokens))
    if size > MAX_NODES or verdict.finish not in _FINISH_NUMBERS:
        raise WireError("a verdict that accepts more than a draft holds, or of a later protocol")


_DRAFT = _Table(
    Draft,
    "looked_up",
    check=_check_draft,
    tokens=_Field("tokens", None, tuple),
    parents=_Field(
        "parents", lambda parents: parents or (), lambda parents: tuple(parents) or None
    ),
    rows=_Field("rows", lambda rows: write_rows(rows) if rows else None, read_rows, True),
    values=_Field(
        "values",
        lambda values: np.array(values, "<f4").tobytes() if values else b"",
        lambda values: tuple(np.frombuffer(values, "<f4").tolist()) if values else None,
    ),
)
_POLICY = _Table(
    SamplingPolicy,
    "temperature top_k seed grammar",
    top_p=_Field("top_p", None, lambda top_p: top_p or 1.0),
)
_GENERATION = _Table(Generation, "speculative until may_speculate")
_CLIENT = {
    DraftMessage: (
        "draft",
        _Table(
            DraftMessage,
            "round hint without_exits",
            base=_BASE,
            draft=_DRAFT,
            resampled=_Field("resampled", optional=True),
            open_at=_Field("open_at", optional=True),
            patience_s=_Field("patience_ms", _whole_milliseconds, lambda ms: ms / 1e3),
        ),
    ),
    Open: (
        "open",
        _Table(
            Open,
            "protocol oldest_protocol nonce instruction jpeg order rule payload tokenizer_digest "
            "draft_identity spec_digest max_tokens draft_length predictions key secret preset "
            "lookup",
            check=_check_open,
            policy=_Field("policy", _POLICY.write, _POLICY.read),
            split=_message("split", _Table(Split, "residual top_k tail")),
            replacement=_Field("distinct", lambda value: not value, lambda value: not value),
            verified=_Field("verified", None, tuple),
            generation=_message("generate", _GENERATION),
        ),
    ),
    Generate: ("generate", _Table(Generate, base=_BASE, generation=_GENERATION)),
    Resume: ("resume", _Table(Resume, "session secret", base=_BASE)),
    Close: ("close", _Table(Close, resampled=_Field("resampled", optional=True))),
    RowRequest: ("row_request", _Table(RowRequest, base=_BASE)),
}
_SERVER = {
    Verdict: (
        "verdict",
        _Table(
            Verdict,
            "drafted leads_to",
            _WRITTEN_PATH,
            _check_verdict,
            generated=_Field("alone"),
            base=_BASE,
            path=_PATH,
            token=_Field("token", optional=True),
            finish=_Field("finish", _FINISHES.index, _FINISHES.__getitem__),
            tokens=_Field("tokens", None, tuple),
            verify_s=_seconds("verify_us"),
            queue_s=_seconds("queue_us"),
            draft_s=_seconds("draft_us"),
            residual=_Field("residual", _write_residual, _read_residual, True),
        ),
    ),
    Prediction: (
        "prediction",
        _Table(Prediction, "token confidence layer", _WRITTEN_PATH, base=_BASE, path=_PATH),
    ),
    RowMessage: ("row", _Table(RowMessage, base=_BASE, row=_ROW)),
    Opened: ("opened", _Table(Opened, "session spec protocol verified", base=_BASE)),
    Fault: (
        "fault",
        _Table(
            Fault,
            "code text address lease",
            retry_after_s=_Field(
                "retry_after_ms",
                lambda s: min(math.ceil(1e3 * s - 1e-6), 2**32 - 1),
                lambda ms: min(ms / 1e3, MAX_RETRY_S),
            ),
            lease_s=_Field("lease_ms", lambda s: round(1e3 * s), lambda ms: ms / 1e3),
        ),
    ),
}
_READ_CLIENT = {name: table.read for name, table in _CLIENT.values()}
_READ_SERVER = {name: table.read for name, table in _SERVER.values()}


def encode_client(message: ClientMessage) -> bytes:
    """The bytes of a robot's message."""
    name, table = _CLIENT[type(message)]
    body: Fields = {name: table.write(message)}
    data: bytes = pb.ClientMessage(**body).SerializeToString()
    return data


def decode_client(data: bytes) -> ClientMessage:
    """Read a robot's message; raises WireError, or ValueError for a value out of range."""
    message: ClientMessage = _decode(data, pb.ClientMessage, _READ_CLIENT, "cloud")
    return message


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of a cloud's message."""
    name, table = _SERVER[type(message)]
    body: Fields = {name: table.write(message)}
    data: bytes = pb.ServerMessage(**body).SerializeToString()
    return data


def decode_server(data: bytes) -> ServerMessage:
    """Read a cloud's message; raises WireError."""
    message: ServerMessage = _decode(data, pb.ServerMessage, _READ_SERVER, "robot")
    return message


def _decode(data: bytes, form: Any, readers: dict[str, Convert], side: str) -> Any:
    try:
        wrapped = form.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a message of this protocol: {error}") from None
    kind = wrapped.WhichOneof("kind")
    if kind is not None:
        return readers[kind](getattr(wrapped, kind))
    fields: Any = UnknownFieldSet(wrapped)
    if not len(fields):
        raise WireError("an empty message")
    text = f"a message of kind {fields[0].field_number} belongs to a later protocol"
    raise WireError(f"{text}; update edge_cloud_spec on the {side}")
