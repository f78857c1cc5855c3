"""The contents of the topics ``nav_status`` and ``instruction_status``, and the stop latch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..errors import refuse
from .answer import NO_ACTION, Action
from .e_stop import E_STOP_ON

NAV_STATES = ("idle", "ready", "moving", "stopped")  # numbered in NavStatus.msg from 1
NOBODY = "-"
MAX_REQUEST = 200  # characters
WAYS = ("ahead", "left", "right", "behind")  # of which a status says which are clear


def is_request(name: str) -> bool:
    """Whether this is a valid request id: one printable word, other than the placeholder ``-``."""
    one_word = 0 < len(name) <= MAX_REQUEST and name.isprintable() and " " not in name
    return one_word and name != NOBODY


class NavCode(IntEnum):
    """Why the navigator is in its state, for programs; numbered as in NavStatus.msg.

    ``DONE``: the action arrived; ``BLOCKED``: it did not, and something may be in the way.
    ``REFUSED``: the decision moves nothing; ``STOP``: it was to stop. ``RELEASED``: what held the
    robot is over; ``TOLD_TO_STOP``: an instruction stopped it (both with the state ``stopped``: a
    newer instruction ends it). ``E_STOP``: ``e_stop`` holds it. ``REPLAY``: a recording is played,
    whose pictures do not follow the motion. ``IMPLAUSIBLE``: odometry contradicts the commands.
    ``OTHER_PUBLISHER``: another node commands the base, or is a second navigator.
    ``FALLEN``: the base leans too far to stand. ``STALLED``: it is told to move, and odometry shows
    that it stands (with ``moving`` or ``ready``). ``HELD``: a wrong parameter, a
    base that commands do not reach, or the navigator's deactivation holds it.
    """

    NONE = 0
    DONE = 1
    BLOCKED = 2
    REFUSED = 3
    STOP = 4
    RELEASED = 5
    TOLD_TO_STOP = 6
    E_STOP = 7
    REPLAY = 8
    IMPLAUSIBLE = 9
    OTHER_PUBLISHER = 10
    FALLEN = 11
    STALLED = 12
    HELD = 13


HOLD_CODES = (
    NavCode.E_STOP,
    NavCode.IMPLAUSIBLE,
    NavCode.OTHER_PUBLISHER,
    NavCode.FALLEN,
    NavCode.HELD,
)
"""Under which an instruction is refused."""


@dataclass(frozen=True)
class NavigatorStatus:
    """The contents of a NavStatus message.

    ``idle``: standing still, the next decision may start. ``ready``: still moving, but the next
    decision may start. ``moving``: carrying out an action. ``stopped``: no action is taken until
    the cause in ``detail``, which is for people, is removed. ``request`` is the last one that moved
    the robot or was refused; ``-`` before the first. ``stops`` counts the stops, releases,
    instructions and changes of settings, from a start that differs for each navigator
    (``StopLatch``). ``code`` says why, for programs; ``action`` is the one that is carried out, or
    that just ended. ``clear``, where it is ``BLOCKED``: the ways (``WAYS``) in which a lidar shows
    room for a small step. Raises ValueError for an unknown state, or a request that is not one
    word.
    """

    state: str
    request: str = NOBODY
    detail: str = ""
    stops: int = 0
    code: NavCode = NavCode.NONE
    action: Action | None = None
    clear: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(
            (
                self.state not in NAV_STATES,
                f"{self.state!r} is not a state; there are {', '.join(NAV_STATES)}",
            ),
            (
                self.request != NOBODY and not is_request(self.request),
                f"{self.request[:80]!r} is no request's name: it must be one word",
            ),
            error=ValueError,
        )

    def __str__(self) -> str:
        return f"{self.state} {self.request} {self.stops} {self.detail}".rstrip()

    @property
    def refuses_instructions(self) -> bool:
        """Whether what holds the navigator has to end before an instruction counts."""
        return self.state == "stopped" and self.code in HOLD_CODES

    @property
    def text(self) -> str:
        """State and detail as text for the user."""
        return f"{self.state} {self.detail}".rstrip()

    @property
    def welcomes_decision(self) -> bool:
        """Whether the next decision may start."""
        return self.state in ("idle", "ready")

    @property
    def e_stopped(self) -> bool:
        """Whether ``e_stop`` holds the navigator."""
        return self.state == "stopped" and self.code is NavCode.E_STOP

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a NavStatus message, without the header."""
        return {
            "state": 1 + NAV_STATES.index(self.state),
            "code": int(self.code),
            "request_id": self.request,
            "action": self.action or NO_ACTION,
            "stops": self.stops,
            "clear": sum(1 << WAYS.index(way) for way in self.clear),
            "detail": self.detail,
        }

    @classmethod
    def read(cls, message: Any) -> NavigatorStatus:
        """Read a NavStatus message. Raises ValueError for an invalid one."""
        refuse(
            (
                not 1 <= message.state <= len(NAV_STATES),
                f"{message.state} is no state of NavStatus",
            ),
            (message.code not in [*NavCode], f"{message.code} is no code of NavStatus"),
            error=ValueError,
        )
        return cls(
            NAV_STATES[message.state - 1],
            message.request_id,
            message.detail,
            message.stops,
            NavCode(message.code),
            Action.read(message.action),
            tuple(way for bit, way in enumerate(WAYS) if message.clear >> bit & 1),
        )


