"""The decision loop: which instruction is followed, when a decision begins and on which frame, and
when its answer is long enough.

``DecisionLoop`` takes events and returns effects for its caller to perform: a drafter node with
threads, or a simulated robot in virtual time. No I/O, no clock, no thread.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from ..edge.events import Abort, Cut
from ..errors import UserError
from ..instruction import KnownInstructions, check_instruction, is_stop, normalized
from ..nav.answer import Action, Reading
from ..nav.clock_offset import camera_clock
from ..nav.e_stop import E_STOP_ON
from ..nav.events import EStop, Instruction, Report, Tick
from ..nav.free_space import NOTHING_SEEN, FreeSpace
from ..nav.mission import Mission, MissionSettings
from ..nav.status import (
    FOLLOWING,
    GOAL_FAILED,
    INACTIVE,
    STOPPED,
    TOLD_TO_STOP,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)

SETTLE_S = 3.0  # s; an idle navigator without a result of the last decision did not receive it
REMEMBERED = 64  # counts of the navigator, and pictures
SPACES_REMEMBERED = 256  # ten seconds of two lidars, which a frame may be late
SPACE_APART_S = 0.3  # s between a frame and what lidars showed then; at 0.6 m/s 18 cm
MOVED_S = 2.0  # s that the robot was told to move, and no picture was new
WATCHED_S = 1.5  # s between two events (a tick comes once a second), beyond which it hung
STANDS = (NavCode.BLOCKED, NavCode.STALLED)  # and may see the same
SAME_PICTURE = (
    "the pictures stay the same though the robot is told to move: if it moves, restart the camera "
    "driver; if it stands, see the base's driver"
)
RELEASE_S = 0.5  # s by which an instruction may arrive before the release that preceded it
WAS_STOPPED = "the robot was stopped; publish the instruction again"
E_STOPPED = "e_stop; publish the instruction again to go on"
E_STOP_IS_ON = f"{E_STOP_ON}; publish the instruction again after its release"

EXPLAIN_FULL, EXPLAIN_UNTIL_NEXT, EXPLAIN_NONE = "full", "until_next", "none"
EXPLAIN = (EXPLAIN_FULL, EXPLAIN_UNTIL_NEXT, EXPLAIN_NONE)
"""How much of an answer is decoded behind its action, which moves nothing: all of it, what there is
time for until the next decision needs the models, nothing."""


@dataclass(frozen=True)
class LoopSettings:
    """When decisions follow each other; ``explain``: one of ``EXPLAIN``.

    ``retry``: pause after a decision without an action, or a second one in a row that the navigator
    refused, s. ``lag``: how much older a frame is than its stamp says, s. A driver that stamps
    frames on arrival hides this delay; uncorrected, a frame from before the last motion would count
    as new.
    """

    explain: str = EXPLAIN_FULL
    retry: float = 1.0
    lag: float = 0.0
    mission: MissionSettings = field(default_factory=MissionSettings)


# Events, besides Instruction, EStop, FreeSpace, NavigatorStatus, Tick (once a second), and Reading:
# what the current decision's answer says, of which more words are verified


@dataclass(frozen=True)
class Frame:
    """A new camera frame, as JPEG for both models.

    ``stamp``: when it was taken, by the camera's clock, ns. ``clock_offset``: how far that clock is
    ahead of this computer's, s.
    """

    jpeg: bytes
    stamp: int = 0
    clock_offset: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The current decision is over; ``action``: of its whole answer, None if it has none.

    ``problem``: why it broke off; empty if it did not. ``by_link``: the cloud was unreachable.
    ``retry_after``: the pause that the cloud asks for, s. ``abandoned``: it was aborted on request.
    """

    action: Action | None = None
    problem: str = ""
    by_link: bool = False
    retry_after: float = 0.0
    abandoned: bool = False


@dataclass(frozen=True)
class Paused:
    """The caller starts (state ``idle``) or stops its work; no instruction is followed then."""

    why: str
    state: str = INACTIVE


Event = Frame | FreeSpace | Reading | Ended | Paused | NavigatorStatus | Instruction | EStop | Tick

# Effects


@dataclass(frozen=True)
class Decide:
    """A decision to make: request id, goal and frame.

    ``stops`` is the navigator's newest count (``StopLatch``) when the frame was taken;
    ``free_space`` what lidars showed then.
    """

    request: str
    instruction: str
    frame: Frame
    stops: int
    goal_id: str = ""
    free_space: FreeSpace = NOTHING_SEEN


