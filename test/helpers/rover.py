"""A robot in virtual time: base, odometry, camera, decisions that take their time, navigator."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from helpers.drill import words
from helpers.lagging_base import Base, seen_from

from edge_cloud_spec.edge.events import Abort
from edge_cloud_spec.nav.answer import SEARCH_ACTION, Action
from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Effect,
    Event,
    Instruction,
    Odometry,
    Report,
    Show,
    Tick,
    Words,
)
from edge_cloud_spec.nav.mission import MissionSettings
from edge_cloud_spec.nav.navigator import TICK_GAP_S, Navigator
from edge_cloud_spec.nav.pose import Pose, Velocity, wrap
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import GoalStatus, NavCode
from edge_cloud_spec.nav.steps import Goal, goal_of
from edge_cloud_spec.pilot.decision_loop import (
    Decide,
    DecisionLoop,
    Ended,
    Frame,
    LoopSettings,
)

EPOCH = 1_700_000_000.0  # ROS time at steady 0, s
CAMERA = 2  # ticks between frames
BOX = "find the box"
ENDLESS = MissionSettings(1000, 1000, 600.0, 10_000, 100_000, 86_400.0)


def swaying(told: Odometry) -> Odometry:
    """The odometry of a base that trots where it is."""
    aside = 0.02 * math.sin(20.0 * (told.stamp / 1e9 - EPOCH))
    return replace(told, pose=replace(told.pose, y=told.pose.y + aside))


@dataclass(frozen=True, kw_only=True)
class Seen(Frame):
    """A frame: where it was taken, and when by the camera's clock (ns) and by ours (s)."""

    pose: Pose
    taken: float


@dataclass
class Step:
    """A motion that was begun: what for, on which frame, from where, and where it ended."""

    action: Action
    seen: Seen
    begin: Pose
    begun: float
    end: Pose | None = None  # where it arrived; none that was replaced, or given up, has

    def covered(self, settings: NavigatorSettings) -> tuple[float, float, float]:
        """(size of the step, covered of it since its frame, covered when it began): m or rad."""
        goal = goal_of(self.action, settings.steps)
        covered, before = (self._along(pose, goal) for pose in (self.end, self.begin))
        return abs(goal.distance or goal.angle), covered, before

    def _along(self, pose: Pose, goal: Goal) -> float:
        if goal.angle:
            return wrap(pose.yaw - self.seen.pose.yaw) * math.copysign(1.0, goal.angle)
        ahead, _ = seen_from(self.seen.pose, (pose.x, pose.y))
        return ahead * math.copysign(1.0, goal.distance)


