"""What holds the robot still, how often it was stopped and released, and what it waits for then."""

from __future__ import annotations

import math

E_STOP, INSTRUCTION, START = "e_stop", "instruction", "start"
AWAITS = "released; publish an instruction to go on"
TOLD = "told to stop"
AWAITING = (AWAITS, TOLD)  # reasons to stand that a newer instruction ends


class Holds:
    """After a stop the robot waits for an instruction that comes when nothing holds it any more.

    Each stop, each release and the instruction that ends the waiting add one to ``count``, and
    are the time (steady seconds) that ``since`` tells: what was decided before counts for nothing.
    The hold ``START`` of a navigator that has just begun is no stop: nothing waits for an
    instruction after it.
    """

    def __init__(self, count: int, starting: str = "") -> None:
        self.count, self.since = count, -math.inf
        self._causes: dict[str, str] = {START: starting} if starting else {}
        self._awaits = False

    @property
    def why(self) -> str:
        """Why nothing may move, for people; empty if it may."""
        return "; ".join(self._causes.values()) or (AWAITS if self._awaits else "")

    @property
    def deaf(self) -> str:
        """Why an instruction would not be taken now; empty if it would."""
        return "; ".join(
            why for cause, why in self._causes.items() if cause not in (INSTRUCTION, START)
        )

    @property
    def starting(self) -> bool:
        """Whether the hold ``START`` has not been released."""
        return START in self._causes

    def stop(self, cause: str, why: str, now: float) -> None:
        """Hold the robot because of ``why``; its ``cause`` must be released."""
        self._causes[cause] = why
        self._awaits = True
        self._tally(now)

    def release(self, cause: str, now: float) -> bool:
        """This cause is gone; whether there was one."""
        if self._causes.pop(cause, None) is None:
            return False
        self._tally(now)
        return True

    def instruct(self, now: float) -> bool:
        """An instruction came; whether it ended the waiting for one."""
        if self.deaf or not self._awaits:
            return False
        self._causes.pop(INSTRUCTION, None)
        self._awaits = False
        self._tally(now)
        return True

    def _tally(self, now: float) -> None:
        self.count += 1
        self.since = now
