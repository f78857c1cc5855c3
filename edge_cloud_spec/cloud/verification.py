"""Verification of one session: a state machine without I/O, ``event -> actions``.

It owns the verified prefix of one decode on the cloud's side. The worker around it runs the model
passes that it asks for and sends what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import accept, rows_of_chain
from ..decoding.choose import SeededChooser
from ..decoding.digest import PrefixDigest
from ..decoding.draft import BadDraft, Draft, check_draft
from ..wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    ServerMessage,
    Verdict,
)

EMPTY = Draft((), rows=np.zeros((0, 0), np.float32))  # nothing drafted: the target alone


@dataclass(frozen=True)
class Score:
    """Run the target over this draft; a Scored event is due."""

    draft: Draft


@dataclass(frozen=True)
class Propose:
    """Let the cloud's own drafter draft this many tokens after the prefix; Proposed is due."""

    prefix: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class Keep:
    """Commit these nodes of the scored draft, then extend by these tokens."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Say:
    """Send this to the robot."""

    message: ServerMessage


@dataclass(frozen=True, eq=False)
class Scored:
    """The target's logits [1 + n, V] for the draft, and what they cost in seconds."""

    logits: NDArray[np.float32]
    verify_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True)
class Proposed:
    """What the cloud's own drafter proposes."""

    draft: Draft
    draft_s: float = 0.0


Action = Score | Propose | Keep | Say
Event = DraftMessage | Generate | Resume | Close | Scored | Proposed


@dataclass(frozen=True)
class _Pass:
    """What the target is looking at; ``own`` where the cloud drafted it (or nothing)."""

    draft: Draft
    round: int = 0
    own: bool = False
    draft_s: float = 0.0


class Verification:
    """One session's verdicts. The first draft for a prefix stands; no verdict is drawn again."""

    def __init__(
        self,
        session: str,
        opening: Open,
        base: PrefixDigest,
        *,
        end_tokens: tuple[int, ...],
        max_tokens: int,
        vocabulary: int,
    ) -> None:
        self.session = session
        self.tokens: list[int] = []
        self.finished = False
        self.stale = 0
        self._opening = opening
        self._digest = base
        self._end_tokens = end_tokens
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary
        self._chooser = SeededChooser(opening.policy.seed)
        self._kept: dict[PrefixDigest, Verdict] = {}  # in the order of the answer
        self._scoring: _Pass | None = None
        self._proposing = False
        self._generating: Generate | None = None

    @property
    def generating(self) -> bool:
        """Whether it goes on by itself after each verdict."""
        return self._generating is not None

    @property
    def digest(self) -> PrefixDigest:
        """Where the verified prefix stands."""
        return self._digest

    def handle(self, event: Event) -> list[Action]:
        """What to do upon this event. A message that cannot be used gets a Fault; nothing else."""
        match event:
            case DraftMessage():
                return self._on_draft(event)
            case Generate():
                return self._on_generate(event)
            case Scored():
                return self._on_scored(event)
            case Proposed(draft, draft_s):
                self._proposing = False
                if self._generating is None:
                    return []
                return self._score(_Pass(draft, own=True, draft_s=draft_s))
            case Resume():
                return self._on_resume(event)
            case Close():
                self.finished = True
                self._generating = None
                return []

    def pause(self) -> None:
        """Nobody listens at present: stop generating (a resumed robot asks again)."""
        self._generating = None

    @property
    def _busy(self) -> bool:
        return self._proposing or self._scoring is not None

    def _knows(self, base: PrefixDigest) -> bool:
        return base == self._digest or base in self._kept

    def _on_resume(self, message: Resume) -> list[Action]:
        if not self._knows(message.base):
            text = "the robot stands where this answer never was; start the decode again"
            return [Say(Fault("unknown_prefix", text))]
        self._generating = None
        return [Say(Opened(self.session, b"", self._digest))]

    def _on_draft(self, message: DraftMessage) -> list[Action]:
        if message.base in self._kept:
            return [Say(self._kept[message.base])]
        if message.base != self._digest or self._busy or self.finished:
            self.stale += 1
            return []
        try:
            check_draft(message.draft, self._vocabulary)
            if self._opening.rule == "rejection":
                rows_of_chain(message.draft)
        except BadDraft as error:
            return [Say(Fault("bad_draft", str(error)))]
        return self._score(_Pass(message.draft, message.round))

    def _on_generate(self, message: Generate) -> list[Action]:
        base = message.base
        if not self._knows(base):
            self.stale += 1
            return []
        repeated = [Say(kept) for place, kept in self._kept.items() if place.length >= base.length]
        self._generating = None if self.finished else message
        return [*repeated, *self._continue()]

    def _continue(self) -> list[Action]:
        if self._generating is None or self._busy:
            return []
        if self._generating.speculative:
            self._proposing = True
            useful = self._max_tokens - len(self.tokens) - 1  # the verdict brings one of its own
            length = max(1, min(self._opening.draft_length, useful))
            return [Propose(tuple(self.tokens), length)]
        return self._score(_Pass(EMPTY, own=True))

    def _score(self, under_way: _Pass) -> list[Action]:
        self._scoring = under_way
        return [Score(under_way.draft)]

    def _on_scored(self, scored: Scored) -> list[Action]:
        assert self._scoring is not None
        under_way, self._scoring = self._scoring, None
        draft = under_way.draft
        opening = self._opening
        taken = accept(
            opening.rule, draft, scored.logits, opening.policy, len(self.tokens), self._chooser
        )
        path, token, finish = self._until_end(draft, taken.path, taken.token)
        last = () if token is None else (token,)
        accepted = tuple(draft.tokens[node] for node in path)
        verdict = Verdict(
            self._digest,
            path,
            token,
            under_way.round,
            finish,
            tokens=accepted if under_way.own else (),
            drafted=len(draft),
            verify_s=scored.verify_s,
            queue_s=scored.queue_s,
            draft_s=under_way.draft_s,
        )
        self._kept[self._digest] = verdict
        self._digest = self._digest.extend(accepted + last)
        self.tokens += accepted + last
        if finish:
            self.finished, self._generating = True, None
        return [Say(verdict), Keep(path, last), *self._continue()]

    def _until_end(
        self, draft: Draft, path: tuple[int, ...], token: int
    ) -> tuple[tuple[int, ...], int | None, str]:
        """Cut the accepted path and its last token at an end token or at the length limit."""
        room = self._max_tokens - len(self.tokens)
        for depth, node in enumerate(path, start=1):
            if draft.tokens[node] in self._end_tokens:
                return path[:depth], None, "end"
            if depth == room:
                return path[:depth], None, "length"
        if token in self._end_tokens:
            return path, token, "end"
        return path, token, "length" if len(path) + 1 == room else ""
