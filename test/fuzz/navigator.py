"""Random events to the navigator; an independent checker holds it to its promises (``Checker``).

What it may hear comes from an operator, a drafter, a camera and a base, of whom none is good. The
promises are checked from what it heard and what it did, by none of its own logic:

1. Never a command after a stop without an instruction that came after the release, and a frame that
   was taken after that instruction.
2. Never outside the limits of speed and acceleration, and of unverified motion.
3. Never later than 0.5 s after the last valid command, nor after the expiry of its decision.
4. A decision's step begins once; before the one under way has ended only with `drive: continuous`,
   where both are verified, and on a frame of the last second.
5. What is commanded since a step's frame adds up to no more than the step may take, even where the
   watchdog has to stop it, and nothing is commanded against its direction.
6. Where a lidar is promised, nothing is commanded without a fresh scan, nor from which the body
   would meet a point of the newest before it stands, while odometry tells where that is. (Not: one
   that was within 2 cm of it already, or 10 where nothing but the commands tell how it has moved.)
7. A base that goes against its commands is held before it goes far, where odometry tells (not in a
   pause in which nothing comes, which the watchdog bounds); then nothing moves it before somebody
   has released it. One that follows its commands is not held.
8. Nor where the newest scan has next to no ray that tells something: ahead and behind of a move,
   all around of a turn; nor towards what it saw in the last two seconds and blind rays hide now;
   nor to a side, where that is most of the way.
9. A way that it says to be clear where a motion was blocked is clear, as the newest scan has it: a
   small step that way meets nothing, and leads into nothing that is blind.
10. While another node publishes on the base's topic its status has that code.
11. A base that leans beyond ``tilt_limit`` is held like one that does not follow; one that sways is
   not.
12. A move that may go around something stays in the ellipse of its longest path;
   any other commands no more than 10 cm sideways.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import numpy as np
from fuzz import Broken, rarely
from helpers.drill import read_as
from helpers.lagging_base import GRACE, MORE, RATIO, Place, moved, seen_from
from helpers.lidar import hidden, scan_of

from edge_cloud_spec.nav.answer import CLAUSES, SEARCH_ACTION, STOP_ACTION, Action, Reading
from edge_cloud_spec.nav.budget import MOVE_TURN_RAD, TURN_PATH_M
from edge_cloud_spec.nav.clock_offset import SAME_CLOCK
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
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
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.limits import REACTION_S, Axis, Limits
from edge_cloud_spec.nav.navigator import FRAME_DRIVEN_S, Navigator
from edge_cloud_spec.nav.obstacles import SCAN_FUTURE_S
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity
from edge_cloud_spec.nav.settings import CONTINUOUS, DRIVE_CHOICES, NavigatorSettings, Unverified
from edge_cloud_spec.nav.status import FOLLOWING, OTHER_HOLD, GoalStatus, NavCode
from edge_cloud_spec.nav.steps import Goal

EPOCH = 1_700_000_000.0  # ROS time at steady 0, s
INSTRUCTIONS = ("find the red box", "find the door", " find the red box \n", "go to the cup")
ODD = ("", "  ", "\x00", "x" * 501)
ODD_TEXTS = "action: move", "forward small;", "I cannot;", "", "action: ;"
TEXTS = (*(CLAUSES.candidates * 3), *ODD_TEXTS)
AHEAD = *["action: move forward large;"] * 3, "action: move forward medium;"
ODD_READINGS = (  # of a drafter that lies
    *(
        Reading(Action("move", way, amount=far), 1)
        for way, far in (("forward", 1e308), ("backward", 9.9))
    ),
    *(Reading(Action("turn", "left", amount=far), 1) for far in (1e308, 5e-324, 720.0)),
    *(
        Reading(SEARCH_ACTION, 10**9, "it is none"),
        Reading(STOP_ACTION, 0, "it is none"),
        Reading(SEARCH_ACTION),
        Reading(),
    ),
)
SOURCES = "camera", "base", "lidar"  # each with a clock of its own
FAULTY = (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (1.9, 1.9)
SURELY = 0.3  # m/s that move every base
PAUSE = 0.1  # s and more, in which nothing comes at all: the watchdog bounds what is made then
COVERS = math.nan, 0.0, -math.inf, 0.06, 13.0  # what covered rays say
SIDES = (*((at, at + 30) for at in (-30, 0)), *((at, at + 60) for at in range(30, 330, 60)))
BLINDER = 0.15  # share of rays below which nobody may call a side seen; the promise is a quarter
RECALL = 1.8  # s for which what was seen is surely remembered
SCAN_FAULTS = *["another frame", "no time"] * 4, "ahead", "behind", *["no places"] * 8


@dataclass(frozen=True)
class Decision:
    """The truth about a request: when its frame was taken, and the goal that its words name."""

    taken: float
    pose: Pose  # of the base then
    goal_id: str
    verified: bool
    honest: bool  # whether its age and the camera's clock are told as they are


def clock_offset(random: Random) -> float:
    """So far a source's clock may be ahead of ours, s."""
    near = (0.0, 0.0, random.uniform(-0.4, 0.4), random.uniform(-7, 7))
    return rarely(random, 0.05, (-4e3, 4e3), random.choice(near))


