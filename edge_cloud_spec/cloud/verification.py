"""Verification of one session: a state machine without I/O, ``event -> actions``.

It owns the verified prefix of one decode on the cloud's side. The worker around it runs the model
passes that it asks for and sends what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import accept
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

EMPTY = Draft(())


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


class Verification:
    """One session's verdicts. The first draft for a prefix stands; verdicts are kept, not redrawn."""

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
        self._kept: dict[PrefixDigest, Verdict] = {}
        self._scoring: tuple[Draft, int] | None = None  # the draft in the target, its round
        self._generating: Generate | None = None
        self._draft_s = 0.0

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
                if self._generating is None:
                    return []
                self._draft_s = draft_s
                return self._score(draft, round_=0)
            case Resume():
                self._generating = None
                return [Say(Opened(self.session, b"", self._digest))]
            case Close():
                self.finished = True
                self._generating = None
                return []

    def pause(self) -> None:
        """Nobody listens at present: stop generating (a resumed robot asks again)."""
        self._generating = None

    def _on_draft(self, message: DraftMessage) -> list[Action]:
        if message.base in self._kept:
            return [Say(self._kept[message.base])]
        if message.base != self._digest or self._scoring is not None or self.finished:
            self.stale += 1
            return []
        try:
            check_draft(message.draft, self._vocabulary)
            if self._opening.rule == "rejection" and message.draft.rows is None:
                raise BadDraft("rejection needs the rows that the draft was sampled from")
        except BadDraft as error:
            return [Say(Fault("bad_draft", str(error)))]
        return self._score(message.draft, message.round)

    def _on_generate(self, message: Generate) -> list[Action]:
        actions: list[Action] = []
        base = message.base
        while base in self._kept:
            verdict = self._kept[base]
            actions.append(Say(verdict))
            base = base.extend(self._emitted(verdict))
        if base != self._digest:
            self.stale += 1
            return actions
        self._generating = None if self.finished else message
        return actions + self._continue()

    def _emitted(self, verdict: Verdict) -> tuple[int, ...]:
        return verdict.tokens + (() if verdict.token is None else (verdict.token,))

    def _continue(self) -> list[Action]:
        if self._generating is None or self._scoring is not None:
            return []
        if self._generating.speculative:
            return [Propose(tuple(self.tokens), max(1, self._opening.draft_length))]
        return self._score(EMPTY, round_=0)

    def _score(self, draft: Draft, round_: int) -> list[Action]:
        self._scoring = (draft, round_)
        return [Score(draft)]

    def _on_scored(self, scored: Scored) -> list[Action]:
        assert self._scoring is not None
        draft, round_ = self._scoring
        self._scoring = None
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
            round_,
            finish,
            drafted=len(draft),
            verify_s=scored.verify_s,
            queue_s=scored.queue_s,
            draft_s=self._draft_s,
        )
        if self._generating is not None:
            verdict = replace(verdict, tokens=accepted)
        self._draft_s = 0.0
        self._kept[self._digest] = verdict
        self._digest = self._digest.extend(accepted + last)
        self.tokens += accepted + last
        self.finished = bool(finish)
        actions: list[Action] = [Say(verdict), Keep(path, last)]
        if self.finished:
            self._generating = None
        return actions + self._continue()

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
