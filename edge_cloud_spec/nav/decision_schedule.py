"""When the next decision begins, and on which frame. No I/O, no clock, no thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .status import AWAITING, Status

SETTLE_S = 3.0  # s; an idle navigator that has not settled a decision by then did not receive it

Frame = TypeVar("Frame")


@dataclass(frozen=True)
class DueDecision(Generic[Frame]):
    """A decision to make: for which instruction, on which frame.

    ``stops`` is the navigator's count of stops and releases when the frame arrived: the decision
    moves the robot only if that count has not changed since.
    """

    instruction: str
    frame: Frame
    stops: int


class DecisionSchedule(Generic[Frame]):
    """A decision is due when there is an instruction, the navigator has settled the last decision
    and welcomes the next, and a frame arrived after that and after the last stop or release.

    ``now`` is the caller's steady clock, s. ``lag``: how long a frame is on its way beyond what its
    stamp says, s. A driver that stamps frames when they arrive hides it; without it a frame would
    count that shows the robot before.
    """

    def __init__(self, lag: Callable[[], float] = lambda: 0.0) -> None:
        self.lag = lag
        self.instruction = ""  # that is followed; empty: none
        self.deciding = False  # whether a decision is under way
        self._frame: Frame | None = None
        self._frames_from = -math.inf
        self._status: Status | None = None
        self._last_request = ""
        self._decided_at = self._instructed_at = self._not_before = -math.inf

    # What is told

    def instruct(self, instruction: str, now: float) -> None:
        """Follow this instruction from now on; decide on a frame that arrives after it."""
        self.instruction, self._instructed_at = instruction, now
        self._drop_frames(now)

    def clear(self, instruction: str = "") -> bool:
        """Stop following any instruction, or this one; whether that ended one."""
        followed = self.instruction
        if instruction in ("", followed):
            self.instruction = ""
        return bool(followed) and not self.instruction

    def show(self, frame: Frame, now: float) -> None:
        """A frame arrived."""
        if now >= self._frames_from:  # else it was taken before
            self._frame = frame

    def on_status(self, status: Status, now: float) -> bool:
        """The navigator's status; only a frame that arrives after it shows the robot in that state.

        Returns whether the robot was stopped or released, so that no earlier decision moves it.
        """
        counted = status.stops != self._stops
        if counted or (status.welcomes_decision and status.request == self._last_request):
            self._drop_frames(now)
        self._status = status
        return counted

    def begin(self, request: str) -> None:
        """A decision starts; the next one is due after the navigator has settled it."""
        self._last_request, self.deciding = request, True

    def end(self, now: float) -> None:
        """The decision that started is over."""
        self._decided_at, self.deciding = now, False

    def pause(self, seconds: float, now: float) -> None:
        """Make no decision due for this long."""
        self._not_before = now + seconds

    # What follows

    def due(self, now: float) -> bool:
        """Whether the next decision is to begin; while one is under way: whether it is wanted."""
        waits = self.instruction and self._frame is not None and now >= self._not_before
        return bool(waits) and self._is_welcome(now)

    def take(self, now: float) -> DueDecision[Frame] | None:
        """The decision that is due, with its frame; None: none is."""
        frame = self._frame
        if frame is None or not self.due(now):
            return None
        self._frame = None
        return DueDecision(self.instruction, frame, self._stops)

    def waits_in_vain(self, now: float) -> bool:
        """Whether the robot was stopped and the navigator waits for a newer instruction."""
        awaits = self._status is not None and self._status.detail in AWAITING
        return bool(self.instruction) and awaits and now - self._instructed_at > SETTLE_S

    def _drop_frames(self, now: float) -> None:
        """Only a frame that is taken from now on counts."""
        self._frame, self._frames_from = None, now + self.lag()

    @property
    def _stops(self) -> int:
        return 0 if self._status is None else self._status.stops

    def _is_welcome(self, now: float) -> bool:
        if self._status is None:  # no navigator yet: a decision moves nothing, and can be watched
            return not self.deciding
        settled = self._status.request == self._last_request or not self._last_request
        idle = self._status.state == "idle" and not self.deciding
        missed = idle and now - self._decided_at > SETTLE_S
        return self._status.welcomes_decision and (settled or missed)
