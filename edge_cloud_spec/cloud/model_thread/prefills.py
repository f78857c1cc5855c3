"""Prompts are read in chunks between the passes, and so is what an evicted session has lost.

A session's pass waits here until its prompt is read. Where there is no room for another cache the
one used the longest ago gives way; those whose pass waits keep theirs until it is over, so that
each that had to wait for room has a pass for it. Belongs to the model's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import MemoryFull, is_out_of_memory
from .scheduler import DuePass, Scheduler
from .sessions import CloudSession, Sessions, WorkerLimits

STAY = 8  # passes that a session has before it makes room for one that finds none

Fail = Callable[[CloudSession, Exception], None]


class Prefills:
    """The sessions that are read, and those that wait for room (``hungry``)."""

    def __init__(
        self, sessions: Sessions, scheduler: Scheduler, limits: WorkerLimits, fail: Fail
    ) -> None:
        """fail: gives up a session that cannot be read."""
        self._sessions, self._scheduler = sessions, scheduler
        self._limits, self._fail = limits, fail
        self._hungry: dict[CloudSession, None] = {}

    @property
    def hungry(self) -> bool:
        """Whether sessions wait for room."""
        return bool(self._hungry)

    def queue_pass(self, due: DuePass) -> None:
        """Queue a pass; it waits until all before it is read."""
        session = due.session
        if session.ready and session.passes >= STAY and self._hungry:
            session.target.evict()
        if session.ready:
            if session.target.scored_with_prompt:
                due = replace(due, rows=0)
            session.wait_for_pass(True)
            self._scheduler.of(session.client).passes.append(due)
        else:
            session.held = partial(self.queue_pass, due)
            session.held_draft = due.draft
            self.queue(session)

    def ended(self, due: DuePass, error: Exception | None) -> bool:
        """The pass of this session is over; False: for want of memory, and it waits for another.

        Its cache is given up for it, once; so a cache that cannot grow beside itself comes back
        larger.
        """
        session = due.session
        session.wait_for_pass(False)
        if error is None:
            session.passes += 1
            session.starved = False
        elif is_out_of_memory(error) and not session.starved:
            session.starved = True
            session.target.evict()
            self.queue_pass(due)
            return False
        return True

    def queue(self, session: CloudSession) -> None:
        """Queue the reading of a session, ahead of its first draft or for the pass that waits."""
        if not session.reading:
            session.reading = True
            self._scheduler.of(session.client).jobs.append(partial(self._read, session))

    def feed(self) -> None:
        """Try again to read the one that waits for room the longest; something has changed."""
        while self._hungry:
            session = next(iter(self._hungry))
            if session in self._sessions:
                self.queue(session)
                return
            del self._hungry[session]

    def _read(self, session: CloudSession) -> None:
        """Read a chunk, unless the robot has left before it sent a draft.

        A robot that comes back and drafts has it read then.
        """
        session.reading = False
        is_heard = session.stream is not None and not session.stream.gone
        if session not in self._sessions or not (is_heard or session.held):
            session.stop_preparing()
            return
        try:
            done = session.prepare(self._limits.batch_rows)
        except MemoryFull as error:
            self._wait_for_room(session, error)
            return
        except Exception as error:
            self._fail(session, error)
            return
        if not done:
            self.queue(session)
        else:
            self._hungry.pop(session, None)
            if session.held is not None:
                held, session.held = session.held, None
                held()

    def _wait_for_room(self, session: CloudSession, error: MemoryFull) -> None:
        """Others keep their caches for a pass or a chunk that waits; after it there is room."""
        others = self._sessions.hold_memory(session)
        if not error.retry_s or (session.held is not None and not others):
            self._fail(session, error)
        elif session.held is not None:  # without a draft there is no hurry
            self._hungry[session] = None
