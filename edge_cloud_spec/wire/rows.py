"""Rows of probabilities on the wire: float32 numbers, and ids of ceil(log2 V) bits each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..decoding.draft import MAX_NODES
from ..decoding.token_distribution import TokenDistribution
from . import decode_pb2 as pb
from .messages import WireError

MAX_NUMBERS = 2**24  # numbers in one message; more do not fit one anyway


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


def write_rows(rows: Sequence[TokenDistribution]) -> pb.Rows:
    """Rows as protobuf; where one is sparse, all carry their ids."""
    numbers = b"".join(row.probabilities.astype("<f4").tobytes() for row in rows)
    sizes = [len(row.probabilities) for row in rows]
    if all(row.ids is None for row in rows):
        return pb.Rows(sizes=sizes, probabilities=numbers)
    ids = np.concatenate(
        [np.arange(len(r.probabilities)) if r.ids is None else r.ids for r in rows]
    )
    bits = max(1, int(ids.max(initial=0)).bit_length())
    return pb.Rows(sizes=sizes, probabilities=numbers, ids=pack_ids(ids, bits), id_bits=bits)


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
