"""The model thread of the cloud: it owns the models and every session, and runs one pass at a time.

Streams take turns and get the same time: a turn is one message and the pass that it asks for, or
one more pass of a session that goes on by itself (it generates, or what follows was pushed).
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
from ..wire.codec import decode_client, kind_of
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

MAX_TEXT = 500  # characters of a fault; what a robot said may be quoted in it


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
        """exits: of the target; they say what a verdict will be while its pass goes on."""
        super().__init__(name="model", daemon=True)
        self._pair = ModelRunner(target, spec, drafter, exits)
        self._spec = spec
        self._spec_bytes = spec.to_bytes()
        self._spec_digest = spec_digest(self._spec_bytes)
        self.limits = limits or WorkerLimits()
        self._clock = clock
        self._held = Sessions(self.limits)
        self.counters = Counters()
        self._turns = Turns()
        self._verdict: Callable[[], None] | None = None  # of the pass that has just ended

    def receive(self, stream: RobotStream, data: bytes) -> None:
        """Queue a message that arrived on this stream; from any thread."""
        stream.receive(data, self._clock())
        self._turns.put(stream.line, lambda: self._hear(stream))

    def leave(self, stream: RobotStream) -> None:
        """The stream is gone; its session is kept for a while. From any thread."""
        stream.gone = True
        self._turns.put(stream.line, lambda: self._held.leave(stream, self._clock()))

    def stop(self) -> None:
        """End the thread after the jobs that wait."""
        self._turns.end()

    def run(self) -> None:
        while self.run_one():
            pass

    def run_one(self) -> bool:
        """Do the next job, in the calling thread; wait for one if need be. False to end."""
        job, self._verdict = self._verdict, None
        if job is None:
            job = self._turns.take()
        if job is None:
            return False
        started = self._clock()
        try:
            job()
        except Exception:
            log.exception("a job of the model thread failed; the others go on")
        self._turns.spend(self._clock() - started)
        return True

    @property
    def sessions(self) -> int:
        """How many sessions are held."""
        return len(self._held)

    @property
    def pushed(self) -> int:
        """Drafts of all sessions that wait for their place."""
        return self._held.pushed

    @property
    def pending(self) -> bool:
        """Whether a job is queued."""
        return self._verdict is not None or len(self._turns) > 0

    def _guard(self, stream: RobotStream | None, job: Callable[[], None]) -> None:
        """Run a job; what goes wrong is told to the robot, and the thread goes on."""
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
            stream.say(fault)

    def _hear(self, stream: RobotStream) -> None:
        """Handle the next message of this stream, if a pass has not done it already."""
        if not stream.waiting:
            return
        data, arrived = stream.take()
        if stream.gone and kind_of(data) != "close":
            self.counters.left(kind_of(data))  # its robot says it again, if it comes back
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
            # Sent before the robot knew that its stream is a new one; it resumes and says it again.
            log.debug("a message for no session is dropped")
        else:
            stream.session.arrived = arrived
            self._advance(stream.session, message)

    def _close(self, stream: RobotStream, message: Close) -> None:
        if stream.session is not None:
            self._held.drop(stream.session, message)
        stream.transport(None)

    def _open(self, stream: RobotStream, opening: Open) -> None:
        check_opening(opening, self._pair.target.tokenizer_digest)
        spec = self._spec
        prompt = self._pair.prompt(opening)
        base = base_digest(opening, prompt.digest, self._spec_digest)
        spec_bytes = b"" if opening.spec_digest == self._spec_digest else self._spec_bytes
        again = self._held.of(base, opening.key)
        if again is not None and not again.admits(opening.secret):
            text = "this very request is being decoded for its robot; start a decode of your own"
            stream.say(Fault("in_use", text))
            return
        if again is not None:  # the robot lost the link before it heard of its session
            again.verification.pause()
            self._held.attach(stream, again)
            stream.say(Opened(again.verification.session, spec_bytes, base))
            return
        if not self._held.make_room(self._clock()):
            text = f"all {self.limits.sessions} sessions are taken; try again later"
            stream.say(Fault("overloaded", text))
            return
        name = secrets.token_hex(8)
        stream.say(Opened(name, spec_bytes, base))  # the robot prefills while we do
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
        target = self._pair.target
        served = CloudSession(verification, lambda: target.open(prompt), opening, self._clock())
        self._held.attach(stream, served)
        self._later(served, lambda: self._prefill(served))

    def _prefill(self, served: CloudSession) -> None:
        """Read the prompt ahead of the first draft, unless its robot has left."""
        if served.stream is not None and not served.stream.gone:
            _ = served.target

    def _resume(self, stream: RobotStream, message: Resume) -> None:
        served = self._held.named(message.session)
        if served is None or not served.admits(message.secret):  # who may not know is not told
            text = "the cloud does not hold this session any more; start the decode again"
            stream.say(Fault("unknown_session", text))
            return
        self._held.attach(stream, served)
        self._advance(served, message)

    def _advance(self, served: CloudSession, event: Event) -> None:
        for action in served.verification.handle(event):
            self._perform(served, action, event)

    def _perform(self, served: CloudSession, action: Action, event: Event) -> None:
        match action:
            case Send(message):
                if served.stream is not None:
                    served.stream.say(message)
            case Commit(path, tokens):
                served.target.commit(path)
                served.target.extend(tokens)
            case Extend(tokens):
                served.target.extend(tokens)
            case Score(draft) if isinstance(event, DraftMessage):
                self._score(served, draft)
            case Score(draft):
                self._later(served, lambda: self._score(served, draft))
            case Propose(prefix, length):
                self._later(served, lambda: self._propose(served, prefix, length))

    def _later(self, served: CloudSession, job: Callable[[], None]) -> None:
        """Queue a pass that nobody says a message for, so that others get their turn."""
        self._turns.put_first(served.line, lambda: self._guard(served.stream, job))

    def _score(self, served: CloudSession, draft: Draft) -> None:
        if served not in self._held:
            return
        started = self._clock()
        try:
            watch = self._pair.watch(served, draft, lambda found: self._advance(served, found))
            logits = served.target.forward(draft.tokens, draft.parents, watch)
        except Exception:
            self._held.lose(served)  # it waits for this pass for ever
            raise
        ended = self._clock()
        queue_s = max(0.0, started - served.arrived)
        served.arrived = ended  # a generated pass waits from here on
        scored = Scored(logits, ended - started, queue_s)
        self._verdict = lambda: self._guard(served.stream, lambda: self._settle(served, scored))

    def _settle(self, served: CloudSession, scored: Scored) -> None:
        """Say the verdict, after what was pushed while the pass went on: it may go straight on."""
        stream = served.stream
        for _ in range(len(stream.waiting) if stream is not None else 0):  # not what comes now
            if stream is None or kind_of(stream.waiting[0][0]) != "draft":
                break
            self._hear(stream)
        if served in self._held:
            self._advance(served, scored)

    def _propose(self, served: CloudSession, prefix: tuple[int, ...], length: int) -> None:
        if not served.verification.generating:
            self._advance(served, Proposed(EMPTY))
            return
        started = self._clock()
        try:
            draft = self._pair.propose(served, prefix, length)
        except Exception:
            served.verification.pause()
            self._advance(served, Proposed(EMPTY))  # or it waits for this proposal for ever
            raise
        draft_s = self._clock() - started
        served.arrived += draft_s
        self._advance(served, Proposed(draft, draft_s))


def _brief(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."
