"""One robot's decode in the cloud: a state machine without I/O, ``event -> effects``.

``SessionStatus`` is what the session does; ``TRANSITIONS`` lists all changes of it. The session
owns the cloud's copy of the verified prefix. The worker runs the passes that it asks for and sends
its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from ...candidates import Candidates
from ...decoding.accept import ExitPrediction, accept
from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_NODES, BadDraft, Draft
from ...decoding.processors import LogitsProcessors
from ...decoding.random_source import RandomSource, SeededRandomSource
from ...decoding.split import Split, largest, sparse_residual
from ...decoding.target_rows import TargetRows
from ...decoding.token_distribution import TokenDistribution
from ...decoding.transitions import Transitions, follow_table
from ...decoding.verified_answer import VerifiedAnswer
from ...lookup import AnswerLookup
from ...wire.messages import (
    ANSWER,
    Close,
    Code,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Prediction,
    Residual,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
)
from .counters import Counters
from .drafts import DraftChoice, ServerDrafting
from .events import (
    EMPTY,
    Commit,
    DuePass,
    Effect,
    Event,
    Proposed,
    Scored,
)
from .validation import DraftRules


class SessionStatus(Enum):
    """What a session does."""

    WAITING = "nothing is due before the robot's next message"
    DRAFTING = "the cloud's draft model is to draft"
    SCORING = "the target's pass is due"
    BLOCKED = "the pass waits for its prompt, for memory or for a target elsewhere"
    RESAMPLING = "the robot draws the recovered token"
    FINISHED = "the answer is over"


class SessionTrigger(Enum):
    """What changes the status."""

    DRAFT_WANTED = "the cloud's draft model is asked"
    DRAFT_RETURNED = "the cloud's draft is here, or not wanted any more"
    PASS_DUE = "a draft is to be scored"
    PASS_BLOCKED = "something that the pass needs is missing"
    PASS_UNBLOCKED = "what the pass needs is here"
    VERIFIED = "a verdict is given"
    REJECTED = "P is told, of which the robot draws"
    ENDED = "the answer ends, or the session is dropped"


# The next status. A trigger that is not listed is refused.
TRANSITIONS: Transitions[SessionStatus, SessionTrigger] = {
    SessionStatus.WAITING: {
        SessionTrigger.DRAFT_WANTED: SessionStatus.DRAFTING,
        SessionTrigger.PASS_DUE: SessionStatus.SCORING,
        SessionTrigger.ENDED: SessionStatus.FINISHED,
    },
    SessionStatus.DRAFTING: {
        SessionTrigger.DRAFT_RETURNED: SessionStatus.WAITING,
        SessionTrigger.ENDED: SessionStatus.FINISHED,
    },
    SessionStatus.SCORING: {
        SessionTrigger.PASS_BLOCKED: SessionStatus.BLOCKED,
        SessionTrigger.VERIFIED: SessionStatus.WAITING,
        SessionTrigger.REJECTED: SessionStatus.RESAMPLING,
        SessionTrigger.ENDED: SessionStatus.FINISHED,
    },
    SessionStatus.BLOCKED: {
        SessionTrigger.PASS_UNBLOCKED: SessionStatus.SCORING,
        SessionTrigger.ENDED: SessionStatus.FINISHED,
    },
    SessionStatus.RESAMPLING: {
        SessionTrigger.PASS_DUE: SessionStatus.SCORING,
        SessionTrigger.ENDED: SessionStatus.FINISHED,
    },
    SessionStatus.FINISHED: {SessionTrigger.ENDED: SessionStatus.FINISHED},
}

# In these a draft may be scored; in these the cloud does not generate.
IDLE_STATUSES = (SessionStatus.WAITING, SessionStatus.RESAMPLING)
OVER_STATUSES = (SessionStatus.RESAMPLING, SessionStatus.FINISHED)


class CloudSession:
    """One session. It judges the first draft for a prefix, and never draws a verdict anew.

    ``due`` is the pass that is due or under way, else the last one.
    """

    def __init__(
        self,
        name: str,
        opening: Open,
        base: PrefixDigest,
        *,
        end_tokens: tuple[int, ...],
        max_tokens: int,
        vocabulary: int,
        draft_tokens: int = MAX_NODES,
        random_source: RandomSource | None = None,
        counters: Counters | None = None,
        processors: LogitsProcessors | None = None,
        lookup: AnswerLookup | None = None,
        server_drafting: ServerDrafting | None = None,
        candidates: Candidates | None = None,
    ) -> None:
        """draft_tokens: the most tokens of a draft. counters: shared by all sessions. processors:
        of the target's logits. lookup: this answer's, if its robot asked for it. server_drafting:
        None: no draft model. candidates: what the answer may be, to be scored before it begins."""
        self.name, self.opening, self.base = name, opening, base
        self.processors = processors
        self.status = SessionStatus.WAITING
        self.due = DuePass(EMPTY)
        self.counters = counters or Counters()
        self._answer = VerifiedAnswer()
        self._answer.begin(base, end_tokens, max_tokens, vocabulary)
        self._answer.extend(opening.verified)
        self._rules = DraftRules(opening, vocabulary, draft_tokens)
        self._random_source = random_source or SeededRandomSource(opening.policy.seed)
        self._history = VerdictHistory()
        grammar = None if processors is None else processors.grammar
        self._drafts = DraftChoice(
            opening, self._answer, self._rules, self.counters, lookup, server_drafting, grammar
        )
        self._candidates = candidates
        self._rejected: TokenDistribution | None = None  # P, while the robot resamples
        # How the server generates after each verdict, None: it does not.
        self._generation: Generation | None = None

    @property
    def pushed(self) -> int:
        """The number of drafts waiting for the answer to reach their prefix."""
        return len(self._drafts.pushed)

    @property
    def generating(self) -> bool:
        """Whether the cloud generates by itself after each verdict."""
        return self._generation is not None

    @property
    def useful(self) -> int:
        """How many draft tokens the answer can take, besides the verdict's token."""
        return self._drafts.useful

    @property
    def tokens(self) -> list[int]:
        """The verified tokens of the answer."""
        return self._answer.tokens

    @property
    def digest(self) -> PrefixDigest:
        """The digest of the verified prefix."""
        return self._answer.digest

    def turn(self, trigger: SessionTrigger) -> None:
        """Change the status by the table; raises OutOfTurn for an unlisted trigger."""
        self.status = follow_table(TRANSITIONS, self.status, trigger)
        if self.status in OVER_STATUSES:
            self._generation = None

    def handle(self, event: Event) -> list[Effect]:
        """Handle an event; returns its effects. An invalid draft's effect is a Fault."""
        try:
            return _HANDLERS[type(event)](self, event)
        except BadDraft as error:
            return self._refuse(Fault(Code.BAD_DRAFT, str(error)))

    def can_resume_at(self, here: PrefixDigest) -> bool:
        """Whether a robot with this verified prefix can resume: all verdicts after it are still
        known."""
        if self.opening.split is not None:  # the robot may also need P after a rejection
            return here == self.digest and self.status in (
                SessionStatus.WAITING,
                SessionStatus.FINISHED,
            )
        return here == self.digest or here in self._history

    def pause(self) -> None:
        """Stop generating while the session has no stream; a robot that resumes asks again."""
        self._generation = None

    def _on_resume(self, message: Resume) -> list[Effect]:
        if not self._answer.was_at(message.base):
            text = "this session was never at the robot's prefix; open another after it"
            return [Fault(Code.UNKNOWN_SESSION, text)]
        self._generation = None
        return [Opened(self.name, b"", self.digest, protocol=0)]

    def _on_row_request(self, message: RowRequest) -> list[Effect]:
        base = message.base
        here = base == self.digest  # another verifier rejected it, or this one
        if self._rejected is not None and (here or base == self._history.last):
            return [RowMessage(base, self._rejected)]
        if here and self.opening.split and self.status is SessionStatus.WAITING:
            return self._score(DuePass(EMPTY, row_only=True))
        return []

    def _on_predicted(self, event: ExitPrediction) -> list[Effect]:
        """Forward an early exit's prediction, restricted to the robot's nodes."""
        is_due = self.status is SessionStatus.SCORING and self.due.exits
        if not is_due or event.token is None:
            return []
        path, token = self.due.as_drafted(event.path, event.token)
        return [Prediction(self.digest, path, token, event.confidence)]

    def _on_proposed(self, event: Proposed) -> list[Effect]:
        self.turn(SessionTrigger.DRAFT_RETURNED)
        waiting = self._next_pushed(late=True)
        if waiting or self._generation is None:
            return waiting
        return self._score(self._drafts.drafted(event))

    def _on_close(self, message: Close) -> list[Effect]:
        if self._rejected is not None and self._rules.knows(message.resampled):
            self._adopt(message.resampled)
        self.turn(SessionTrigger.ENDED)
        self._rejected = None
        self._drafts.end()
        return []

    def _on_draft(self, message: DraftMessage) -> list[Effect]:
        """Handle a robot's draft; raises BadDraft."""
        base, resampled = message.base, message.resampled
        self.counters.drafts += 1
        if self.status is SessionStatus.DRAFTING and not message.hint and base == self.digest:
            # The robot takes the lead, and awaits the verdict on this draft.
            self._generation = None
            self.turn(SessionTrigger.DRAFT_RETURNED)
        if self._generation is not None:
            # All verdicts up to the current pass's are still sent; then the robot drafts, unless
            # this is a hint.
            self._drafts.keep(message, late=True)
            if not message.hint:
                self._generation = None
            return []
        if base in self._history and not message.hint:
            return self._repeat(self._history[base])
        after_drawn = self.digest if resampled is None else self.digest.extend((resampled,))
        if self._rejected is None:
            idle = self.status in (SessionStatus.WAITING, SessionStatus.FINISHED)
            if resampled is not None and base == after_drawn and idle:
                return self._refuse(
                    Fault(Code.UNKNOWN_SESSION, "it rejected nothing; open another")
                )
            here = self.digest
        else:
            if self.due.row_only and resampled is None and base == self.digest:
                # It was sent before P was requested; P is sent again.
                return self._repeat(RowMessage(base, self._rejected))
            here = after_drawn
        if base != here or message.hint or self.status not in IDLE_STATUSES:
            self._drafts.keep(message, late=self.status is SessionStatus.DRAFTING)
            return []
        self._rules.check_next(message, self._answer, resamples=self._rejected is not None)
        return [*self._adopt(resampled), *self._score(self._drafts.given(message))]

    def _repeat(self, message: Verdict | RowMessage) -> list[Effect]:
        """Send an earlier reply again, unchanged."""
        self.counters.repeated += 1
        return [message]

    def _refuse(self, fault: Fault) -> list[Effect]:
        self.counters.refused += 1
        return [fault]

    def _adopt(self, resampled: int | None) -> list[Effect]:
        """Append the token that the robot drew after the last rejection."""
        if resampled is None:
            return []
        self._rejected = None
        self._answer.extend((resampled,))
        return [Commit((), (resampled,))]

    def _on_generate(self, message: Generate) -> list[Effect]:
        base = message.base
        if base != self.digest and base not in self._history:
            return []
        missed = self._history.since(base) if self._generation is None else ()
        self._generation = None if self.status in OVER_STATUSES else message.generation
        return [*missed, *self._next(late=True)]

    def _next(self, *, late: bool) -> list[Effect]:
        """Start the next pass: over a waiting draft, else over what the server generates.

        late: also use the rest of a draft for an earlier prefix.
        """
        if self.status in (SessionStatus.DRAFTING, SessionStatus.SCORING, SessionStatus.BLOCKED):
            return []
        waiting = self._next_pushed(late=late)
        if waiting or self._generation is None:
            return waiting
        if self._candidates is not None and not self._answer.tokens:
            return self._score(DuePass(self._candidates.tree))
        due = self._drafts.by_server(self._generation)
        if isinstance(due, DuePass):
            return self._score(due)
        self.turn(SessionTrigger.DRAFT_WANTED)
        return [due]

    def _next_pushed(self, *, late: bool) -> list[Effect]:
        """Score the robot's draft that waits for the answer's end, if there is one."""
        if self.status in OVER_STATUSES:
            self._drafts.forget_passed()
            return []
        waiting = self._drafts.take_pushed(generating=self.generating, late=late)
        return [] if waiting is None else self._score(waiting)

    def _score(self, due: DuePass) -> list[Effect]:
        self.turn(SessionTrigger.PASS_DUE)
        self.due = due
        return [due]

    def _on_scored(self, scored: Scored) -> list[Effect]:
        due = self.due
        if due.row_only:  # the robot draws the next token itself
            self._rejected = scored.rows.row(-1, self.opening.policy).dense()
            self.turn(SessionTrigger.REJECTED)
            return [RowMessage(self.digest, self._rejected)]
        verdict = self._verify(due, scored)
        reply = verdict if due.complete else replace(verdict, tokens=())
        path, finish = verdict.path, verdict.finish
        last = () if verdict.token is None else (verdict.token,)
        settled = verdict.tokens + last
        self._history.add(verdict)
        self.counters.count_verdict(due.draft, due.source, path, len(settled), finish, due.beside)
        seconds = scored.queue_s + due.draft_s + scored.verify_s
        self._drafts.report(due, path, len(settled), seconds)
        self._answer.extend(settled)
        if finish:
            self._drafts.end()
        return [reply, Commit(path, last), *self._next(late=not due.awaited)]

    def _verify(self, due: DuePass, scored: Scored) -> Verdict:
        """Apply the acceptance rule, cut at the answer's end; returns a verdict with its tokens.

        If the robot resamples, P is stored as rejected.
        """
        opening, draft, here = self.opening, due.draft, self.digest
        taken = accept(
            opening.rule,
            draft,
            scored.rows,
            opening.policy,
            here.length,
            self._random_source,
            replacement=opening.replacement,
            open_at=due.open_at,
        )
        path, token, finish = self._answer.until_end(draft, taken.path, taken.token)
        self._rejected = None if finish else taken.rejected
        rejected = SessionTrigger.VERIFIED if self._rejected is None else SessionTrigger.REJECTED
        self.turn(SessionTrigger.ENDED if finish else rejected)
        accepted = tuple(draft.tokens[node] for node in path)
        last = () if token is None else (token,)
        position = here.length + len(path)
        return Verdict(
            here,
            path,
            token,
            finish,
            tokens=accepted,
            drafted=len(draft) if due.complete else 0,
            verify_s=scored.verify_s,
            queue_s=scored.queue_s,
            draft_s=due.draft_s,
            residual=residual_of(self._rejected, opening.split, position, self._random_source),
            leads_to=here.extend(accepted + last).short,
            generated=not due.awaited,
            log_probs=self._log_probs(due.draft, scored.rows, path, token),
        )

    def _log_probs(
        self, draft: Draft, rows: TargetRows, path: tuple[int, ...], token: int | None
    ) -> tuple[float, ...]:
        """What a verdict tells of log probabilities."""
        if self._candidates is not None and draft is self._candidates.tree:
            return self._candidates.log_probs(rows)
        if self.opening.log_probs != ANSWER:
            return ()
        settled = [(draft.parent(node), draft.tokens[node]) for node in path]
        if token is not None:
            settled.append((path[-1] if path else -1, token))
        return tuple(rows.log_prob(node, token) for node, token in settled)


