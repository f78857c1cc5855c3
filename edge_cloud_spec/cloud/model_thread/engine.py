"""What messages and passes do to the sessions, and what these then ask of the scheduler.

A session's pass waits until its prompt is read, in chunks between the passes, and so is what an
evicted session has lost. Where there is no room for another cache the one used the longest ago
gives way; those whose pass waits keep theirs until it is over, so that each that had to wait for
room has a pass for it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from ...decoding.target_rows import TargetRows
from ...errors import MemoryFull, UserError, is_out_of_memory
from ...lookup import Lookups
from ...models.openai_server import Unavailable
from ...wire.codec import decode_client
from ...wire.frames import kind_of
from ...wire.messages import (
    PROTOCOL,
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
from ..session.drafts import EMPTY, OwnDrafting
from ..session.events import (
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
from ..session.validation import check_verified
from ..session.verification import Verification
from .model_runner import ModelRunner
from .scheduler import Job, Scheduler
from .sessions import CloudSession, DuePass, NotArrived, RobotStream, Sessions, WorkerLimits

log = logging.getLogger(__name__)

STAY = 8  # passes that a session has before it makes room for one that finds none
RETRY_S = 1.0
MAX_TEXT = 500  # characters of a fault, which may quote a robot's message


class Engine:
    """Handles messages and the events of sessions; passes and jobs are queued in the scheduler.

    An error is sent to its robot as a Fault. Belongs to the model's thread.
    """

    def __init__(
        self,
        models: ModelRunner,
        sessions: Sessions,
        scheduler: Scheduler,
        counters: Counters,
        limits: WorkerLimits,
        clock: Callable[[], float],
        lookups: Lookups,
    ) -> None:
        self._models, self._sessions, self._scheduler = models, sessions, scheduler
        self._counters, self._limits, self._clock = counters, limits, clock
        self._lookups = lookups
        # Sessions share a pass of the target, but wait for one another's drafts.
        self._own = OwnDrafting(lambda: scheduler.has_model_work) if models.drafter else None
        self.waiting_for_memory: dict[CloudSession, None] = {}
        self._spec_bytes = models.spec.to_bytes()
        self._spec_digest = spec_digest(self._spec_bytes)

    def listen(self, stream: RobotStream | None) -> None:
        """Let the scheduler know that a message of this stream may be handled, if it may."""
        if stream is not None and self._may_speak(stream):
            self._scheduler.of(stream.client).streams[stream] = None

    def handle_next(self, stream: RobotStream) -> None:
        """Handle the next message of this stream, if one is left, at its client's cost."""
        if stream.waiting:
            started = self._clock()
            self._handle(stream, *stream.take())
            self._scheduler.charge(stream.client, self._clock() - started)
        if stream.gone and not stream.waiting:
            self._sessions.leave(stream, self._clock())

    def do(self, job: Job) -> None:
        """Do a job, if its session still wants it."""
        if job.proposal is None:
            self._prefill(job.session)
        else:
            self._propose(job.session, job.proposal, job.arrived)

    def predicted(self, session: CloudSession, found: Predicted) -> None:
        """An early exit of the pass under way predicts this session's verdict."""
        self._advance(session, found, self._clock())

    def end_pass(self, due: DuePass, result: TargetRows | Exception) -> TargetRows | None:
        """The pass of this session is over; what its verdict is made of, if one follows.

        For want of memory its cache is given up, once, and another pass is due: so a cache that
        cannot grow beside itself comes back larger.
        """
        session = due.session
        session.pin(False)
        if isinstance(result, NotArrived):
            session.waiting_pass = due
            return None
        if not isinstance(result, Exception):
            session.passes += 1
            session.ran_again = False
            return result
        if is_out_of_memory(result) and not session.ran_again:
            session.ran_again = True
            session.target.evict()
            self._queue_pass(due)
        else:
            self._fail(session, result)
        return None

    def go_on(self, session: CloudSession) -> None:
        """What the pass of this session waited for has arrived."""
        due, session.waiting_pass = session.waiting_pass, None
        if due is not None:
            self._queue_pass(due)

    def settle(self, session: CloudSession, scored: Scored, ended: float) -> None:
        """Make the verdict, after drafts that were pushed during the pass: one may come next."""
        stream = session.stream
        if stream is not None:
            for data, _ in list(stream.waiting):  # not what arrives now
                if kind_of(data) != "draft":
                    break
                self.handle_next(stream)
        if session in self._sessions:
            self._advance(session, scored, ended)
        self.listen(session.stream)

    def retry_for_memory(self) -> None:
        """Read the session that waits for memory the longest: something has changed."""
        while self.waiting_for_memory:
            session = next(iter(self.waiting_for_memory))
            if session in self._sessions:
                self._queue_prefill(session)
                return
            del self.waiting_for_memory[session]

    def _handle(self, stream: RobotStream, data: bytes, arrived: float) -> None:
        if stream.gone and kind_of(data) != "close":
            self._counters.count_left(kind_of(data))  # if its robot resumes, it sends it again
            return
        try:
            self._on_message(stream, data, arrived)
        except Exception as error:
            stream.send(fault_of(error))

    def _may_speak(self, stream: RobotStream) -> bool:
        """Whether the next message of this stream is to be handled now.

        After a draft a stream is not heard until the verdict: its messages are handled in order.
        """
        session = stream.session
        if session is None or stream.gone or session not in self._sessions:
            return bool(stream.waiting or stream.gone)
        under_way = session.verification.scoring
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
            self._advance(stream.session, message, arrived)

    def _advance(self, session: CloudSession, event: Event, arrived: float) -> None:
        """An event of a session, which arrived at this time (s), and all that follows from it.

        Where a part of that fails the session is given up: its answer may be ahead of its cache.
        """
        try:
            for action in session.verification.handle(event):
                self._perform(session, action, arrived)
        except Exception as error:
            self._fail(session, error)

    def _fail(self, session: CloudSession, error: Exception) -> None:
        """Give up a session that cannot go on, and tell its robot why."""
        self._sessions.lose(session)
        session.send(fault_of(error))
        self.listen(session.stream)

    def _close(self, stream: RobotStream, message: Close) -> None:
        if stream.session is not None:
            self._sessions.drop(stream.session, message)
        stream.end()

    def _open(self, stream: RobotStream, opening: Open) -> None:
        self._models.check(opening)
        spec = self._models.spec
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
            stream.send(Opened(again.verification.session, spec_bytes, base, PROTOCOL, verified))
            self._generate_as_opened(again, opening)
            return
        if again is not None:
            self._sessions.drop(again, Close())
        if (refusal := self._sessions.admit(stream, self._clock())) is not None:
            reason, fault = refusal
            self._counters.answers.refused[reason] += 1
            stream.send(fault)
            return
        prefill = self._models.begin(opening, prompt, stream.credential)
        name = secrets.token_hex(8)
        # The robot prefills while we do.
        stream.send(Opened(name, spec_bytes, base, PROTOCOL, verified))
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
        session = CloudSession(verification, prefill, opening, self._clock())
        self._sessions.attach(stream, session)
        self._queue_prefill(session)
        self._generate_as_opened(session, opening)

    def _generate_as_opened(self, session: CloudSession, opening: Open) -> None:
        """Where the robot's Open says so, as if its Generate had come with it."""
        if opening.generation is not None:
            here = session.base.extend(opening.verified)
            self._advance(session, Generate(here, opening.generation), self._clock())

    def _resume(self, stream: RobotStream, message: Resume, arrived: float) -> None:
        session = self._sessions.named(message.session)
        if session is None or not session.admits(message.secret):  # one text for both
            text = "the cloud does not hold this session any more; start the decode again"
            stream.send(Fault("unknown_session", text))
            return
        self._sessions.attach(stream, session)
        self._advance(session, message, arrived)

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
                self._queue_pass(DuePass(session, draft, 1 + len(draft), arrived, patience_s))
            case Propose():
                self._scheduler.of(session.client).jobs.append(Job(session, action, arrived))

    def _queue_pass(self, due: DuePass) -> None:
        """Queue a pass; it waits until all before it is read."""
        session = due.session
        if session.ready and session.passes >= STAY and self.waiting_for_memory:
            session.target.evict()
        if session.ready:
            if session.target.scored_with_prompt:
                due = replace(due, rows=0)
            session.pin(True)
            self._scheduler.of(session.client).passes.append(due)
        else:
            session.waiting_pass = due
            self._queue_prefill(session)

    def _queue_prefill(self, session: CloudSession) -> None:
        """Queue the reading of a session, ahead of its first draft or for the pass that waits."""
        if not session.is_queued:
            session.is_queued = True
            self._scheduler.of(session.client).jobs.append(Job(session))

    def _prefill(self, session: CloudSession) -> None:
        """Read a chunk, unless the robot has left before it sent a draft.

        A robot that comes back and drafts has it read then.
        """
        session.is_queued = False
        is_heard = session.stream is not None and not session.stream.gone
        if session not in self._sessions or not (is_heard or session.waiting_pass):
            session.stop_prefill()
            return
        try:
            done = session.prefill(self._limits.batch_rows)
        except MemoryFull as error:
            self._wait_for_memory(session, error)
            return
        except Exception as error:
            self._fail(session, error)
            return
        if not done:
            self._queue_prefill(session)
        else:
            self.waiting_for_memory.pop(session, None)
            if session.waiting_pass is not None:
                due, session.waiting_pass = session.waiting_pass, None
                self._queue_pass(due)

    def _wait_for_memory(self, session: CloudSession, error: MemoryFull) -> None:
        """Others keep their caches for a pass or a chunk that waits; after it there is room."""
        others = self._sessions.hold_memory(session)
        if not error.retry_s or (session.waiting_pass is not None and not others):
            self._fail(session, error)
        elif session.waiting_pass is not None:  # without a draft there is no hurry
            self.waiting_for_memory[session] = None

    def _propose(self, session: CloudSession, wanted: Propose, arrived: float) -> None:
        """Draft with the cloud's own drafter, unless the robot's draft came first."""
        verification = session.verification
        if session not in self._sessions or verification.proposing is not wanted:
            return
        if not verification.generating or (not wanted.needed and self._scheduler.has_model_work):
            self._advance(session, Proposed(EMPTY), arrived)
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
            self._advance(session, Proposed(EMPTY, failed=True), arrived)
            return
        draft_s = self._clock() - started
        self._advance(session, Proposed(draft, draft_s), arrived + draft_s)


def fault_of(error: Exception) -> Fault:
    """The fault for an error of one request; one that is not the robot's own is logged."""
    if isinstance(error, MemoryFull | Unavailable):
        return Fault("overloaded", str(error)[:MAX_TEXT], error.retry_s)
    if is_out_of_memory(error):
        log.error("the device has no memory for a request", exc_info=error)
        text = "the verifier's device has no memory for this request; try again later"
        return Fault("overloaded", text, RETRY_S)
    if isinstance(error, UserError | ValueError):
        text = str(error)
        return Fault("bad_request", text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...")
    log.error("a request failed", exc_info=error)
    name = type(error).__name__
    return Fault("internal", f"the verifier failed on this request ({name}); see its log")
