"""Fields that several messages share, between the dataclasses and protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_NODES
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from . import decode_pb2 as pb
from .messages import Residual, WireError
from .rows import read_rows, write_rows


def write_digest(digest: PrefixDigest) -> pb.Digest:
    """A prefix digest as protobuf."""
    return pb.Digest(length=digest.length, hash=digest.hash)


def read_digest(digest: pb.Digest) -> PrefixDigest:
    """The inverse of ``write_digest``."""
    return PrefixDigest(digest.length, digest.hash)


def read_optional(message: Any, field: str) -> int | None:
    """The field, or None where it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def write_split(split: Split | None) -> pb.Split | None:
    """The form of residual that a robot asks for; None: the cloud resamples."""
    if split is None:
        return None
    return pb.Split(residual=split.residual, top_k=split.top_k, tail=split.tail)


def read_split(split: pb.Split) -> Split:
    """The inverse of ``write_split``."""
    return Split(split.residual, split.top_k, split.tail)


def write_residual(residual: Residual | None) -> pb.Residual | None:
    """A residual of any form (see ``Split``)."""
    if residual is None:
        return None
    if isinstance(residual, TokenDistribution):
        return pb.Residual(top=write_rows([residual]))
    top = TokenDistribution(residual.top_probabilities, residual.top)
    tail = TokenDistribution(
        np.array(residual.tail_probabilities), np.array(residual.tail_tokens, np.int64)
    )
    return pb.Residual(top=write_rows([top]), tail_mass=residual.tail_mass, tail=write_rows([tail]))


def read_residual(residual: pb.Residual) -> Residual:
    """The inverse of ``write_residual``; raises WireError."""
    top = read_row(residual.top)
    if not residual.HasField("tail"):
        return top
    tail = read_row(residual.tail)
    if top.ids is None or tail.ids is None:
        raise WireError("a residual's short form needs the ids of its numbers")
    return SparseResidual(
        top.ids,
        top.probabilities,
        residual.tail_mass,
        tuple(tail.ids.tolist()),
        tuple(tail.probabilities.tolist()),
    )


def read_row(rows: pb.Rows) -> TokenDistribution:
    """The one row in a message; raises WireError."""
    found = read_rows(rows)
    if len(found) != 1:
        raise WireError(f"one row is expected, not {len(found)}")
    return found[0]


def is_chain(path: tuple[int, ...]) -> bool:
    """Whether a path is the beginning of a chain, so that its length names it."""
    return path == tuple(range(len(path)))


def read_path(path: Sequence[int], accepted: int) -> tuple[int, ...]:
    """A path from its nodes (of a tree) or its length (of a chain); raises WireError."""
    if max(accepted, len(path)) > MAX_NODES:
        raise WireError("more is accepted than a draft holds")
    return tuple(path) or tuple(range(accepted))


def microseconds(seconds: float) -> int:
    """A time as a field in us."""
    return max(0, round(seconds * 1e6))


def milliseconds(seconds: float) -> int:
    """A time as a uint32 field in ms, the longest where it is longer."""
    return round(1e3 * min(max(0.0, seconds), 4e6))
