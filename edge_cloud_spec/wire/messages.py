"""The messages of a decode as frozen dataclasses, and the protocol version."""

from __future__ import annotations

import hashlib
from dataclasses import KW_ONLY, dataclass
from enum import Enum

from ..decoding.digest import PrefixDigest, request_digest
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from ..request import Request

PROTOCOL = 5  # the version that this side implements


def versions_differ(robot: int, cloud: int) -> str:
    """The user's error message for robot and cloud with different protocol versions."""
    side = "robot" if robot < cloud else "cloud"
    return (
        f"the robot speaks protocol {robot} and the cloud protocol {cloud}; "
        f"update edge_cloud_spec on the {side}"
    )


@dataclass(frozen=True)
class Generation:
    """How the cloud generates without waiting for the robot's drafts.

    ``speculative``: the server's draft model drafts. ``may_speculate``: it drafts if there is one
    and measurements show that it pays.
    """

    speculative: bool = False
    may_speculate: bool = False


@dataclass(frozen=True)
class Open:
    """Start a decode: everything that defines the answer, and what the robot has already.

    ``key`` is the hash of the session's secret; ``secret`` is given where the request is repeated.
    ``verified``: the tokens so far of an answer that another verifier began; this one continues it.
    ``generation``: the cloud generates at once, as after a ``Generate``. ``lookup``: it may draft
    what was said before, by itself and as further branches of the robot's drafts. ``request`` lacks
    its first messages where ``after`` names them by their digest, and bytes of pictures that the
    cloud has. ``log_probs``: of what verdicts tell them, one of ``LOG_PROBS``.
    """

    nonce: int
    request: Request
    policy: SamplingPolicy
    rule: str
    _: KW_ONLY
    payload: str = "ids"
    tokenizer_digest: bytes = b""  # empty if the robot has no drafter
    draft_identity: str = ""
    spec_digest: bytes = b""
    max_tokens: int = 0
    draft_length: int = 0
    protocol: int = PROTOCOL
    oldest_protocol: int = PROTOCOL
    split: Split | None = None
    replacement: bool = True
    predictions: bool = False
    key: bytes = b""
    secret: bytes = b""
    preset: str = ""  # for the cloud's metrics only
    verified: tuple[int, ...] = ()
    generation: Generation | None = None
    lookup: bool = False
    after: bytes = b""
    log_probs: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its pictures."""
        return sum(len(picture.data) for picture in self.request.pictures)


@dataclass(frozen=True)
class DraftMessage:
    """Proposed tokens after the prefix with digest ``base``.

    ``resampled``: the prefix's last token, if the robot drew it after a rejection. ``open_at``: a
    leaf after which another draft continues, so that a verdict ending there has no bonus token.
    ``reply_timeout_s``: how long the robot can wait for the verdict; 0: unknown. ``hint``: the
    cloud goes on generating; any other draft stops that. ``without_exits``: no early exits in this
    pass, although Open asked for predictions.
    """

    base: PrefixDigest
    draft: Draft
    round: int
    resampled: int | None = None
    open_at: int | None = None
    reply_timeout_s: float = 0.0
    hint: bool = False
    without_exits: bool = False


@dataclass(frozen=True)
class Generate:
    """Ask the cloud to generate by itself, from prefix ``base`` on."""

    base: PrefixDigest
    generation: Generation = Generation()


@dataclass(frozen=True)
class Resume:
    """Continue a session whose stream broke; ``base`` is the robot's verified prefix."""

    session: str
    base: PrefixDigest
    secret: bytes = b""


@dataclass(frozen=True)
class Close:
    """End the session. ``resampled``: the answer's last token, if the robot drew it."""

    resampled: int | None = None


@dataclass(frozen=True)
class RowRequest:
    """Ask for the target's whole distribution P at the position rejected after ``base``."""

    base: PrefixDigest


ClientMessage = Open | DraftMessage | Generate | Resume | Close | RowRequest


@dataclass(frozen=True)
class Opened:
    """The session is open. ``spec`` is empty if the robot already has the same one.

    ``base`` is the digest of the empty answer, or after a Resume of the cloud's verified prefix.
    ``protocol`` is the cloud's version (after a Resume 0). ``verified``: how many of the
    ``verified`` tokens in Open the cloud accepted. ``keeps``: the cloud keeps what lasts of the
    request (``Request.lasting``), so that a later Open may name it.
    """

    session: str
    spec: bytes
    base: PrefixDigest
    protocol: int = PROTOCOL
    verified: int = 0
    keeps: bool = False


Residual = TokenDistribution | SparseResidual

# Why a decode ends, as a code, which may also be a fault's. There is an answer that ended, is at
# its limit, or was cut by a robot that has enough of it; with the others there is none.
END, LENGTH, CUT = "end", "length", "cut"
ABORTED, TIMEOUT, FAILED = "aborted", "timeout", "failed"
COMPLETE = (END, LENGTH)

