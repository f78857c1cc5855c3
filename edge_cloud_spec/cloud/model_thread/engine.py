"""Applies messages and results of passes to sessions, and queues the work that these ask for.

A session's pass waits until its prompt is read, in chunks between other passes; an evicted cache is
recomputed the same way. If memory is full, the least recently used cache is evicted, but never one
whose session has a pass waiting.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from ...candidates import candidates_of
from ...decoding.accept import ExitPrediction
from ...decoding.target_rows import TargetRows
from ...errors import MemoryFull, UserError, is_out_of_memory
from ...lookup import Lookups, with_looked_up
from ...models.openai_server import Unavailable
from ...models.prompt import check_request
from ...wire.codec import decode_client
from ...wire.frames import ClientFrame
from ...wire.messages import (
    CANDIDATES,
    PROTOCOL,
    Close,
    Code,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    base_digest,
    spec_digest,
)
from ..session.counters import Counters
from ..session.drafts import ServerDrafting
from ..session.events import (
    EMPTY,
    Commit,
    DuePass,
    Effect,
    Event,
    Propose,
    Proposed,
    Scored,
)
from ..session.session import SessionStatus, SessionTrigger
from ..session.validation import check_verified
from .limits import WorkerLimits
from .message_store import MessageStore, UnknownMessages
from .model_runner import ModelRunner, Unsupported
from .scheduler import Job, Scheduler
from .sessions import HeldSession, RobotStream, Sessions
from .target_session import NotArrived

log = logging.getLogger(__name__)

STAY = 8  # passes that a session may make before its cache can be evicted for one without memory
NO_MEMORY_RETRY_S = 1.0
MAX_FAULT_TEXT = 500  # characters of a fault, which may quote a robot's message


class Engine:
    """Handles messages and sessions' effects; queues passes and jobs in the scheduler.

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
        # Sessions share the target's passes, but wait for one another's drafts.
        self._server_drafting = (
            ServerDrafting(lambda: scheduler.has_model_work) if models.drafts_by else None
        )
        self.waiting_for_memory: dict[HeldSession, None] = {}
        self.messages = MessageStore(
            int(limits.history_mb * 2**20), limits.keep_s, credentials=limits.sessions
        )
        self._spec_bytes = models.spec.to_bytes()
        self._spec_digest = spec_digest(self._spec_bytes)

    def listen(self, stream: RobotStream | None) -> None:
        """Queue this stream in the scheduler if it has a message that may be handled now."""
        if stream is not None and self._may_handle(stream):
            self._scheduler.of(stream.client).streams[stream] = None

    def handle_next(self, stream: RobotStream) -> None:
        """Handle the stream's next message, if there is one, and charge the client for the time."""
        if stream.waiting:
            started = self._clock()
            self._handle(stream, *stream.waiting.popleft())
            self._scheduler.charge(stream.client, self._clock() - started)
        if stream.gone and not stream.waiting:
            self._sessions.leave(stream, self._clock())

    def do(self, job: Job) -> None:
        """Do a job, if its session still needs it."""
        if job.proposal is None:
            self._prefill(job.session)
        else:
            self._propose(job.session, job.proposal, job.arrived)

    def predicted(self, session: HeldSession, found: ExitPrediction) -> None:
        """Pass an early exit's prediction to the session."""
        self._advance(session, found, self._clock())

    def end_pass(self, session: HeldSession, result: TargetRows | Exception) -> TargetRows | None:
        """End this session's pass; returns the logits for its verdict, None if there is no verdict.

        If the device is out of memory, the session's KV cache is evicted and the pass is queued
        again, once per draft: a growing cache needs memory for its old and its new size. Another
        error ends the session with a fault.
        """
        session.target.pin(False)
        if isinstance(result, NotArrived):
            session.turn(SessionTrigger.PASS_BLOCKED)
        elif not isinstance(result, Exception):
            session.passes += 1
            return result
        elif is_out_of_memory(result) and not session.due.ran_again:
            session.due.ran_again = True
            session.target.evict()
            self._queue_pass(session)
        else:
            self._fail(session, result)
        return None

    def go_on(self, session: HeldSession) -> None:
        """Queue a blocked pass again, now that its input has arrived."""
        if session in self._sessions and session.status is SessionStatus.BLOCKED:
            session.turn(SessionTrigger.PASS_UNBLOCKED)
            self._queue_pass(session)

    def settle(self, session: HeldSession, scored: Scored, ended: float) -> None:
        """Give the verdict, after handling drafts that arrived during the pass: the next may be
        among them."""
        stream = session.stream
        if stream is not None:
            for frame, _ in list(stream.waiting):  # only those that have arrived by now
                if frame.head.kind != "draft":
                    break
                self.handle_next(stream)
        if session in self._sessions:
            self._advance(session, scored, ended)
        self.listen(session.stream)

    def retry_for_memory(self) -> None:
        """Prefill the session that has waited longest for memory, as some may be free now."""
        while self.waiting_for_memory:
            session = next(iter(self.waiting_for_memory))
            if session in self._sessions:
                self._queue_prefill(session)
                return
            del self.waiting_for_memory[session]

    def _handle(self, stream: RobotStream, frame: ClientFrame, arrived: float) -> None:
        if stream.gone and frame.head.kind != "close":
            self._counters.count_left(frame.head.kind)  # a robot that resumes sends it again
            return
        try:
            self._on_message(stream, frame, arrived)
        except Exception as error:
            stream.send(fault_of(error))

    def _may_handle(self, stream: RobotStream) -> bool:
        """Whether the next message of this stream may be handled now.

        After a draft, nothing is handled until its verdict, because messages are handled in order.
        """
        session = stream.session
        if session is None or stream.gone or session not in self._sessions:
            return bool(stream.waiting or stream.gone)
        scores = session.status in (SessionStatus.SCORING, SessionStatus.BLOCKED)
        return bool(stream.waiting) and not (scores and session.due.awaited)

    def _on_message(self, stream: RobotStream, frame: ClientFrame, arrived: float) -> None:
        message = decode_client(frame)
        if isinstance(message, Open):
            self._open(stream, message, (frame, arrived))
        elif isinstance(message, Resume):
            self._resume(stream, message, arrived)
        elif isinstance(message, Close):
            self._close(stream, message)
        elif stream.session is None:
            # Sent before the robot knew of its new stream; it resumes and sends it again.
            log.debug("a message for no session is dropped")
        else:
            stream.session.arrived = arrived
            self._advance(stream.session, message, arrived)

    def _advance(self, session: HeldSession, event: Event, arrived: float) -> None:
        """Handle a session's event, which arrived at ``arrived`` (s), and perform its effects.

        If that fails, the session is dropped, as its answer may be ahead of its cache.
        """
        try:
            for effect in session.handle(event):
                self._perform(session, effect, arrived)
        except Exception as error:
            self._fail(session, error)

    def _fail(self, session: HeldSession, error: Exception) -> None:
        """Drop a session that cannot continue, and send its robot the reason."""
        self._sessions.lose(session)
        session.send(fault_of(error))
        self.listen(session.stream)

    def _close(self, stream: RobotStream, message: Close) -> None:
        session = stream.session
        if session is not None:
            self._sessions.drop(session, message)
        stream.end()

    def _open(self, stream: RobotStream, opening: Open, waiting: tuple[ClientFrame, float]) -> None:
        self._models.check(opening)
        spec, credential = self._models.spec, stream.credential
        request = self.messages.completed(opening.request, opening.after, credential)
        check_request(request, spec)
        if self._models.decode_one(request):
            stream.waiting.appendleft(waiting)  # others have their turns before the next picture
            return
        opening = replace(opening, request=request, after=b"")
        prompt = self._models.speaker.prompt(request, spec)
        base = base_digest(opening, prompt.digest, self._spec_digest)
        spec_bytes = b"" if opening.spec_digest == self._spec_digest else self._spec_bytes
        again = self._sessions.of(base, opening.key)
        if again is not None and not again.admits(opening.secret):
            text = "this very request is being decoded for its robot; start a decode of your own"
            stream.send(Fault(Code.IN_USE, text))
            return
        processors = self._models.processors(opening, prompt)
        candidates = None
        if opening.log_probs == CANDIDATES:
            tokens_of, most = self._models.text_tokens, self._limits.draft_tokens
            candidates = candidates_of(request, tokens_of, spec.end_ids, spec.vocabulary, most)
        max_tokens = min(opening.max_tokens or spec.max_tokens, spec.max_tokens)
        verified = len(opening.verified)
        check_verified(opening.verified, spec.vocabulary, spec.end_ids, max_tokens)
        if again is not None and again.can_resume_at(
            base.extend(opening.verified)
        ):  # the robot lost the link
            again.pause()
            self._sessions.attach(stream, again)
            keeps = self.messages.keep(request, credential, self._clock())
            stream.send(Opened(again.name, spec_bytes, base, PROTOCOL, verified, keeps))
            self._generate_as_opened(again, opening)
            return
        if again is not None:
            self._sessions.drop(again, Close())
        if (refusal := self._sessions.admit(stream, self._clock(), opening.nbytes)) is not None:
            reason, fault = refusal
            self._counters.answers.refused[reason] += 1
            stream.send(fault)
            return
        target = self._models.open(opening, prompt)
        keeps = self.messages.keep(request, credential, self._clock())
        name = secrets.token_hex(8)
        # The robot prefills at the same time.
        stream.send(Opened(name, spec_bytes, base, PROTOCOL, verified, keeps))
        session = HeldSession(
            name,
            opening,
            base,
            end_tokens=spec.end_ids,
            max_tokens=max_tokens,
            vocabulary=spec.vocabulary,
            draft_tokens=self._limits.draft_tokens,
            counters=self._counters,
            processors=processors,
            lookup=None if candidates else self._lookups.of(credential, opening),
            server_drafting=self._server_drafting,
            candidates=candidates,
        )
        session.target, session.opened = target, self._clock()
        session.arrived = session.opened
        self._sessions.attach(stream, session)
        self._queue_prefill(session)
        self._generate_as_opened(session, opening)

    def _generate_as_opened(self, session: HeldSession, opening: Open) -> None:
        """If the robot's Open asks for server generation, start it as a Generate would."""
        if opening.generation is not None:
            here = session.base.extend(opening.verified)
            self._advance(session, Generate(here, opening.generation), self._clock())

    def _resume(self, stream: RobotStream, message: Resume, arrived: float) -> None:
        session = self._sessions.named(message.session)
        # The same text for both, so that a stranger learns nothing.
        if session is None or not session.admits(message.secret):
            text = "the cloud does not hold this session any more; start the decode again"
            stream.send(Fault(Code.UNKNOWN_SESSION, text))
            return
        self._sessions.attach(stream, session)
        self._advance(session, message, arrived)

    def _perform(self, session: HeldSession, effect: Effect, arrived: float) -> None:
        match effect:
            case Commit(path, tokens):
                session.target.commit(path)
                session.target.extend(tokens)
            case DuePass():
                effect.arrived = arrived
                self._draft_beside(session)
                self._queue_pass(session)
            case Propose():
                self._scheduler.of(session.client).jobs[Job(session, effect, arrived)] = None
            case _:
                session.send(effect)

    def _draft_beside(self, session: HeldSession) -> None:
        """Let a head of the target draft beside a robot's draft that others may be added to, where
        that pays."""
        due, drafting = session.due, self._server_drafting
        if not (drafting and self._models.drafts_by == "head" and session.opening.lookup):
            return
        if due.source != "robot" or not due.given:
            return
        rows, started = 1 + len(due.draft), self._clock()
        length = min(drafting.beside(rows, self._scheduler.estimator.seconds), session.useful)
        if length < 1:
            return
        found = self._models.propose(session, tuple(session.tokens), length)
        due.draft = with_looked_up(due.draft, found, len(due.draft) + len(found), due.open_at)
        due.beside, due.drafted = 1 + len(due.draft) - rows, len(found)
        due.draft_s = self._clock() - started

    def _queue_pass(self, session: HeldSession) -> None:
        """Queue the due pass, which waits until the tokens before it are prefilled."""
        target, due = session.target, session.due
        if target.ready and session.passes >= STAY and self.waiting_for_memory:
            target.evict()
        if target.ready:
            due.rows = 0 if target.scored_with_prompt else 1 + len(due.draft)
            target.pin(True)
            self._scheduler.of(session.client).passes.append(session)
        else:
            session.turn(SessionTrigger.PASS_BLOCKED)
            self._queue_prefill(session)

    def _queue_prefill(self, session: HeldSession) -> None:
        """Queue the prefill of a session, before its first draft or for a waiting pass."""
        self._scheduler.of(session.client).jobs[Job(session)] = None

    def _prefill(self, session: HeldSession) -> None:
        """Prefill a chunk, unless the robot has left before sending a draft.

        If the robot comes back and drafts, the prefill continues.
        """
        target, waits = session.target, session.status is SessionStatus.BLOCKED
        is_connected = session.stream is not None and not session.stream.gone
        if session not in self._sessions or not (is_connected or waits):
            if not target.ready:
                target.evict()
            return
        if not target.ready:
            try:
                done = target.read(self._limits.batch_rows, session.due.draft if waits else None)
            except MemoryFull as error:
                self._wait_for_memory(session, error)
                return
            except Exception as error:
                self._fail(session, error)
                return
            if not done:
                self._queue_prefill(session)
                return
            session.passes = 0
        self.waiting_for_memory.pop(session, None)
        self.go_on(session)

    def _wait_for_memory(self, session: HeldSession, error: MemoryFull) -> None:
        """Wait for memory until another session's pass or chunk is over."""
        others, waits = self._sessions.hold_memory(session), session.status is SessionStatus.BLOCKED
        if not error.retry_s or (waits and not others):
            self._fail(session, error)
        elif waits:  # without a draft it is not urgent
            self.waiting_for_memory[session] = None

    def _propose(self, session: HeldSession, wanted: Propose, arrived: float) -> None:
        """Let the cloud's draft model draft, unless the robot's draft came first."""
        is_late = len(wanted.prefix) < len(session.tokens)
        if session not in self._sessions or is_late or session.status is not SessionStatus.DRAFTING:
            return
        if not session.generating or (not wanted.needed and self._scheduler.has_model_work):
            self._advance(session, Proposed(EMPTY), arrived)
            return
        started = self._clock()
        try:
            draft = self._models.propose(session, wanted.prefix, wanted.length)
        except Exception as error:
            if wanted.needed:
                session.pause()
                session.send(fault_of(error))
            else:
                log.warning("the draft model failed, and is done without: %s", error)
            # otherwise the session would wait forever
            self._advance(session, Proposed(EMPTY, failed=True), arrived)
            return
        draft_s = self._clock() - started
        self._advance(session, Proposed(draft, draft_s), arrived + draft_s)


def fault_of(error: Exception) -> Fault:
    """The fault for an error of one request; errors that the robot did not cause are logged."""
    if isinstance(error, MemoryFull | Unavailable):
        return Fault(Code.OVERLOADED, str(error)[:MAX_FAULT_TEXT], error.retry_s)
    if is_out_of_memory(error):
        log.error("the device has no memory for a request", exc_info=error)
        text = "the verifier's device has no memory for this request; try again later"
        return Fault(Code.OVERLOADED, text, NO_MEMORY_RETRY_S)
    if isinstance(error, UnknownMessages):
        return Fault(Code.UNKNOWN_MESSAGES, str(error))
    if isinstance(error, Unsupported):
        return Fault(Code.UNSUPPORTED, str(error))
    if isinstance(error, UserError | ValueError):
        text = str(error)
        more = " ..." if len(text) > MAX_FAULT_TEXT else ""
        return Fault(Code.BAD_REQUEST, text[:MAX_FAULT_TEXT] + more)
    log.error("a request failed", exc_info=error)
    name = type(error).__name__
    return Fault(Code.INTERNAL, f"the verifier failed on this request ({name}); see its log")
