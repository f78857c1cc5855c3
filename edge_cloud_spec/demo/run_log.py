"""What happened in a run, put together from the messages of its topics. No ROS is imported here.

Times are seconds since the instruction was published, on the clock of who listens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..decoding.draft import Draft
from ..wire.codec import decode_client, decode_server
from ..wire.messages import DraftMessage, Verdict, WireError
from .draft_text import after

VERDICT, OPENED, FAULT, LINK_LOST = 0, 1, 3, 4  # kinds of the message Verdict
OPEN = 0  # kind of the message DecodeRequest


MAX_BRANCHES = 3  # of a tree that are told


@dataclass(frozen=True)
class ShownDraft:
    """A draft as it was sent: its words in the order of its nodes, and when it was made."""

    words: tuple[str, ...]
    parents: tuple[int, ...] | None  # None: a chain
    drafting: float
    sent: float


@dataclass
class ShownRound:
    """One draft and its verdict. ``accepted`` is None until the verdict came.

    ``drafting`` and ``sent`` bound the drafting, ``answered`` ends the waiting; ``verify`` seconds
    of the waiting were the cloud's model. ``settled`` is the text that stands since.
    """

    number: int
    base: int
    hash: int | None = None  # of the prefix that its draft extends; None until the verdict came
    drafted: tuple[str, ...] = ()
    parents: tuple[int, ...] | None = None  # of a tree's nodes; None: a chain
    path: tuple[int, ...] = ()  # the nodes that were accepted
    drafting: float = math.nan
    sent: float = math.nan
    answered: float = math.nan
    verify: float = 0.0
    accepted: int | None = None
    settled: str | None = None

    @property
    def complete(self) -> bool:
        """Whether its verdict and the words that it settled were both heard."""
        return self.accepted is not None and self.settled is not None

    @property
    def kept(self) -> tuple[str, ...]:
        """The drafted words that the cloud accepted."""
        return tuple(self.drafted[node] for node in self.path)

    @property
    def branches(self) -> tuple[tuple[str, ...], ...]:
        """What was drafted to follow them, each likeliest branch to its end; a chain has one."""
        tree = Draft((0,) * len(self.drafted), self.parents)
        return tuple(
            tuple(self.drafted[node] for node in _first_of_each(tree, child))
            for child in list(tree.children(self.path[-1] if self.path else -1))[:MAX_BRANCHES]
        )

    @property
    def others(self) -> int:
        """How many drafted words are in none of these: in branches that were left before."""
        return len(self.drafted) - len(self.kept) - sum(map(len, self.branches))

    @property
    def own(self) -> str:
        """What the cloud put after the accepted words."""
        return after(self.settled or "", self.kept)


@dataclass
class Decision:
    """One frame, its answer, and the motion that came of it."""

    number: int
    request: str
    begun: float
    stamp: int = 0  # of the frame, ns
    seed: int = 0  # of its sampling
    tokens: list[int] = field(default_factory=list)
    pose: dict[str, Any] = field(default_factory=dict)
    rounds: dict[int, ShownRound] = field(default_factory=dict)  # by their prefix's length
    answer: str = ""
    verified: bool = True
    finish: str = ""
    ended: float = math.nan
    action: str = ""
    acting: float = math.nan
    where: dict[str, Any] = field(default_factory=dict)  # the outcome as the action began
    stats: dict[str, Any] = field(default_factory=dict)

    drafts: dict[tuple[int, int], ShownDraft] = field(default_factory=dict)  # by length and hash

    def at(self, base: int) -> ShownRound:
        """The round after ``base`` verified tokens."""
        return self.rounds.setdefault(base, ShownRound(len(self.rounds) + 1, base))

    def join(self, round_: ShownRound) -> None:
        """Give a round the draft that its verdict was on; others were pushed for guesses."""
        drafted = self.drafts.get((round_.base, -1 if round_.hash is None else round_.hash))
        if drafted is not None:
            round_.drafted, round_.parents = drafted.words, drafted.parents
            round_.drafting, round_.sent = drafted.drafting, drafted.sent

    @property
    def told(self) -> bool:
        """Whether all of it has been heard."""
        return bool(self.finish and self.stats)


@dataclass(frozen=True)
class RoundSettled:
    """A round's verdict and words are known."""

    decision: Decision
    round: ShownRound


@dataclass(frozen=True)
class Acting:
    """The navigator began an action."""

    decision: Decision


@dataclass(frozen=True)
class Decided:
    """A decision's answer is whole and its cost known."""

    decision: Decision


@dataclass(frozen=True)
class Trouble:
    """Somebody reported a problem."""

    text: str


News = RoundSettled | Acting | Decided | Trouble


STATS = (
    *("preset", "rule", "seed", "tokens", "rounds", "drafted", "accepted", "stale"),
    *("finish_reason", "up_bytes", "down_bytes", "tokens_per_second"),
    *("draft_ms", "verify_ms", "link_ms", "total_ms"),
)


