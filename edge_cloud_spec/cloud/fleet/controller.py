"""Keeps as many replicas as are wanted, knows what they hold, and lets those that leave drain.

How many a fleet should have follows from what they hold: up soon, down late.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from ...errors import UserError
from .replica import ReplicaReport
from .roster import ReplicaLoad, Roster

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between two reports of a replica
REPORT_S = 0.2  # in which a report is in time
LEAVE_S = 30.0  # after which a replica that drains is ended, whoever is there


@dataclass(frozen=True)
class ScalingLimits:
    """From ``least`` to ``most`` replicas. Raises UserError.

    One more when the mean of sessions or of waiting passes is above its bound for ``up_s`` (s); one
    less when the sessions of all would be at most ``idle`` of the bound with one less, for
    ``down_s``.
    """

    least: int = 1
    most: int = 1
    sessions: float = 16.0
    waiting: float = 8.0
    idle: float = 0.5
    up_s: float = 3.0
    down_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError("--replicas must be at least 1, --max-replicas not below it")


class Scaling:
    """``wanted`` is how many there should be. Times are steady, in s."""

    def __init__(self, limits: ScalingLimits) -> None:
        self.wanted = limits.least
        self._limits = limits
        self._since: float | None = None  # since when it should change, and
        self._step = 0  # in which direction

    def look(self, loads: Collection[ReplicaLoad], now: float) -> int:
        """The replicas that take clients hold this; returns ``wanted``.

        While some of those that are wanted are still starting, it does not change.
        """
        limits, step = self._limits, self._due(loads)
        if step != self._step:
            self._step, self._since = step, now
        held = limits.up_s if step > 0 else limits.down_s
        if step and self._since is not None and now - self._since >= held:
            self.wanted += step
            self._step, self._since = 0, None
        return self.wanted

    def _due(self, loads: Collection[ReplicaLoad]) -> int:
        limits, count = self._limits, len(loads)
        if count != self.wanted:
            return 0
        sessions = sum(load.sessions for load in loads)
        waiting = sum(load.waiting for load in loads)
        busy = sessions > limits.sessions * count or waiting > limits.waiting * count
        if busy:
            return 1 if count < limits.most else 0
        fits = sessions <= limits.idle * limits.sessions * (count - 1)
        return -1 if count > limits.least and fits and not waiting else 0


class Replicas(Protocol):
    """What runs the replicas (``RayReplicas``)."""

    @property
    def names(self) -> list[str]:
        """Those that were started and not ended."""

    def start(self, name: str) -> None:
        """Have one more, which reports once it serves."""

    async def report(self, name: str) -> ReplicaReport:
        """What it holds; LookupError where it is gone for good."""

    def drain(self, name: str) -> None:
        """Let it send its robots elsewhere."""

    def end(self, name: str) -> None:
        """End it now."""


class Controller:
    """One task; ``look`` is one look at all replicas. ``pids`` are those that reported."""

    def __init__(
        self,
        replicas: Replicas,
        roster: Roster,
        scaling: Scaling,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """clock: steady time, s. unix: Unix time, s."""
        self._replicas, self._roster, self._scaling, self._clock = replicas, roster, scaling, clock
        self._unix = unix
        self._leaving: dict[str, float] = {}  # since when
        self._numbers = itertools.count(1)
        self.problem = ""  # why a replica could not start, last
        self.pids: dict[str, int] = {}

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Hear from all, then start and drain as is wanted."""
        await asyncio.gather(*(self._hear(name) for name in self._replicas.names))
        loads = self._roster.loads
        wanted = self._scaling.look(list(loads.values()), self._clock())
        staying = [name for name in self._replicas.names if name not in self._leaving]
        for _ in range(wanted - len(staying)):
            self._replicas.start(f"replica-{next(self._numbers)}")
        if len(staying) > wanted:
            self.drain(min(staying, key=lambda name: loads[name].sessions if name in loads else 0))

    def drain(self, name: str) -> None:
        """Let this one leave; another is started where it is wanted."""
        self._leaving[name] = self._clock()
        self._roster.drain(name)
        self._replicas.drain(name)
        log.info("%s drains", name)

    async def _hear(self, name: str) -> None:
        try:
            report = await asyncio.wait_for(self._replicas.report(name), REPORT_S)
        except LookupError as error:
            self.problem = str(error)
            log.error("%s is gone: %s", name, error)
            self._forget(name)
            return
        except Exception:  # it starts (again), or its machine does not answer
            self._roster.missed(name)
            return
        if name in self._leaving:
            late = self._clock() - self._leaving[name] > LEAVE_S
            if not report.streams or late:
                self._forget(name)
            return
        self.pids[name] = report.pid
        ahead_s = report.unix_s - self._unix()
        self._roster.reported(name, report.address, report.load, ahead_s)

    def _forget(self, name: str) -> None:
        self._replicas.end(name)
        self._roster.left(name)
        self._leaving.pop(name, None)
        self.pids.pop(name, None)
