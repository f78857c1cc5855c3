"""Decides when an instruction ends: found, not found, blocked, given up; and tracks published
status.

``Mission`` decides, and the topic ``instruction_status`` publishes it; ``FollowedGoal`` follows
that topic. No I/O, no clock, no thread, no ROS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..instruction import normalized
from ..options import Bounded, bounded
from .answer import SEARCH_ACTION, Action
from .status import (
    DONE,
    FOLLOWING,
    GOAL_FAILED,
    IDLE,
    INACTIVE,
    STOPPED,
    UNKNOWN,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)
from .steps import Steps


def frames_all_around(search: float) -> int:
    """How many searches of ``search`` degrees turn the robot all around, plus one."""
    return math.ceil(360.0 / abs(search)) + 1


@dataclass(frozen=True)
class MissionSettings(Bounded):
    """The limits that end an instruction. Raises ValueError naming a field that is out of its
    range."""

    search_frames: int = bounded(
        frames_all_around(Steps().search), 2, 1000, "searches in a row that end it as not found"
    )
    blocked_after: int = bounded(
        3,
        1,
        1000,
        "motions in a row that do not arrive: it is blocked; twice as many where a way is clear",
    )
    blocked_seconds: float = bounded(
        5.0, 0.0, 600.0, "for as long, at least: who walks through the way leaves it again, s"
    )
    failed_after: int = bounded(
        30, 1, 10_000, "decisions in a row that are no action, or are refused: it is given up"
    )
    max_decisions: int = bounded(
        100, 1, 100_000, "it is given up after so many actions that were carried out"
    )
    max_seconds: float = bounded(600.0, 1.0, 86_400.0, "it is given up after this long, s")


class Mission:
    """The instruction that is followed, and the results of its decisions so far.

    A mission begins with an instruction. An operator's stop ends it without a report. Only
    decisions that began in this mission count, and their motions, each once. A failed decision, or
    a turn that did not arrive, does not count as a search. An unreachable cloud does not end it
    before ``max_seconds``: the robot stands, and continues when the cloud is back.
    """

    def __init__(self) -> None:
        self.held = ""  # why the robot does not move for any decision
        self.follow("", 0.0)

    def follow(self, instruction: str, now: float, goal_id: str = "") -> None:
        """Start with this instruction at ``now`` (monotonic s); an empty one follows nothing."""
        self.instruction, self.goal_id, self._begun_at = instruction, goal_id, now
        self.trouble = ""  # why the last decision failed; empty if it did not
        self._decisions = self._failed = self._refused = self._searched = self._blocked = 0
        self._deciding: str | None = None  # the decision without an action yet
        self._unsettled: set[str] = set()  # decisions whose motion has not ended
        self._running: NavigatorStatus | None = None  # the navigator's status while it moves
        self._detail = ""  # of the last refusal, or of the last motion that did not arrive
        self._clear: tuple[str, ...] = ()  # the ways that were clear where that was blocked
        self._free_at = now  # begin of the current series of motions that did not arrive
        self._found = False

    @property
    def why(self) -> str:
        """Why its decisions move nothing; empty if they do."""
        refused = f"the navigator {self._detail}" if self._refused > 1 else ""
        return self.trouble or refused

    def begin(self, request: str) -> None:
        """Record that a decision on the instruction began."""
        self._deciding = request
        self._unsettled.add(request)

    def conclude(
        self, request: str, action: Action | None, problem: str = "", by_link: bool = False
    ) -> None:
        """Record the result of a decision: the action in its verified words, or None.

        problem: why the answer broke off; empty if it did not. An action counts even then, because
        the navigator already has it, and later words move nothing. ``by_link``: the cloud was
        unreachable.
        """
        if request != self._deciding:
            return
        self._deciding = None
        if action is None:
            self.trouble = problem or "the answer holds no action"
            self._failed += not by_link
            return
        self.trouble, self._failed = "", 0
        self._found = action.verb == "stop"
        if action.verb != "search":
            self._searched = 0

    def on_status(self, status: NavigatorStatus) -> None:
        """Record the navigator's status: whether a motion runs, arrived or was refused."""
        self.held = f"the robot is held: {status.detail}" if status.state == "stopped" else ""
        if not self.instruction:
            return
        before, self._running = self._running, None
        if status.state in ("moving", "ready"):
            self._running, self._refused = status, 0
            # Arrived, or got as far as its replacement let it.
            if status.code is NavCode.DONE:
                self._settle(status)
            if before is not None and before.request != status.request:
                # A replaced motion has neither arrived nor failed.
                self._unsettled.discard(before.request)
                self._decisions += before.action != status.action  # but counts as carried out
        elif status.state == "stopped":
            self._searched = self._blocked = 0  # after a stop the robot may have been carried away
        elif status.code is NavCode.DONE or (before and before.request == status.request):
            self._settle(status)
        elif status.code is NavCode.REFUSED and status.request in self._unsettled:
            self._unsettled.remove(status.request)
            self._refused += 1
            self._detail = status.detail

    def _settle(self, status: NavigatorStatus) -> None:
        """Count a motion that is over."""
        if status.request not in self._unsettled:
            return
        self._unsettled.remove(status.request)
        if status.code is NavCode.STOP:  # no motion; the decision itself ends the mission
            return
        self._decisions += 1
        self._detail = status.detail
        if status.code is NavCode.DONE:
            self._blocked = 0
            self._searched = self._searched + 1 if status.action == SEARCH_ACTION else 0
        elif status.code is NavCode.BLOCKED:
            self._blocked += 1  # else the motion was given up, as without odometry
            self._clear = status.clear

    def status(self, state: str, detail: str = "") -> GoalStatus:
        """A status message with this state for the current instruction."""
        return GoalStatus(state, self.instruction, detail, self.goal_id)

    def end(self, settings: MissionSettings, now: float, trouble: str = "") -> GoalStatus | None:
        """The mission's end if it ended by ``now``, returned once; None while it continues.

        ``trouble``: why nothing is decided now.
        """
        if not self._blocked:
            self._free_at = now
        end = self._end(settings, now, trouble or self.trouble) if self.instruction else None
        if end is not None:
            self.follow("", now)
        return end

    def _end(self, settings: MissionSettings, now: float, trouble: str) -> GoalStatus | None:
        last = "; the last"
        if self._found:
            return self.status(DONE)
        if self._searched >= settings.search_frames:
            why = f"not seen on {self._searched} frames all around"
            return self.status("not_found", why)
        blocked_for = now - self._free_at
        # Where a way is clear, verified words may yet ask for it.
        enough = settings.blocked_after * (2 if self._clear else 1)
        if self._blocked >= enough and blocked_for >= settings.blocked_seconds:
            why = f"{self._blocked} motions in a row did not arrive{last} was {self._detail}"
            return self.status("blocked", why)
        if self._failed >= settings.failed_after:
            why = f"{self._failed} decisions in a row failed{last}: {self.trouble}"
        elif self._refused >= settings.failed_after:
            why = f"{self._refused} decisions in a row moved nothing{last} was {self._detail}"
        elif self._decisions >= settings.max_decisions:
            why = f"not reached after {self._decisions} decisions"
        elif now - self._begun_at >= settings.max_seconds:
            why = f"not reached after {now - self._begun_at:.0f} s"
            why += f"{last}: {trouble}" if trouble else ""
        else:
            return None
        return self.status("given_up", why)