_HANDLERS: dict[type, Callable[[CloudSession, Any], list[Effect]]] = {
    DraftMessage: CloudSession._on_draft,
    Generate: CloudSession._on_generate,
    Scored: CloudSession._on_scored,
    ExitPrediction: CloudSession._on_predicted,
    Proposed: CloudSession._on_proposed,
    Resume: CloudSession._on_resume,
    RowRequest: CloudSession._on_row_request,
    Close: CloudSession._on_close,
}


class VerdictHistory(dict[PrefixDigest, Verdict]):
    """Verdicts by their draft's prefix, in the order of the answer.

    They include their tokens, since the robot may have lost the draft. Only the last keeps its
    residual, the largest part: no robot needs an earlier one.
    """

    last: PrefixDigest | None = None  # the prefix of the newest verdict

    def add(self, verdict: Verdict) -> None:
        """Add the latest verdict, which includes its tokens."""
        if self.last is not None and self[self.last].residual is not None:
            self[self.last] = replace(self[self.last], residual=None)
        self[verdict.base] = verdict
        self.last = verdict.base

    def since(self, base: PrefixDigest) -> Iterator[Verdict]:
        """The verdicts on this prefix and all later ones."""
        return (kept for place, kept in self.items() if place.length >= base.length)


def residual_of(
    target: TokenDistribution | None, split: Split | None, position: int, source: RandomSource
) -> Residual | None:
    """P in the form of ``split``: the exact sparse residual, PicoSpec's top K, or dense (DSSD).

    None if nothing was rejected, or the cloud resamples itself.
    """
    if target is None:
        return None
    assert split is not None
    if split.residual == "sparse":
        return sparse_residual(target, split, position, source)
    if split.residual == "top_k":
        ids, probabilities = largest(target, split.top_k)
        return TokenDistribution(probabilities, ids)
    return target
