"""Drafts for the fuzzer: well-formed ones, and ones of a million nodes, rows or numbers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nav.history import Turn
from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.frames import ClientFrame, Head
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

    @property
    def draft_base(self) -> PrefixDigest:
        """The prefix that a draft names."""
        return self.base if self.resampled is None else self.base.extend((self.resampled,))


def opening_of(kind: int, nonce: int, jpeg: bytes) -> Open:
    """A proper Open of one of the KINDS, after some turns or none."""
    rule, policy, payload, split, replacement = KINDS[kind % len(KINDS)]
    turns = [Turn.of(jpeg, f"action: {n};") for n in range(nonce % 4)]
    request = CLAUSES.request(f"find thing {nonce % 1000}", jpeg, turns=turns)
    return Open(
        nonce,
        replace(request, continues=bool(turns)),
        policy,
        rule,
        payload=payload,
        tokenizer_digest=TOKENIZER,
        draft_identity="fuzz draft",
        draft_length=3,
        split=split,
        replacement=replacement,
    )


def proper_draft(random: Random, place: Place, tokens: list[int] | None = None) -> pb.Draft:
    """A draft that the session must judge: a chain, or a tree where its payload allows one."""
    payload = place.opening.payload
    room = MAX_TOKENS - place.base.length - (place.resampled is not None)
    size = len(tokens) if tokens else random.randint(1, max(1, min(6, room)))
    # Without replacement siblings differ, so all do.
    tokens = tokens or random.sample(range(1, VOCABULARY), size)
    draft = pb.Draft(tokens=tokens, round=random.randrange(9), resampled=place.resampled)
    parents = list(range(-1, size - 1))
    if payload != "probabilities" and random.random() < 0.5:
        parents = [random.randint(-1, node - 1) for node in range(size)]
        draft.parents.extend(parents)
    if payload == "probabilities":
        draft.values = struct.pack(f"<{size}f", *(0.05 + 0.9 * random.random() for _ in tokens))
    elif payload in ("dense", "sparse"):
        pairs = list(zip(tokens, parents, strict=True))
        children = [[t for t, p in pairs if p == parent] for parent in sorted({*parents})]
        write_rows(random, draft.rows, children, dense=payload == "dense")
    return draft


def frame_of(draft: pb.Draft, base: PrefixDigest) -> bytes:
    """The frame of a draft after this prefix."""
    return ClientFrame.of(Head("draft", base), draft.SerializeToString()).data


def write_rows(random: Random, rows: pb.Rows, children: list[list[int]], dense: bool) -> None:
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
        rows.ids, rows.id_bits = packed([i for each in ids for i in each], 6), 6


def packed(ids: list[int], bits: int) -> bytes:
    whole = sum(number << (place * bits) for place, number in enumerate(ids))
    return whole.to_bytes((len(ids) * bits + 7) // 8, "little")


@cache
def _giants() -> tuple[bytes, ...]:
    """Messages of a million of something."""
    numbers, ids = bytes(4 * MILLION), bytes((MILLION * 31 + 7) // 8)
    giants = (
        pb.Draft(tokens=[1] * MILLION),
        pb.Draft(tokens=[1] * MILLION, parents=range(-1, MILLION - 1)),
        pb.Draft(tokens=[1], rows=pb.Rows(sizes=[0] * MILLION)),
        pb.Draft(tokens=[1], rows=pb.Rows(sizes=[MILLION], probabilities=numbers)),
        pb.Draft(tokens=[1], values=b"\0\0\0\x3f" * MILLION),
        pb.Draft(
            tokens=[1],
            rows=pb.Rows(sizes=[MILLION], probabilities=numbers, ids=ids, id_bits=31),
        ),
    )
    return tuple(each.SerializeToString() for each in giants)


GIANTS = 6


def giant(number: int, place: Place) -> bytes:
    """A draft of a million nodes, rows or numbers for the right place."""
    return ClientFrame.of(Head("draft", place.draft_base), _giants()[number]).data