@dataclass(frozen=True)
class Look:
    """The truth about a scan: when it was taken, from where, and where things were."""

    stamp: int
    taken: float
    pose: Pose
    things: tuple[Place, ...]  # that are not hidden
    covers: tuple[tuple[float, float], ...] = ()  # sectors, in degrees, that tell nothing

    def sees(self, begin: int, end: int) -> bool:
        """Whether rays between these bearings tell something."""
        return bool(1.0 - hidden(np.arange(begin, end + 1), self.covers).mean() >= BLINDER)

    def hides(self, place: Place, surely: bool = True) -> bool:
        """Whether a place, from the base, is well within what tells nothing; else whether its own
        ray may be."""
        off = math.degrees(math.atan2(place[1], place[0]))
        covered = hidden(np.array([off - 1.0, off, off + 1.0]), self.covers)
        return bool(covered.all() if surely else covered.any())


class Scene:
    """Draws the next event and what is true about it; ``heard`` tells it what came of the last.

    A ``calm`` one has good clocks, and while the robot moves only further decisions come. ``lies``:
    the drafter says of words what they are not. ``falls`` draws how the base leans; None: nobody
    tells. ``around``: the robot may go around things; of those, some walk as this draws it.
    """

    def __init__(
        self,
        random: Random,
        now: float,
        calm: bool,
        lies: bool,
        falls: Random | None = None,
        around: Random | None = None,
    ) -> None:
        self._falls, self._lies_until = falls, -math.inf
        self.around, self._walks = around, np.empty((0, 2))
        self._faults = 1.0 if around is None else 0.1  # as many of them as usual
        self._random, self.now, self.calm, self.lies = random, now, calm, lies
        self._ahead = {source: 0.0 if calm else clock_offset(random) for source in SOURCES}
        self._pose, self._velocity, self.truth = Pose(), Velocity(), Pose()
        self._goal = GoalStatus(FOLLOWING)  # that the drafter follows
        self._orders: list[Event] = []  # that come next
        # Time, stops, goal and the base's pose.
        self._past: deque[tuple[float, int, str, Pose]] = deque(maxlen=200)
        self.decisions: dict[str, Decision] = {}  # by request
        self._requests = self._goals = 0
        self._pieces: list[Words] = []
        self._sent: deque[tuple[float, Words]] = deque(maxlen=150)
        self._waiting = self._moving = False
        self._things: tuple[Place, ...] = ()
        self._covers: tuple[tuple[float, float], ...] = ()
        self._says = math.nan  # what covered rays do
        self._loses_what_is_near, self._hides_near = random.random() < 0.5, False
        self._looks: deque[Look] = deque(maxlen=4)
        self._frozen = Look(0, 0.0, Pose(), ())
        self._fails_until, self._fault = -math.inf, ""
        self.looks: dict[int, Look] = {}  # by stamp, of those that were told of as they are
        self.lied_at = -math.inf  # when odometry was last wrong
        self.paused_at = -math.inf  # when nothing had come for a while
        # What the base makes of a command: metres, radians.
        self.makes = rarely(random, 0.25, FAULTY, (1.0, 1.0)) if around is None else (1.0, 1.0)
        self.against = np.zeros(2)  # m and rad that it has made against what moves it

    def heard(self, stops: int, waiting: bool, moving: bool, velocity: Velocity) -> None:
        """The navigator's count, whether it waits for an instruction, and what the base does."""
        self._past.append((self.now, stops, self._goal.goal_id, self.truth))
        self._waiting, self._moving, self._velocity = waiting, moving, velocity

    def events(self) -> Iterator[Event | NavigatorSettings]:
        """Without end; ``NavigatorSettings`` are parameters that were set."""
        random = self._random
        while True:
            pause = rarely(random, 0.01, [random.uniform(PAUSE, 2.0)], random.uniform(0.01, 0.07))
            yield self._pass(pause, Tick())
            if not self.calm and random.random() < 0.0015:  # a clock is set
                self._ahead[random.choice(SOURCES)] = clock_offset(random)
            if random.random() < 0.7 and (scan := self._look()) is not None:
                yield self._pass(random.uniform(0.0, 0.01), scan)
            for _ in range(random.choice((0, 1, 1, 1, 2))):
                yield self._pass(random.uniform(0.0, 0.02), self._odometry())
            if self._falls is not None and self._falls.random() < 0.5:
                yield self._pass(0.0, self._tilt(self._falls))
            chance = 0.3 if self.calm and self.around is None else 0.04
            if random.random() < (chance if self._moving else 0.8):
                yield self._pass(random.uniform(0.0, 0.03), self._disturbance())

    def _pass(self, seconds: float, event: Event | NavigatorSettings) -> Event | NavigatorSettings:
        self.now += seconds
        told, (moves, turns) = self._velocity, self.makes
        made = Velocity(moves * told.vx, moves * told.vy, turns * told.wz)
        self._pose = moved(self._pose, made, seconds)
        self.truth = moved(self.truth, made, seconds)
        self._walk(seconds)
        self.paused_at = self.now if seconds >= PAUSE else self.paused_at
        lasts = seconds if seconds < PAUSE else 0.0  # else odometry tells nothing meanwhile
        if moves < 0.0 and told.speed > SURELY:
            self.against[0] += told.speed * lasts
        if turns < 0.0 and not told.speed:
            self.against[1] += abs(told.wz) * lasts
        return event

    def _walk(self, seconds: float) -> None:
        if self.around is None:
            return
        if not self._things or self.around.random() < (0.002 if self._moving else 0.05):
            self._things = self._in_the_way(self.around)
        if len(self._walks) != len(self._things) or self.around.random() < 0.01:
            walks = [self.around.uniform(-0.8, 0.8) for _ in range(2 * len(self._things))]
            self._walks = np.array(walks).reshape(-1, 2)
            self._walks[self.around.randrange(3) :] = 0.0  # two of them at most
        places = np.array(self._things) + seconds * self._walks
        self._things = tuple((float(x), float(y)) for x, y in places)

    def _in_the_way(self, random: Random) -> tuple[Place, ...]:
        """Things ahead of the robot, as a chair's legs are, and some about it."""
        far, left = random.uniform(0.9, 1.6), random.uniform(-0.3, 0.3)
        legs = [(far + x, left + y) for x in (0.0, 0.3) for y in (-0.1, 0.1)]
        about = [(random.uniform(-0.6, 2.0), random.choice((-1, 1)) * random.uniform(0.5, 1.2))]
        turned, here = cmath.rect(1.0, self.truth.yaw), self.truth
        ways = [complex(*at) * turned for at in [*legs, *about * random.randrange(4)]]
        return tuple((here.x + way.real, here.y + way.imag) for way in ways)

    def _stamp(self, source: str, time: float) -> int:
        """What a source's clock reads then, ns."""
        return round((EPOCH + time + self._ahead[source]) * 1e9)

    def _look(self) -> Scan | None:
        """The lidar sees what is about, and tells of what it saw a little before."""
        random, here, now = self._random, self.truth, self.now
        if random.random() < 0.01 * self._faults:
            far = random.choice((0.8, 1.5))
            self._things = tuple(
                (here.x + random.uniform(-far, far), here.y + random.uniform(-far, far))
                for _ in range(random.choice((0, 1, 3, 10)))
            )
        if random.random() < 0.01 * self._faults:
            wide = random.choice((20.0, 60.0, 100.0, 180.0, 300.0, 360.0))
            begin = random.uniform(-180.0, 180.0)
            covers = [(), (), ((begin, begin + wide),), ((-wide / 2, wide / 2),)]
            self._covers, self._says = random.choice(covers), random.choice(COVERS)
        loses = self._loses_what_is_near and self.around is None
        self._hides_near ^= loses and random.random() < 0.25
        near = [seen_from(here, thing) for thing in self._things if self._hides_near]
        bearings = [math.degrees(math.atan2(y, x)) for x, y in near if math.hypot(x, y) < 1.0]
        covers = *self._covers, *((bearing - 6.0, bearing + 6.0) for bearing in bearings)
        look = Look(self._stamp("lidar", now), now, here, self._things, covers)
        seen = [at for at in self._things if not look.hides(seen_from(here, at))]
        self._looks.append(replace(look, things=tuple(seen)))
        look = rarely(random, 0.1, self._looks, self._looks[-1])
        if now > self._fails_until + 5.0 and random.random() < 0.01 * self._faults:
            self._fails_until = now + random.uniform(0.3, 3.0)
            self._fault = random.choice(("silent", "another frame", "frozen"))
        lasting = self._fault if now < self._fails_until else ""
        fault = lasting or rarely(random, 0.045 * self._faults, SCAN_FAULTS, "")
        if fault == "silent":
            return None
        if fault != "frozen":
            self._frozen = look
        look = self._frozen
        stamp, age = look.stamp, now - look.taken - self._ahead["lidar"]
        try:
            things = [seen_from(look.pose, thing) for thing in look.things]
            rays = scan_of(things, look.covers, self._says)
        except ValueError as error:
            return Scan("scan", stamp, age, problem=str(error))
        match fault:
            case "another frame":
                return Scan("scan", stamp, age, problem="its frame is another")
            case "no time":
                return Scan("scan", stamp, random.choice((math.nan, math.inf, -1e300)), rays)
            case "ahead" if self.looks and now - look.taken < 0.5:  # else nobody could tell
                return Scan("scan", stamp + 10**9, age - 1.0, rays)
            case "behind":
                stamp, age = stamp - 10**9, age + 1.0
            case "no places":
                odd = [[math.nan, 0.1, 1.0], [math.inf, -math.inf, 1.0], [0.0, math.nan, 1.0]]
                rays = np.vstack([rays, odd, [[0.1, math.inf, 1.0], [3e9, 0.0, 0.0]]])
        self.looks[stamp] = replace(look, stamp=stamp)
        return Scan("scan", stamp, age, rays)

    def _tilt(self, random: Random) -> Tilt:
        """A base that sways as it walks, or lies for a while."""
        if random.random() < 0.005:
            self._lies_until = self.now + random.uniform(0.0, 2.0)
        lies = self.now <= self._lies_until
        sways = rarely(random, 0.05, (math.nan, 0.0), random.uniform(0.0, 0.25))
        return Tilt(random.uniform(0.44, math.pi) if lies else sways)

    def _odometry(self) -> Odometry:
        random, late = self._random, self._random.expovariate(100.0)
        stamp, age = self._stamp("base", self.now - late), late - self._ahead["base"]
        told = Odometry(self._pose, stamp, age)
        if random.random() > 0.012 * self._faults:
            return told
        self.lied_at = self.now
        if random.random() < 0.2:  # it began anew
            self._pose = Pose()
            return replace(told, pose=self._pose)
        aside = replace(told.pose, x=told.pose.x + 3.0)
        poses = [replace(told, pose=pose) for pose in (Pose(math.nan), Pose(1e308), aside)]
        stamps = [replace(told, stamp=odd) for odd in (0, stamp - 10**9, stamp + 10**9)]
        ages = [replace(told, age=odd) for odd in (math.nan, math.inf, -1e300)]
        return random.choice([*poses, *stamps, *ages])

    def _disturbance(self) -> Event | NavigatorSettings:
        random = self._random
        if self._orders and random.random() < 0.8:
            return self._orders.pop()
        if self._pieces and random.random() < 0.9:
            return self._pieces.pop(0)
        if self._waiting and random.random() < 0.6:
            return self._instruct(random.choice(INSTRUCTIONS))
        calm = self._moving or (self.around is not None and self.around.random() < 0.95)
        kind = 0.0 if self.calm and calm else random.random()
        if kind < 0.80:
            return self._words()
        if kind < 0.87:
            return EStop(random.random() < 0.3)
        if kind < 0.91:
            return self._instruct(random.choice((*INSTRUCTIONS, *ODD, "stop", "Stop.")))
        if kind < 0.95:
            cause = random.choice(("parameter", OTHER_HOLD))
            return Hold(random.choice(("", "", "", "it is held")), cause)
        return settings(random) if self.around is None else may_go_around(settings(random))

    def _instruct(self, text: str) -> Event:
        """The drafter hears an instruction, too, and names its goal: before or after."""
        if text.strip() != self._goal.instruction or self._random.random() < 0.5:
            self._goals += 1
            self._goal = GoalStatus(FOLLOWING, text.strip(), goal_id=f"goal-{self._goals}")
        self._orders = [Instruction(text), self._goal]
        self._random.shuffle(self._orders)
        return self._orders.pop()

    def _words(self) -> Words:
        random, past = self._random, list(self._past)
        if self._sent and random.random() < 0.1:  # again
            before, words = random.choice(self._sent)
            return replace(words, age=words.age + self.now - before)
        self._requests += 1
        back = random.choice((0, 0, 0, random.randrange(12), random.randrange(200)))
        at, stops, goal_id, pose = past[-1 - min(back, len(past) - 1)]
        taken, ahead = at if back else self.now, self._ahead["camera"]
        true = self.now - taken - ahead, ahead - 0.03
        told = (
            rarely(random, 0.05, (math.inf, math.nan, -0.4, 11.0, 0.0), true[0]),
            rarely(random, 0.1, (0.0, 4.0, -4.0, math.nan), true[1]),
        )
        words = Words(
            request=f"r{self._requests}",
            position=0,
            tokens=(0,) * 4,
            text=random.choice(TEXTS),
            verified=random.random() < (0.95 if self.calm else 0.7),
            finished=random.random() < 0.7,
            stamp=self._stamp("camera", taken),
            age=told[0],
            goal_id=rarely(
                random, 0.03, (*(goal for _, _, goal, _ in past), "", "goal-x"), goal_id
            ),
            stops=rarely(random, 0.03, (0, stops + 1, stops - 1, 2**63), stops),
            camera_offset=told[1],
        )
        if self.around is not None and self.around.random() < 0.8:
            words = replace(words, text=self.around.choice(AHEAD))
        (words,) = read_as(CLAUSES, words)
        if self.lies:
            odd = rarely(Random(words.stamp), 0.05, ODD_READINGS, words.reading)
            words = replace(words, reading=odd)
        self._sent.append((self.now, words))
        pose = pose if back else self.truth
        decision = Decision(taken, pose, words.goal_id, words.verified, honest=told == true)
        self.decisions[words.request] = decision
        words = replace(words, request=rarely(random, 0.1, ("", "-", "a b"), words.request))
        return words if random.random() < 0.7 else self._cut(words)

    def _cut(self, words: Words) -> Words:
        """In pieces, some of them lost, repeated, in another order or of another kind."""
        random, cut = self._random, self._random.randrange(len(words.text) + 1)
        first = replace(words, text=words.text[:cut], finished=False)
        verified = rarely(random, 0.1, [not words.verified], words.verified)
        second = replace(words, text=words.text[cut:], position=4, verified=verified)
        first, second = read_as(CLAUSES, first, second)
        faults = [first], [second, first], [first, first, second], [first, second, second]
        self._pieces = list(rarely(random, 0.25, faults, [first, second]))
        return self._pieces.pop(0)


