"""What a hostile robot says: drafts with a flaw, odd messages, and garbled bytes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from fuzz.draft_flaws import FLAWS, twins
from fuzz.drafts import GIANTS, Place, frame_of, giant, proper_draft

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.frames import NO_BASE, ClientFrame, Head
from edge_cloud_spec.wire.messages import Close, Generate, Generation, Open, Resume, RowRequest

# What can be odd about the rest; some of it is refused, some stale, some may stand.

ODD_DRAFT: dict[str, tuple[Any, ...]] = {
    "round": (2**32 - 1,),
    "open_at": (0,),
    "resampled": (0, 1, 2**32 - 1),
    "values": (b"", bytes(3), bytes(4), bytes(19)),
    "hint": (True,),
    "looked_up": (1, 6, 2**32 - 1),
    "without_exits": (True,),
}
NUMBERS = (0, 1, 2**31, 2**32 - 1)
REALS = (float("nan"), float("inf"), -1.0, -0.0, 5e-324, 1e-300, 1e300, 2.0)
TEXTS = ("", "\0", "x" * 600, "greedy", "rejection", "\ufffd", "ids", "dense")
BLOBS = (b"", b"x", bytes(16), b"\xff\xd8\xff" * 40)
DIGESTS = (*BLOBS, b"a digest unknown")
ODD_OPEN: dict[str, tuple[Any, ...]] = {
    "policy.temperature": REALS,
    "policy.top_p": REALS,
    "policy.top_k": NUMBERS,
    "policy.seed": (2**64 - 1,),
    "policy.grammar": ("some", "@", "x" * 5000, "\0"),
    "split.top_k": NUMBERS,
    "split.tail": NUMBERS,
    "split.residual": TEXTS,
    "draft_length": NUMBERS,
    "max_tokens": NUMBERS,
    "rule": TEXTS,
    "payload": (*TEXTS, "y" * 100_000),
    "tokenizer_digest": BLOBS,
    "spec_digest": BLOBS,
    "protocol": NUMBERS,
    "whole": (True,),
    "continues": (True,),
    "generate.may_speculate": (True,),
    "generate.speculative": (True,),
    "lookup": (True,),
    "after": DIGESTS,
    "log_probs": ("answer", "candidates", "all"),
}
ODD_MESSAGE: dict[str, tuple[Any, ...]] = {"role": (*TEXTS, "system", "user", "assistant")}
ODD_PART: dict[str, tuple[Any, ...]] = {
    "text": (*TEXTS, "y" * 300_000),
    "picture.data": BLOBS,
    "picture.digest": DIGESTS,
    "picture.width": NUMBERS,
    "picture.height": NUMBERS,
}


def odd_draft(random: Random, draft: pb.Draft, base: PrefixDigest) -> PrefixDigest:
    """Change a field to what is rare, or the base; the draft may stand all the same."""
    match random.randrange(4):
        case 0:
            far = replace(base, length=random.choice((0, 2**32 - 1, base.length + 1)))
            base = random.choice((far, replace(base, hash=random.getrandbits(64)), NO_BASE))
        case 1:
            draft.tokens[-1] = draft.tokens[0]
        case 2:
            twins(draft, random)
        case 3:
            change(random, draft, ODD_DRAFT)
    return base


def odd_open(random: Random, opening: Open) -> bytes:
    """An Open with one field that is rare or wrong."""
    message = pb.Open.FromString(encode_client(opening).body)
    if random.random() < 0.5:
        message.nonce = random.getrandbits(64)
    said = random.choice(message.messages)
    match random.randrange(12):
        case 0:
            message.ClearField("split")
        case 1:  # more than there may be, or some that are unknown
            unknown = pb.Part(picture=pb.Picture(digest=random.randbytes(16)))
            said.parts.extend([unknown] * random.choice((1, 3, 65, 1000)))
        case 2:
            message.messages.extend([said] * random.choice((1, 3, 65, 1000)))
        case 3:
            message.candidates.extend([random.choice(TEXTS)] * random.choice((1, 3, 65, 1000)))
            message.log_probs = random.choice(("", "candidates"))
        case 4:
            change(random, said, ODD_MESSAGE)
        case 5 if said.parts:
            change(random, random.choice(said.parts), ODD_PART)
        case 6:
            random.choice((said.parts, message.messages)).pop()
        case 7:
            said.parts.extend([pb.Part()])
        case _:
            change(random, message, ODD_OPEN)
    return ClientFrame.of(Head("open"), message.SerializeToString()).data


def change(random: Random, message: Any, odd: dict[str, tuple[Any, ...]]) -> None:
    """Set one of these fields, by its path, to one of its values."""
    path = random.choice(tuple(odd))
    *parts, name = path.split(".")
    for part in parts:
        message = getattr(message, part)
    setattr(message, name, random.choice(odd[path]))


def other_frame(random: Random, place: Place) -> bytes:
    """A message of another kind than Draft and Open, right or beside it."""
    base = random.choice(
        (place.base, PrefixDigest(0, random.getrandbits(64)), PrefixDigest(2**32 - 1, 0))
    )
    match random.randrange(10):
        case 0 | 1 | 2:
            return encode_client(Generate(base, Generation(speculative=random.random() < 0.5))).data
        case 3 | 4 | 5:
            name = random.choice((place.session, "", "f" * 16, "\0", "s" * 5000))
            return encode_client(Resume(name, base)).data
        case 6 | 7 | 8:
            return encode_client(RowRequest(place.rejected or base)).data
    # Closing ends the stream and the batch, so it is rare.
    return encode_client(Close(None)).data if random.random() < 0.1 else b""


# Bytes


def garbled(random: Random, frame: bytes, other: bytes) -> bytes:
    """One to four stretches deleted, said twice, set, inserted, of a flipped bit, or spliced."""
    data = bytearray(frame or b"\0")
    for _ in range(random.randint(1, 4)):
        at, length = random.randrange(len(data) + 1), random.randint(1, 8)
        end = random.choice((at, at + 1, at + length, len(data)))
        old = data[at:end]
        flipped = bytes(each ^ 1 << random.randrange(8) for each in old[:1]) + old[1:]
        spliced = other[random.randrange(len(other) + 1) :]
        data[at:end] = random.choice(
            (b"", old + old[:length], random.randbytes(length), flipped, spliced)
        )
        data = data or bytearray(b"\0")
    return bytes(data)


def hostile(random: Random, place: Place, count: int) -> list[bytes]:
    """So many mutated frames for this session.

    Mostly what moves a session on comes last: the rest would be stale after it.
    """
    kinds = sorted(random.random() for _ in range(count))
    if random.random() < 0.3:
        random.shuffle(kinds)
    return [_frame(random, place, kind) for kind in kinds]


def _frame(random: Random, place: Place, kind: float) -> bytes:
    """One frame; ``kind`` from 0 to 1 says which."""
    draft, base = proper_draft(random, place), place.draft_base
    if kind < 0.4:
        random.choice(tuple(FLAWS.values()))(draft, random)
    elif kind > 0.9:
        base = odd_draft(random, draft, base)
    frame = frame_of(draft, base)
    if kind < 0.4 or kind > 0.9:
        return frame
    if kind < 0.401:
        return giant(random.randrange(GIANTS), place)
    if kind < 0.44:
        return random.randbytes(random.randrange(200))
    if kind < 0.65:
        return garbled(random, frame, _other(random, place, frame))
    if kind < 0.77:
        return garbled(random, _other(random, place, frame), frame)
    return other_frame(random, place) if kind < 0.86 else odd_open(random, place.opening)


def _other(random: Random, place: Place, frame: bytes) -> bytes:
    return random.choice((encode_client(place.opening).data, other_frame(random, place), frame))
