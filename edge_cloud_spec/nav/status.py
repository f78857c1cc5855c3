"""What the topics ``nav_status`` and ``instruction_status`` say, and what holds the robot still."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

STATES = ("idle", "ready", "moving", "stopped")  # NavStatus.msg numbers them so, from 1
NOBODY = "-"
MAX_REQUEST = 200  # characters


def is_request(name: str) -> bool:
    """Whether this can name a request: one printable word, and not the one for none."""
    one_word = 0 < len(name) <= MAX_REQUEST and name.isprintable() and " " not in name
    return one_word and name != NOBODY


@dataclass(frozen=True)
class Status:
    """The contents of a NavStatus message.

    ``idle``: standing still, a decision is welcome. ``ready``: still moving, but the next decision
    may start. ``moving``: carrying out an action. ``stopped``: no action is taken until the detail
    is mended. ``request`` is the last one that the navigator settled (moved on, or refused), ``-``
    before the first. ``stops`` counts the stops, the releases, the instructions and the changes of
    the settings, from a number that is another for each navigator (``StopLatch``). Raises
    ValueError for another state, or a request that is not one word.
    """

    state: str
    request: str = NOBODY
    detail: str = ""
    stops: int = 0

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is not a state; there are {', '.join(STATES)}")
        if self.request != NOBODY and not is_request(self.request):
            raise ValueError(f"{self.request[:80]!r} is no request's name: it must be one word")

    def __str__(self) -> str:
        return f"{self.state} {self.request} {self.stops} {self.detail}".rstrip()

    @property
    def text(self) -> str:
        """The detail, for people."""
        return f"{self.state} {self.detail}".rstrip()

    @property
    def welcomes_decision(self) -> bool:
        """Whether the next decision may start."""
        return self.state in ("idle", "ready")

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a NavStatus message, without the header."""
        return {
            "state": 1 + STATES.index(self.state),
            "request_id": self.request,
            "stops": self.stops,
            "detail": self.detail,
        }

    @classmethod
    def read(cls, message: Any) -> Status:
        """From a NavStatus message. Raises ValueError for one that no navigator publishes."""
        if not 1 <= message.state <= len(STATES):
            raise ValueError(f"{message.state} is no state of NavStatus")
        return cls(STATES[message.state - 1], message.request_id, message.detail, message.stops)


FOLLOWING, DONE, FAILED = "following", "done", "failed"
UNKNOWN, INACTIVE, IDLE, STOPPED = "unknown", "inactive", "idle", "stopped"
ENDS = (DONE, "not_found", "blocked", "given_up")  # of a mission
GOAL_STATES = (UNKNOWN, INACTIVE, IDLE, STOPPED, FOLLOWING, *ENDS, FAILED)
"""As InstructionStatus.msg numbers them; unknown before the first message."""


@dataclass(frozen=True)
class GoalStatus:
    """The contents of an InstructionStatus message: what is followed, or how that ended.

    ``goal_id`` is the name that the drafter gives to an instruction when it takes it, another one
    each time; empty where it follows none. ``detail``: why, or what the trouble is.
    """

    state: str
    instruction: str = ""
    detail: str = ""
    goal_id: str = ""

    def __str__(self) -> str:
        return f"{self.state} {self.text}".rstrip()

    @property
    def text(self) -> str:
        """The instruction and the detail, for people."""
        return ": ".join(filter(None, (self.instruction, self.detail)))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an InstructionStatus message, without the header. Raises ValueError for
        another state."""
        return {
            "state": GOAL_STATES.index(self.state),
            "goal_id": self.goal_id,
            "instruction": self.instruction,
            "detail": self.detail,
        }

    @classmethod
    def read(cls, message: Any) -> GoalStatus:
        """From an InstructionStatus message; a state that no drafter publishes is ``unknown``."""
        state = GOAL_STATES[message.state] if message.state < len(GOAL_STATES) else UNKNOWN
        return cls(state, message.instruction, message.detail, message.goal_id)


E_STOP, INSTRUCTION, START = "e_stop", "instruction", "start"
AWAITS_INSTRUCTION = "released; publish an instruction to go on"
TOLD_TO_STOP = "told to stop"
AWAITING = (AWAITS_INSTRUCTION, TOLD_TO_STOP)  # reasons to stand that a newer instruction ends


class StopLatch:
    """After a stop the robot waits for an instruction that comes when nothing holds it any more.

    Each stop, release and instruction adds one to ``count``, and ``valid_from`` is the count from
    which on decisions move the robot: all of them put it up but an instruction that is followed
    already, which changes nothing for the decision under way. ``since`` is when it was put up last
    (steady seconds; not by an instruction that ended no waiting).
    The hold ``START`` of a navigator that has just begun is no stop: nothing waits for an
    instruction after it.
    """

    def __init__(self, count: int, starting: str = "") -> None:
        self.count = self.valid_from = count
        self.since = -math.inf
        self._causes: dict[str, str] = {START: starting} if starting else {}
        self._awaits = False

    @property
    def why(self) -> str:
        """Why nothing may move, for people; empty if it may."""
        return "; ".join(self._causes.values()) or (AWAITS_INSTRUCTION if self._awaits else "")

    @property
    def refusal(self) -> str:
        """Why an instruction is not taken now; empty if it is."""
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
        self.tally(now)

    def release(self, cause: str, now: float) -> bool:
        """End the hold of this cause; returns whether there was one."""
        if self._causes.pop(cause, None) is None:
            return False
        self.tally(now)
        return True

    def instruct(self, now: float, followed: bool) -> bool:
        """An instruction came that would be taken, and is ``followed`` already or not; whether it
        ended the waiting for one."""
        if not self._awaits:
            self.count += 1
            self.valid_from = self.valid_from if followed else self.count
            return False
        self._causes.pop(INSTRUCTION, None)
        self._awaits = False
        self.tally(now)
        return True

    def tally(self, now: float) -> None:
        """Count on, so that what was decided before moves nothing."""
        self.count += 1
        self.valid_from, self.since = self.count, now

    def counts(self, stops: int) -> bool:
        """Whether decisions made under this count may move the robot."""
        return self.valid_from <= stops <= self.count
