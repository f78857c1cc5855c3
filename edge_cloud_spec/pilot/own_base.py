"""A base driven by a user's function: the navigator, and a watchdog beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..nav.answer import Dialect
from ..nav.events import Drive, Event, Halt, Show
from ..nav.navigator import Navigator
from ..nav.settings import Settings
from ..nav.status import Status
from ..nav.watchdog import Watchdog

OnVelocity = Callable[[float, float, float], None]
"""Commands m/s ahead, m/s to the left and rad/s to the left."""


class OwnBase:
    """Call ``hear`` for events from one thread; if that hangs, the watchdog's thread stops the
    base.

    A context manager, which stops the base at its end.
    """

    def __init__(
        self,
        drive: OnVelocity,
        on_status: Callable[[Status], object],
        settings: Settings | None,
        dialect: Dialect,
    ) -> None:
        self._drive, self._on_status, self._navigator = drive, on_status, Navigator(settings)
        self._navigator.read_in(dialect)
        self._watchdog = Watchdog(lambda repeat: drive(0.0, 0.0, 0.0))

    def __enter__(self) -> OwnBase:
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._drive(0.0, 0.0, 0.0)
        finally:
            self._watchdog.close()

    def hear(self, event: Event) -> None:
        """Pass an event to the navigator and perform its effects."""
        for effect in self._navigator.on(event, time.monotonic()):
            if isinstance(effect, Drive):
                self._watchdog.feed(effect.until, effect.stop_by)
                velocity = effect.velocity
                self._drive(velocity.vx, velocity.vy, velocity.wz)
            elif isinstance(effect, Halt):
                self._drive(0.0, 0.0, 0.0)
                self._watchdog.calm()
            elif isinstance(effect, Show):
                self._on_status(effect.status)
