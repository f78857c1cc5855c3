"""What robots' messages do to their sessions, and what the sessions then ask of the scheduler."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial

from ...lookup import Lookups
from ...models.prompt import PromptSpec
from ...wire.codec import decode_client
from ...wire.frames import kind_of
from ...wire.messages import (
    Close,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    base_digest,
    spec_digest,
)
from ..session.counters import Counters
from ..session.events import Action, Commit, Event, Extend, Propose, Proposed, Reply, Score
from ..session.own_drafting import OwnDrafting
from ..session.scored_draft import EMPTY
from ..session.validation import check_opening, check_verified
from ..session.verification import Verification
from .faults import fault_of
from .model_runner import ModelRunner
from .prefills import Prefills
from .scheduler import DuePass, Scheduler
from .sessions import CloudSession, RobotStream, Sessions, WorkerLimits

log = logging.getLogger(__name__)


class SessionMessages:
    """Handles messages and the events of sessions; passes, prefills and proposals are queued.

    An error is sent to its robot as a Fault. Belongs to the model's thread.
    """

    def __init__(
        self,
        models: ModelRunner,
        sessions: Sessions,
        scheduler: Scheduler,
        counters: Counters,
        spec: PromptSpec,
        limits: WorkerLimits,
        clock: Callable[[], float],
        lookups: Lookups,
    ) -> None:
        self._models, self._sessions, self._scheduler = models, sessions, scheduler
        self._counters, self._limits, self._clock = counters, limits, clock
        self._lookups = lookups
        # Sessions share a pass of the target, but wait for one another's drafts.
        self._own = OwnDrafting(lambda: scheduler.computes) if models.drafts else None
        self.prefills = Prefills(sessions, scheduler, limits, self.fail)
        self._spec = spec
        self._spec_bytes = spec.to_bytes()
        self._spec_digest = spec_digest(self._spec_bytes)

    def listen(self, stream: RobotStream | None) -> None:
        """Let the scheduler know that a message of this stream may be handled, if it may."""
        if stream is not None and self._may_speak(stream):
            self._scheduler.of(stream.client).talking[stream] = None

    def fail(self, session: CloudSession, error: Exception) -> None:
        """Give up a session that cannot go on, and tell its robot why."""
        self._sessions.lose(session)
        session.send(fault_of(error))
        self.listen(session.stream)

    def handle_next(self, stream: RobotStream) -> None:
        """Handle the next message of this stream, if one is left, at its client's cost."""
        if stream.waiting:
            started = self._clock()
            self._handle(stream, *stream.take())
            self._scheduler.charge(stream.client, self._clock() - started)
        if stream.gone and not stream.waiting:
            self._sessions.leave(stream, self._clock())

    def _handle(self, stream: RobotStream, data: bytes, arrived: float) -> None:
        if stream.gone and kind_of(data) != "close":
            self._counters.count_left(kind_of(data))  # if its robot resumes, it sends it again
            return
        try:
            self._on_message(stream, data, arrived)
        except Exception as error:
            stream.send(fault_of(error))

    def advance(self, session: CloudSession, event: Event, arrived: float) -> None:
        """An event of a session, which arrived at this time (s), and all that follows from it.

        Where a part of that fails the session is given up: its answer may be ahead of its cache.
        """
        try:
            for action in session.verification.handle(event):
                self._perform(session, action, arrived)
        except Exception as error:
            self.fail(session, error)

    def _may_speak(self, stream: RobotStream) -> bool:
        """Whether the next message of this stream is to be handled now.

        After a draft a stream is not heard until the verdict: its messages are handled in order.
        """
        session = stream.session
        if session is None or stream.gone or session not in self._sessions:
            return bool(stream.waiting or stream.gone)
        under_way = session.verification.under_way
        return bool(stream.waiting) and (under_way is None or not under_way.awaited)

    def _on_message(self, stream: RobotStream, data: bytes, arrived: float) -> None:
        message = decode_client(data)
        if isinstance(message, Open):
            self._open(stream, message)
        elif isinstance(message, Resume):
            self._resume(stream, message, arrived)
        elif isinstance(message, Close):
            self._close(stream, message)
        elif stream.session is None:
            # Sent before the robot knew that its stream is new; it resumes and sends it again.
            log.debug("a message for no session is dropped")
        else:
            stream.session.arrived = arrived
            self.advance(stream.session, message, arrived)

    def _close(self, stream: RobotStream, message: Close) -> None:
        if stream.session is not None:
            self._sessions.drop(stream.session, message)
        stream.end()

    def _open(self, stream: RobotStream, opening: Open) -> None:
        protocol = check_opening(opening, self._models.target.tokenizer_digest)
        spec = self._spec
        prompt = self._models.prompt(opening)
        base = base_digest(opening, prompt.digest, self._spec_digest)
        spec_bytes = b"" if opening.spec_digest == self._spec_digest else self._spec_bytes
        again = self._sessions.of(base, opening.key)
        if again is not None and not again.admits(opening.secret):
            text = "this very request is being decoded for its robot; start a decode of your own"
            stream.send(Fault("in_use", text))
            return
        grammar = self._models.grammar(opening)
        max_tokens = min(opening.max_tokens or spec.max_tokens, spec.max_tokens)
        verified = len(opening.verified)
        check_verified(opening.verified, spec.vocabulary, spec.end_ids, max_tokens)
        if again is not None and again.continues(opening.verified):  # the robot lost the link
            again.verification.pause()
            self._sessions.attach(stream, again)
            stream.send(Opened(again.verification.session, spec_bytes, base, protocol, verified))
            self._go_alone(again, opening)
            return
        if again is not None:
            self._sessions.drop(again, Close())
        if (refusal := self._sessions.admit(stream, self._clock())) is not None:
            self._counters.answers.refused[refusal.reason] += 1
            stream.send(Fault("overloaded", refusal.text, refusal.retry_after_s))
            return
        name = secrets.token_hex(8)
        # The robot prefills while we do.
        stream.send(Opened(name, spec_bytes, base, protocol, verified))
        verification = Verification(
            name,
            opening,
            base,
            end_tokens=spec.end_ids,
            max_tokens=max_tokens,
            vocabulary=spec.vocabulary,
            draft_tokens=self._limits.draft_tokens,
            counters=self._counters,
            grammar=grammar,
            lookup=self._lookups.of(
                stream.credential, opening, self._models.instruction_tokens(opening)
            ),
            own=self._own,
        )
        target = self._models.target
        session = CloudSession(verification, lambda: target.prefill(prompt), opening, self._clock())
        self._sessions.attach(stream, session)
        self.prefills.queue(session)
        self._go_alone(session, opening)

    def _go_alone(self, session: CloudSession, opening: Open) -> None:
        """Where the robot says so, as if its Generate had come with its Open."""
        if opening.alone is not None:
            here = session.base.extend(opening.verified)
            self.advance(session, Generate(here, opening.alone), self._clock())

    def _resume(self, stream: RobotStream, message: Resume, arrived: float) -> None:
        session = self._sessions.named(message.session)
        if session is None or not session.admits(message.secret):  # one text for both
            text = "the cloud does not hold this session any more; start the decode again"
            stream.send(Fault("unknown_session", text))
            return
        self._sessions.attach(stream, session)
        self.advance(session, message, arrived)

    def _perform(self, session: CloudSession, action: Action, arrived: float) -> None:
        match action:
            case Reply(message):
                session.send(message)
            case Commit(path, tokens):
                session.target.commit(path)
                session.target.extend(tokens)
            case Extend(tokens):
                session.target.extend(tokens)
            case Score(draft, patience_s):
                due = DuePass(session, draft, 1 + len(draft), arrived, patience_s)
                self.prefills.queue_pass(due)
            case Propose():
                job = partial(self._propose, session, action, arrived)
                self._scheduler.of(session.client).jobs.append(job)

    def _propose(self, session: CloudSession, wanted: Propose, arrived: float) -> None:
        """Draft with the cloud's own drafter, unless the robot's draft came first."""
        verification = session.verification
        if session not in self._sessions or verification.proposing is not wanted:
            return
        if not verification.generating or (not wanted.needed and self._scheduler.computes):
            self.advance(session, Proposed(EMPTY), arrived)
            return
        started = self._clock()
        try:
            draft = self._models.propose(session, wanted.prefix, wanted.length)
        except Exception as error:
            if wanted.needed:
                session.verification.pause()
                session.send(fault_of(error))
            else:
                log.warning("the draft model failed, and is done without: %s", error)
            # or it would wait for this for ever
            self.advance(session, Proposed(EMPTY, failed=True), arrived)
            return
        draft_s = self._clock() - started
        self.advance(session, Proposed(draft, draft_s), arrived + draft_s)
