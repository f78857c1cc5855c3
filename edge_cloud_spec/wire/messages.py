"""The messages of one decode, as frozen dataclasses."""

from __future__ import annotations

import hashlib
from dataclasses import KW_ONLY, dataclass

from ..decoding.digest import PrefixDigest, request_digest
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution

PROTOCOL = 2


@dataclass(frozen=True)
class Open:
    """Start a decode: everything that defines the answer, and what the robot already holds.

    ``key`` is the hash of the session's secret; ``secret`` is given where the request is repeated.
    """

    nonce: int
    instruction: str
    jpeg: bytes
    order: str
    policy: SamplingPolicy
    rule: str
    _: KW_ONLY
    payload: str = "ids"
    tokenizer_digest: bytes = b""  # empty where the robot has no drafter
    draft_identity: str = ""
    spec_digest: bytes = b""
    max_tokens: int = 0
    draft_length: int = 0
    protocol: int = PROTOCOL
    split: Split | None = None
    replacement: bool = True
    predictions: bool = False
    key: bytes = b""
    secret: bytes = b""


@dataclass(frozen=True)
class DraftMessage:
    """Proposed tokens after the prefix that ``base`` names.

    ``resampled`` is the last token of that prefix, where the robot drew it after a rejection.
    The draft goes on after its leaf ``open_at``: a verdict that comes there is to be left open.
    """

    base: PrefixDigest
    draft: Draft
    round: int
    resampled: int | None = None
    open_at: int | None = None


@dataclass(frozen=True)
class Generate:
    """Let the cloud go on alone from ``base``, with its own drafter where ``speculative``.

    It stops when the answer has ``until`` tokens (0: at its end).
    """

    base: PrefixDigest
    speculative: bool = False
    until: int = 0


@dataclass(frozen=True)
class Resume:
    """Take up a session whose stream was lost; ``base`` is where the robot stands."""

    session: str
    base: PrefixDigest
    secret: bytes = b""


@dataclass(frozen=True)
class Close:
    """The robot is done with this session; ``resampled`` is its last token where it drew that."""

    resampled: int | None = None


@dataclass(frozen=True)
class RowRequest:
    """Ask for the whole of P at the rejected place after ``base``."""

    base: PrefixDigest


ClientMessage = Open | DraftMessage | Generate | Resume | Close | RowRequest


@dataclass(frozen=True)
class Opened:
    """The session stands. ``spec`` is empty where the robot named the same one."""

    session: str
    spec: bytes
    base: PrefixDigest


Residual = TokenDistribution | SparseResidual


@dataclass(frozen=True)
class Verdict:
    """The final answer to a draft: the accepted path, then a recovered or bonus token.

    Without a token it is open, has ended before, or carries the ``residual`` that the robot draws
    the recovered token from. ``tokens`` are the accepted tokens themselves where the cloud drafted,
    and in a verdict that is said again (else empty); ``finish`` is "end", "length" or empty.
    ``leads_to`` is the ``PrefixDigest.short`` of the prefix after all of these: a robot that
    arrives elsewhere takes nothing from it. Times in seconds.
    """

    base: PrefixDigest
    path: tuple[int, ...]
    token: int | None
    finish: str = ""
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    verify_s: float = 0.0
    queue_s: float = 0.0
    draft_s: float = 0.0
    residual: Residual | None = None
    leads_to: int = 0


@dataclass(frozen=True)
class Prediction:
    """An early exit's guess at the verdict on the draft at ``base``; never acted on.

    ``layer`` is the last one that it saw; ``confidence`` from 0 to 1.
    """

    base: PrefixDigest
    path: tuple[int, ...]
    token: int
    confidence: float
    layer: int = 0


@dataclass(frozen=True, eq=False)
class RowMessage:
    """The whole of P at the rejected place after ``base``."""

    base: PrefixDigest
    row: TokenDistribution


@dataclass(frozen=True)
class Fault:
    """The cloud will not go on with this decode. The text names the thing and says what to do."""

    code: str
    text: str


ServerMessage = Opened | Prediction | Verdict | RowMessage | Fault


class WireError(ValueError):
    """Bytes that are not a message of this protocol; the text says why."""


def key_of(secret: bytes) -> bytes:
    """16 bytes by which a session knows its robot's secret; empty for none."""
    return hashlib.blake2b(secret, digest_size=16).digest() if secret else b""


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
