"""Decides what moves the robot: verified words in, bounded commands out. No I/O, no clock, no
thread."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, replace

from ..errors import UserError
from ..instruction import check_instruction, is_stop, normalized
from .answer import Action
from .answer_sequencer import FRAME_FUTURE_S, AnswerSequencer, HeardAnswer
from .budget import (
    BUDGET_REST,
    COMMAND_PERIOD_S,
    MOVE_TURN_RAD,
    NOTHING_USED,
    CommandedMotion,
    Use,
    longest_path,
)
from .clock_offset import FARTHEST_CLOCK, camera_clock, clock_problem
from .detour import LEAST_MOVE_M, Detour
from .events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
    GoAround,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Report,
    Scan,
    Show,
    Tick,
    Tilt,
    Words,
)
from .motion import JUMP_EXTRA, STEP_BLOCKED, Motion, MotionEnd
from .obstacles import Obstacles
from .odometer import FRAME_AWAY_RAD, MOVED_AWAY, Odometer
from .plausibility import STOP_SETTLES_S, Plausibility
from .pose import STILL, Pose, wrap
from .settings import CONTINUOUS, NavigatorSettings
from .status import (
    E_STOP_HOLD,
    FALLEN_HOLD,
    FOLLOWING,
    IMPLAUSIBLE_HOLD,
    INSTRUCTION_HOLD,
    NOBODY,
    TOLD_TO_STOP,
    GoalStatus,
    NavCode,
    NavigatorStatus,
    StopLatch,
    is_request,
)
from .steps import Goal, goal_of, shortened

WATCHDOG_MARGIN_S = 0.1  # s after a command's end before which no watchdog stops the base
TICK_GAP_S = 0.5  # s without a tick after which a motion does not continue
DRIVE_PROGRESS_S = 2.0  # s in which a driving base must make some way
DRIVE_PROGRESS_SHARE = 0.25  # the share of what was commanded that it must make
STALLED_AFTER_S = 1.0  # s in which a base that makes less of more than this has stalled
STALLED_LEAST = (0.1, math.radians(8))  # m, rad commanded
OBSTACLE_WAIT_S = 1.0  # s for which a motion waits for an obstacle to go
FRAME_DRIVEN_S = 1.0  # of driving since a frame, after which no action begins on it
QUICK_DECISION_S = 0.45  # if decisions take longer, they begin only shortly before a motion's end
LOOK_BEFORE_END_S = (0.15, 0.1)  # of a move, of a turn
DECISIONS_REMEMBERED = 8
QUICK_SHARE = 0.75  # of these; where so many were quick, the next is taken to be
REST_SPEEDS = (0.06, 0.1)  # m/s, rad/s; a slower body neither blurs nor tilts pictures
REST_WAIT_S = 0.5  # s that a decision made standing waits for rest, at most
DRIFT_BOUNDS = (0.1, math.radians(6))  # more than so many m or rad
RELEASED = NavigatorStatus("idle", detail="released", code=NavCode.RELEASED)
UPRIGHT = "set it upright, then press and release e_stop (if it stands upright: tilt_limit)"
AGREE = "look at the signs, axes and units of both, then press and release e_stop to try again"


@dataclass(frozen=True)
class FrameTime:
    """When a decision's frame was taken, by this computer's clocks.

    ``at``: ns of this computer's ROS clock, to compare with odometry's stamps.

    ``taken`` (monotonic s) is for the frame's age. A camera clock that is ahead is corrected in
    both. One that is behind is not corrected in ``taken``: it may be a slow driver, whose frames
    must not count as fresh. ``ahead``: how far the camera's clock is ahead, s.
    """

    at: int
    taken: float
    ahead: float

    def problem(self, settings: NavigatorSettings, now: float) -> str:
        """Why the frame must not be used at ``now``; empty if it may."""
        age = now - self.taken
        if problem := clock_problem("the camera's", self.ahead, settings.clock_offset_limit):
            return problem
        if not age >= -FRAME_FUTURE_S:
            return f"its frame's stamp is {-age:.1f} s ahead; synchronize the clocks"
        if not age <= settings.frame_age:
            old = f"is {age:.1f} s old (parameter frame_age)"
            return f"its frame {old if age < math.inf else 'has no time: its stamp is 0'}"
        return ""


@dataclass(frozen=True)
class RunningMotion:
    """A running motion. ``expiry``: until when, monotonic s.

    ``look_at``: when the next decision, which replaces it, may begin; infinite: at its end.
    ``detour``: where it goes around something; None: it keeps to its line.
    """

    action: Action
    motion: Motion
    expiry: float
    closed_loop: bool
    look_at: float
    detour: Detour | None = None

    def status(self, state: str, stalled: bool = False) -> NavigatorStatus:
        """What is published while it runs."""
        code = NavCode.STALLED if stalled else NavCode.NONE
        return NavigatorStatus(state, detail=str(self.action), code=code, action=self.action)


class Navigator:
    """``on(event, now)`` returns effects, to be performed in their order.

    One motion runs at a time. It is stopped by an event (e_stop, ``stop``, hold, another
    instruction, other settings), its end or expiry, odometry that goes missing or jumps, or a gap
    between ticks. If odometry locates the frame, the next decision may be made while the motion
    runs, and replaces it: the next tick drives on from the current speed, and all that was
    commanded since the frame (``CommandedMotion``) is subtracted from the new action's budget. If
    the action does not fit into that, the robot stops first. Unverified words never replace a
    motion, nor are theirs replaced.

    After a stop (``StopLatch``) only a new instruction after the release, and a frame after that,
    moves the robot. Words carry the count of stops and instructions that their drafter knew when
    the frame came; with an older count they move nothing (``StopLatch.counts``), and do not end an
    instruction that was published again since. (By clocks that agree, the frame must not be older
    than the last stop either.) Once there is an instruction, only words of the drafter's goal for
    it move the robot, and none after they have completed the goal. A ``stop`` in any words stops
    the robot, whatever their goal or age. ``counts`` counts what was dropped.
    """

    def __init__(
        self, settings: NavigatorSettings | None = None, stops: int = 0, starting: str = ""
    ) -> None:
        """``stops``: where counting begins; different for each navigator that runs. ``starting``:
        why nothing may move yet (until ``Hold("", START)``); empty: it may."""
        self.odometer = Odometer(settings or NavigatorSettings())
        self.settings = self.odometer.settings
        self.stop_latch = StopLatch(stops, starting)
        state = "stopped" if starting else "idle"
        self.status = NavigatorStatus(state, NOBODY, starting or "started", stops)
        self._sequencer = AnswerSequencer()
        self._shortened: set[Action] = set()  # actions whose shortening was reported
        self._refused: Counter[str] = Counter(refused=0, expired=0, not_arrived=0)
        self._run: RunningMotion | None = None
        self._commanded = CommandedMotion()
        self.obstacles = Obstacles(self.odometer, self._commanded)
        self._plausibility = Plausibility(self.odometer, self._commanded)
        self._free_at = -math.inf  # when no obstacle last held the robot
        self._in_way = ""  # the obstacle in the way of the current motion
        # Of the last decisions, s from the frame to the verified action.
        self._took: deque[float] = deque(maxlen=DECISIONS_REMEMBERED)
        self._given = Drive(STILL, 0.0)  # the latest command
        # What to publish once the base rests, and since when.
        self._resting = (RELEASED, -math.inf)
        self._drifts = False  # whether it was reported that the base moves by itself
        self._set_off = -math.inf  # when the robot last started from standing
        self._here = Pose()  # the pose at the last tick
        self._made = 0.0  # m or rad made by a repeated action since it was last counted
        self._latest = NOBODY
        self._instruction: str | None = None  # the latest instruction; None: none
        # Goal and instruction that the drafter follows.
        self._followed: tuple[str, str] | None = None
        self._completed: str | None = None  # the completed goal, until another instruction
        self._ticked = -math.inf

    @property
    def stops(self) -> int:
        """The count of stops, releases and instructions, from its random start."""
        return self.stop_latch.count

    @property
    def counts(self) -> dict[str, int]:
        """How many messages and actions were dropped, by cause."""
        return {**self._sequencer.counts, **self._refused}

    @property
    def moving(self) -> bool:
        """Whether a motion runs."""
        return self._run is not None

    def configure(self, settings: NavigatorSettings, now: float) -> list[Effect]:
        """Use other settings; a motion or decision that began under the old ones ends."""
        if settings == self.settings:
            return []
        self.settings = self.odometer.settings = self.obstacles.settings = settings
        self.stop_latch.tally(now)
        self._plausibility.forget()
        self.stop_latch.see_to_base(now)
        if self._run is None:
            return self._show(self.status)
        ended = self._end(f"gave up {self._run.action}: the parameters were changed")
        return self._noted(ended, now)

    def on(self, event: Event, now: float) -> list[Effect]:
        """Handle an event at ``now`` (monotonic s); returns its effects."""
        return self._noted(self._on(event, now), now)

    def _noted(self, effects: list[Effect], now: float) -> list[Effect]:
        for effect in effects:
            match effect:
                case Drive(velocity):
                    self._given = effect
                    self._commanded.command(velocity, now)
                case Halt():
                    self._commanded.command(STILL, now)
        return effects

    def _on(self, event: Event, now: float) -> list[Effect]:
        problem = ""
        match event:
            case Tick():
                return self._tick(now)
            case Words():
                return self._on_words(event, now)
            case EStop(on, why):
                return self._latch(E_STOP_HOLD, why if on else "", now)
            case Hold(why, cause):
                return self._latch(cause, why, now)
            case Instruction(text):
                return self._instruct(text, now)
            case Odometry():
                problem = self.odometer.receive(event, now)
            case Scan():
                problem = self.obstacles.receive(event, now)
            case Tilt(angle) if angle > self.settings.tilt_limit:
                return self._hold_fallen(angle, now)
            case GoalStatus() if event.state == FOLLOWING:  # an end needs no reaction
                self._followed = event.goal_id, event.instruction
        return [Report(problem)] if problem else []

    # Stopping

    def _instruct(self, text: str, now: float) -> list[Effect]:
        if is_stop(text):
            return self._latch(INSTRUCTION_HOLD, TOLD_TO_STOP, now)
        if self.stop_latch.refusal:
            return [Report(f"an instruction was not taken: {self.stop_latch.refusal}")]
        before, self._instruction = self._instruction, normalized(text)
        followed = self._instruction == before and self._completed is None
        self._completed = None
        effects: list[Effect] = []
        if self._run is not None and not followed:
            effects = self._end("", _idle("another instruction came"))
        try:
            check_instruction(text)
        except UserError:
            # The drafter reports why it does not follow it, so the waiting continues.
            return effects
        released = self.stop_latch.instruct(now, followed)
        return effects + self._show(RELEASED if released else self.status)

    def _latch(self, cause: str, why: str, now: float) -> list[Effect]:
        if why:
            self._run = None
            self.stop_latch.stop(cause, why, now)
            return [Halt(), *self._show(self.status)]
        by_hand = self.stop_latch.is_by_hand(cause)
        if self.stop_latch.release(cause, now):
            if by_hand:
                self.stop_latch.see_to_base(now)
            return self._show(RELEASED)
        return []

    def _hold_fallen(self, angle: float, now: float) -> list[Effect]:
        if FALLEN_HOLD in self.stop_latch.causes:
            return []
        why = f"the base has fallen: it leans by {math.degrees(angle):.0f} degrees; {UPRIGHT}"
        return [*self._latch(FALLEN_HOLD, why, now), Report(why)]

    def _show(self, status: NavigatorStatus) -> list[Effect]:
        """Publish this status, or why nothing may move, if it is news."""
        if self.stop_latch.why:
            status = NavigatorStatus(
                "stopped", detail=self.stop_latch.why, code=self.stop_latch.code
            )
        status = replace(status, request=self._latest, stops=self.stops)
        if status == self.status:
            return []
        self.status = status
        return [Show(status)]

    # Deciding

    def _on_words(self, words: Words, now: float) -> list[Effect]:
        if not is_request(words.request):
            return [Report(f"words were dropped: {words.request[:80]!r} is no request's name")]
        if not abs(words.camera_offset) <= FARTHEST_CLOCK:
            return [Report("words were dropped: the offset of the camera's clock is no number")]
        ahead = camera_clock(words.camera_offset, self.odometer.clock_offset)
        if (settled := self._sequencer.receive(words, now, ahead)) is None:
            return []
        if settled.reading.action is not None:
            self._took.append(now - self._frame_time(settled).taken)
        return self._decide(settled, now)

    def _decide(self, settled: HeardAnswer, now: float) -> list[Effect]:
        self._latest = settled.words.request
        problem = settled.reading.problem or self._objection(settled, now)
        if problem or settled.reading.action is None:
            return self._refuse(settled, problem)
        if settled.reading.action.verb == "stop":
            return self._stop(settled, settled.reading.action)
        turned = MOVE_TURN_RAD if settled.reading.action.verb == "move" else FRAME_AWAY_RAD
        if self.odometer.moved_away(self._frame_time(settled).at, turned):
            return self._give_way(settled)
        return self._start(settled, settled.reading.action, now)

    def _refuse(self, settled: HeardAnswer, problem: str) -> list[Effect]:
        """Refuse an action; a current motion continues."""
        self._refused["refused"] += 1
        why = f"request {settled.words.request} moves nothing: {problem}"
        # A failed decode is the drafter's to report.
        report: list[Effect] = [] if settled.failed else [Report(why)]
        if self._run is not None:
            return [*report, *self._show(self._run.status(self.status.state))]
        if settled.failed:
            return self._show(_idle(problem))
        return [*report, *self._show(_idle(f"refused: {problem}", NavCode.REFUSED))]

    def _give_way(self, settled: HeardAnswer) -> list[Effect]:
        """Refuse an action that is out of reach: the robot stops, and decides again standing."""
        halt: list[Effect] = [] if self._run is None else [Halt()]
        self._run = None
        return [*halt, *self._refuse(settled, MOVED_AWAY)]

    def _stop(self, settled: HeardAnswer, action: Action) -> list[Effect]:
        """Carry out the action ``stop``: the motion ends, and the instruction is done if the frame
        came after it, by the count of stops, whatever the clocks say."""
        goal_id = settled.words.goal_id
        if self._is_followed(goal_id) and settled.words.stops == self.stops:
            self._completed = goal_id
        self._run = None
        stop = _idle("stop", NavCode.STOP)
        return [Halt(), self._announce(settled, action, Goal(), 0.0), *self._show(stop)]

    def _is_followed(self, goal_id: str) -> bool:
        """Whether this goal belongs to the latest instruction; true if there was none. The drafter
        publishes the goal on another topic, so either may arrive first."""
        return self._instruction is None or self._followed == (goal_id, self._instruction)

    def _frame_time(self, settled: HeardAnswer) -> FrameTime:
        words = settled.words
        ahead = camera_clock(words.camera_offset, self.odometer.clock_offset)
        taken = settled.frame_time - max(0.0, ahead)
        return FrameTime(words.stamp - round(ahead * 1e9), taken, ahead)

    def _objection(self, settled: HeardAnswer, now: float) -> str:
        if self.stop_latch.why:
            return self.stop_latch.why
        if not settled.verified and not self.settings.allow_unverified:
            return "its words are not verified (parameter allow_unverified is false)"
        frame = self._frame_time(settled)
        if problem := frame.problem(self.settings, now):
            return problem
        if settled.reading.action is not None and settled.reading.action.verb == "stop":
            return ""  # a stop is safe, whenever it was decided
        if self._run is not None and not (settled.verified and self._drives_on(self._run, now)):
            return "the robot moves, and nothing else is decided now"
        if self._run is None and (unseen := self.obstacles.missing(now)):
            return unseen
        if not self._is_followed(settled.words.goal_id):
            return f"it was decided for another instruction, {settled.words.instruction[:80]!r}"
        if self._completed == settled.words.goal_id:
            return "its instruction is done; publish it again to go on"
        if not self.stop_latch.counts(settled.words.stops) or frame.taken < self.stop_latch.since:
            return (
                "its frame is from before the robot was stopped, released, instructed or set anew"
            )
        path, _, turn = self._used_since(frame, now)
        on_the_move = self._run is not None or path > BUDGET_REST[0] or turn > BUDGET_REST[1]
        driven = self._commanded.driven_since(frame.taken, now)
        if on_the_move and driven > FRAME_DRIVEN_S:
            return f"its frame is from {driven:.1f} s of driving ago"
        return self.odometer.lost_since(frame.at, now, on_the_move)

    def _start(self, settled: HeardAnswer, action: Action, now: float) -> list[Effect]:
        settings, limits = self.settings, self.settings.limits
        asked, action = action, shortened(action, settings.steps)
        goal = goal_of(action, settings.steps)
        if not settled.verified:
            limits, goal = settings.unverified.limits(limits), settings.unverified.goal(goal)
        closed_loop = self.odometer.locates(now)
        pose = self.odometer.track.newest if closed_loop else None
        frame = self._frame_time(settled)
        used = self._used_since(frame, now)
        anchor = self.odometer.track.at(frame.at) if closed_loop else None
        detour = self._detour(settled, goal) if anchor is not None else None
        motion = Motion(goal, limits, now, pose, anchor, self._commanded.driven, used, detour)
        if not motion.in_reach:
            return self._give_way(settled)
        # Its own deadline is earlier, unless it must wait for overdue odometry.
        expiry = now + settings.command_lifetime
        look_at = math.inf
        if settings.drive == CONTINUOUS and anchor is not None and settled.verified:
            quick = [seconds for seconds in self._took if seconds <= QUICK_DECISION_S]
            look_at = frame.taken + settings.look_period
            if len(quick) < QUICK_SHARE * len(self._took):
                look_at = max(look_at, motion.ends - LOOK_BEFORE_END_S[bool(goal.angle)])
        before, self._run = (
            self._run,
            RunningMotion(action, motion, expiry, closed_loop, look_at, detour),
        )
        self._in_way = ""
        if before is None or before.action != action:
            self._made, self._here = 0.0, pose or Pose()
        aside = detour.half_width if detour is not None else 0.0
        announce = self._announce(settled, action, goal, expiry - now, aside)
        effects = [announce, *self._show(self._run.status("moving"))]
        if action not in (asked, *self._shortened):
            self._shortened.add(action)
            largest = f"the largest step (parameter steps.{action.verb}_large)"
            effects.append(Report(f"{asked} is shortened to {action}, {largest}"))
        if before is not None:  # the next tick drives, since no decision waits for standing
            stop_by = min(self._given.stop_by, now + motion.lasts)
            return [*effects, replace(self._given, stop_by=stop_by)]
        self._ticked = self._set_off = now
        # So that a step that cannot begin ends with the next tick.
        self._free_at = now - OBSTACLE_WAIT_S + COMMAND_PERIOD_S / 2
        return [*effects, *self._go_on(self._run, now)]

    def _detour(self, settled: HeardAnswer, goal: Goal) -> Detour | None:
        """Where this move may go around what stands in its way; None: it keeps to its line."""
        settings = self.settings
        if not (settings.around and settled.verified and goal.distance >= LEAST_MOVE_M):
            return None
        body, path = settings.obstacles, longest_path(goal.distance)
        return Detour(goal.distance, path, body, self.obstacles.keeps, self.obstacles.around)

    def _drives_on(self, run: RunningMotion, now: float) -> bool:
        """Whether another action may replace the current one: not after the watchdog may have
        stopped the base, nor while odometry is overdue."""
        in_time = now < min(self._given.until + WATCHDOG_MARGIN_S, self._given.stop_by)
        return (
            in_time
            and not self.odometer.track.falters(now)
            and now >= run.look_at - COMMAND_PERIOD_S / 2
        )

    def _used_since(self, frame: FrameTime, now: float) -> Use:
        """The part of its budget that a decision on this frame has used; nothing without odometry.

        It is what was commanded since the frame, or odometry's way, whichever is more.
        """
        if not self.odometer.locates(now):
            return NOTHING_USED
        path, aside, turn = self._commanded.since(frame.taken, now, self.settings.limits)
        if path <= BUDGET_REST[0] and turn <= BUDGET_REST[1]:
            return path, aside, turn
        metres, radians = self.odometer.track.moved_since(frame.at)
        return max(path, metres), aside, max(turn, radians)

    def _announce(
        self,
        settled: HeardAnswer,
        action: Action,
        goal: Goal,
        lasts: float,
        aside: float = 0.0,
    ) -> Announce:
        return Announce(
            settled.words.request,
            action,
            goal,
            settled.words.stamp,
            lasts,
            settled.verified,
            settled.words.goal_id,
            aside,
        )

    # Moving

    def _tick(self, now: float) -> list[Effect]:
        if problem := self._plausibility.problem(self.settings.limits, now):
            self._plausibility.forget()
            why = f"the base {problem}, as odometry has it: {AGREE}"
            return [*self._latch(IMPLAUSIBLE_HOLD, why, now), Report(why)]
        run, gap, self._ticked = self._run, now - self._ticked, now
        if run is None:
            return self._wait(now)
        if gap > TICK_GAP_S:
            return self._end(f"gave up {run.action}: the navigator stood still for {gap:.1f} s")
        return self._go_on(run, now)

    def _wait(self, now: float) -> list[Effect]:
        """While nothing is commanded, check whether the base rests, which a decision made standing
        waits for; report a base that moves by itself."""
        effects: list[Effect] = []
        rests, ended = self._resting
        waits = self.status.state not in ("idle", "stopped")
        if waits and (now - ended >= REST_WAIT_S or self.odometer.rests(REST_SPEEDS)):
            effects = self._show(rests)
        effects += self._report_unseen(now)
        waited = now - self._commanded.changed >= 2 * STOP_SETTLES_S and self.odometer.locates(now)
        made = self.odometer.track.made_within(STOP_SETTLES_S) if waited else NOTHING_USED[:2]
        drifts = any(real > most for real, most in zip(made, DRIFT_BOUNDS, strict=True))
        if drifts and not self._drifts:
            metres, degrees = made[0] / STOP_SETTLES_S, math.degrees(made[1]) / STOP_SETTLES_S
            effects.append(
                Report(
                    f"the base moves though nothing is commanded: {metres:.2f} m/s, {degrees:.1f} "
                    "degrees/s; commission it, or find who else commands it"
                )
            )
        self._drifts = drifts
        return effects

    def _report_unseen(self, now: float) -> list[Effect]:
        """Publish that a configured lidar is missing; no decision is made, as none could move."""
        if self.stop_latch.why:
            return []
        unseen, missing = self.status.state == "stopped", self.obstacles.missing(now)
        if missing:  # the text from when it went missing stays
            return [] if unseen else self._show(NavigatorStatus("stopped", detail=missing))
        return self._show(_idle("what is in the way is seen again")) if unseen else []

    def _go_on(self, run: RunningMotion, now: float) -> list[Effect]:
        if run.closed_loop and not self.odometer.locates(now):
            return self._end(f"gave up {run.action}: {self.odometer.missing(now)}")
        chosen = run.detour.chosen if run.detour is not None else ()
        if run.closed_loop and self.odometer.track.falters(now):
            step: Drive | MotionEnd = run.motion.wait(now)
        else:
            pose = self.odometer.track.newest if run.closed_loop else None
            step = run.motion.step(now, pose, lambda wanted: self.obstacles.slowed(wanted, now))
        if isinstance(step, MotionEnd):
            return self._finish(run, step.problem, now, step.short)
        if now >= run.expiry:
            self._refused["expired"] += 1
            return self._end(f"{run.action} expired before its end")
        self._in_way = self.obstacles.why or self._in_way
        if not (self.obstacles.why and step.velocity == STILL):
            self._free_at = now
        elif now - self._free_at >= OBSTACLE_WAIT_S:
            return self._finish(run, STEP_BLOCKED, now)
        effects: list[Effect] = [replace(step, until=min(run.expiry, step.until))]
        if run.detour is not None and run.detour.chosen is not chosen:
            effects.append(GoAround(run.detour.chosen, self.settings.obstacles.strip))
        state = self.status.state
        if run.look_at < math.inf:
            if any(self._makes_little(DRIVE_PROGRESS_S, JUMP_EXTRA, now)):
                return self._finish(run, STEP_BLOCKED, now)
            effects += self._count_steps(run)
            state = "ready" if now >= run.look_at - COMMAND_PERIOD_S / 2 else state
        # Of a base that drifts, the heading stays though turns against the drift are commanded.
        little = self._makes_little(STALLED_AFTER_S, STALLED_LEAST, now) if run.closed_loop else []
        return effects + self._show(run.status(state, bool(little) and all(little)))

    def _makes_little(self, seconds: float, least: tuple[float, float], now: float) -> list[bool]:
        """Whether the base makes little of each of the commands of the last ``seconds`` that are
        more than ``least`` m or rad; across motions, since those that replace each other are too
        short. Empty so soon after a start from standing, when a base with dead time still stands.
        """
        if now - self._set_off < seconds:
            return []
        path, _, turn = self._commanded.since(now - seconds, now)
        made, turned = self.odometer.track.made_lately(seconds)
        return [
            real < DRIVE_PROGRESS_SHARE * given
            for given, real, enough in zip((path, turn), (made, turned), least, strict=True)
            if given > enough
        ]

    def _finish(
        self, run: RunningMotion, problem: str, now: float, short: bool = True
    ) -> list[Effect]:
        """End a motion: it has arrived, or there is a ``problem``, of which an obstacle may be the
        reason if it is ``short`` of its goal. The next decision made standing starts once the base
        rests."""
        ended = _idle(f"done: {run.action}", NavCode.DONE, run.action)
        if problem:
            self._refused["not_arrived"] += 1
            held = short and self._in_way
            problem = f"{run.action}: {self._in_way}" if held else f"{run.action} {problem}"
            clear = self.obstacles.free_space(now).clear
            ways = f"; clear: {', '.join(clear)}" if clear else ""
            blocked = _idle(f"blocked: {problem}{ways}", NavCode.BLOCKED, run.action, clear)
            ended = blocked if short else _idle(problem)
        if not run.closed_loop or self.settings.drive == CONTINUOUS:
            return self._end(problem, ended)
        self._run, self._resting = None, (ended, now)
        return [Halt(), Report(problem)] if problem else [Halt()]

    def _count_steps(self, run: RunningMotion) -> list[Effect]:
        """Count an action that repeatedly replaces itself once per full step made."""
        goal, before, here = run.motion.goal, self._here, self.odometer.track.newest
        ahead = math.cos(here.yaw) * (here.x - before.x) + math.sin(here.yaw) * (here.y - before.y)
        self._here = here
        self._made += wrap(here.yaw - before.yaw) if goal.angle else ahead
        size = abs(goal.angle or goal.distance)
        if not abs(self._made) >= size > 0.0:
            return []
        self._made, now = math.fmod(self._made, size), run.status(self.status.state)
        done = replace(now, detail=f"done: {run.action}", code=NavCode.DONE)
        return [*self._show(done), *self._show(now)]

    def _end(self, problem: str, ended: NavigatorStatus | None = None) -> list[Effect]:
        self._run = None
        reports: list[Effect] = [Report(problem)] if problem else []
        return [Halt(), *reports, *self._show(ended or _idle(problem))]


def _idle(
    detail: str,
    code: NavCode = NavCode.NONE,
    action: Action | None = None,
    clear: tuple[str, ...] = (),
) -> NavigatorStatus:
    return NavigatorStatus("idle", detail=detail, code=code, action=action, clear=clear)