def settings(random: Random) -> NavigatorSettings:
    """Parameters within their ranges."""
    return NavigatorSettings(
        limits=Limits(
            speed=random.choice((0.05, 0.3, 0.6, 1.5)),
            turn_speed=random.choice((0.2, 1.2, 2.5)),
            acceleration=random.choice((0.5, 2.0)),
            stops_within=random.choice((0.0, 0.1)),
            move=Axis(
                slowest=random.choice((0.0, 0.1, 0.3)),
                braking=random.choice((0.0, 0.3)),
                overshoot=random.choice((0.0, 0.0, 0.1)),
            ),
            turn=Axis(
                slowest=random.choice((0.0, 0.2)),
                braking=random.choice((0.1, 0.3)),
                overshoot=random.choice((0.0, 0.0, 0.2)),
            ),
        ),
        obstacles=ObstacleSettings(
            scan=random.choice(("", "scan", "scan")),
            margin=random.choice((0.02, 0.05)),
            clearance=random.choice((0.0, 0.15)),
        ),
        allow_unverified=random.random() < 0.6,
        unverified=Unverified(
            speed=random.choice((0.1, 0.2)),
            turn_speed=random.choice((0.3, 0.6)),
            move=random.choice((0.1, 0.25)),
        ),
        odometry=random.choice(("auto", "auto", "required", "off")),
        clock_offset_limit=random.choice((0.0, 5.0, 1e10, 1e10)),
        command_lifetime=random.choice((0.6, 5.0)),
        drive=random.choice(DRIVE_CHOICES),
        look_period=random.choice((0.0, 0.2)),
    )


