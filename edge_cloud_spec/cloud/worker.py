"""The model thread of the cloud: it owns the models and every session, and runs one pass at a time.

Streams take turns and get the same time: a turn is one message and the pass that it asks for, or
one more pass of a session that continues by itself (it generates, or the next draft was pushed).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..decoding.draft import Draft
from ..errors import UserError
from ..models.prompt import PromptSpec
from ..wire.codec import decode_client
from ..wire.kinds import kind_of
from ..wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Open,
    Opened,
    Resume,
    base_digest,
    spec_digest,
)
from .counters import Counters
from .events import Action, Commit, Event, Extend, Propose, Proposed, Score, Scored, Send
from .model_runner import ModelRunner
from .sessions import CloudSession, RobotStream, Sessions, WorkerLimits
from .turns import Turns
from .validation import check_opening
from .verification import EMPTY, Verification

if TYPE_CHECKING:
    from ..models.exits import Exits
    from ..models.vlm import Vlm

log = logging.getLogger(__name__)

MAX_TEXT = 500  # characters of a fault, which may quote a robot's message


class Worker(threading.Thread):
    """Runs ``target`` (and ``drafter``, for ``cloud_sd``) for all sessions, in its own thread."""

    def __init__(
        self,
        target: Vlm,
        spec: PromptSpec,
        drafter: Vlm | None = None,
        limits: WorkerLimits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        exits: Exits | None = None,
    ) -> None:
        """exits: of the target; they predict a verdict while its pass is under way."""
        super().__init__(name="model", daemon=True)
        self._models = ModelRunner(target, spec, drafter, exits)
        self._spec = spec
        self._spec_bytes = spec.to_bytes()
        self._spec_digest = spec_digest(self._spec_bytes)
        self.limits = limits or WorkerLimits()
        self._clock = clock
        self._sessions = Sessions(self.limits)
        self.counters = Counters()
        self._turns = Turns()
        self._verdict_job: Callable[[], None] | None = None  # of the pass that has just ended

    def receive(self, stream: RobotStream, data: bytes) -> None:
        """Queue a message that arrived on this stream; from any thread."""
        stream.receive(data, self._clock())
        self._turns.put(stream.line, lambda: self._handle_next(stream))

    def leave(self, stream: RobotStream) -> None:
        """The stream is gone; its session is kept for a while. From any thread."""
        stream.gone = True
        self._turns.put(stream.line, lambda: self._sessions.leave(stream, self._clock()))

    def stop(self) -> None:
        """End the thread after the jobs that wait."""
        self._turns.end()

    def run(self) -> None:
        while self.run_one():
            pass

    def run_one(self) -> bool:
        """Do the next job, in the calling thread; wait for one if need be. False to end."""
        job, self._verdict_job = self._verdict_job, None
        if job is None:
            job = self._turns.take()
        if job is None:
            return False
        started = self._clock()
        try:
            job()
        except Exception:
            log.exception("a job of the model thread failed; the others continue")
        self._turns.spend(self._clock() - started)
        return True

    @property
    def sessions(self) -> int:
        """How many sessions are held."""
        return len(self._sessions)

    @property
    def pushed(self) -> int:
        """Drafts of all sessions that wait for the answer to reach their prefix."""
        return self._sessions.pushed

    @property
    def pending(self) -> bool:
        """Whether a job is queued."""
        return self._verdict_job is not None or len(self._turns) > 0

    def _guard(self, stream: RobotStream | None, job: Callable[[], None]) -> None:
        """Run a job; an error is sent to the robot as a Fault, and the thread continues."""
        try:
            job()
        except (UserError, ValueError) as error:
            fault = Fault("bad_request", _brief(str(error)))
        except Exception as error:
            log.exception("a request failed")
            text = f"the verifier failed on this request ({type(error).__name__}); see its log"
            fault = Fault("internal", text)
        else:
            return
        if stream is not None:
            stream.send(fault)

    def _handle_next(self, stream: RobotStream) -> None:
        """Handle the next message of this stream, if a pass has not done it already."""
        if not stream.waiting:
            return
        data, arrived = stream.take()
        if stream.gone and kind_of(data) != "close":
            self.counters.count_left(kind_of(data))  # if its robot resumes, it sends it again
        else:
            self._guard(stream, partial(self._on_message, stream, data, arrived))

    def _on_message(self, stream: RobotStream, data: bytes, arrived: float) -> None:
        message = decode_client(data)
        if isinstance(message, Open):
            self._open(stream, message)
        elif isinstance(message, Resume):
            self._resume(stream, message)
        elif isinstance(message, Close):
            self._close(stream, message)
        elif stream.session is None:
            # Sent before the robot knew that its stream is new; it resumes and sends it again.
            log.debug("a message for no session is dropped")
        else:
            stream.session.arrived = arrived
            self._advance(stream.session, message)

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
        if again is not None:  # the robot lost the link before it received Opened
            again.verification.pause()
            self._sessions.attach(stream, again)
            stream.send(Opened(again.verification.session, spec_bytes, base, protocol))
            return
        if not self._sessions.make_room(self._clock()):
            text = f"all {self.limits.sessions} sessions are taken; try again later"
            stream.send(Fault("overloaded", text))
            return
        name = secrets.token_hex(8)
        stream.send(Opened(name, spec_bytes, base, protocol))  # the robot prefills while we do
        verification = Verification(
            name,
            opening,
            base,
            end_tokens=spec.end_ids,
            max_tokens=min(opening.max_tokens or spec.max_tokens, spec.max_tokens),
            vocabulary=spec.vocabulary,
            draft_tokens=self.limits.draft_tokens,
            counters=self.counters,
        )
        target = self._models.target
        session = CloudSession(verification, lambda: target.open(prompt), opening, self._clock())
        self._sessions.attach(stream, session)
        self._queue_pass(session, lambda: self._prefill(session))

    def _prefill(self, session: CloudSession) -> None:
        """Read the prompt ahead of the first draft, unless its robot has left."""
        if session.stream is not None and not session.stream.gone:
            _ = session.target

    def _resume(self, stream: RobotStream, message: Resume) -> None:
        session = self._sessions.named(message.session)
        if session is None or not session.admits(message.secret):  # one text for both
            text = "the cloud does not hold this session any more; start the decode again"
            stream.send(Fault("unknown_session", text))
            return
        self._sessions.attach(stream, session)
        self._advance(session, message)

    def _advance(self, session: CloudSession, event: Event) -> None:
        for action in session.verification.handle(event):
            self._perform(session, action, event)

    def _perform(self, session: CloudSession, action: Action, event: Event) -> None:
        match action:
            case Send(message):
                if session.stream is not None:
                    session.stream.send(message)
            case Commit(path, tokens):
                session.target.commit(path)
                session.target.extend(tokens)
            case Extend(tokens):
                session.target.extend(tokens)
            case Score(draft) if isinstance(event, DraftMessage):
                self._score(session, draft)
            case Score(draft):
                self._queue_pass(session, lambda: self._score(session, draft))
            case Propose(prefix, length):
                self._queue_pass(session, lambda: self._propose(session, prefix, length))

    def _queue_pass(self, session: CloudSession, job: Callable[[], None]) -> None:
        """Queue a pass that follows no message, so that other streams get their turn first."""
        self._turns.put_first(session.line, lambda: self._guard(session.stream, job))

    def _score(self, session: CloudSession, draft: Draft) -> None:
        if session not in self._sessions:
            return
        started = self._clock()
        try:
            predictor = self._models.predictor(
                session, draft, lambda found: self._advance(session, found)
            )
            logits = session.target.forward(draft.tokens, draft.parents, predictor)
        except Exception:
            self._sessions.lose(session)  # it would wait for this pass for ever
            raise
        ended = self._clock()
        queue_s = max(0.0, started - session.arrived)
        session.arrived = ended  # a generated pass waits from here on
        scored = Scored(logits, ended - started, queue_s)
        self._verdict_job = lambda: self._guard(
            session.stream, lambda: self._settle(session, scored)
        )

    def _settle(self, session: CloudSession, scored: Scored) -> None:
        """Make the verdict, after drafts that were pushed during the pass: one may come next."""
        stream = session.stream
        for _ in range(len(stream.waiting) if stream is not None else 0):  # not what arrives now
            if stream is None or kind_of(stream.waiting[0][0]) != "draft":
                break
            self._handle_next(stream)
        if session in self._sessions:
            self._advance(session, scored)

    def _propose(self, session: CloudSession, prefix: tuple[int, ...], length: int) -> None:
        if not session.verification.generating:
            self._advance(session, Proposed(EMPTY))
            return
        started = self._clock()
        try:
            draft = self._models.propose(session, prefix, length)
        except Exception:
            session.verification.pause()
            self._advance(session, Proposed(EMPTY))  # or it would wait for this for ever
            raise
        draft_s = self._clock() - started
        session.arrived += draft_s
        self._advance(session, Proposed(draft, draft_s))


def _brief(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."
