"""Keeps as many replicas as are wanted, knows what they hold, and lets those that leave drain."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Protocol

from .replica_actor import ReplicaReport
from .roster import Roster
from .scaling import Scaling

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between two reports of a replica
REPORT_S = 0.2  # in which a report is in time
LEAVE_S = 30.0  # after which a replica that drains is ended, whoever is there


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