def may_go_around(settings: NavigatorSettings) -> NavigatorSettings:
    """The same parameters, with ``around`` and what it needs."""
    odometry = "auto" if settings.odometry == "off" else settings.odometry
    sees = replace(settings.obstacles, scan="scan")
    return replace(settings, around=True, odometry=odometry, obstacles=sees)


PERIOD = 0.05  # s that a command is valid
SLACK = 1e-6
NOT_TEXT = ("", "\x00", "x" * 501)
ASIDE = 0.1  # m to the sides of any other move
STRAYS = 0.06, 0.06  # m that a way may be longer by its place: 3 cm of it, and s of its speed


PARTS = 40  # of a way that are looked at
LATEST = 0.4  # s that a scan may be on its way, by clocks that are set
# m in all, at 1.5 m/s with odometry that jumps; rad: 106 degrees, as docs/safety.md has it of small
# turns left and right alternately
FAR_AGAINST = 1.2, math.radians(106)
BELIEVED = 1.0  # s for which odometry that was wrong is not to be relied on


def within(body: ObstacleSettings, at: Place, more: float = 0.0) -> bool:
    """Whether a place, from the base, is in its body, or so near to it."""
    return -body.rear - more < at[0] < body.front + more and abs(at[1]) < body.side + more


@dataclass
class _Step:
    """What is under way."""

    verified: bool
    goal: Goal
    expiry: float
    used: tuple[float, float, float]  # path, way to the sides and turn, since its frame
    around: bool  # something
    begin: Pose | None  # of its frame; None: nobody could know
    taken: float  # when that was
    took_over: bool  # from another, and commands what that did until the next tick

    @property
    def most(self) -> tuple[float, float, float]:
        """Path, way to the sides and turn that it may take."""
        if self.goal.angle:
            path = TURN_PATH_M + MORE[0]
            return path, path, RATIO * abs(self.goal.angle) + MORE[1]
        far = abs(self.goal.distance)
        path = RATIO * far + MORE[0]
        aside = math.sqrt(path * path - far * far) if self.around else ASIDE
        return path, aside + MORE[0], MOVE_TURN_RAD + MORE[1]

    def strays(self, truth: Pose) -> float:
        """So far beyond its ellipse is the base, m of the way by its place from begin to end."""
        if self.begin is None or not self.around:
            return 0.0
        ahead, left = seen_from(self.begin, (truth.x, truth.y))
        ways = math.hypot(ahead, left) + math.hypot(self.goal.distance - ahead, left)
        return ways - (1.4 * self.goal.distance + 0.04)


