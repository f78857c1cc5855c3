"""The messages of one decode, as frozen dataclasses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..decoding.digest import PrefixDigest, request_digest
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy

PROTOCOL = 1


@dataclass(frozen=True)
class Open:
    """Start a decode: everything that defines the answer, and what the robot already holds."""

    nonce: int
    instruction: str
    jpeg: bytes
    order: str
    policy: SamplingPolicy
    rule: str
    payload: str = "ids"
    tokenizer_digest: bytes = b""  # empty where the robot has no drafter
    draft_identity: str = ""
    spec_digest: bytes = b""
    max_tokens: int = 0
    draft_length: int = 0
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class DraftMessage:
    """Proposed tokens after the prefix that ``base`` names."""

    base: PrefixDigest
    draft: Draft
    round: int


@dataclass(frozen=True)
class Generate:
    """Let the cloud go on alone from ``base``, with its own drafter where ``speculative``."""

    base: PrefixDigest
    speculative: bool = False


@dataclass(frozen=True)
class Resume:
    """Take up a session whose stream was lost; ``base`` is where the robot stands."""

    session: str
    base: PrefixDigest


@dataclass(frozen=True)
class Close:
    """The robot is done with this session."""


ClientMessage = Open | DraftMessage | Generate | Resume | Close


@dataclass(frozen=True)
class Opened:
    """The session stands. ``spec`` is empty where the robot named the same one."""

    session: str
    spec: bytes
    base: PrefixDigest


@dataclass(frozen=True)
class Verdict:
    """The final answer to a draft: the accepted path, then a recovered or bonus token, or none.

    ``tokens`` are the accepted tokens themselves where the cloud drafted (else empty); ``finish``
    is "end", "length" or empty. Times in seconds.
    """

    base: PrefixDigest
    path: tuple[int, ...]
    token: int | None
    round: int
    finish: str = ""
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    verify_s: float = 0.0
    queue_s: float = 0.0
    draft_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """The cloud will not go on with this decode. The text names the thing and says what to do."""

    code: str
    text: str


ServerMessage = Opened | Verdict | Fault


class WireError(ValueError):
    """Bytes that are not a message of this protocol; the text says why."""


def spec_digest(spec: bytes) -> bytes:
    """16 bytes that name a prompt specification; empty for none."""
    return hashlib.blake2b(spec, digest_size=16).digest() if spec else b""


def base_digest(opening: Open, prompt_digest: bytes, spec: bytes) -> PrefixDigest:
    """Where a decode starts, named alike on both sides from everything that defines its answer.

    The prompt digest covers the image's bytes, ``spec`` (a ``spec_digest``) the target's identity,
    its end tokens and its vocabulary: a draft made under another specification is stale.
    """
    policy = opening.policy
    return request_digest(
        opening.nonce,
        prompt_digest,
        opening.rule,
        policy.temperature,
        policy.top_k,
        policy.top_p,
        policy.seed,
        spec,
        opening.draft_identity,
    )