@dataclass
class Rover:
    """``answer`` says what is decided on a frame, ``takes`` how long the n-th decision takes, s."""

    answer: Callable[[Seen], str]
    takes: Callable[[int], float]
    settings: NavigatorSettings = field(default_factory=NavigatorSettings)
    lag: float = 0.1
    late: float = 0.0  # s from a picture to its stamp
    camera_lag: float = 0.0  # s, what the drafter takes it for
    dead: tuple[float, float] = (0.0, 0.0)  # m/s, rad/s below which the base does not move
    dead_time: float = 0.0  # s from a command to when the base takes it
    drift: float = 0.0  # rad/s with which it turns whatever it is told
    slip: float = 1.0  # what it makes of a commanded speed
    picture: Callable[[Pose], bytes] = lambda pose: b""  # none that anybody compares

    def __post_init__(self) -> None:
        self.now, self.ticks = 100.0, 0
        self.navigator, self.base = Navigator(self.settings), Base(self.lag, self.now)
        loop = LoopSettings(lag=self.camera_lag, mission=ENDLESS)
        self.loop: DecisionLoop = DecisionLoop(loop)
        self.loop.longest_gap = TICK_GAP_S  # both are one program
        self.steps: dict[str, Step] = {}
        self.reports: list[str] = []
        self.requests: list[str] = []
        self.deciding: tuple[float, Decide] | None = None
        self.commands: deque[tuple[float, Effect]] = deque()  # that the base has not taken
        self.said: list[Words] = []
        # What odometry tells instead of the truth.
        self.tell: Callable[[Odometry], Odometry | None] = lambda told: told
        self.blocked = False
        self.stood = 0.0  # s
        self.way: list[tuple[float, Pose]] = []  # of the base, by time
        self.pictures: list[Seen] = []  # that have not arrived
        self.done = 0  # actions, by what was made of them
        self.frames: dict[str, Seen] = {}
        for _ in range(5):  # odometry comes first
            self.run(COMMAND_PERIOD_S)
        self.instruct(BOX)

    def instruct(self, text: str) -> None:
        for said in self.loop.on(Instruction(text), self.now):
            if isinstance(said, GoalStatus):
                self.navigator.on(said, self.now)
        self.on(Instruction(text))

    def on(self, event: Event) -> list[Effect]:
        effects = self.navigator.on(event, self.now)
        for effect in effects:
            self._obey(self._followed(effect))
            if isinstance(effect, Report):
                self.reports.append(effect.problem)
            elif isinstance(effect, Show):
                self._shown(effect)
            elif isinstance(effect, Announce) and effect.action.verb != "stop":
                seen = self.frames[effect.request]
                assert effect.request not in self.steps, "an action was begun twice"
                self.steps[effect.request] = Step(effect.action, seen, self.base.pose, self.now)
        return effects

    def _obey(self, effect: Effect) -> None:
        if isinstance(effect, Drive) and self.dead_time:
            until, stop_by = effect.until + self.dead_time, effect.stop_by + self.dead_time
            effect = replace(effect, until=until, stop_by=stop_by)
        self.commands.append((self.now + self.dead_time, effect))
        self._take_commands()

    def _take_commands(self) -> None:
        while self.commands and self.now >= self.commands[0][0]:
            self.base.obey(self.commands.popleft()[1])

    def _followed(self, effect: Effect) -> Effect:
        if not isinstance(effect, Drive):
            return effect
        v, (least, turn) = effect.velocity, self.dead
        if self.slip == 1.0 and not (least or turn):
            return effect
        followed = Velocity(
            v.vx * self.slip if abs(v.vx) >= least else 0.0,
            v.vy * self.slip if abs(v.vy) >= least else 0.0,
            v.wz * self.slip if abs(v.wz) >= turn else 0.0,
        )
        return replace(effect, velocity=followed)

    def _shown(self, effect: Show) -> None:
        self.loop.on(effect.status, self.now)
        arrived = effect.status.code is NavCode.DONE
        self.done += arrived
        if arrived and effect.status.state == "idle":
            self.steps[list(self.steps)[-1]].end = self.base.pose

    def run(self, seconds: float) -> list[Effect]:
        """Time goes on; what the navigator did."""
        effects: list[Effect] = []
        for _ in range(round(seconds / COMMAND_PERIOD_S)):
            self.ticks += 1
            for part in range(1, 6):  # odometry at 100 Hz
                at, pose = self.now + COMMAND_PERIOD_S / 5, self.base.pose
                for _ in self.base.run(at):
                    pass
                if self.blocked:
                    self.base.pose = pose
                x, y, yaw = self.base.pose.x, self.base.pose.y, self.base.pose.yaw
                yaw += self.drift * COMMAND_PERIOD_S / 5
                self.base.pose = Pose(x, y, yaw)
                self.now = at
                self._take_commands()
                self.way.append((at, self.base.pose))
                told = self.tell(Odometry(Pose(x, y, wrap(yaw)), round((EPOCH + self.now) * 1e9)))
                effects += [] if told is None else self.on(told)
                if part == 3 and self.ticks % CAMERA == 0:
                    ahead = self.late - self.camera_lag
                    stamp = round((EPOCH + self.now + ahead) * 1e9)
                    jpeg, pose = self.picture(self.base.pose), self.base.pose
                    self.pictures.append(Seen(jpeg, stamp, pose=pose, taken=self.now))
                while self.pictures and self.now >= self.pictures[0].taken + self.late - 1e-9:
                    self._see(self.pictures.pop(0))
            effects += self._decide()
            effects += self.on(Tick())
            self.stood += COMMAND_PERIOD_S if self.base.stands else 0.0
        return effects

    def _see(self, seen: Seen) -> None:
        for said in self.loop.on(seen, self.now):
            if isinstance(said, Abort):
                self.deciding = None
                self.loop.on(Ended(abandoned=True), self.now)

    def _decide(self) -> list[Effect]:
        if self.deciding is not None and self.now >= self.deciding[0]:
            (_, decide), self.deciding = self.deciding, None
            self.loop.on(Ended(SEARCH_ACTION), self.now)
            return self.say(decide)
        request = f"r{len(self.requests)}"
        decide = self.loop.take(request, self.now) if self.deciding is None else None
        if decide is not None:
            self.frames[request] = decide.frame
            self.deciding = self.now + self.takes(len(self.requests)), decide
            self.requests.append(request)
        return []

    def say(self, decide: Decide) -> list[Effect]:
        seen = self.frames[decide.request]
        said = words(
            f"action: {self.answer(seen)};",
            decide.request,
            stamp=seen.stamp,
            age=EPOCH + self.now - seen.stamp / 1e9,
            instruction=decide.instruction,
            goal_id=decide.goal_id,
            stops=decide.stops,
        )
        self.said.append(said)
        return self.on(said)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Run until this holds."""
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"never: {self.navigator.status}"
            self.run(COMMAND_PERIOD_S)

    def made(self, since: float, until: float) -> tuple[float, float]:
        """Metres of path and radians of turning that the base really made in this time."""
        poses = [pose for at, pose in self.way if since - 1e-9 <= at <= until + 1e-9]
        pairs = list(pairwise(poses))
        path = sum(math.hypot(b.x - a.x, b.y - a.y) for a, b in pairs)
        return path, sum(abs(wrap(b.yaw - a.yaw)) for a, b in pairs)