# What verdicts tell the natural logarithm of the target's probability of: nothing, the tokens that
# they add, or each candidate of the request, in the first verdict. P is the softmax of the raw
# logits over the common vocabulary: of temperature 1, before penalties, grammar, top-k and top-p.
LOG_PROBS = NONE, ANSWER, CANDIDATES = "", "answer", "candidates"


@dataclass(frozen=True)
class Verdict:
    """The final result for a draft: the accepted path, then a recovered or bonus token.

    ``token`` is None if the verdict is open, the answer ends in the path, or the robot draws the
    recovered token from ``residual``. ``tokens``: the accepted tokens, if the robot did not draft
    all of them or the verdict is repeated (else empty); ``drafted``: how many were verified then.
    ``finish``: "end", "length" or empty. ``leads_to``: ``PrefixDigest.short`` of the prefix after
    the verdict; a robot that computes another drops the verdict. ``generated``: no robot awaits
    this verdict. Times in seconds; ``draft_s`` is the time of the cloud's own draft model.
    ``log_probs``: as ``Open`` asks for them (``LOG_PROBS``), float32.
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
    generated: bool = False
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """An early exit's prediction of the verdict on the draft at ``base``; no motion follows from
    it.

    ``confidence``: probability, 0 to 1, that it is right.
    """

    base: PrefixDigest
    path: tuple[int, ...]
    token: int
    confidence: float


@dataclass(frozen=True, eq=False)
class RowMessage:
    """The target's whole distribution P at the position rejected after ``base``."""

    base: PrefixDigest
    row: TokenDistribution


class Code(str, Enum):
    """Why a decode fails, for programs: the codes of faults, and of finishes without an answer."""

    # By the cloud
    BAD_REQUEST = "bad_request"
    BAD_DRAFT = "bad_draft"
    IN_USE = "in_use"  # the very request is being decoded for its robot
    INTERNAL = "internal"
    MOVED = "moved"  # go on at another verifier
    OVERLOADED = "overloaded"  # there is no room now
    UNKNOWN_MESSAGES = "unknown_messages"  # the robot sends its whole request then
    UNKNOWN_SESSION = "unknown_session"  # the robot opens another then
    UNSUPPORTED = "unsupported"  # this target cannot do what is asked, and another's may
    # By the robot's link
    BAD_REDIRECT = "bad_redirect"
    BRIDGE = "bridge"
    FLOODED = "flooded"
    LINK_FAILED = "link_failed"
    NOT_A_VERIFIER = "not_a_verifier"
    TLS = "tls"
    TOO_LARGE = "too_large"
    UNAUTHENTICATED = "unauthenticated"
    # By the robot's decode
    BAD_OPENED = "bad_opened"
    BAD_ROW = "bad_row"
    BAD_VERDICT = "bad_verdict"
    FAULT = "fault"  # whose own code is none
    OUT_OF_TURN = "out_of_turn"
    PROMPT_MISMATCH = "prompt_mismatch"

    __str__ = str.__str__  # as of enum.StrEnum, which Python 3.10 does not have


@dataclass(frozen=True)
class Fault:
    """The cloud cannot continue this decode; ``text`` says what is wrong and what to do.

    ``code``: a ``Code``, or one of a later version. ``retry_after_s``: seconds until a retry; 0:
    unknown. ``MOVED`` sends the robot to the replica at ``address`` (empty: back to the router)
    with a ``lease`` that opens streams there for ``lease_s`` seconds.
    """

    code: str
    text: str
    retry_after_s: float = 0.0
    address: str = ""
    lease: bytes = b""
    lease_s: float = 0.0


ServerMessage = Opened | Prediction | Verdict | RowMessage | Fault


class WireError(ValueError):
    """Bytes that are not a message of this protocol; the text says why."""


def key_of(secret: bytes) -> bytes:
    """A 16-byte hash of a session's secret; empty for an empty secret."""
    return hashlib.blake2b(secret, digest_size=16).digest() if secret else b""


def spec_digest(spec: bytes) -> bytes:
    """A 16-byte hash of a prompt specification; empty for an empty one."""
    return hashlib.blake2b(spec, digest_size=16).digest() if spec else b""


def base_digest(opening: Open, prompt_digest: bytes, spec: bytes) -> PrefixDigest:
    """The digest of a decode's empty answer, equal on both sides if their prompts are.

    The prompt digest covers the image's bytes. ``spec``, a ``spec_digest``, covers the target's
    identity, end tokens and vocabulary, so that a draft made under another specification is stale.
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
        *((policy.grammar,) if policy.grammar else ()),
    )
