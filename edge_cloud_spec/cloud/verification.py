"""Verification of one session: a state machine without I/O, ``event -> actions``.

It owns the verified prefix of one decode on the cloud's side. The worker around it runs the model
passes that it asks for and sends what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.accept import accept
from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_NODES, BadDraft, Draft
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.token_distribution import TokenDistribution
from ..wire.messages import (
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
    Verdict,
)
from .counters import Counters
from .events import (
    Action,
    Commit,
    Event,
    Extend,
    Predicted,
    Propose,
    Proposed,
    Score,
    Scored,
    Send,
)
from .pushed_drafts import PushedDrafts
from .residual import residual_of
from .validation import DraftRules
from .verdict_history import VerdictHistory
from .verified_answer import VerifiedAnswer

MAX_OWN = 16  # tokens of a draft by the cloud's own drafter, which holds up all others
EMPTY = Draft(())  # nothing drafted: the target alone


@dataclass(frozen=True)
class _Pass:
    """What the target is looking at; ``own`` where the cloud drafted it (or nothing)."""

    draft: Draft
    own: bool = False
    draft_s: float = 0.0
    open_at: int | None = None


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
        draft_tokens: int = MAX_NODES,
        random_source: RandomSource | None = None,
        counters: Counters | None = None,
    ) -> None:
        """draft_tokens: of a draft at most. counters: of the whole verifier, where it keeps one."""
        self.session = session
        self.finished = False
        self.counters = counters or Counters()
        self._opening = opening
        self._answer = VerifiedAnswer(base, end_tokens, max_tokens)
        self._rules = DraftRules(opening, vocabulary, draft_tokens)
        self._random_source = random_source or SeededRandomSource(opening.policy.seed)
        self._history = VerdictHistory()
        self._pushed = PushedDrafts(self.counters)
        self._rejected: TokenDistribution | None = None  # P where the robot resamples now
        self._scoring: _Pass | None = None
        self._proposing = False
        self._generating: Generate | None = None

    @property
    def stale(self) -> int:
        """Messages that named a place where the answer is not; they changed nothing."""
        return self.counters.late + self.counters.ignored

    @property
    def pushed(self) -> int:
        """Drafts that wait for the answer to come to their place."""
        return len(self._pushed)

    @property
    def generating(self) -> bool:
        """Whether it goes on by itself after each verdict."""
        return self._generating is not None

    @property
    def open_at(self) -> int | None:
        """The leaf after which the draft under way goes on."""
        return self._scoring.open_at if self._scoring else None

    @property
    def tokens(self) -> list[int]:
        """The verified tokens."""
        return self._answer.tokens

    @property
    def digest(self) -> PrefixDigest:
        """Where the verified prefix stands."""
        return self._answer.digest

    def handle(self, event: Event) -> list[Action]:
        """What to do upon this event. A message that cannot be used gets a Fault; nothing else."""
        match event:
            case DraftMessage():
                return self._on_draft(event)
            case Generate():
                return self._on_generate(event)
            case Scored():
                return self._on_scored(event)
            case Predicted(path, token, confidence, layer):
                if self._scoring is None or self._scoring.own:
                    return []
                return [Send(Prediction(self.digest, path, token, confidence, layer))]
            case Proposed(draft, draft_s):
                self._proposing = False
                if self._generating is None:
                    return []
                return self._score(_Pass(draft, own=True, draft_s=draft_s))
            case Resume():
                return self._on_resume(event)
            case RowRequest(base):
                return self._on_row_request(base)
            case Close(resampled):
                if self._rejected is not None and self._rules.knows(resampled):
                    self._adopt(resampled)
                self.finished = True
                self._generating = None
                self._pushed.clear()
                return []

    def pause(self) -> None:
        """Nobody listens at present: stop generating (a resumed robot asks again)."""
        self._generating = None

    @property
    def _busy(self) -> bool:
        return self._proposing or self._scoring is not None

    def _on_resume(self, message: Resume) -> list[Action]:
        if not self._answer.was_at(message.base):
            text = "the robot stands where this answer never was; start the decode again"
            return [Send(Fault("unknown_prefix", text))]
        self._generating = None
        return [Send(Opened(self.session, b"", self.digest))]

    def _on_row_request(self, base: PrefixDigest) -> list[Action]:
        if base != self._history.last or self._rejected is None:
            self.counters.ignored += 1
            return []
        return [Send(RowMessage(base, self._rejected))]

    def _on_draft(self, message: DraftMessage) -> list[Action]:
        self.counters.drafts += 1
        if message.base in self._history:
            self.counters.repeated += 1
            return [Send(self._history.on(message.base))]
        here = self.digest
        if self._rejected is not None and message.resampled is not None:
            here = here.extend((message.resampled,))
        if message.base != here or self._busy or self.finished:
            return self._keep_pushed(message)
        try:
            self._rules.check_next(message, self._answer, resamples=self._rejected is not None)
        except BadDraft as error:
            return self._refuse(error)
        return [
            *self._adopt(message.resampled),
            *self._score(_Pass(message.draft, open_at=message.open_at)),
        ]

    def _refuse(self, error: BadDraft) -> list[Action]:
        self.counters.refused += 1
        return [Send(Fault("bad_draft", str(error)))]

    def _keep_pushed(self, message: DraftMessage) -> list[Action]:
        """Keep a draft for a place that the answer may come to."""
        ahead = message.base.length > self.digest.length and message.resampled is None
        if self.finished or not ahead or self._opening.draft_identity == "":
            self.counters.late += 1
            return []
        try:
            self._rules.check(message, self._answer.max_tokens - message.base.length)
            self._pushed.add(message)
        except BadDraft as error:
            return self._refuse(error)
        return []

    def _take_pushed(self) -> list[Action]:
        """Go straight on with the draft that was pushed for just this place."""
        if self.finished or self._rejected is not None:
            self._pushed.forget_before(self.digest)
            return []
        message = self._pushed.take(self.digest)
        if message is None:
            return []
        return self._score(_Pass(message.draft, open_at=message.open_at))

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
        missed = self._history.since(base) if self._generating is None else ()
        repeated = [Send(verdict) for verdict in missed]
        self._generating = None if self.finished else message
        if self._has_gone_far_enough():
            self._generating = None
        return [*repeated, *self._continue()]

    def _continue(self) -> list[Action]:
        if self._generating is None or self._busy:
            return []
        if self._generating.speculative:
            self._proposing = True
            useful = self._answer.room - 1  # the verdict brings one of its own
            length = max(1, min(self._opening.draft_length, useful, MAX_OWN))
            return [Propose(tuple(self.tokens), length)]
        return self._score(_Pass(EMPTY, own=True))

    def _score(self, under_way: _Pass) -> list[Action]:
        self._scoring = under_way
        self.counters.judged += not under_way.own
        return [Score(under_way.draft)]

    def _on_scored(self, scored: Scored) -> list[Action]:
        assert self._scoring is not None
        under_way, self._scoring = self._scoring, None
        draft, opening, position = under_way.draft, self._opening, len(self.tokens)
        taken = accept(
            opening.rule,
            draft,
            scored.logits,
            opening.policy,
            position,
            self._random_source,
            replacement=opening.replacement,
            open_at=under_way.open_at,
        )
        path, token, finish = self._answer.until_end(draft, taken.path, taken.token)
        self._rejected = None if finish else taken.rejected
        last = () if token is None else (token,)
        accepted = tuple(draft.tokens[node] for node in path)
        place = position + len(path)
        verdict = Verdict(
            self.digest,
            path,
            token,
            finish,
            tokens=accepted if under_way.own else (),
            drafted=len(draft) if under_way.own else 0,
            verify_s=scored.verify_s,
            queue_s=scored.queue_s,
            draft_s=under_way.draft_s,
            residual=residual_of(self._rejected, opening.split, place, self._random_source),
            leads_to=self.digest.extend(accepted + last).short,
        )
        self._history.add(replace(verdict, tokens=accepted))
        self.counters.verdicts += 1
        self._answer.extend(accepted + last)
        self.finished = self.finished or bool(finish)
        if finish or self._has_gone_far_enough():
            self._generating = None
        return [Send(verdict), Commit(path, last), *self._take_pushed(), *self._continue()]

    def _has_gone_far_enough(self) -> bool:
        until = self._generating.until if self._generating else 0
        return 0 < until <= len(self.tokens)
