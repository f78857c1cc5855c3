"""A base of a user's own, which a function drives: the navigator, and a watchdog beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ..nav.events import Event, Published, Report, Scan, Show
from ..nav.free_space import FreeSpace
from ..nav.navigator import Navigator
from ..nav.performer import Performer
from ..nav.settings import NavigatorSettings
from ..nav.sight import rays_of_scan
from ..nav.status import NavigatorStatus
from ..nav.watchdog import Watchdog
from ..throttle import Reports

OnScan = Callable[[], tuple[ArrayLike, ArrayLike, float, float]]
"""Ranges (m) and angles (rad) of the newest scan, its least and its greatest range (m)."""
OnVelocity = Callable[[float, float, float], None]
"""Commands m/s ahead, m/s to the left and rad/s to the left."""


class OwnBase:
    """A base driven by a user's function: the navigator, and a watchdog beside it.

    Call ``receive`` for events from one thread; if that hangs, the watchdog's thread stops the
    base. A context manager, which stops the base at its end.
    """

    def __init__(
        self,
        drive: OnVelocity,
        on_status: Callable[[NavigatorStatus], object],
        settings: NavigatorSettings,
        reports: Reports,
    ) -> None:
        self._drive, self._on_status, self._navigator = drive, on_status, Navigator(settings)
        self._reports = reports
        self._watchdog = Watchdog(lambda repeat: drive(0.0, 0.0, 0.0))
        self._performer = Performer(
            lambda velocity: drive(velocity.vx, velocity.vy, velocity.wz),
            lambda: drive(0.0, 0.0, 0.0),
            self._publish,
            self._watchdog,
        )

    def __enter__(self) -> OwnBase:
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._drive(0.0, 0.0, 0.0)
        finally:
            self._watchdog.close()

    def receive(self, event: Event) -> None:
        """Pass an event to the navigator and carry out its effects."""
        self._performer.carry_out(self._navigator.on(event, time.monotonic()))

    def see(
        self, stamp: int, ranges: ArrayLike, angles: ArrayLike, nearest: float, farthest: float
    ) -> FreeSpace:
        """Pass on what a lidar saw at ``stamp`` (ns); returns how far the base may go."""
        rays, problem, body = np.empty((0, 3)), "", self._navigator.settings.obstacles
        try:
            rays = rays_of_scan(np.asarray(ranges), np.asarray(angles), nearest, farthest, body)
        except ValueError as error:
            problem = str(error)
        self.receive(Scan("scan", stamp, rays=rays, problem=problem))
        space = self._navigator.obstacles.free_space(time.monotonic(), around=True)
        return replace(space, at=stamp)

    def _publish(self, output: Published) -> None:
        match output:
            case Show(status):
                self._on_status(status)
            case Report(problem):
                self._reports.add(problem, time.monotonic())