Effect = Cut | Abort | GoalStatus | Report
"""The current answer is cut, as it already contains its action; the current decision, which is no
longer needed, is aborted; ``Report`` is a problem that a person should know."""


class DecisionLoop:
    """``on(event, now)`` returns effects; ``take`` returns the decision that is due.

    A decision is due if there is an instruction, the navigator has handled the last decision and
    accepts the next, and a frame arrived after that and after the last stop or release. Topics are
    not ordered among each other: an instruction under e_stop, or another hold of the navigator,
    waits for a release that may arrive later, and one that the navigator received only after its
    stop is refused with a sentence.
    ``e_stop`` is on if it was heard here, or if the navigator, whose status is latched, says so:
    a message of a publisher that soon ends may reach one of both alone.

    ``now`` is the caller's monotonic clock, s. ``known``: the instructions that the models
    understand; None: all. ``name``: unique to this loop, goals are called ``name``-1 and so on.
    ``blind``: why there is no picture to decide on, as the caller finds; ``trouble``: why else
    nothing is decided; both are only said. No decision begins or goes on while the pictures stay
    the same though the robot was told to move for ``MOVED_S``: a new picture ends that, or the
    release of an e_stop. What odometry shows to stand (``STANDS``) does not count, as it sees the
    same in a simulator; nor do a motion while a recording is played (``NavCode.REPLAY``), and more
    than ``longest_gap`` (s) between two events, in which the program hung. A frame without bytes,
    whose picture is made later, counts as new.
    """

    def __init__(
        self,
        settings: LoopSettings | None = None,
        known: KnownInstructions | None = None,
        name: str = "goal",
    ) -> None:
        self.settings, self.known = settings or LoopSettings(), known
        self.blind = self.trouble = ""
        self._pictures: deque[int] = deque(maxlen=REMEMBERED)  # hashes of the newest ones
        self._moved_s, self._watched_at = 0.0, -math.inf  # told to move without a new picture
        self.longest_gap = WATCHED_S
        self.sees_the_same = False  # pictures came, and none was new in MOVED_S of being told so
        self.deciding = False  # whether a decision is under way
        self._mission = Mission()
        self._goals = (f"{name}-{number}" for number in count(1))
        self._published: GoalStatus | None = None
        self._e_stop = False
        self._early: tuple[str, float] | None = None  # an instruction under e_stop, and its time
        # The frame, and the navigator's count when it was taken.
        self._frame: tuple[Frame, int] | None = None
        self._spaces: deque[FreeSpace] = deque(maxlen=SPACES_REMEMBERED)
        self._frames_from = -math.inf
        self._status: NavigatorStatus | None = None
        # The navigator's counts, and from when they apply.
        self._counted: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self._stops = 0  # the count of a frame that arrives now
        self._request, self._explain = "", EXPLAIN_FULL  # of the last decision
        self._acted = self._is_enough = False
        self._decided_at = self._instructed_at = self._not_before = -math.inf

    @property
    def instruction(self) -> str:
        """The current instruction; empty: none."""
        return self._mission.instruction

    def is_due(self, now: float) -> bool:
        """Whether the next decision should begin or, during one, whether it is still wanted."""
        sees = self._frame is not None and not self.sees_the_same
        waits = self.instruction and sees and now >= self._not_before
        return bool(waits) and self._is_welcome(now)

    @property
    def why_blind(self) -> str:
        """Why no picture shows where the robot is now; empty if one does."""
        return SAME_PICTURE if self.sees_the_same else self.blind

    def take(self, request: str, now: float) -> Decide | None:
        """Begin the decision that is due, as ``request``; None if none is."""
        frame = self._frame
        if frame is None or self.deciding or not self.is_due(now):
            return None
        self._frame, self._request, self._explain = None, request, self.settings.explain
        self.deciding, self._acted, self._is_enough = True, False, False
        self._mission.begin(request)
        space = self._space_at(frame[0])
        return Decide(request, self.instruction, *frame, self._mission.goal_id, space)

    def on(self, event: Event, now: float) -> list[Effect]:
        """Handle an event at ``now``; returns its effects in order."""
        match event:
            case Frame():
                return self._see(event, now)
            case FreeSpace():
                self._spaces.append(event)
                return []
            case Reading(action):
                self._acted = action is not None
                return self._cut_short(now)
            case Ended():
                return self._end(event, now)
            case NavigatorStatus():
                return self._on_status(event, now)
            case Instruction(text):
                return self._instruct(text, now)
            case EStop(on):
                return self._on_e_stop(on, now)
            case Paused(why, state):
                self._early = None
                return [*self._drop(why, now), self._publish(state, why)]
            case Tick():
                return self._tick(now)

    def _see(self, frame: Frame, now: float) -> list[Effect]:
        while self._counted and now >= self._counted[0][0]:
            self._stops = self._counted.popleft()[1]
        if now >= self._frames_from:  # otherwise it was taken before
            self._frame = frame, self._stops
        blind, picture = self.why_blind, hash(frame.jpeg)
        self._watch_motion(now)
        if not frame.jpeg or picture not in self._pictures:  # a driver may repeat several
            self._pictures.append(picture)
            self._sees_anew()
        elif self._moved_s > MOVED_S:
            self.sees_the_same = True
        effects = self._update_status(now) if blind or self.why_blind else []
        return effects + self._cut_short(now)

    def _space_at(self, frame: Frame) -> FreeSpace:
        """The free space at the frame's time; nothing is seen if none was told of about then."""
        if not self._spaces:
            return NOTHING_SEEN
        ahead = camera_clock(frame.clock_offset, self._spaces[-1].base_clock)
        at = frame.stamp - round(ahead * 1e9)
        nearest = min(reversed(self._spaces), key=lambda space: abs(space.at - at))
        return nearest if abs(nearest.at - at) <= SPACE_APART_S * 1e9 else NOTHING_SEEN

    def _sees_anew(self) -> None:
        self._moved_s, self.sees_the_same = 0.0, False

    def _watch_motion(self, now: float) -> None:
        """Count for how long the robot has been told to move since the picture last changed."""
        status, lasted, self._watched_at = self._status, now - self._watched_at, now
        if (
            status is not None
            and status.state in ("moving", "ready")
            and lasted <= self.longest_gap
        ):
            self._moved_s += 0.0 if status.code in (NavCode.REPLAY, NavCode.STALLED) else lasted

    # Instructions

    def _instruct(self, text: str, now: float) -> list[Effect]:
        goes_on = not (self._awaits or self._is_held)
        if self.instruction and normalized(text) == self.instruction and goes_on:
            self._instructed_at = now  # the status that asks for it may arrive later
            return self._update_status(now, anew=True)
        effects = self._drop("another instruction came", now)
        since = self._early[1] if self._early and self._early[0] == text else now
        self._early = (text, since) if self._is_held and not is_stop(text) else None
        if is_stop(text):
            return [*effects, self._publish(STOPPED, TOLD_TO_STOP)]
        return effects if self._early else effects + self._follow(text, now)

    def _on_e_stop(self, on: bool, now: float) -> list[Effect]:
        self._e_stop = on
        if on and self.instruction:
            return self._stop("e_stop", E_STOPPED, now)
        return self._follow_early(now)

    def _follow_early(self, now: float) -> list[Effect]:
        """Follow the instruction that came before what held the robot was over."""
        if self._early is None or self._is_held:
            return []
        (text, _), self._early = self._early, None
        return self._follow(text, now)

    @property
    def _is_held(self) -> bool:
        """Whether an instruction moves nothing before what holds the robot is over."""
        return self._e_stop or bool(self._status and self._status.refuses_instructions)

    @property
    def _why_held(self) -> str:
        if self._e_stopped or self._status is None:
            return E_STOP_IS_ON
        return f"{self._status.detail}; publish the instruction again once that is over"

    def _stop(self, cause: str, why: str, now: float) -> list[Effect]:
        """End the instruction that is followed, for it needs a newer one."""
        return [*self._drop(cause, now), self._publish(STOPPED, why)]

    @property
    def _e_stopped(self) -> bool:
        return self._e_stop or (self._status is not None and self._status.e_stopped)

    def _follow(self, text: str, now: float) -> list[Effect]:
        try:
            instruction = check_instruction(text, self.known)
        except UserError as error:
            return [Report(str(error)), self._publish(GOAL_FAILED, str(error))]
        self._instructed_at = now
        self._drop_frames(now)
        self._mission.follow(instruction, now, next(self._goals))
        return self._update_status(now, anew=True)

    def _drop(self, why: str, now: float) -> list[Effect]:
        """Stop following the instruction."""
        self._mission.follow("", now)
        return self._abort(why)

    def _abort(self, why: str) -> list[Effect]:
        return [Abort(why)] if self.deciding else []

    def _tick(self, now: float) -> list[Effect]:
        self._watch_motion(now)
        effects = self._update_status(now)
        # A younger instruction may be from after the release.
        if self.instruction and self._is_held and now - self._instructed_at > RELEASE_S:
            if self._e_stopped:
                effects += self._on_e_stop(True, now)
            else:
                effects += self._stop("the robot is held", self._why_held, now)
        if self._early and now - self._early[1] > RELEASE_S:
            self._early = None
            effects.append(self._publish(GOAL_FAILED, self._why_held))
        if self.instruction and self._awaits and now - self._instructed_at > SETTLE_S:
            lost = self._mission.status(GOAL_FAILED, WAS_STOPPED)
            effects += [*self._drop("the robot was stopped", now), self._noted(lost)]
        return effects

    # Decisions

    def _on_status(self, status: NavigatorStatus, now: float) -> list[Effect]:
        """Handle the navigator's status; only frames taken afterwards show the robot in that state.
        If only the count changed (a repeated instruction), earlier frames still count with their
        earlier count: otherwise a robot that is instructed often, with late pictures, would have no
        valid frame."""
        self._mission.on_status(status)
        self._watch_motion(now)
        if status.code in STANDS:
            self._sees_anew()
        effects = self._update_status(now)  # first, since no decision is due after an end
        before = self._status
        counted = status.stops != (0 if before is None else before.stops)
        again = before and (before.state, before.request) == (status.state, status.request)
        welcome = status.welcomes_decision and status.request == self._request
        same = before and (before.state, before.code) == (status.state, status.code)
        stopped = counted and not same  # stopped, released, or instructed anew
        if counted:
            self._frame = None  # a newer frame has the newer count
            self._counted.append((now + self.settings.lag, status.stops))
        if stopped or (welcome and not again):
            self._drop_frames(now)
            if self._mission.why:  # another at once would be refused, too
                self._not_before = max(self._not_before, now + self.settings.retry)
        self._status = status
        if stopped:
            effects += self._abort("the robot was stopped or released")
        if before and before.e_stopped and not status.e_stopped:
            self._sees_anew()  # somebody has looked at the robot
            effects += self._on_e_stop(False, now)
        return effects + self._follow_early(now)

    def _end(self, ended: Ended, now: float) -> list[Effect]:
        self._decided_at, self.deciding = now, False
        if ended.abandoned:
            return []
        if ended.problem or ended.action is None:
            self._not_before = now + max(self.settings.retry, ended.retry_after)
        self._mission.conclude(self._request, ended.action, ended.problem, ended.by_link)
        return self._update_status(now)

    def _cut_short(self, now: float) -> list[Effect]:
        """Cut the current answer once it has its action and the rest is not needed."""
        wanted = self._explain == EXPLAIN_FULL or (
            self._explain == EXPLAIN_UNTIL_NEXT and not self.is_due(now)
        )
        if not (self.deciding and self._acted) or self._is_enough or wanted:
            return []
        self._is_enough = True
        return [Cut()]

    def _drop_frames(self, now: float) -> None:
        """Discard frames taken before now."""
        self._frame, self._frames_from = None, now + self.settings.lag

    @property
    def _awaits(self) -> bool:
        """Whether the navigator was stopped, and waits for an instruction."""
        waits = NavCode.RELEASED, NavCode.TOLD_TO_STOP
        return bool(self._status and self._status.state == "stopped" and self._status.code in waits)

    def _is_welcome(self, now: float) -> bool:
        if self._status is None:  # without a navigator nothing moves, but decisions can be watched
            return not self.deciding
        settled = self._status.request == self._request or not self._request
        idle = self._status.state == "idle" and not self.deciding
        missed = idle and now - self._decided_at > SETTLE_S
        return self._status.welcomes_decision and (settled or missed)

    # Instruction status

    def _update_status(self, now: float, anew: bool = False) -> list[Effect]:
        """End the instruction if it is over; else publish changes of its status, or all of it if
        ``anew``."""
        end = self._mission.end(self.settings.mission, now, self.why_blind)
        if end is not None:
            return [*self._abort("the mission is over"), self._noted(end)]
        held = "" if self._awaits else self._mission.held  # else the instruction ends it
        trouble = held or self.why_blind or self.trouble or self._mission.why
        status = self._mission.status(FOLLOWING, trouble)
        effects = self._abort(SAME_PICTURE) if self.sees_the_same else []
        if self.instruction and (anew or status != self._published):
            return [*effects, self._noted(status)]
        return effects

    def _publish(self, state: str, detail: str) -> GoalStatus:
        return self._noted(GoalStatus(state, detail=detail))

    def _noted(self, status: GoalStatus) -> GoalStatus:
        self._published = status
        return status
