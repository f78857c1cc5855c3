"""The history of a run, assembled from the messages of its topics. Imports no ROS.

Times are seconds since the instruction was published, on the observing process's clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..decoding.draft import Draft
from ..edge.link.state import LinkReport
from ..lru_cache import LruCache
from ..nav.free_space import FreeSpace
from ..nav.status import GoalStatus, NavCode, NavigatorStatus
from ..request import MOST_MESSAGES, Messages, digests
from ..wire.codec import decode_client, decode_server, read_client, read_server
from ..wire.messages import ClientMessage, DraftMessage, Open, Verdict, WireError
from .decision import (
    ActionStarted,
    Decision,
    DecisionFinished,
    ProblemReported,
    RoundSettled,
    RunEvent,
    ShownDraft,
)

VERDICT_KIND, OPENED_KIND, FAULT_KIND, LINK_LOST_KIND = 0, 1, 3, 4  # kinds of the message Verdict
OPEN_KIND = 0  # kind of the message DecodeRequest
NAMED_LISTS = 2 * MOST_MESSAGES  # lists of messages that a later request may name

LATEST: dict[str, Callable[[Any], Any]] = {
    "nav_status": NavigatorStatus.read,
    "instruction_status": GoalStatus.read,
    "link_state": LinkReport.read,
    "run_info": lambda message: message.data,
}
"""Topics of which the last message is kept, and how it is read."""
STATS = (
    *("preset", "rule", "seed", "tokens", "rounds", "drafted", "accepted", "stale"),
    *("finish_reason", "up_bytes", "down_bytes", "tokens_per_second"),
    *("draft_ms", "verify_ms", "link_ms", "total_ms"),
)


class RunLog:
    """The run so far; ``on_message`` extends it. Read it under the observer's lock, or after the
    run.

    ``keep``: how many of the newest decisions (and entries of other lists) are kept.
    """

    def __init__(self, keep: int = sys.maxsize) -> None:
        self._keep, self._count = keep, 0
        self.decisions: LruCache[str, Decision] = LruCache(keep)
        self.outcomes: list[tuple[float, dict[str, Any]]] = []
        self.frames: list[tuple[float, bytes]] = []
        self._named: LruCache[bytes, Messages] = LruCache(NAMED_LISTS)  # messages by their digests
        self.opened: list[bytes] = []  # payloads of the cloud's Opened messages
        self.run_info = ""  # what the drafter says of models, preset and rule, as JSON
        self.problem = ""  # the last fault of the cloud, or loss of the link to it
        self.nav_status: NavigatorStatus | None = None
        self.instruction_status: GoalStatus | None = None
        self.link_state: LinkReport | None = None
        self.statuses: list[tuple[float, NavigatorStatus]] = []
        self._handlers: dict[str, Callable[[Any, float], Iterator[RunEvent] | None]] = {
            "decode_request": self._on_request,
            "draft": self._on_draft,
            "verdict": self._on_verdict,
            "verified_tokens": self._on_words,
            "nav_command": self._on_command,
            "nav_status": self._on_nav_status,
            "decode_stats": self._on_stats,
            "sim/outcome": self._on_outcome,
            "camera/image_raw/compressed": self._on_frame,
        }

    @property
    def outcome(self) -> dict[str, Any]:
        """The simulator's latest outcome; empty before the first."""
        return self.outcomes[-1][1] if self.outcomes else {}

    def on_message(self, topic: str, message: Any, now: float) -> list[RunEvent]:
        """Add a message of ``topic`` (a relative name) received at ``now``; returns new run
        events."""
        if topic in LATEST:
            try:
                setattr(self, topic, LATEST[topic](message))
            except (ValueError, AttributeError):  # of an earlier version's fields, in its bag
                return []  # who acts on it reports it
        handler = self._handlers.get(topic)
        events = [] if handler is None else list(handler(message, now) or ())
        entries: tuple[list[Any], ...] = (self.outcomes, self.frames, self.opened, self.statuses)
        for entry in entries:
            del entry[: -self._keep]
        return events

    def _decision(self, message: Any, now: float) -> Decision:
        request = message.request_id
        if request not in self.decisions:
            self._count, stamp = self._count + 1, message.header.stamp
            self.decisions[request] = Decision(
                self._count,
                request,
                now,
                stamp=stamp.sec * 10**9 + stamp.nanosec,
                pose=dict(self.outcome),
            )
        return self.decisions[request]

    def _on_request(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        if message.kind == OPEN_KIND:
            decision.seed, decision.preset = message.seed, message.preset
            decision.opening = bytes(message.payload)
            if hasattr(message, "free_space"):  # not of an earlier version, in its bag
                decision.free_space = FreeSpace.read(message.free_space)
            opening = _client_message(decision.opening)
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

    def _on_verdict(self, message: Any, now: float) -> Iterator[RunEvent]:
        if message.kind in (FAULT_KIND, LINK_LOST_KIND):
            self.problem = message.text
            yield ProblemReported(message.text)
        if message.kind == OPENED_KIND:
            self.opened.append(bytes(message.payload))
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
            if round_.complete:
                yield RoundSettled(decision, round_)

    def _on_words(self, message: Any, now: float) -> Iterator[RunEvent]:
        decision = self._decision(message, now)
        decision.answer, decision.verified = message.answer, message.verified
        decision.instruction = message.instruction
        if message.position > decision.length:
            yield RoundSettled(decision, decision.miss(message.position))
        if len(message.tokens):
            at = max(0, message.position - decision.missed)
            decision.tokens[at:] = map(int, message.tokens)
            yield from self._settle(decision, message, now)
        if message.finished:
            decision.finish, decision.ended = message.finish_reason, now
            if decision.complete:
                yield DecisionFinished(decision)

    def _settle(self, decision: Decision, message: Any, now: float) -> Iterator[RunEvent]:
        round_ = decision.round_after(message.position)
        round_.settled = message.text
        if not message.verified:  # the draft model's own words, which no verdict follows
            round_.accepted, round_.answered = 0, now
        if round_.complete:
            yield RoundSettled(decision, round_)

    def _on_command(self, message: Any, now: float) -> Iterator[RunEvent]:
        decision = self._decision(message, now)
        decision.action, decision.acting = message.text, now
        decision.where = dict(self.outcome)
        yield ActionStarted(decision)

    def _on_stats(self, message: Any, now: float) -> Iterator[RunEvent]:
        decision = self._decision(message, now)
        decision.seed, decision.preset = message.seed, message.preset
        decision.stats = {name: getattr(message, name) for name in STATS}
        if decision.complete:
            yield DecisionFinished(decision)

    def _on_nav_status(self, message: Any, now: float) -> Iterator[RunEvent]:
        assert self.nav_status is not None
        self.statuses.append((now, self.nav_status))
        if self.nav_status.code is NavCode.REFUSED:
            yield ProblemReported(f"the navigator {self.nav_status.detail}")

    def _on_outcome(self, message: Any, now: float) -> None:
        self.outcomes.append((now, json.loads(message.data)))

    def _on_frame(self, message: Any, now: float) -> None:
        self.frames.append((now, bytes(message.data)))


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
