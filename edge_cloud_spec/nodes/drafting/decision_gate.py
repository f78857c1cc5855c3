"""When the drafter decides, and on what: the instruction, the newest frame, the robot's status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from builtin_interfaces.msg import Time

from ...nav.holds import AWAITS
from ...nav.status import Status

SETTLE_S = 3.0  # s; an idle navigator that has not settled a decision by then did not receive it


@dataclass(frozen=True)
class CameraFrame:
    """A camera frame as both models receive it, and the ROS time at which it was taken.

    ``clock_offset``: seconds by which the stamps' clock is ahead of this computer's.
    """

    jpeg: bytes
    stamp: Time
    clock_offset: float = 0.0


@dataclass(frozen=True)
class DecisionTask:
    """A decision to make: for which instruction, on which frame.

    ``stops`` is the navigator's count of stops and releases when the frame arrived: the decision
    moves the robot only if that count has not changed since.
    """

    instruction: str
    frame: CameraFrame
    stops: int


class DecisionGate:
    """Shared by the callbacks, which update it, and the model thread, which waits on it.

    A decision is due when there is an instruction, the navigator has settled the last decision
    and welcomes the next, and a frame arrived after that and after the last stop or release.

    ``lag``: how long a frame is on its way beyond what its stamp says, s. A driver that stamps
    frames when they arrive hides it; without it a frame would count that shows the robot before.
    """

    def __init__(self, lag: Callable[[], float] = lambda: 0.0) -> None:
        self.lag = lag
        self._frames_from = 0.0
        self._changed = threading.Condition()
        self._instruction = ""
        self._frame: CameraFrame | None = None
        self._status: Status | None = None
        self._last_request = ""
        self._decided_at = 0.0
        self._instructed_at = 0.0
        self._not_before = 0.0
        self._closed = False

    @property
    def instruction(self) -> str:
        """The instruction that is followed; empty: none."""
        return self._instruction

    def set_instruction(self, instruction: str) -> None:
        """Follow this instruction from now on; decide on a frame that arrives after it."""
        with self._changed:
            self._instruction, self._instructed_at = instruction, time.monotonic()
            self._drop_frames()
            self._changed.notify()

    def clear_instruction(self, instruction: str = "") -> bool:
        """Stop following any instruction, or this one; whether that ended one."""
        with self._changed:
            followed = self._instruction
            if instruction in ("", followed):
                self._instruction = ""
            return bool(followed) and not self._instruction

    @property
    def waits_in_vain(self) -> bool:
        """Whether the robot was stopped and the navigator waits for a newer instruction."""
        with self._changed:
            awaits = self._status is not None and self._status.detail == AWAITS
            long = time.monotonic() - self._instructed_at > SETTLE_S
            return bool(self._instruction) and awaits and long

    def update_frame(self, frame: CameraFrame) -> None:
        """A frame arrived."""
        with self._changed:
            if time.monotonic() < self._frames_from:
                return  # it was taken before
            self._frame = frame
            self._changed.notify()

    def update_status(self, status: Status) -> bool:
        """The navigator's status; only a frame that arrives after it shows the robot in that state.

        Returns whether the robot was stopped or released, so that no earlier decision moves it.
        """
        with self._changed:
            counted = status.stops != self._stops
            if counted or (status.welcomes_decision and status.request == self._last_request):
                self._drop_frames()
            self._status = status
            self._changed.notify()
            return counted

    def begin_decision(self, request_id: str) -> None:
        """A decision starts; the next one is due after the navigator has settled it."""
        with self._changed:
            self._last_request = request_id

    def end_decision(self) -> None:
        """The decision that started is over."""
        with self._changed:
            self._decided_at = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Make no decision due for this long."""
        with self._changed:
            self._not_before = time.monotonic() + seconds

    def close(self) -> None:
        """Make ``wait_for_task`` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wait_for_task(self) -> DecisionTask | None:
        """Wait until a decision is due; None after ``close``."""
        with self._changed:
            while not self._closed:
                if self._instruction and self._frame is not None and self._is_welcome():
                    frame, self._frame = self._frame, None
                    return DecisionTask(self._instruction, frame, self._stops)
                self._changed.wait(timeout=0.2)
            return None

    def _drop_frames(self) -> None:
        """Only a frame that is taken from now on counts."""
        self._frame, self._frames_from = None, time.monotonic() + self.lag()

    @property
    def _stops(self) -> int:
        return 0 if self._status is None else self._status.stops

    def _is_welcome(self) -> bool:
        now = time.monotonic()
        if now < self._not_before:
            return False
        if self._status is None:
            return True  # no navigator yet: a decision moves nothing, and its words can be watched
        settled = self._status.request == self._last_request or not self._last_request
        missed = now - self._decided_at > SETTLE_S and self._status.state == "idle"
        return self._status.welcomes_decision and (settled or missed)
