"""The model thread of the cloud: it owns the models and every session.

It repeats three steps: the messages that wait are handled, one pass is run over the sessions that
the scheduler picks, and each of these gets its verdict. There is no barrier: a robot that is slow
or gone is not in the pass. Between two passes prompts are read and the cloud's drafter drafts, for
as long as the last pass took.
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
from ...models.kv_memory import KvMemory
from ...models.prompt import PromptSpec
from ...nav.answer import CLAUSES, Dialect
from ..session.counters import Counters
from ..session.events import Scored
from .engine import Engine
from .model_runner import LocalModels, ModelRunner
from .scheduler import Scheduler
from .sessions import HeldSession, NotArrived, RobotStream, Sessions, WorkerLimits

if TYPE_CHECKING:
    from ...models.exits import Exits
    from ...models.vlm import Vlm

log = logging.getLogger(__name__)

P = ParamSpec("P")

LEAST_SPARE_S = 1e-9  # enough for one job


class Worker(threading.Thread):
    """Runs ``target`` (and ``drafter``, where it has one) for all sessions, in its own thread."""

    def __init__(
        self,
        target: Vlm | ModelRunner,
        spec: PromptSpec,
        drafter: Vlm | None = None,
        limits: WorkerLimits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        exits: Exits | None = None,
        instructions: re.Pattern[str] | None = None,
        dialect: Dialect = CLAUSES,
    ) -> None:
        """target: the model, or what runs all of them. exits: the target's; they predict a verdict
        while its pass is under way. instructions: those that the target was trained on, if it names
        them. dialect: of its answers."""
        super().__init__(name="model", daemon=True)
        self.limits = limits or WorkerLimits()
        if isinstance(target, ModelRunner):
            self._models = target
        else:
            kv_bytes = int(self.limits.kv_mb * 2**20)
            self._models = LocalModels(target, spec, drafter, exits, dialect, kv_bytes)
        self._clock = clock
        self.held = Sessions(self.limits)
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
                {"action first": self._models.actions()},
            ),
        )
        # Streams of which a message arrived or the robot left, each time, and sessions of which
        # the target has said more; None: the end.
        self._arrivals: SimpleQueue[RobotStream | HeldSession | None] = SimpleQueue()
        self._models.on_news = self._arrivals.put
        self._ends = False
        # What the pass that has just ended found, and when it ended, s.
        self._verdicts: list[tuple[HeldSession, Scored, float]] = []
        self._spare_s = 0.0  # for jobs, before the next pass
        self.steps = 0  # that were done, and whether it waits for the next: for ``ModelWatch``
        self.idle = False

    def receive(self, stream: RobotStream, data: bytes) -> None:
        """Queue a message that arrived on this stream; from any thread."""
        stream.receive(data, self._clock())
        self._arrivals.put(stream)

    def leave(self, stream: RobotStream) -> None:
        """The stream is gone; its session is kept for a while. From any thread."""
        stream.gone = True
        self._arrivals.put(stream)

    def stop(self) -> None:
        """End the thread after the messages that wait and one pass."""
        self._arrivals.put(None)

    def run(self) -> None:
        while self.run_one():
            self.steps += 1

    def run_one(self) -> bool:
        """Do the next step, in the calling thread; wait if there is none. False to end."""
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
    def sessions(self) -> int:
        """How many sessions are held."""
        return len(self.held)

    @property
    def kv_memory(self) -> KvMemory:
        """The memory of keys and values; its figures are for any thread."""
        return self._models.memory

    @property
    def waiting(self) -> int:
        """Streams, passes and jobs that wait for the model's thread; from any thread."""
        return self._scheduler.waiting + self._arrivals.qsize()

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        waits = self._scheduler.busy or self._engine.waiting_for_memory
        return bool(self._verdicts or waits) or not self._arrivals.empty()

    def _do(self, work: Callable[P, object], *given: P.args, **named: P.kwargs) -> None:
        try:
            work(*given, **named)
        except Exception:
            log.exception("a job of the model thread failed; the others continue")

    def _take_arrivals(self) -> None:
        """Hand what has arrived to the scheduler; wait for it where nothing else is to be done."""
        if not self._scheduler.busy:
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
        """Do a job that is no part of a common pass; False where none waits."""
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
        """One pass over these sessions; their verdicts follow."""
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
            due, session.arrived = session.due, ended  # not silent
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
