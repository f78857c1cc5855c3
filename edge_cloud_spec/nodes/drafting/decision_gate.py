"""When the drafter decides, and on what: the schedule of decisions, shared by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from builtin_interfaces.msg import Time

from ...nav.decision_schedule import DecisionSchedule, DueDecision
from ...nav.status import Status


@dataclass(frozen=True)
class CameraFrame:
    """A camera frame as both models receive it, and the ROS time at which it was taken.

    ``clock_offset``: seconds by which the stamps' clock is ahead of this computer's.
    """

    jpeg: bytes
    stamp: Time
    clock_offset: float = 0.0


DecisionTask = DueDecision[CameraFrame]


class DecisionGate:
    """Shared by the callbacks, which update it, and the model thread, which waits on it.

    ``lag`` is as in ``DecisionSchedule``. ``on_next`` is called by whoever makes the next decision
    due while one is under way; it must not call back.
    """

    def __init__(
        self, lag: Callable[[], float] = lambda: 0.0, on_next: Callable[[], None] = lambda: None
    ) -> None:
        self._schedule: DecisionSchedule[CameraFrame] = DecisionSchedule(lag)
        self._on_next = on_next
        self._changed = threading.Condition()
        self._closed = False

    @property
    def lag(self) -> Callable[[], float]:
        """How much older a frame is than its stamp says, s."""
        return self._schedule.lag

    @property
    def instruction(self) -> str:
        """The instruction that is followed; empty: none."""
        return self._schedule.instruction

    def set_instruction(self, instruction: str) -> None:
        """Follow this instruction from now on; decide on a frame that arrives after it."""
        with self._changed:
            self._schedule.instruct(instruction, time.monotonic())
            self._changed.notify()

    def clear_instruction(self, instruction: str = "") -> bool:
        """Stop following any instruction, or this one; whether that ended one."""
        with self._changed:
            return self._schedule.clear(instruction)

    @property
    def waits_in_vain(self) -> bool:
        """Whether the robot was stopped and the navigator waits for a newer instruction."""
        with self._changed:
            return self._schedule.waits_in_vain(time.monotonic())

    @property
    def next_is_due(self) -> bool:
        """Whether the decision after the one under way would begin now."""
        with self._changed:
            return self._schedule.due(time.monotonic())

    def update_frame(self, frame: CameraFrame) -> None:
        """A frame arrived."""
        with self._changed:
            self._schedule.show(frame, time.monotonic())
            self._tell()

    def update_status(self, status: Status) -> bool:
        """The navigator's status; whether the robot was stopped or released (``on_status``)."""
        with self._changed:
            counted = self._schedule.on_status(status, time.monotonic())
            self._tell()
            return counted

    def begin_decision(self, request_id: str) -> None:
        """A decision starts; the next one is due after the navigator has settled it."""
        with self._changed:
            self._schedule.begin(request_id)

    def end_decision(self) -> None:
        """The decision that started is over."""
        with self._changed:
            self._schedule.end(time.monotonic())

    def pause(self, seconds: float) -> None:
        """Make no decision due for this long."""
        with self._changed:
            self._schedule.pause(seconds, time.monotonic())

    def close(self) -> None:
        """Make ``wait_for_task`` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wait_for_task(self) -> DecisionTask | None:
        """Wait until a decision is due; None after ``close``."""
        with self._changed:
            while not self._closed:
                task = self._schedule.take(time.monotonic())
                if task is not None:
                    return task
                self._changed.wait(timeout=0.2)
            return None

    def _tell(self) -> None:
        self._changed.notify()
        if self._schedule.deciding and self._schedule.due(time.monotonic()):
            self._on_next()
