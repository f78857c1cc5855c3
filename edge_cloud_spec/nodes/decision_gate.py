"""What the drafter works on: the instruction, the newest frame, and whether a decision is due."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from builtin_interfaces.msg import Time

from ..nav.status import Status

SETTLE_S = 3.0  # s; a navigator that says nothing of a request for so long has missed it


@dataclass(frozen=True)
class CameraFrame:
    """A camera frame as it goes to both models, and when it was taken (ROS time)."""

    jpeg: bytes
    stamp: Time


@dataclass(frozen=True)
class DecisionTask:
    """A decision to make: for which instruction, on which frame.

    ``stops`` is the navigator's count that was heard when the frame came: what is decided moves
    the robot only if nobody stopped or released it since.
    """

    instruction: str
    frame: CameraFrame
    stops: int


class DecisionGate:
    """Shared by the callbacks, which tell it what came, and the model thread, which waits on it.

    A decision is due when an instruction is followed, the navigator has settled the last decision
    and welcomes the next, and a frame came after that, and after the last stop or release.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._instruction = ""
        self._frame: CameraFrame | None = None
        self._status: Status | None = None
        self._last_request = ""
        self._decided_at = 0.0
        self._not_before = 0.0
        self._ended = False

    @property
    def following(self) -> str:
        """The instruction that is followed; empty: none."""
        return self._instruction

    def follow(self, instruction: str) -> None:
        """Follow this instruction from now on; decide on a frame that comes after it."""
        with self._changed:
            self._instruction = instruction
            self._frame = None
            self._changed.notify()

    def drop(self, instruction: str = "") -> bool:
        """Follow nothing any more (or not this one); whether something was followed."""
        with self._changed:
            followed = self._instruction
            if instruction in ("", followed):
                self._instruction = ""
            return bool(followed) and not self._instruction

    def see(self, frame: CameraFrame) -> None:
        """A frame came."""
        with self._changed:
            self._frame = frame
            self._changed.notify()

    def hear(self, status: Status) -> bool:
        """The navigator said what it does; only frames from now on show what comes of it.

        Whether it was stopped or released, so that nothing decided until now can move it.
        """
        with self._changed:
            counted = status.stops != self._stops
            if counted or (status.welcomes_decision and status.request == self._last_request):
                self._frame = None
            self._status = status
            self._changed.notify()
            return counted

    def deciding(self, request_id: str) -> None:
        """A decision starts; the next one is due after the navigator has settled it."""
        with self._changed:
            self._last_request = request_id

    def decided(self) -> None:
        """The decision that started is over."""
        with self._changed:
            self._decided_at = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Decide nothing for so long."""
        with self._changed:
            self._not_before = time.monotonic() + seconds

    def end(self) -> None:
        """Make ``next`` return None."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def next(self) -> DecisionTask | None:
        """Wait until a decision is due; None at the end."""
        with self._changed:
            while not self._ended:
                if self._instruction and self._frame is not None and self._welcome():
                    frame, self._frame = self._frame, None
                    return DecisionTask(self._instruction, frame, self._stops)
                self._changed.wait(timeout=0.2)
            return None

    @property
    def _stops(self) -> int:
        return 0 if self._status is None else self._status.stops

    def _welcome(self) -> bool:
        now = time.monotonic()
        if now < self._not_before:
            return False
        if self._status is None:
            return True  # no navigator yet: deciding harms nobody, and its words can be watched
        settled = self._status.request == self._last_request or not self._last_request
        missed = now - self._decided_at > SETTLE_S and self._status.state == "idle"
        return self._status.welcomes_decision and (settled or missed)
