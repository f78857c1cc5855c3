"""Everything that can be wrong with a draft: each flaw must be refused, whatever the session."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import numpy as np
from fuzz.drafts import VOCABULARY, packed, write_rows

from edge_cloud_spec.wire import decode_pb2 as pb

Flaw = Callable[[pb.Draft, Random], None]


def _nodes(tokens: list[int], parents: list[int]) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        del draft.tokens[:], draft.parents[:]
        draft.tokens.extend(tokens)
        draft.parents.extend(parents)

    return error


def _token(token: int) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        draft.tokens[random.randrange(len(draft.tokens))] = token

    return error


def _value(number: float) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        numbers = [0.5] * len(draft.tokens)
        numbers[random.randrange(len(numbers))] = number
        draft.values = struct.pack(f"<{len(numbers)}f", *numbers)

    return error


def _rows(draft: pb.Draft, random: Random) -> None:
    """Make sure that there are rows to spoil; an unasked one is a flaw by itself."""
    if not draft.rows.sizes:
        write_rows(random, draft.rows, [[t] for t in draft.tokens], dense=random.random() < 0.5)


def _number(number: float) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        _rows(draft, random)
        data = bytearray(draft.rows.probabilities)
        struct.pack_into("<f", data, 4 * random.randrange(len(data) // 4), number)
        draft.rows.probabilities = bytes(data)

    return error


def _scaled(factor: float) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        _rows(draft, random)
        numbers = np.frombuffer(draft.rows.probabilities, "<f4") * np.float32(factor)
        draft.rows.probabilities = numbers.tobytes()

    return error


def _sizes(*sizes: int) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        _rows(draft, random)
        del draft.rows.sizes[:]
        draft.rows.sizes.extend(sizes)

    return error


def _bits(bits: int) -> Flaw:
    def error(draft: pb.Draft, random: Random) -> None:
        _rows(draft, random)
        draft.rows.id_bits = bits if bits or draft.rows.ids else 7

    return error


def _ids(ids: list[int], bits: int) -> Flaw:
    """A row of these ids for a chain of one token."""

    def error(draft: pb.Draft, random: Random) -> None:
        _nodes([ids[0] % VOCABULARY], [])(draft, random)
        draft.rows.CopyFrom(pb.Rows(sizes=[len(ids)], ids=packed(ids, bits), id_bits=bits))
        draft.rows.probabilities = struct.pack("<f", 1 / len(ids)) * len(ids)

    return error


def _wrong_payload(draft: pb.Draft, random: Random) -> None:
    draft.values = b"" if draft.values else struct.pack("<f", 0.5) * len(draft.tokens)


def _no_rows(draft: pb.Draft, random: Random) -> None:
    if draft.HasField("rows"):
        draft.ClearField("rows")
    else:
        draft.rows.SetInParent()


def _row_missing(draft: pb.Draft, random: Random) -> None:
    _rows(draft, random)
    draft.tokens.append(1)
    if draft.parents:
        draft.parents.append(len(draft.parents) - 1)


def _row_without_its_token(draft: pb.Draft, random: Random) -> None:
    _ids([5, 9], 6)(draft, random)
    draft.tokens[0] = 7


def _resampled_unasked(draft: pb.Draft, random: Random) -> None:
    draft.resampled = random.randrange(VOCABULARY)


FLAWS: dict[str, Flaw] = {
    "a cycle": _nodes([1, 2], [1, 0]),
    "its own parent": _nodes([1, 2], [-1, 1]),
    "a parent forward": _nodes([1, 2, 3], [2, -1, 0]),
    "a parent below the prefix": _nodes([1], [-2]),
    "a parent far below": _nodes([1], [-(2**31)]),
    "too few parents": _nodes([1, 2, 3], [-1]),
    "too many parents": _nodes([1], [-1, 0]),
    "an empty tree": _nodes([], []),
    "parents without tokens": _nodes([], [-1, 0]),
    "too many nodes": _nodes([1] * 1025, []),
    "a token outside": _token(VOCABULARY),
    "the largest token": _token(2**32 - 1),
    "a value that is NaN": _value(float("nan")),
    "a negative value": _value(-0.25),
    "a value above 1": _value(1.25),
    "an infinite value": _value(float("inf")),
    "a value of 0": _value(0.0),
    "NaN in a row": _number(float("nan")),
    "a negative number in a row": _number(-0.01),
    "an infinite number in a row": _number(float("inf")),
    "a number above 1 in a row": _number(1.5),
    "a huge number in a row": _number(3e38),
    "a row that sums to 2": _scaled(2.0),
    "a row that sums to 0.9": _scaled(0.9),
    "a row of zeros": _scaled(0.0),
    "sizes that lie": _sizes(2**32 - 1),
    "a row of no numbers": _sizes(0),
    "sizes of nothing": _sizes(*[0] * 2000),
    "ids of 0 bits": _bits(0),
    "ids of 1 bit": _bits(1),
    "ids of 31 bits": _bits(31),
    "ids of 40 bits": _bits(40),
    "ids outside": _ids([5, VOCABULARY], 7),
    "ids far outside": _ids([5, 2**31 - 1], 31),
    "ids that descend": _ids([9, 5], 6),
    "ids twice": _ids([5, 5], 6),
    "rows where there are none, or none": _no_rows,
    "a row missing": _row_missing,
    "a row without its token": _row_without_its_token,
    "another payload": _wrong_payload,
    "a resampled token where nothing was rejected": _resampled_unasked,
}


def twins(draft: pb.Draft) -> None:
    """Two equal siblings: what cannot be where they were drawn without replacement."""
    row = pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0), ids=packed([5], 6), id_bits=6)
    _nodes([5, 5], [-1, -1])(draft, Random())
    draft.rows.CopyFrom(row)
