"""Everything that can be wrong with a draft: each flaw must be refused, whatever the session."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
from fuzz.drafts import VOCABULARY, packed, write_rows

from edge_cloud_spec.wire import decode_pb2 as pb

Flaw = Callable[[pb.Draft, Random], None]


def _nodes(draft: pb.Draft, random: Random, tokens: list[int], parents: list[int]) -> None:
    del draft.tokens[:], draft.parents[:]
    draft.tokens.extend(tokens)
    draft.parents.extend(parents)


def _token(draft: pb.Draft, random: Random, token: int) -> None:
    draft.tokens[random.randrange(len(draft.tokens))] = token


def _value(draft: pb.Draft, random: Random, number: float) -> None:
    numbers = [0.5] * len(draft.tokens)
    numbers[random.randrange(len(numbers))] = number
    draft.values = struct.pack(f"<{len(numbers)}f", *numbers)


def _rows(draft: pb.Draft, random: Random) -> None:
    """Make sure that there are rows to spoil; an unasked one is a flaw by itself."""
    if not draft.rows.sizes:
        write_rows(random, draft.rows, [[t] for t in draft.tokens], dense=random.random() < 0.5)


def _number(draft: pb.Draft, random: Random, number: float) -> None:
    _rows(draft, random)
    data = bytearray(draft.rows.probabilities)
    struct.pack_into("<f", data, 4 * random.randrange(len(data) // 4), number)
    draft.rows.probabilities = bytes(data)


def _scaled(draft: pb.Draft, random: Random, factor: float) -> None:
    _rows(draft, random)
    numbers = np.frombuffer(draft.rows.probabilities, "<f4") * np.float32(factor)
    draft.rows.probabilities = numbers.tobytes()


def _sizes(draft: pb.Draft, random: Random, sizes: list[int]) -> None:
    _rows(draft, random)
    del draft.rows.sizes[:]
    draft.rows.sizes.extend(sizes)


def _bits(draft: pb.Draft, random: Random, bits: int) -> None:
    _rows(draft, random)
    draft.rows.id_bits = bits if bits or draft.rows.ids else 7


def _ids(draft: pb.Draft, random: Random, ids: list[int], bits: int) -> None:
    """A row of these ids for a chain of one token."""
    _nodes(draft, random, [ids[0] % VOCABULARY], [])
    draft.rows.CopyFrom(pb.Rows(sizes=[len(ids)], ids=packed(ids, bits), id_bits=bits))
    draft.rows.probabilities = struct.pack("<f", 1 / len(ids)) * len(ids)


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
    _ids(draft, random, [5, 9], 6)
    draft.tokens[0] = 7


def _resampled_unasked(draft: pb.Draft, random: Random) -> None:
    draft.resampled = random.randrange(VOCABULARY)


FLAWS: dict[str, Flaw] = {
    "a cycle": partial(_nodes, tokens=[1, 2], parents=[1, 0]),
    "its own parent": partial(_nodes, tokens=[1, 2], parents=[-1, 1]),
    "a parent forward": partial(_nodes, tokens=[1, 2, 3], parents=[2, -1, 0]),
    "a parent below the prefix": partial(_nodes, tokens=[1], parents=[-2]),
    "a parent far below": partial(_nodes, tokens=[1], parents=[-(2**31)]),
    "too few parents": partial(_nodes, tokens=[1, 2, 3], parents=[-1]),
    "too many parents": partial(_nodes, tokens=[1], parents=[-1, 0]),
    "an empty tree": partial(_nodes, tokens=[], parents=[]),
    "parents without tokens": partial(_nodes, tokens=[], parents=[-1, 0]),
    "too many nodes": partial(_nodes, tokens=[1] * 1025, parents=[]),
    "a token outside": partial(_token, token=VOCABULARY),
    "the largest token": partial(_token, token=2**32 - 1),
    "a value that is NaN": partial(_value, number=float("nan")),
    "a negative value": partial(_value, number=-0.25),
    "a value above 1": partial(_value, number=1.25),
    "an infinite value": partial(_value, number=float("inf")),
    "a value of 0": partial(_value, number=0.0),
    "NaN in a row": partial(_number, number=float("nan")),
    "a negative number in a row": partial(_number, number=-0.01),
    "an infinite number in a row": partial(_number, number=float("inf")),
    "a number above 1 in a row": partial(_number, number=1.5),
    "a huge number in a row": partial(_number, number=3e38),
    "a row that sums to 2": partial(_scaled, factor=2.0),
    "a row that sums to 0.9": partial(_scaled, factor=0.9),
    "a row of zeros": partial(_scaled, factor=0.0),
    "sizes that lie": partial(_sizes, sizes=[2**32 - 1]),
    "a row of no numbers": partial(_sizes, sizes=[0]),
    "sizes of nothing": partial(_sizes, sizes=[0] * 2000),
    "ids of 0 bits": partial(_bits, bits=0),
    "ids of 1 bit": partial(_bits, bits=1),
    "ids of 31 bits": partial(_bits, bits=31),
    "ids of 40 bits": partial(_bits, bits=40),
    "ids outside": partial(_ids, ids=[5, VOCABULARY], bits=7),
    "ids far outside": partial(_ids, ids=[5, 2**31 - 1], bits=31),
    "ids that descend": partial(_ids, ids=[9, 5], bits=6),
    "ids twice": partial(_ids, ids=[5, 5], bits=6),
    "rows where there are none, or none": _no_rows,
    "a row missing": _row_missing,
    "a row without its token": _row_without_its_token,
    "another payload": _wrong_payload,
    "a resampled token where nothing was rejected": _resampled_unasked,
}


def twins(draft: pb.Draft) -> None:
    """Two equal siblings: what cannot be where they were drawn without replacement."""
    row = pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0), ids=packed([5], 6), id_bits=6)
    _nodes(draft, Random(), [5, 5], [-1, -1])
    draft.rows.CopyFrom(row)