FOLLOWING, DONE, GOAL_FAILED = "following", "done", "failed"
UNKNOWN, INACTIVE, IDLE, STOPPED = "unknown", "inactive", "idle", "stopped"
MISSION_ENDS = (DONE, "not_found", "blocked", "given_up")  # of a mission
GOAL_STATES = (UNKNOWN, INACTIVE, IDLE, STOPPED, FOLLOWING, *MISSION_ENDS, GOAL_FAILED)
"""As InstructionStatus.msg numbers them; unknown before the first message."""


@dataclass(frozen=True)
class GoalStatus:
    """The contents of an InstructionStatus message: what is followed, or how it ended.

    ``goal_id`` is the drafter's new name for each instruction that it accepts; empty if it follows
    none. ``detail``: the reason, or the current trouble.
    """

    state: str
    instruction: str = ""
    detail: str = ""
    goal_id: str = ""

    def __str__(self) -> str:
        return f"{self.state} {self.text}".rstrip()

    @property
    def text(self) -> str:
        """Instruction and detail as text for the user."""
        return ": ".join(filter(None, (self.instruction, self.detail)))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an InstructionStatus message, without the header. Raises ValueError for an
        unknown state."""
        return {
            "state": GOAL_STATES.index(self.state),
            "goal_id": self.goal_id,
            "instruction": self.instruction,
            "detail": self.detail,
        }

    @classmethod
    def read(cls, message: Any) -> GoalStatus:
        """Read an InstructionStatus message; an unknown number becomes ``unknown``."""
        state = GOAL_STATES[message.state] if message.state < len(GOAL_STATES) else UNKNOWN
        return cls(state, message.instruction, message.detail, message.goal_id)


E_STOP_HOLD, INSTRUCTION_HOLD, START_HOLD, IMPLAUSIBLE_HOLD, OTHER_HOLD, FALLEN_HOLD = (
    "e_stop",
    "instruction",
    "start",
    "implausible",
    "other publisher",
    "fallen",
)
PARAMETER_HOLD, INACTIVE_HOLD = "parameter", "active"
BASE_HOLDS = {FALLEN_HOLD: NavCode.FALLEN, IMPLAUSIBLE_HOLD: NavCode.IMPLAUSIBLE}
"""Which end when somebody has seen to the robot, and their codes."""

AWAITS_INSTRUCTION = "released: publish an instruction to go on"
TOLD_TO_STOP = "told to stop"


class StopLatch:
    """After a stop, the robot waits until nothing holds it and then for a new instruction.

    Each stop, release and instruction adds one to ``count``. Decisions made under ``valid_from`` or
    a later count may move the robot. All of these events raise it, except an instruction that is
    followed already, so that it does not disturb the decision under way. ``since``: when it was
    last raised (monotonic s), not counting instructions that ended no waiting. The hold
    ``START_HOLD`` of a navigator that has just started is no stop, whatever its reason: no
    instruction is needed after it.
    """

    def __init__(self, count: int, starting: str = "") -> None:
        self.count = self.valid_from = count
        self.since = -math.inf
        self._causes: dict[str, str] = {START_HOLD: starting} if starting else {}
        self._awaits = False

    @property
    def why(self) -> str:
        """Why nothing may move, for the user; empty if it may."""
        whys = {cause: why for cause, why in self._causes.items() if cause != START_HOLD}
        whys = whys or self._causes  # what else holds it says more
        others = "; ".join(why for cause, why in whys.items() if cause != E_STOP_HOLD)
        if why := whys.get(E_STOP_HOLD):
            return f"{why}: {others}" if others else why
        return others or (AWAITS_INSTRUCTION if self._awaits else "")

    @property
    def code(self) -> NavCode:
        """Why, for programs."""
        if E_STOP_HOLD in self._causes:
            return NavCode.E_STOP
        for cause, code in (*BASE_HOLDS.items(), (OTHER_HOLD, NavCode.OTHER_PUBLISHER)):
            if cause in self._causes:
                return code
        if self.refusal:
            return NavCode.HELD
        if set(self._causes) - {START_HOLD} == {INSTRUCTION_HOLD}:
            return NavCode.TOLD_TO_STOP
        return NavCode.RELEASED if self._awaits and not self._causes else NavCode.NONE

    @property
    def refusal(self) -> str:
        """Why an instruction is refused now; empty if it is not."""
        return "; ".join(
            why
            for cause, why in self._causes.items()
            if cause not in (INSTRUCTION_HOLD, START_HOLD)
        )

    @property
    def causes(self) -> frozenset[str]:
        """What holds the robot now; ``START_HOLD`` until it is released."""
        return frozenset(self._causes)

    def stop(self, cause: str, why: str, now: float) -> None:
        """Hold the robot because of ``why``, until this ``cause`` is released."""
        self._awaits = self._awaits or not (cause == START_HOLD in self._causes)
        self._causes[cause] = why
        self.tally(now)

    def release(self, cause: str, now: float) -> bool:
        """End the hold of this cause; returns False if there was none."""
        if self._causes.pop(cause, None) is None:
            return False
        self.tally(now)
        return True

    def is_by_hand(self, cause: str) -> bool:
        """Whether somebody ends this hold who sees the robot: e_stop that was pressed, a parameter,
        or the navigator's activation. Another publisher leaves by itself, and so ends a silence."""
        pressed = cause != E_STOP_HOLD or self._causes.get(cause) == E_STOP_ON
        return pressed and cause in (E_STOP_HOLD, PARAMETER_HOLD, INACTIVE_HOLD)

    def see_to_base(self, now: float) -> None:
        """End the holds of what the base did, as somebody has seen to it."""
        for cause in BASE_HOLDS:
            self.release(cause, now)

    def instruct(self, now: float, followed: bool) -> bool:
        """Record a new instruction, ``followed`` already or not; returns whether it ended the
        waiting."""
        if not self._awaits:
            self.count += 1
            self.valid_from = self.valid_from if followed else self.count
            return False
        self._causes.pop(INSTRUCTION_HOLD, None)
        self._awaits = False
        self.tally(now)
        return True

    def tally(self, now: float) -> None:
        """Increase the count, so that earlier decisions move nothing."""
        self.count += 1
        self.valid_from, self.since = self.count, now

    def counts(self, stops: int) -> bool:
        """Whether decisions made under this count may move the robot."""
        return self.valid_from <= stops <= self.count
