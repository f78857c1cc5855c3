"""The model's thread: waits until a decision is due, decodes it, and publishes its words."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...edge.events import Abort, Cut, Emit, Inbox, OnReceive
from ...edge.runner import DecodeRunner, DecodeSettings, Outcome
from ...errors import UserError
from ...models.prompt import Request
from ...nav.explain import FULL, has_action, is_enough
from ..runtime.heartbeat import Pulse
from .decision_gate import DecisionGate, DecisionTask
from .drafter_settings import DrafterSettings
from .link_policy import LinkPolicy
from .topic_transport import BridgeTopics, TopicTransport
from .verified_words import VerifiedWords


@dataclass(frozen=True)
class DecisionMade:
    """A decode that ended, in whatever way; ``answer``: the words that were published."""

    request_id: str
    task: DecisionTask
    settings: DrafterSettings
    decode: DecodeSettings
    outcome: Outcome
    answer: str


class DecisionThread:
    """One decision after another, each with the settings of the moment it starts.

    Called in this thread: ``settings`` and ``number`` (of the next decision), ``words`` (what
    publishes a request's words), ``on_begin`` (request and task), ``on_end``, and ``on_problem``
    (request and sentence) for a decode that could not be made; the thread continues. ``abort`` and
    ``wait_idle`` are for any thread, and so is ``on_next``: the next decision is due. Words are
    dropped while ``speaks`` is false.
    """

    def __init__(
        self,
        runner: DecodeRunner,
        gate: DecisionGate,
        bridge: BridgeTopics,
        link: LinkPolicy,
        *,
        settings: Callable[[], DrafterSettings],
        number: Callable[[], int],
        speaks: Callable[[], bool],
        words: Callable[[str, DecisionTask], VerifiedWords],
        on_begin: Callable[[str, DecisionTask], None],
        on_end: Callable[[DecisionMade], None],
        on_problem: Callable[[str, str], None],
    ) -> None:
        self._runner, self._gate, self._bridge, self._link = runner, gate, bridge, link
        self._settings, self._number, self._words = settings, number, words
        self._speaks = speaks
        self._on_begin, self._on_end, self._on_problem = on_begin, on_end, on_problem
        self._inbox: Inbox | None = None
        self._explain, self._acted = FULL, False  # of the decision under way
        self._idle = threading.Event()
        self._idle.set()
        self.pulse = Pulse("model", lambda: 2 * settings().patience)
        runner.on_pass = lambda *_: self.pulse.beat()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Begin to wait for tasks."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def abort(self, reason: str) -> None:
        """End the decision that is under way, if there is one."""
        inbox = self._inbox
        if inbox is not None:
            inbox.put(Abort(reason))

    def on_next(self) -> None:
        """The next decision is due; cut off the one under way if it has said enough."""
        inbox = self._inbox
        if inbox is not None and is_enough(self._explain, self._acted, next_is_due=True):
            inbox.put(Cut())

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no decision is under way; False after ``seconds``."""
        return self._idle.wait(seconds)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, after the gate was closed."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while (task := self._gate.wait_for_task()) is not None:
            request_id = secrets.token_hex(8)
            try:
                self._on_begin(request_id, task)
                self._decide(task, request_id)
            except UserError as error:
                self._on_problem(request_id, str(error))
            except Exception as error:  # a decision may fail; the node continues
                self._on_problem(request_id, f"a decision failed: {error!r}")

    def _decide(self, task: DecisionTask, request_id: str) -> None:
        settings, frame = self._settings(), task.frame
        decode = settings.decode_settings(self._number(), without_cloud=self._link.begin())
        words = self._words(request_id, task)
        transport: TopicTransport | None = None

        def connect(on_receive: OnReceive) -> TopicTransport:
            nonlocal transport
            self._bridge.wait_for_bridge(settings.patience)
            transport = self._bridge.connect(request_id, frame.stamp, settings.preset, on_receive)
            return transport

        def on_emit(emit: Emit) -> None:
            if not self._speaks():
                return
            self.pulse.beat()
            words.emit(emit)
            if transport is not None:
                transport.restart_draft_time()
            self._acted = self._acted or has_action(words.answer)
            if is_enough(self._explain, self._acted, self._gate.next_is_due):
                inbox.put(Cut())

        request = Request(task.instruction, frame.jpeg, settings.order)
        nonce = int(request_id, 16)
        inbox = Inbox()
        self._idle.clear()
        self.pulse.beat()
        self._gate.begin_decision(request_id)
        self._explain, self._acted = settings.explain, False
        self._inbox = inbox
        reason = "failed"
        try:
            if self._gate.instruction != task.instruction:
                self.abort("another instruction came")  # before there was an inbox
            self._link.check()  # the same
            outcome = self._runner.run(request, decode, nonce, connect, on_emit, inbox)
            reason = outcome.reason
        finally:
            self._inbox = None
            self._link.end()
            self._gate.end_decision()
            words.finish(reason)
            self.pulse.rest()
            self._idle.set()
        self._on_end(DecisionMade(request_id, task, settings, decode, outcome, words.answer))
