"""The cloud's model thread, which owns the models and every session.

It repeats three steps: handle the waiting messages, run one pass over the sessions that the
scheduler picks, and give each of these its verdict. There is no barrier: a slow or lost robot is
simply not in the pass. Between two passes prompts are read and the cloud's drafter drafts, for as
long as the last pass took.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec

from ...lookup import Lookups
from ...models.prompt import PromptSpec
from ...wire.frames import ClientFrame
from ..session.counters import Counters
from ..session.events import Scored
from .engine import Engine
from .limits import WorkerLimits
from .model_runner import LocalModels, ModelRunner
from .scheduler import Scheduler
from .sessions import HeldSession, RobotStream, Sessions
from .target_session import NotArrived

if TYPE_CHECKING:
    from ...models.draft_head import DraftHead
    from ...models.exits import Exits
    from ...models.vlm import Vlm

log = logging.getLogger(__name__)

P = ParamSpec("P")

LEAST_SPARE_S = 1e-9  # s; allows one job


class Worker(threading.Thread):
    """The model thread: runs a ``ModelRunner`` for all sessions."""

    def __init__(
        self,
        target: Vlm | ModelRunner,
        spec: PromptSpec,
        drafter: Vlm | None = None,
        limits: WorkerLimits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        exits: Exits | None = None,
        instructions: re.Pattern[str] | None = None,
        head: DraftHead | None = None,
    ) -> None:
        """target: the model, or the runner of all models. exits: the target's early exits.
        instructions: the pattern that the target was trained on, if known. head: the target's, that
        drafts where there is no drafter."""
        super().__init__(name="model", daemon=True)
        self.limits = limits or WorkerLimits()
        if isinstance(target, ModelRunner):
            self._models = target
        else:
            kv_bytes = int(self.limits.kv_mb * 2**20)
            self._models = LocalModels(target, spec, drafter, exits, kv_bytes, head)
        self._clock = clock
        self.held = Sessions(self.limits)  # its length is for any thread
        self.counters = Counters()
        self._scheduler = Scheduler(self.limits)
        self._engine = Engine(
            self._models,
            self.held,
            self._scheduler,
            self.counters,
            self.limits,
            clock,
            Lookups(
                self.limits.lookup_suffixes,
                self.limits.lookup_nodes,
                instructions,
                self._scheduler.estimator.seconds,
                spec.vocabulary,
                self._models.text_tokens,
                spec.end_ids[:1],
            ),
        )
        self.messages = self._engine.messages  # what robots have sent
        self.kv_memory = self._models.memory  # its counters are for any thread
        # Streams with a new message or a lost robot, and sessions whose remote
        # target has answered; None: stop.
        self._arrivals: SimpleQueue[RobotStream | HeldSession | None] = SimpleQueue()
        self._models.on_news = self._arrivals.put
        self._ends = False
        # Results of the last pass, and its end, s.
        self._verdicts: list[tuple[HeldSession, Scored, float]] = []
        self._spare_s = 0.0  # time for jobs before the next pass
        self.steps = 0  # count of steps, for ``ModelWatch``
        self.idle = False

    def receive(self, stream: RobotStream, frame: ClientFrame) -> None:
        """Queue a message that arrived on this stream; from any thread."""
        stream.waiting.append((frame, self._clock()))
        self._arrivals.put(stream)

    def leave(self, stream: RobotStream) -> None:
        """Report that a stream has closed; its session is kept for a while. From any thread."""
        stream.gone = True
        self._arrivals.put(stream)

    def stop(self) -> None:
        """End the thread after the waiting messages and one pass."""
        self._arrivals.put(None)

    def run(self) -> None:
        while self.run_one():
            self.steps += 1

    def run_one(self) -> bool:
        """Do the next step in the calling thread; wait if there is none. False: the thread should
        end."""
        verdicts, self._verdicts = self._verdicts, []
        for verdict in verdicts:
            self._do(self._engine.settle, *verdict)
        if verdicts:
            return True
        if self._ends:
            return False
        if self._spare_s > 0 and self._do_job():
            return True
        self._engine.retry_for_memory()
        self._take_arrivals()
        for stream in self._scheduler.take_streams():
            self._do(self._engine.handle_next, stream)
            if stream.waiting:
                self._engine.listen(stream)
        self._spare_s = LEAST_SPARE_S
        self._run_pass(self._scheduler.next_batch(self._clock()))
        return True

    @property
    def waiting(self) -> int:
        """The number of streams, passes and jobs that wait for the model's thread; from any
        thread."""
        return self._scheduler.waiting + self._arrivals.qsize()

    @property
    def pending(self) -> bool:
        """Whether there is work to do now."""
        waits = self._scheduler.waiting or self._engine.waiting_for_memory
        return bool(self._verdicts or waits) or not self._arrivals.empty()

    def _do(self, work: Callable[P, object], *given: P.args, **named: P.kwargs) -> None:
        try:
            work(*given, **named)
        except Exception:
            log.exception("a job of the model thread failed; the others continue")

    def _take_arrivals(self) -> None:
        """Pass arrived messages to the scheduler; wait for them if there is no other work."""
        if not self._scheduler.waiting:
            self.idle = True
            arrival = self._arrivals.get()
            self.idle = False
            self._take(arrival)
        for _ in range(self._arrivals.qsize()):
            self._take(self._arrivals.get())

    def _take(self, arrival: RobotStream | HeldSession | None) -> None:
        if arrival is None:
            self._ends = True
        elif isinstance(arrival, HeldSession):
            self._engine.go_on(arrival)
        else:
            self._engine.listen(arrival)

    def _do_job(self) -> bool:
        """Do a job outside the common passes; False if none waits."""
        found = self._scheduler.take_job()
        if found is None:
            return False
        client, job = found
        started = self._clock()
        self._do(self._engine.do, job)
        seconds = self._clock() - started
        self._scheduler.charge(client, seconds)
        self._spare_s -= seconds
        return True

    def _run_pass(self, batch: list[HeldSession]) -> None:
        """Run one pass over these sessions; their verdicts follow."""
        batch = [session for session in batch if session in self.held]
        if not batch:
            return
        started = self._clock()
        try:
            results = self._models.forward(batch, self._engine.predicted)
        except Exception as error:
            if len(batch) > 1:
                log.warning("a pass of %d sessions failed; each runs alone", len(batch))
                for session in batch:
                    self._run_pass([session])
                return
            results = [error]
        ended = self._clock()
        self._spare_s = max(LEAST_SPARE_S, ended - started)
        size, first = 0, ended
        for session, result in zip(batch, results, strict=True):
            due, session.arrived = session.due, ended  # counts as activity
            began = started if due.began is None else due.began
            if isinstance(result, NotArrived):
                due.began = began
            rows = self._engine.end_pass(session, result)
            if rows is not None:
                size, first = size + due.rows, min(first, began)
                scored = Scored(rows, ended - began, max(0.0, began - due.arrived))
                self._verdicts.append((session, scored, ended))
        if size:
            self._scheduler.estimator.observe(size, ended - first)
