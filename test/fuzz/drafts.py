"""Drafts for the fuzzer: well-formed ones, and everything that can be wrong with one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.messages import Open

VOCABULARY = 64
MAX_TOKENS = 60  # of an answer
MILLION = 10**6
TOKENIZER = b"fuzz tokenizer"
SOME = SamplingPolicy(0.8, seed=3)
CUT = SamplingPolicy(0.8, top_k=9, seed=3)  # P itself is sparse

# Each: rule, policy, payload, split, replacement.
KINDS = (
    ("greedy", GREEDY, "ids", None, True),
    ("coupled", SOME, "ids", None, True),
    ("rejection", SOME, "ids", None, True),
    ("rejection", SOME, "dense", None, True),
    ("rejection", CUT, "sparse", None, True),
    ("rejection", SOME, "sparse", None, False),
    ("rejection", SOME, "probabilities", Split("dense"), True),
    ("rejection", SOME, "probabilities", Split("top_k", 4), True),
    ("rejection", CUT, "probabilities", Split("sparse", 2, 2), True),
)


@dataclass(frozen=True)
class Place:
    """What a robot knows of its session, so that its frames get past the first checks."""

    opening: Open
    session: str
    base: PrefixDigest
    resampled: int | None = None
    rejected: PrefixDigest | None = None  # the draft after which a row may be asked for


def opening_of(kind: int, nonce: int, jpeg: bytes) -> Open:
    """A proper Open of one of the KINDS."""
    rule, policy, payload, split, replacement = KINDS[kind % len(KINDS)]
    return Open(
        nonce,
        f"find thing {nonce % 1000}",
        jpeg,
        "action first",
        policy,
        rule,
        payload=payload,
        tokenizer_digest=TOKENIZER,
        draft_identity="fuzz draft",
        draft_length=3,
        split=split,
        replacement=replacement,
    )


# Well-formed drafts


def proper_draft(random: Random, place: Place, tokens: list[int] | None = None) -> pb.Draft:
    """A draft that the session must judge: a chain, or a tree where its payload allows one."""
    payload = place.opening.payload
    room = MAX_TOKENS - place.base.length - (place.resampled is not None)
    size = len(tokens) if tokens else random.randint(1, max(1, min(6, room)))
    # Without replacement siblings differ, so all do.
    tokens = tokens or random.sample(range(1, VOCABULARY), size)
    draft = pb.Draft(tokens=tokens, round=random.randrange(9), resampled=place.resampled)
    _name_base(draft, place)
    parents = list(range(-1, size - 1))
    if payload != "probabilities" and random.random() < 0.5:
        parents = [random.randint(-1, node - 1) for node in range(size)]
        draft.parents.extend(parents)
    if payload == "probabilities":
        draft.values = struct.pack(f"<{size}f", *(0.05 + 0.9 * random.random() for _ in tokens))
    elif payload in ("dense", "sparse"):
        children: dict[int, list[int]] = {node: [] for node in sorted({*parents})}
        for token, parent in zip(tokens, parents, strict=True):
            children[parent].append(token)
        _write_rows(random, draft.rows, [*children.values()], dense=payload == "dense")
    return draft


def _name_base(draft: pb.Draft, place: Place) -> None:
    base = place.base
    if place.resampled is not None:
        base = base.extend((place.resampled,))
    draft.base.CopyFrom(pb.Digest(length=base.length, hash=base.hash))


def _write_rows(random: Random, rows: pb.Rows, children: list[list[int]], dense: bool) -> None:
    """One proper row for each node with children; sparse ones hold these and three others."""
    rows.Clear()
    ids = [
        sorted({*each, *random.sample(range(VOCABULARY), 3)}) if not dense else range(VOCABULARY)
        for each in children
    ]
    numbers = [np.array([0.01 + random.random() for _ in each]) for each in ids]
    rows.sizes.extend(len(each) for each in ids)
    rows.probabilities = b"".join((each / each.sum()).astype("<f4").tobytes() for each in numbers)
    if not dense:
        rows.ids, rows.id_bits = _packed([i for each in ids for i in each], 6), 6


def _packed(ids: list[int], bits: int) -> bytes:
    whole = sum(number << (place * bits) for place, number in enumerate(ids))
    return whole.to_bytes((len(ids) * bits + 7) // 8, "little")


# What can be wrong with a draft. Each of these must be refused, whatever the session.

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
        _write_rows(random, draft.rows, [[t] for t in draft.tokens], dense=random.random() < 0.5)


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
        draft.rows.CopyFrom(pb.Rows(sizes=[len(ids)], ids=_packed(ids, bits), id_bits=bits))
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


@cache
def _giants() -> tuple[bytes, ...]:
    """Messages of a million of something, without a base: two messages in a row are one."""
    chain = pb.Draft(tokens=[1] * MILLION)
    tree = pb.Draft(tokens=[1] * MILLION, parents=range(-1, MILLION - 1))
    rows = pb.Draft(tokens=[1], rows=pb.Rows(sizes=[0] * MILLION))
    row = pb.Draft(tokens=[1], rows=pb.Rows(sizes=[MILLION], probabilities=bytes(4 * MILLION)))
    wide = pb.Draft(tokens=[1], values=b"\0\0\0\x3f" * MILLION)
    ids = pb.Rows(sizes=[MILLION], probabilities=bytes(4 * MILLION), id_bits=31)
    ids.ids = bytes((MILLION * 31 + 7) // 8)
    drafts = (chain, tree, rows, row, wide, pb.Draft(tokens=[1], rows=ids))
    return tuple(pb.ClientMessage(draft=each).SerializeToString() for each in drafts)


GIANTS = 6


def giant(number: int, place: Place) -> bytes:
    """A draft of a million nodes, rows or numbers for the right place."""
    draft = pb.Draft()
    _name_base(draft, place)
    return _giants()[number] + pb.ClientMessage(draft=draft).SerializeToString()


def twins(draft: pb.Draft) -> None:
    """Two equal siblings: what cannot be where they were drawn without replacement."""
    row = pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0), ids=_packed([5], 6), id_bits=6)
    _nodes([5, 5], [-1, -1])(draft, Random())
    draft.rows.CopyFrom(row)
