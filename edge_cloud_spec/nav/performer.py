"""Carries out what the navigator decides: commands to a base, under a watchdog, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .events import Drive, Effect, Halt, Published
from .pose import Velocity
from .watchdog import Watchdog


@dataclass(frozen=True)
class Performer:
    """Carries out a navigator's effects in their order, whoever has the base.

    ``command`` gives the base a velocity, ``halt`` has it stand still; ``watchdog`` stops it
    where no other command follows in time (None: time is simulated). ``publish`` takes what others
    subscribe to: a status, a problem, an action that begins, a way around.
    """

    command: Callable[[Velocity], object]
    halt: Callable[[], object]
    publish: Callable[[Published], object]
    watchdog: Watchdog | None = None

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry these effects out; what ``command`` or ``halt`` raises is passed on."""
        for effect in effects:
            match effect:
                case Drive(velocity, until, stop_by):
                    if self.watchdog is not None:  # first, so that a command that hangs is stopped
                        self.watchdog.feed(until, stop_by)
                    self.command(velocity)
                case Halt():
                    self.halt()
                    if self.watchdog is not None:
                        self.watchdog.calm()
                case _:
                    self.publish(effect)
