"""Verification of one session: a state machine without I/O, ``event -> actions``.

It owns the verified prefix of one decode on the cloud's side. The worker around it runs the model
passes that it asks for and sends its messages.
"""

from __future__ import annotations

from dataclasses import replace

from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_NODES, BadDraft
from ...decoding.grammar import Grammar
from ...decoding.random_source import RandomSource, SeededRandomSource
from ...decoding.token_distribution import TokenDistribution
from ...lookup import AnswerLookup
from ...wire.messages import (
    Alone,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    RowRequest,
)
from .counters import Counters
from .draft_choice import DraftChoice
from .events import (
    Action,
    Commit,
    Event,
    Extend,
    Predicted,
    Propose,
    Proposed,
    Reply,
    Score,
    Scored,
)
from .judge import judge
from .own_drafting import OwnDrafting
from .scored_draft import EMPTY, ScoredDraft
from .validation import DraftRules
from .verdict_history import VerdictHistory
from .verified_answer import VerifiedAnswer


class Verification:
    """One session's verdicts. The first draft for a prefix counts; no verdict is drawn again."""

    def __init__(
        self,
        session: str,
        opening: Open,
        base: PrefixDigest,
        *,
        end_tokens: tuple[int, ...],
        max_tokens: int,
        vocabulary: int,
        draft_tokens: int = MAX_NODES,
        random_source: RandomSource | None = None,
        counters: Counters | None = None,
        grammar: Grammar | None = None,
        lookup: AnswerLookup | None = None,
        own: OwnDrafting | None = None,
    ) -> None:
        """draft_tokens: of a draft at most. counters: of all sessions. grammar: the policy's.
        lookup: for this answer, where its robot wants that. own: of the cloud's draft model."""
        self.session = session
        self.grammar = grammar
        self.finished = False
        self.proposing: Propose | None = None  # what the cloud's draft model is to draft now
        self.counters = counters or Counters()
        self._opening = opening
        self._answer = VerifiedAnswer(base, end_tokens, max_tokens, grammar)
        self._answer.extend(opening.verified)
        self._rules = DraftRules(opening, vocabulary, draft_tokens)
        self._random_source = random_source or SeededRandomSource(opening.policy.seed)
        self._history = VerdictHistory()
        self._drafts = DraftChoice(opening, self._answer, self._rules, self.counters, lookup, own)
        self._rejected: TokenDistribution | None = None  # P where the robot resamples now
        self._row_asked_at: PrefixDigest | None = None  # where another verifier rejected
        self._scoring: ScoredDraft | None = None
        self._alone: Alone | None = None  # how it goes on after each verdict by itself

    @property
    def pushed(self) -> int:
        """Drafts that wait for the answer to reach their prefix."""
        return len(self._drafts)

    @property
    def generating(self) -> bool:
        """Whether it continues by itself after each verdict."""
        return self._alone is not None

    @property
    def under_way(self) -> ScoredDraft | None:
        """What the target is scoring; None: nothing."""
        return self._scoring

    @property
    def tokens(self) -> list[int]:
        """The verified tokens."""
        return self._answer.tokens

    @property
    def base(self) -> PrefixDigest:
        """The digest of the empty answer."""
        return self._answer.base

    @property
    def digest(self) -> PrefixDigest:
        """The digest of the verified prefix."""
        return self._answer.digest

    def handle(self, event: Event) -> list[Action]:
        """The actions that follow from this event; for a message that cannot be used, a Fault."""
        match event:
            case DraftMessage():
                return self._on_draft(event)
            case Generate():
                return self._on_generate(event)
            case Scored():
                return self._on_scored(event)
            case Predicted():
                return self._on_predicted(event)
            case Proposed() if self.proposing is None:
                return []
            case Proposed():
                self.proposing = None
                waiting = self._next_pushed(late=True)
                done = waiting or self._alone is None
                return waiting if done else self._score(self._drafts.drafted(event))
            case Resume():
                return self._on_resume(event)
            case RowRequest(base):
                return self._on_row_request(base)
            case Close(resampled):
                if self._rejected is not None and self._rules.knows(resampled):
                    self._adopt(resampled)
                self.finished, self._alone = True, None
                self._drafts.end()
                return []

    def stands_at(self, here: PrefixDigest) -> bool:
        """Whether a robot with this verified prefix, from whomever, gets all that it asks for."""
        if self._opening.split is not None:  # a row, too, after a rejection of another's
            return here == self.digest and self._rejected is None and not self._busy
        return here == self.digest or here in self._history

    def pause(self) -> None:
        """The session has no stream: stop generating (a robot that resumes asks again)."""
        self._alone = None

    @property
    def _busy(self) -> bool:
        return self.proposing is not None or self._scoring is not None

    def _on_resume(self, message: Resume) -> list[Action]:
        if not self._answer.was_at(message.base):
            text = "the robot stands where this answer never was; start the decode again"
            return [Reply(Fault("unknown_prefix", text))]
        self._alone = None
        return [Reply(Opened(self.session, b"", self.digest))]

    def _on_row_request(self, base: PrefixDigest) -> list[Action]:
        here = base == self.digest  # another verifier rejected the draft, or ours from here
        if self._rejected is not None and (here or base == self._history.last):
            return [Reply(RowMessage(base, self._rejected))]
        if here and self._opening.split and not (self._busy or self.finished):
            return self._score(ScoredDraft(EMPTY, row_only=True))
        self.counters.ignored += 1
        return []

    def _on_predicted(self, event: Predicted) -> list[Action]:
        """A prediction of a verdict that the robot awaits, in the robot's own nodes."""
        scored = self._scoring
        if scored is None or not scored.exits:
            return []
        path, token = scored.as_drafted(event.path, event.token)
        return [Reply(Prediction(self.digest, path, token, event.confidence, event.layer))]

    def _on_draft(self, message: DraftMessage) -> list[Action]:
        self.counters.drafts += 1
        if self.proposing and not message.hint and message.base == self.digest:
            self._alone = self.proposing = None  # the robot takes the lead, and waits for this one
        if self._alone is not None:
            return self._on_draft_while_alone(message)
        if message.base in self._history and not message.hint:
            self.counters.repeated += 1
            return [Reply(self._history.on(message.base))]
        token = message.resampled
        drawn = None if token is None else self.digest.extend((token,))
        if self._rejected is None and message.base == drawn and not self._busy:
            return self._refuse(Fault("unknown_session", "it rejected nothing; open another"))
        if self._rejected is not None and token is None and message.base == self._row_asked_at:
            self.counters.repeated += 1  # sent before the row was asked for, which is told again
            return [Reply(RowMessage(message.base, self._rejected))]
        here = self.digest if self._rejected is None or drawn is None else drawn
        try:
            if message.base != here or message.hint or self._busy or self.finished:
                self._drafts.keep(message, late=self.proposing is not None)
                return []
            self._rules.check_next(message, self._answer, resamples=self._rejected is not None)
        except BadDraft as error:
            return self._refuse(Fault("bad_draft", str(error)))
        return [*self._adopt(message.resampled), *self._score(self._drafts.given(message))]

    def _on_draft_while_alone(self, message: DraftMessage) -> list[Action]:
        """Keep it for where it fits. It is no hint where the robot takes the lead.

        All verdicts were sent on this stream: after the one under way the robot drafts again.
        """
        try:
            self._drafts.keep(message, late=True)
        except BadDraft as error:
            return self._refuse(Fault("bad_draft", str(error)))
        if not message.hint:
            self._alone = None
        return []

    def _refuse(self, fault: Fault) -> list[Action]:
        self.counters.refused += 1
        return [Reply(fault)]

    def _adopt(self, resampled: int | None) -> list[Action]:
        """Take over the token that the robot drew after the last rejection."""
        if resampled is None:
            return []
        self._rejected = None
        self._answer.extend((resampled,))
        return [Extend((resampled,))]

    def _on_generate(self, message: Generate) -> list[Action]:
        base = message.base
        if base != self.digest and base not in self._history:
            self.counters.ignored += 1
            return []
        missed = self._history.since(base) if self._alone is None else ()
        self._alone = message.alone
        if self.finished or self._rejected is not None or self._has_reached_limit():
            self._alone = None
        return [*map(Reply, missed), *self._next(late=True)]

    def _has_reached_limit(self) -> bool:
        """Whether the answer has as many tokens as the robot asked to generate."""
        return self._alone is not None and 0 < self._alone.until <= len(self.tokens)

    def _next(self, *, late: bool) -> list[Action]:
        """The next pass: over a draft that waits for its place, else what the cloud does alone.

        late: a draft for an earlier place may be left to use.
        """
        if self._busy:
            return []
        waiting = self._next_pushed(late=late)
        if waiting or self._alone is None:
            return waiting
        own = self._drafts.own(self._alone)
        if isinstance(own, ScoredDraft):
            return self._score(own)
        self.proposing = own
        return [own]

    def _next_pushed(self, *, late: bool) -> list[Action]:
        """Continue with the robot's draft that waits for the answer's end, if there is one."""
        if self.finished or self._rejected is not None:
            self._drafts.forget_passed()
            return []
        waiting = self._drafts.pushed(alone=self._alone is not None, late=late)
        return [] if waiting is None else self._score(waiting)

    def _score(self, under_way: ScoredDraft) -> list[Action]:
        self._scoring = under_way
        return [Score(under_way.draft, under_way.patience_s)]

    def _on_scored(self, scored: Scored) -> list[Action]:
        assert self._scoring is not None
        under_way, self._scoring = self._scoring, None
        opening = self._opening
        if under_way.row_only:
            self._alone, self._rejected = None, scored.rows.row(-1, opening.policy).told()
            self._row_asked_at = self.digest
            return [Reply(RowMessage(self.digest, self._rejected))]
        verdict, self._rejected = judge(
            under_way, scored, opening, self._answer, self._random_source
        )
        path, finish = verdict.path, verdict.finish
        last = () if verdict.token is None else (verdict.token,)
        said = verdict if under_way.complete else replace(verdict, tokens=())
        self._history.add(verdict)
        self.counters.count_verdict(under_way, path, len(path) + len(last), finish)
        seconds = scored.queue_s + under_way.draft_s + scored.verify_s
        self._drafts.judged(under_way, path, len(path) + len(last), seconds)
        self._answer.extend(verdict.tokens + last)
        if finish and not self.finished:
            self._drafts.end()
        self.finished = self.finished or bool(finish)
        if finish or self._rejected is not None or self._has_reached_limit():
            self._alone = None
        return [Reply(said), Commit(path, last), *self._next(late=not under_way.awaited)]