class Checker:
    """``saw`` every event with the effects that it had. Raises Broken."""

    def __init__(self, settings: NavigatorSettings, scene: Scene) -> None:
        self.settings, self.counts = settings, Counter[str]()
        self._scene, self._decisions = scene, scene.decisions
        self._look: Look | None = None  # the newest
        self._look_age = 0.0  # s, by its stamp
        self._hidden: dict[Place, float] = {}  # what it saw then, and what tells nothing now hides
        self._odometry_came = -math.inf
        self._held: set[str] = set()
        self._armed = True  # an instruction may move the robot
        self._since = -math.inf  # when that instruction came
        self._instruction: str | None = None
        self._goal = GoalStatus(FOLLOWING)  # that the drafter named last
        self._begun: set[str] = set()
        self._step: _Step | None = None
        self.velocity = STILL  # what the base was told last
        self._last_at = self._until = -math.inf
        self._stop_by = math.inf
        self._given = deque[tuple[float, float, Velocity]](maxlen=200)  # from, to, what
        # At the last step's halt: when, what was seen, the pose, what was about (None: unknown).
        self._ended = 0.0, self._look, Pose(), self._known(0.0), settings
        self._now = 0.0

    def set(self, settings: NavigatorSettings, effects: list[Effect], now: float) -> None:
        """Parameters were set."""
        changed, self.settings = settings != self.settings, settings
        if changed:
            self._held -= {"base", "fallen"}
            self._scene.against[:] = 0.0
        if changed and self._step is not None:
            self._require(any(isinstance(e, Halt) for e in effects), "motion under old parameters")
        self._carried_out(effects, now)

    def saw(self, event: Event, effects: list[Effect], now: float) -> None:
        """What the navigator did about ``event`` at ``now``."""
        self.counts[type(event).__name__] += 1
        self._require(now >= self._now, "time")
        self._now = now
        match event:
            case _ if self._stops(event):
                self._require([*map(type, effects[:1])] == [Halt], "a stop without a halt")
            case Instruction(text):
                self._instructed(text, effects, now)
            case Tick():
                self._followed(effects)
            case Scan():
                self._looked(event)
            case Odometry():
                self._odometry_came = now
            case GoalStatus():
                self._goal = event
            case Tilt(angle):
                self._leant(angle > self.settings.tilt_limit, effects)
        if not isinstance(event, (Tick, Words)):
            self._require(not any(isinstance(e, Drive) for e in effects), "a command out of turn")
        self._carried_out(effects, now)

    def _looked(self, scan: Scan) -> None:
        """Keep the newest: one whose stamp goes on, or any where the last is old."""
        last, new = self._look, self._scene.looks.get(scan.stamp)
        if new is None or scan.problem or not abs(scan.age) < 1e11:
            return
        is_old = last is None or self._now - last.taken > self.settings.obstacles.timeout
        # Nobody could tell a lidar's clock that was just set from a stamp that is wrong.
        is_ahead = scan.age < self._look_age - SCAN_FUTURE_S
        if is_old or (new.stamp > last.stamp and not is_ahead):
            self._look, self._look_age = new, scan.age
            self._recall(last, new)

    def _recall(self, last: Look | None, new: Look) -> None:
        """Keep what the last scan showed, or hid, near the body, and this one hides."""
        scene, body = self._scene, self.settings.obstacles
        known = {**self._hidden, **dict.fromkeys(last.things if last else (), last and last.taken)}
        self._hidden = {}
        trusted = scene.calm and self.settings.odometry != "off"
        trusted &= self._now - self._odometry_came < 0.08
        if not trusted or self._now - new.taken > 0.05:
            return
        for thing, seen in known.items():
            at = seen_from(new.pose, thing)
            near = within(body, at, 0.4) and not within(body, at, 0.03)
            sure = scene.lied_at < seen - 1.6 and new.taken - seen < RECALL
            if near and sure and new.hides(at):
                self._hidden[thing] = seen

    def _followed(self, effects: list[Effect]) -> None:
        """A base that goes against its commands was held before it went far."""
        if any(isinstance(e, Report) and "try again" in e.problem for e in effects):
            self._require(self._scene.makes != (1.0, 1.0), "a base that follows is held")
            self._require([*map(type, effects[:1])] == [Halt], "a hold without a halt")
            self._held.add("base")
            self._armed = False
            self.counts["bases held"] += 1
            self._scene.against[:] = 0.0
        if self.settings.odometry == "off":
            self._scene.against[:] = 0.0
        self._require(bool((self._scene.against <= FAR_AGAINST).all()), "far against the commands")

    def _leant(self, fell: bool, effects: list[Effect]) -> None:
        """A base that has fallen is held, once, and nothing else comes of it."""
        falls = fell and "fallen" not in self._held
        first = [*map(type, effects[:1])]
        self._require(first == [Halt] * falls, "a fall without a halt, or a halt without one")
        if falls:
            self._held.add("fallen")
            self._armed = False
            self.counts["falls"] += 1

    def _command(self, velocity: Velocity, now: float) -> None:
        """This is commanded from ``now`` on, and the last was until the watchdog came."""
        if self.velocity != STILL:
            self._given.append((self._last_at, self._last_at + self._lasted(now), self.velocity))
        self.velocity, self._last_at = velocity, now

    def _lasted(self, now: float) -> float:
        end = min(now, self._until + GRACE, self._stop_by)
        return max(0.0, end - self._last_at) if self.velocity != STILL else 0.0

    def _commanded_since(self, time: float) -> tuple[float, float, float, float]:
        """Metres, those to the sides, radians and seconds of driving commanded since then."""
        lasted = [(max(0.0, end - max(time, begin)), given) for begin, end, given in self._given]
        path = sum(seconds * given.speed for seconds, given in lasted)
        aside = sum(seconds * abs(given.vy) for seconds, given in lasted)
        turn = sum(seconds * abs(given.wz) for seconds, given in lasted)
        return path, aside, turn, sum(seconds for seconds, _ in lasted)

    def _stops(self, event: Event) -> bool:
        match event:
            case EStop(on):
                cause = "e_stop"
            case Hold(why, cause):
                on = bool(why)
            case Instruction(text):
                cause, on = "told", text.strip().rstrip(".!").lower() == "stop"
            case _:
                return False
        if on:
            self._held.add(cause)
            self._armed = False
            self.counts["stops"] += 1
        elif cause != "told" and cause in self._held:
            self._held.discard(cause)
            if cause != OTHER_HOLD:  # who left by itself has seen to nothing
                self._held -= {"base", "fallen"}
        return on

    def _instructed(self, text: str, effects: list[Effect], now: float) -> None:
        if self._held - {"told"}:
            return
        other = self._instruction != text.strip()
        self._instruction = text.strip()
        if self._step is not None and other:
            self._require(
                any(isinstance(e, Halt) for e in effects), "motion for the instruction before"
            )
        if text.strip() not in NOT_TEXT and not self._armed:
            self._held.discard("told")
            self._armed, self._since = True, now

    def _carried_out(self, effects: list[Effect], now: float) -> None:
        if (step := self._step) is not None and self._scene.lied_at < step.taken - BELIEVED:
            sure = self._scene.paused_at < step.taken
            most = STRAYS[0] + STRAYS[1] * self.settings.limits.top_speed
            kept = not sure or step.strays(self._scene.truth) <= most
            self._require(kept, f"{step.strays(self._scene.truth):.3f} m beyond its ellipse")
        for effect in effects:
            match effect:
                case Halt():
                    if self._step is not None:
                        known = self._known(now)
                        self._ended = now, self._look, self._scene.truth, known, self.settings
                    self._step = None
                    self._command(STILL, now)
                case Announce():
                    self._announced(effect, now)
                case Drive():
                    self._drove(effect, now)
                case Show(status):
                    self.counts["in the way"] += "is in the way at" in status.detail
                    for way in status.clear:
                        self._said_clear(way)
                    if OTHER_HOLD in self._held and not self._held & {"e_stop", "base", "fallen"}:
                        self.counts["held for another publisher"] += 1
                        said = status.state, status.code
                        told = said == ("stopped", NavCode.OTHER_PUBLISHER)
                        self._require(told, "another publisher is not told of")

    def _announced(self, effect: Announce, now: float) -> None:
        self._require(not self._held, "a decision while the robot is held")
        decision = self._decisions[effect.request]
        if effect.action.verb == "stop":
            return
        size, steps = effect.goal, self.settings.steps
        small = abs(size.distance) <= steps.move_large + SLACK
        turn = max(steps.turn_large, abs(steps.search))
        small &= abs(math.degrees(size.angle)) <= turn + SLACK
        self._require(small, f"{size}, which is more than the largest step")
        before, used = self._step, (0.0, 0.0, 0.0)
        if before is not None:
            both = before.verified and effect.verified and self.settings.drive == CONTINUOUS
            self._require(both, "a step before the end of another")
            if decision.honest:
                self._command(self.velocity, now)
                *use, driven = self._commanded_since(decision.taken)
                used = use[0], use[1], use[2]
                self._require(
                    driven <= FRAME_DRIVEN_S + SAME_CLOCK, "a step on an old frame of the move"
                )
        self._require(effect.request not in self._begun, "a step that is carried out again")
        self._begun.add(effect.request)
        self.counts["steps"] += 1
        self.counts["steps that took over"] += before is not None
        self.counts["unverified steps"] += not effect.verified
        self._require(self._armed, "a step after a stop without a newer instruction")
        self._require(decision.taken >= self._since, "a step on a frame from before the release")
        if self._instruction is not None:
            self._require(decision.goal_id == self._goal.goal_id, "a step for another goal")
            self._require(self._goal.instruction == self._instruction, "a step for what was before")
        self._require(effect.verified or self.settings.allow_unverified, "an unverified step")
        self._require(decision.verified or not effect.verified, "a step said to be verified")
        if not effect.verified:
            far = abs(effect.goal.distance) <= self.settings.unverified.move + SLACK
            self._require(far, "a long move on unverified words")
        lasts = effect.lasts <= self.settings.command_lifetime + SLACK
        self._require(lasts, "a step that lasts too long")
        expiry = now + effect.lasts
        around = self.settings.around and effect.verified and effect.goal.distance >= 0.4
        self._require(bool(effect.aside) <= around, "a move that must not go around something")
        self.counts["steps that may go around"] += around
        knows = self._scene.calm and decision.honest and self._scene.makes == (1.0, 1.0)
        begin = decision.pose if knows else None
        self._step = _Step(
            effect.verified,
            effect.goal,
            expiry,
            used,
            around,
            begin,
            decision.taken,
            before is not None,
        )
        if before is None:
            self._until = now

    def _drove(self, effect: Drive, now: float) -> None:
        self.counts["commands"] += 1
        step, velocity = self._step, effect.velocity
        self._require(step is not None and not self._held, "a command with no step under way")
        self._require(now - self._until <= GRACE, "a command 0.5 s after the last one's end")
        self._require(now <= step.expiry + SLACK, "a command after its step's expiry")
        end = min(now + PERIOD, step.expiry) + SLACK
        self._require(effect.until <= end, "a command that is valid for too long")
        if step.took_over:
            kept = velocity == self.velocity and effect.until <= self._until
            self._require(kept, "a decision that stands in for a tick")
        else:
            self._in_limits(velocity, step, now)
            goal = step.goal
            ahead = velocity.vx * goal.distance + velocity.wz * goal.angle
            self._require(ahead >= -SLACK, "a command against the step's direction")
            moves = max(velocity.speed, abs(velocity.wz)) > SLACK
            if moves and self.settings.obstacles.promised:
                self._clear(velocity, now)
        lasted = 0.0 if step.took_over else self._lasted(now)
        step.took_over = False
        step.used = _after(step.used, self.velocity, lasted)
        stands = min(effect.until + GRACE, effect.stop_by) - now  # s until the watchdog acts
        used = _after(step.used, velocity, stands)
        fits = all(a <= b + SLACK for a, b in zip(used, step.most, strict=True))
        self._require(fits, f"{used} m, m, rad of a step that may {step.most}")
        self.counts["commands to a side"] += abs(velocity.vy) > abs(velocity.vx)
        self._command(velocity, now)
        self._until, self._stop_by = effect.until, effect.stop_by

    def _clear(self, velocity: Velocity, now: float) -> None:
        """It has seen, lately, that it stands before it meets something."""
        look, limits = self._look, self.settings.limits
        old = LATEST + self.settings.obstacles.timeout
        self._require(look is not None and now - look.taken <= old, "a command without a scan")
        self._require(all(look.sees(*side) for side in self._into(velocity)), "a blind command")
        self.counts["commands where it is blind elsewhere"] += bool(look.covers)
        things, pose = self._known(now), self._scene.truth
        if things is None:
            return
        self.counts["commands beside what is hidden"] += bool(self._hidden)
        self.counts["commands near a thing"] += any(
            math.hypot(x - pose.x, y - pose.y) < 1.0 for x, y in things
        )
        moves, turns = REACTION_S + limits.move.braking, REACTION_S + limits.turn.braking
        if not velocity.wz:
            moves += limits.move.overshoot / velocity.speed
        elif not velocity.speed:
            turns += limits.turn.overshoot / abs(velocity.wz)
        self._meets_nothing(velocity, (moves, turns), pose, things, f"{velocity}")

    def _known(self, now: float) -> list[Place] | None:
        """The places about that it must know of, beyond the body; None: odometry tells not where
        they are."""
        look, scene, body = self._look, self._scene, self.settings.obstacles
        if look is None or min(look.taken, now) - scene.lied_at < BELIEVED:
            return None
        near = 0.1 if self.settings.odometry == "off" else 0.02  # as exact as its place is known
        seen = ((at, seen_from(look.pose, at)) for at in look.things)
        things = [
            at
            for at, there in seen
            if not (within(body, there, near) or look.hides(there, surely=False))
        ]
        things += [thing for thing, seen in self._hidden.items() if now - seen < RECALL]
        return [thing for thing in things if not within(body, seen_from(scene.truth, thing))]

    def _meets_nothing(
        self,
        velocity: Velocity,
        lasts: tuple[float, float],
        begin: Pose,
        things: list[Place],
        what: str,
    ) -> None:
        """Nothing is in the body's way while it moves and turns so long, s."""
        moves, turns = lasts
        pose, body, part = begin, self.settings.obstacles, max(lasts) / PARTS
        for number in range(PARTS):
            goes, turned = number * part < moves, number * part < turns
            going = Velocity(velocity.vx * goes, velocity.vy * goes, velocity.wz * turned)
            pose = moved(pose, going, part)
            meets = [at for at in things if within(body, seen_from(pose, at))]
            self._require(not meets, f"{what} towards {meets and seen_from(begin, meets[0])}")

    def _said_clear(self, way: str) -> None:
        """It was clear when the motion ended."""
        now, look, pose, things, settings = self._ended
        self.counts["ways that are clear"] += 1
        lidar, old = settings.obstacles, LATEST + settings.obstacles.timeout
        seen = lidar.promised and look is not None and now - look.taken <= old
        self._require(bool(seen), f"{way} said to be clear without a scan")
        velocity = {
            "ahead": Velocity(1.0),
            "behind": Velocity(-1.0),
            "left": Velocity(wz=1.0),
            "right": Velocity(wz=-1.0),
        }[way]
        sees = all(look.sees(*side) for side in self._into(velocity))
        self._require(sees, f"{way} said to be clear where it is blind")
        size = math.radians(settings.steps.turn_small) if velocity.wz else settings.steps.move_small
        if things is not None:
            self._meets_nothing(velocity, (size, size), pose, things, f"{way} said to be clear")

    def _into(self, velocity: Velocity) -> tuple[tuple[int, int], ...]:
        """The sides, in degrees, into which a command leads: those of a turn, or of a move."""
        if abs(velocity.wz) > 3.0 * velocity.speed:
            return SIDES
        if abs(velocity.vy) > abs(velocity.vx):
            return SIDES[2:4] if velocity.vy > 0.0 else SIDES[5:7]
        return SIDES[:2] if velocity.vx > 0.0 else ((150, 180), (180, 210))

    def _in_limits(self, velocity: Velocity, step: _Step, now: float) -> None:
        limits, slow = self.settings.limits, self.settings.unverified
        speed, turn = limits.top_speed, limits.turn_speed
        aside = limits.lateral_speed
        if not step.verified:
            speed, turn = min(speed, slow.speed), min(turn, slow.turn_speed)
            aside = min(aside, slow.speed)
        time = min(now - self._last_at, 10.0) + PERIOD / 2
        for value, last, most, faster, slowest in (
            (velocity.vx, self.velocity.vx, speed, limits.acceleration, limits.move.slowest),
            (velocity.vy, self.velocity.vy, aside, limits.acceleration, limits.strafe.slowest),
            (velocity.wz, self.velocity.wz, turn, limits.turn_acceleration, limits.turn.slowest),
        ):
            self._require(abs(value) <= most + SLACK, f"{value} beyond the limit {most}")
            self._require(velocity.speed <= speed + SLACK, f"{velocity} beyond the limit {speed}")
            before = abs(last) if last * value > 0.0 else 0.0
            eased = abs(value) <= max(before + faster * time, slowest) + SLACK
            self._require(eased, f"from {last} to {value} within {time:.3f} s")

    def _require(self, kept: bool, what: str) -> None:
        if not kept:
            raise Broken(f"{what}, at {self._now:.3f} s")


