"""Everything that can be wrong with a draft: each flaw must be refused, whatever the session."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
from fuzz.drafts import VOCABULARY, packed, write_rows

from edge_cloud_spec.wire import decode_pb2 as pb

# What can be wrong with rows, in a draft or an answer.

RowFlaw = Callable[[pb.Rows, Random], None]


def row_of(ids: list[int], share: float) -> pb.Rows:
    """A row of these ids, each with this number."""
    numbers = struct.pack("<f", share) * len(ids)
    return pb.Rows(sizes=[len(ids)], probabilities=numbers, ids=packed(ids, 31), id_bits=31)


def _number(rows: pb.Rows, random: Random, number: float) -> None:
    data = bytearray(rows.probabilities)
    struct.pack_into("<f", data, 4 * random.randrange(len(data) // 4), number)
    rows.probabilities = bytes(data)


def _scaled(rows: pb.Rows, random: Random, factor: float) -> None:
    numbers = np.frombuffer(rows.probabilities, "<f4") * np.float32(factor)
    rows.probabilities = numbers.tobytes()


ROW_FLAWS: dict[str, RowFlaw] = {
    "NaN in a row": partial(_number, number=float("nan")),
    "a negative number in a row": partial(_number, number=-0.125),
    "an infinite number in a row": partial(_number, number=float("inf")),
    "a number above 1 in a row": partial(_number, number=1.5),
    "a huge number in a row": partial(_number, number=3e38),
    "a row that sums to 3": partial(_scaled, factor=3.0),
    "a row of zeros": partial(_scaled, factor=0.0),
}
ID_FLAWS = {
    "ids outside": [5, VOCABULARY],
    "ids far outside": [5, 2**31 - 1],
    "ids that descend": [9, 5],
    "ids twice": [5, 5],
}

# What can be wrong with a draft.

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


def _rows(draft: pb.Draft, random: Random, flaw: RowFlaw) -> None:
    """Spoil the rows; where there are none, an unasked one is a flaw by itself."""
    if not draft.rows.sizes:
        write_rows(random, draft.rows, [[t] for t in draft.tokens], dense=random.random() < 0.5)
    flaw(draft.rows, random)


def _sizes(rows: pb.Rows, random: Random, sizes: list[int]) -> None:
    del rows.sizes[:]
    rows.sizes.extend(sizes)


def _bits(rows: pb.Rows, random: Random, bits: int) -> None:
    rows.id_bits = bits if bits or rows.ids else 7


def _ids(draft: pb.Draft, random: Random, ids: list[int]) -> None:
    """A row of these ids for a chain of one token."""
    _nodes(draft, random, [ids[0] % VOCABULARY], [])
    draft.rows.CopyFrom(row_of(ids, 1 / len(ids)))


def _wrong_payload(draft: pb.Draft, random: Random) -> None:
    draft.values = b"" if draft.values else struct.pack("<f", 0.5) * len(draft.tokens)


def _no_rows(draft: pb.Draft, random: Random) -> None:
    if draft.HasField("rows"):
        draft.ClearField("rows")
    else:
        draft.rows.SetInParent()


def _row_missing(draft: pb.Draft, random: Random) -> None:
    _rows(draft, random, lambda rows, random: None)
    draft.tokens.append(1)
    if draft.parents:
        draft.parents.append(len(draft.parents) - 1)


def _row_without_its_token(draft: pb.Draft, random: Random) -> None:
    _ids(draft, random, [5, 9])
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
    **{name: partial(_rows, flaw=flaw) for name, flaw in ROW_FLAWS.items()},
    "a row that sums to 0.9": partial(_rows, flaw=partial(_scaled, factor=0.9)),
    "sizes that lie": partial(_rows, flaw=partial(_sizes, sizes=[2**32 - 1])),
    "a row of no numbers": partial(_rows, flaw=partial(_sizes, sizes=[0])),
    "sizes of nothing": partial(_rows, flaw=partial(_sizes, sizes=[0] * 2000)),
    "ids of 0 bits": partial(_rows, flaw=partial(_bits, bits=0)),
    "ids of 1 bit": partial(_rows, flaw=partial(_bits, bits=1)),
    "ids of 31 bits": partial(_rows, flaw=partial(_bits, bits=31)),
    "ids of 40 bits": partial(_rows, flaw=partial(_bits, bits=40)),
    **{name: partial(_ids, ids=ids) for name, ids in ID_FLAWS.items()},
    "rows where there are none, or none": _no_rows,
    "a row missing": _row_missing,
    "a row without its token": _row_without_its_token,
    "another payload": _wrong_payload,
    "a resampled token where nothing was rejected": _resampled_unasked,
}


def twins(draft: pb.Draft, random: Random) -> None:
    """Two equal siblings: what cannot be where they were drawn without replacement."""
    _nodes(draft, random, [5, 5], [-1, -1])
    draft.rows.CopyFrom(row_of([5], 1.0))