@dataclass(frozen=True)
class GoalEnd:
    """An ``outcome`` of the action NavigateByInstruction, and a sentence about it."""

    outcome: str
    message: str


class FollowedGoal:
    """Follows one published instruction; ``state`` is ``waiting``, then ``following``.

    While waiting, it only looks for the drafter's acceptance or refusal: messages about an earlier
    instruction may still arrive. Then it has the drafter's ``goal_id``, and any other state of the
    drafter ends it. ``words``: of the newest decision; in their place, why none comes.
    """

    def __init__(self, instruction: str, words: str = "") -> None:
        self.instruction = normalized(instruction)
        self.state, self.goal_id, self.words = "waiting", "", words
        self._answered: set[str] = set()

    @property
    def decisions(self) -> int:
        """How many of the goal's decisions were answered."""
        return len(self._answered)

    def on_status(self, status: GoalStatus) -> GoalEnd | None:
        """Take a message of ``instruction_status``; returns how the goal ended, None if it
        continues."""
        if status.state == FOLLOWING and status.instruction == self.instruction:
            self.state, self.goal_id = FOLLOWING, status.goal_id
            self.words = status.detail or self.words
            return None
        if self.state == "waiting" or status.state == UNKNOWN:
            return GoalEnd(GOAL_FAILED, status.text) if status.state == GOAL_FAILED else None
        if status.state == FOLLOWING:
            return GoalEnd("cancelled", f"another instruction came: {status.text}")
        if status.state in (IDLE, INACTIVE):
            return GoalEnd(
                GOAL_FAILED, "the drafter was started again, or ended; send the goal again"
            )
        outcome = {DONE: "found", STOPPED: "cancelled"}.get(status.state, status.state)
        return GoalEnd(outcome, status.text)

    def on_words(self, request: str, goal_id: str, answer: str, answered: bool) -> bool:
        """Take the words of a decision; returns whether they belong to this goal.

        ``answered``: these are the decision's last words.
        """
        if self.state == "waiting" or goal_id != self.goal_id:
            return False
        self.words = answer or self.words
        if answered:
            self._answered.add(request)
        return True