class RunLog:
    """Grows by ``hear``; read by whoever holds the same lock, or after the run."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}
        self.outcomes: list[tuple[float, dict[str, Any]]] = []
        self.frames: list[tuple[float, bytes]] = []
        self.opened: list[bytes] = []  # the cloud's answers to an opening, as they came
        self.trouble = ""  # what the cloud or the link to it complained of last
        self.nav_status = ""
        self.instruction_status = ""
        self.statuses: list[tuple[float, str]] = []
        self._hearers = {
            "decode_request": self._request,
            "draft": self._draft,
            "verdict": self._verdict,
            "verified_tokens": self._words,
            "nav_command": self._command,
            "nav_status": self._nav_status,
            "decode_stats": self._stats,
            "instruction_status": self._instruction_status,
            "sim/outcome": self._outcome,
            "camera/image_raw/compressed": self._frame,
        }

    @property
    def outcome(self) -> dict[str, Any]:
        """What the simulator said last; empty before."""
        return self.outcomes[-1][1] if self.outcomes else {}

    def hear(self, topic: str, message: Any, now: float) -> list[News]:
        """Take a message of ``topic`` (a relative name) that came at ``now``."""
        hearer = self._hearers.get(topic)
        return list(hearer(message, now)) if hearer is not None else []

    def _decision(self, message: Any, now: float) -> Decision:
        request = message.request_id
        if request not in self.decisions:
            number, stamp = len(self.decisions) + 1, message.header.stamp
            self.decisions[request] = Decision(
                number,
                request,
                now,
                stamp=stamp.sec * 10**9 + stamp.nanosec,
                pose=dict(self.outcome),
            )
        return self.decisions[request]

    def _request(self, message: Any, now: float) -> Iterator[News]:
        decision = self._decision(message, now)
        if message.kind == OPEN:
            decision.seed = message.seed
        yield from ()

    def _draft(self, message: Any, now: float) -> Iterator[News]:
        decision, base = self._decision(message, now), message.base_length
        words, begun = tuple(message.words), now - _seconds(message.draft_time)
        drafted = ShownDraft(words, _parents(message.payload), begun, now)
        decision.drafts.setdefault((base, message.base_hash), drafted)  # sent again, it counts once
        if base in decision.rounds:
            decision.join(decision.rounds[base])
        yield from ()

    def _verdict(self, message: Any, now: float) -> Iterator[News]:
        if message.kind in (FAULT, LINK_LOST):
            self.trouble = message.text
            yield Trouble(message.text)
        if message.kind == OPENED:
            self.opened.append(bytes(message.payload))
        if message.kind != VERDICT:
            return
        decision = self._decision(message, now)
        round_ = decision.at(message.base_length)
        if round_.accepted is None:
            round_.accepted, round_.answered = message.accepted, now
            round_.hash, round_.path = message.base_hash, _path(message)
            decision.join(round_)
            round_.verify = _seconds(message.verify_time)
            if round_.complete:
                yield RoundSettled(decision, round_)

    def _words(self, message: Any, now: float) -> Iterator[News]:
        decision = self._decision(message, now)
        decision.answer, decision.verified = message.answer, message.verified
        if len(message.tokens):
            decision.tokens[message.position :] = map(int, message.tokens)
            yield from self._settle(decision, message, now)
        if message.finished:
            decision.finish, decision.ended = message.finish_reason, now
            if decision.told:
                yield Decided(decision)

    def _settle(self, decision: Decision, message: Any, now: float) -> Iterator[News]:
        round_ = decision.at(message.position)
        round_.settled = message.text
        if not message.verified:  # the robot's own words, which no verdict follows
            round_.accepted, round_.answered = 0, now
        if round_.complete:
            yield RoundSettled(decision, round_)

    def _command(self, message: Any, now: float) -> Iterator[News]:
        decision = self._decision(message, now)
        decision.action, decision.acting = message.text, now
        decision.where = dict(self.outcome)
        yield Acting(decision)

    def _stats(self, message: Any, now: float) -> Iterator[News]:
        decision = self._decision(message, now)
        decision.seed = message.seed
        decision.stats = {name: getattr(message, name) for name in STATS}
        if decision.told:
            yield Decided(decision)

    def _nav_status(self, message: Any, now: float) -> Iterator[News]:
        self.nav_status = message.data
        self.statuses.append((now, message.data))
        if " refused: " in message.data:
            yield Trouble(f"the navigator {message.data.partition(' refused: ')[2]}")

    def _instruction_status(self, message: Any, now: float) -> Iterator[News]:
        self.instruction_status = message.data
        yield from ()

    def _outcome(self, message: Any, now: float) -> Iterator[News]:
        self.outcomes.append((now, json.loads(message.data)))
        yield from ()

    def _frame(self, message: Any, now: float) -> Iterator[News]:
        self.frames.append((now, bytes(message.data)))
        yield from ()


def _first_of_each(tree: Draft, node: int | None) -> Iterator[int]:
    """A node, the first of its children, the first of theirs, to the end."""
    while node is not None:
        yield node
        node = next(tree.children(node), None)


def _parents(payload: Any) -> tuple[int, ...] | None:
    """The parents of a draft's nodes; None for a chain, or what is no draft of ours."""
    try:
        message = decode_client(bytes(payload))
    except (WireError, ValueError):
        return None
    return message.draft.parents if isinstance(message, DraftMessage) else None


def _path(message: Any) -> tuple[int, ...]:
    """The accepted nodes of a verdict."""
    try:
        verdict = decode_server(bytes(message.payload))
    except (WireError, ValueError):
        verdict = None
    return verdict.path if isinstance(verdict, Verdict) else tuple(range(message.accepted))


def _seconds(duration: Any) -> float:
    return float(duration.sec + duration.nanosec * 1e-9)
