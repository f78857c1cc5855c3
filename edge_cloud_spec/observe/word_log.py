"""The newest decisions' words, assembled from the messages of a run's topics. Imports no ROS.

Times are seconds since the instruction was published, on the observing process's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from ..decoding.draft import Draft
from ..edge.link.state import LinkReport
from ..lru_cache import LruCache
from ..nav.status import NavigatorStatus
from ..request import MOST_MESSAGES, Messages, digests
from ..wire.codec import decode_client, decode_server, read_client, read_server
from ..wire.messages import ClientMessage, DraftMessage, Open, Verdict, WireError
from .decision import ShownDecision, ShownDraft, ShownRound

VERDICT_KIND = 0  # kind of the message Verdict
OPEN_KIND = 0  # kind of the message DecodeRequest
NAMED_LISTS = 2 * MOST_MESSAGES  # lists of messages that a later request may name

D = TypeVar("D", bound=ShownDecision)


class WordLog(Generic[D]):
    """The decisions so far and the newest states; ``hear`` extends it.

    ``make``: a decision, of its first message and when that came. ``keep``: how many of the newest
    ones are kept.
    """

    LATEST: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "nav_status": NavigatorStatus.read,
        "link_state": LinkReport.read,
    }
    """Topics of which the last message is kept, and how it is read."""

    def __init__(self, make: Callable[[Any, float], D], keep: int) -> None:
        self._make = make
        self.decisions: LruCache[str, D] = LruCache(keep)
        self._named: LruCache[bytes, Messages] = LruCache(NAMED_LISTS)  # messages by their digests
        self.nav_status: NavigatorStatus | None = None
        self.link_state: LinkReport | None = None
        self._handlers: dict[str, Callable[[Any, float], None]] = {
            "decode_request": self._on_request,
            "draft": self._on_draft,
            "verdict": self._on_verdict,
            "verified_tokens": self._on_words,
        }

    def hear(self, topic: str, message: Any, now: float) -> None:
        """Add a message of ``topic`` (a relative name) received at ``now``."""
        if topic in self.LATEST:
            try:
                setattr(self, topic, self.LATEST[topic](message))
            except (ValueError, AttributeError):  # of an earlier version's fields, in its bag
                return  # who acts on it reports it
        if topic in self._handlers:
            self._handlers[topic](message, now)

    def _decision(self, message: Any, now: float) -> D:
        request = message.request_id
        if request not in self.decisions:
            self.decisions[request] = self._make(message, now)
        return self.decisions[request]

    def _on_request(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        if message.kind == OPEN_KIND:
            opening = _client_message(message.payload)
            if isinstance(opening, Open):
                decision.messages = self._whole(opening)

    def _whole(self, opening: Open) -> Messages:
        """All messages of a request, as far as those that it names were seen."""
        before = self._named.get(opening.after, ())
        messages = opening.request.messages
        for count, name in enumerate(digests(messages, opening.after), start=1):
            self._named[name] = (*before, *messages[:count])
        return (*before, *messages)

    def _on_draft(self, message: Any, now: float) -> None:
        decision, base = self._decision(message, now), message.base_length
        draft = ShownDraft(tuple(message.words), _tree(message.payload), now)
        decision.drafts.setdefault((base, message.base_hash), draft)  # a repeat changes nothing
        if base in decision.rounds:
            decision.attach_draft(decision.rounds[base])

    def _on_verdict(self, message: Any, now: float) -> None:
        if message.kind != VERDICT_KIND:
            return
        decision = self._decision(message, now)
        round_ = decision.round_after(message.base_length)
        if round_.accepted is None:
            round_.accepted, round_.answered = message.accepted, now
            round_.hash = message.base_hash
            round_.path, round_.generated = _accepted(message)
            decision.attach_draft(round_)
            round_.verify = seconds_of(message.verify_time)
            self._on_round(decision, round_)

    def _on_words(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        decision.verified = message.verified
        if message.position > decision.length:
            self._on_round(decision, decision.miss(message.position))
        if len(message.tokens):
            at = max(0, message.position - decision.missed)
            decision.tokens[at:] = map(int, message.tokens)
            round_ = decision.round_after(message.position)
            round_.settled = message.text
            if not message.verified:  # the draft model's own words, which no verdict follows
                round_.accepted, round_.answered = 0, now
            self._on_round(decision, round_)
        if message.finished:
            decision.finish = message.finish_reason

    def _on_round(self, decision: D, round_: ShownRound) -> None:
        """Called when this round's verdict or its words have arrived."""


def _tree(payload: Any) -> Draft | None:
    """The draft in a message's payload; None if it is malformed."""
    message = _client_message(payload)
    return message.draft if isinstance(message, DraftMessage) else None


def _client_message(payload: Any) -> ClientMessage | None:
    # None if it is malformed.
    try:
        return decode_client(read_client(bytes(payload)))
    except (WireError, ValueError):
        return None


def _accepted(message: Any) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The robot's nodes that a verdict accepts, or the tokens of a pass of server generation."""
    try:
        verdict = decode_server(read_server(bytes(message.payload)))
    except (WireError, ValueError):
        verdict = None
    if not isinstance(verdict, Verdict):
        return tuple(range(message.accepted)), None
    last = () if verdict.token is None else (verdict.token,)
    return ((), verdict.tokens + last) if verdict.generated else (verdict.path, None)


def seconds_of(duration: Any) -> float:
    """Seconds of a builtin_interfaces/Duration or Time."""
    return float(duration.sec + duration.nanosec * 1e-9)