def _after(used: tuple[float, float, float], v: Velocity, s: float) -> tuple[float, float, float]:
    """Path, way to the sides and turn with what so many seconds of a command add."""
    return used[0] + s * v.speed, used[1] + s * abs(v.vy), used[2] + s * abs(v.wz)


EPISODE = 2000  # events, then another navigator
AROUND = " around"  # ends the names of every other episode, in which the robot may go around things


def run(events: int, seed: int, first: int = 0) -> Counter[str]:
    """So many events to navigators, from the episode of this number on; what came of them. Raises
    Broken."""
    counts: Counter[str] = Counter()
    for number in range(-(-events // EPISODE)):
        name = f"{seed} {first + number // 2}{AROUND * (number % 2)}"
        try:
            counts += episode(name, min(EPISODE, events - number * EPISODE))
        except Broken as broken:
            raise Broken(f"seed and episode {name}: {broken}") from None
    return counts


def episode(seed: str, events: int) -> Counter[str]:
    """One navigator, and what it is sent."""
    random = Random(seed)
    begun, calm = random.uniform(10.0, 1000.0), random.random() < 0.5
    falls = Random(f"{seed} falls")
    around = Random(f"{seed} its things") if seed.endswith(AROUND) else None
    calm |= around is not None and around.random() < 0.9
    lies = Random(f"{seed} drafter lies").random() < 0.3
    scene = Scene(random, begun, calm, lies, falls if falls.random() < 0.3 else None, around)
    sees = ObstacleSettings(scan=random.choice(("", "scan")))
    first = NavigatorSettings(allow_unverified=True, obstacles=sees)
    first = settings(random) if random.random() < 0.5 else first
    first = first if scene.around is None else may_go_around(first)
    navigator = Navigator(first, random.getrandbits(32))
    checker = Checker(first, scene)
    scene.heard(navigator.stops, False, False, checker.velocity)
    for event in islice(scene.events(), events):
        if isinstance(event, NavigatorSettings):
            checker.set(event, navigator.configure(event, scene.now), scene.now)
        else:
            checker.saw(event, navigator.on(event, scene.now), scene.now)
        status = navigator.status
        waiting = (status.state, status.code) == ("stopped", NavCode.RELEASED)
        scene.heard(navigator.stops, waiting, navigator.moving, checker.velocity)
    return checker.counts
