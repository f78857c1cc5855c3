"""The messages of one decode, as frozen dataclasses, and the version of the protocol."""

from __future__ import annotations

import hashlib
from dataclasses import KW_ONLY, dataclass

from ..decoding.digest import PrefixDigest, request_digest
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.split import SparseResidual, Split
from ..decoding.token_distribution import TokenDistribution
from ..history import NO_TURNS, History

PROTOCOL = 4  # what this side speaks


def versions_differ(robot: int, cloud: int) -> str:
    """The sentence for a user whose robot and cloud speak these protocols."""
    side = "robot" if robot < cloud else "cloud"
    return (
        f"the robot speaks protocol {robot} and the cloud protocol {cloud}; "
        f"update edge_cloud_spec on the {side}"
    )


@dataclass(frozen=True)
class Generation:
    """How the cloud generates without the robot's drafts.

    ``speculative``: the server's draft model drafts. ``may_speculate``: it drafts if the server has
    one and measures that drafting pays.
    """

    speculative: bool = False
    may_speculate: bool = False


@dataclass(frozen=True)
class Open:
    """Start a decode: everything that defines the answer, and what the robot has already.

    ``key`` is the hash of the session's secret; ``secret`` is given where the request is repeated.
    ``verified``: the tokens so far of an answer that another verifier began; this one continues it.
    ``generation``: the cloud generates at once, as after a ``Generate``. ``lookup``: it may draft
    what was said before, by itself and as further branches of the robot's drafts. ``history``: the
    turns of the mission that the prompt holds before this frame.
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
    oldest_protocol: int = PROTOCOL
    split: Split | None = None
    replacement: bool = True
    predictions: bool = False
    key: bytes = b""
    secret: bytes = b""
    preset: str = ""  # for the cloud's metrics; decides nothing
    verified: tuple[int, ...] = ()
    generation: Generation | None = None
    lookup: bool = False
    history: History = NO_TURNS


@dataclass(frozen=True)
class DraftMessage:
    """Proposed tokens after the prefix that ``base`` names.

    ``resampled`` is the last token of that prefix, where the robot drew it after a rejection.
    Another draft continues after its leaf ``open_at``: a verdict that ends there is left open.
    ``reply_timeout_s``: how long the robot can wait for the verdict; 0: it does not say. The cloud
    generates on beside a ``hint``; any other draft ends that. ``without_exits``: no early exits in
    this pass, where Open asked for predictions.
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
    """Let the cloud generate from ``base`` on."""

    base: PrefixDigest
    generation: Generation = Generation()


@dataclass(frozen=True)
class Resume:
    """Continue a session whose stream was lost; ``base`` is the robot's verified prefix."""

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
    """The session is open. ``spec`` is empty where the robot named the same one.

    ``base`` is the digest of the empty answer; after a Resume, of the cloud's verified prefix.
    ``protocol`` is the cloud's (after a Resume 0). ``verified`` is how
    many tokens of the Open's ``verified`` the cloud goes on after.
    """

    session: str
    spec: bytes
    base: PrefixDigest
    protocol: int = PROTOCOL
    verified: int = 0


Residual = TokenDistribution | SparseResidual

COMPLETE = ("end", "length")  # how a complete answer finishes: by its end token, or at its limit


@dataclass(frozen=True)
class Verdict:
    """The final answer to a draft: the accepted path, then a recovered or bonus token.

    Without a token it is open, ends in the path, or carries the ``residual`` that the robot draws
    the recovered token from. ``tokens`` are the accepted tokens themselves where the robot did not
    draft all that was judged, and in a repeated verdict (else empty); ``drafted`` says how many
    were judged then. ``finish`` is "end", "length" or empty. ``leads_to`` is the
    ``PrefixDigest.short`` of the prefix after all of these: a robot that would come to another
    prefix drops the verdict. ``generated``: no draft whose verdict a robot awaits was judged. Times
    in seconds; ``draft_s`` is that of the cloud's own draft model.
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


@dataclass(frozen=True)
class Prediction:
    """An early exit's prediction of the verdict on the draft at ``base``; never acted on.

    ``confidence`` is from 0 to 1.
    """

    base: PrefixDigest
    path: tuple[int, ...]
    token: int
    confidence: float


@dataclass(frozen=True, eq=False)
class RowMessage:
    """The whole of P at the rejected place after ``base``."""

    base: PrefixDigest
    row: TokenDistribution


MOVED = "moved"  # the code of a fault that sends a robot to another verifier
UNKNOWN_HISTORY = "unknown_history"  # of one after which a robot sends its whole history


@dataclass(frozen=True)
class Fault:
    """The cloud cannot continue this decode. The text names what is wrong and what to do.

    ``retry_after_s``: when it may be asked again; 0: it does not say. Code ``MOVED`` sends the
    robot to the replica at ``address`` (empty: back to the router) with a ``lease`` that opens
    streams there for ``lease_s``. Times in seconds.
    """

    code: str
    text: str
    retry_after_s: float = 0.0
    address: str = ""
    lease: bytes = b""
    lease_s: float = 0.0


ServerMessage = Opened | Prediction | Verdict | RowMessage | Fault


class WireError(ValueError):
    """Bytes that are not a message of this protocol; the text is the reason."""


def key_of(secret: bytes) -> bytes:
    """16 bytes, the hash of a session's secret; empty for none."""
    return hashlib.blake2b(secret, digest_size=16).digest() if secret else b""


def spec_digest(spec: bytes) -> bytes:
    """16 bytes that name a prompt specification; empty for none."""
    return hashlib.blake2b(spec, digest_size=16).digest() if spec else b""


def base_digest(opening: Open, prompt_digest: bytes, spec: bytes) -> PrefixDigest:
    """The digest of a decode's empty answer, the same on both sides if they make the same prompt.

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
        *((policy.grammar,) if policy.grammar else ()),
    )
