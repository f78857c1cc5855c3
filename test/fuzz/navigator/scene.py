"""What a navigator may hear: an operator, a drafter, a camera and a base, of whom none is good."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from edge_cloud_spec.nav.answer import every_action
from edge_cloud_spec.nav.events import EStop, Event, Hold, Instruction, Odometry, Tick, Words
from edge_cloud_spec.nav.motion import Limits
from edge_cloud_spec.nav.pose import Pose, Velocity
from edge_cloud_spec.nav.settings import Settings, Unverified

EPOCH = 1_700_000_000.0  # ROS time at steady 0, s
INSTRUCTIONS = ("find the red box", "find the door", " find the red box \n", "go to the cup")
ODD = ("", "  ", "\x00", "x" * 501)
ACTIONS = [f"action: {action};" for action in every_action()]
TEXTS = (
    *ACTIONS,
    *ACTIONS,
    *ACTIONS,
    "action: move",
    "forward small;",
    "I cannot;",
    "",
    "action: ;",
)


@dataclass(frozen=True)
class Decision:
    """The truth about a request: when its frame was taken, and for which instruction."""

    taken: float
    instruction: str
    verified: bool
    honest: bool  # whether the camera's clock was measured as it is


class Clock:
    """A source's clock: seconds ahead of ours, set to another time now and then."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.ahead = self._any()

    def step(self) -> None:
        """Maybe set it."""
        if self._random.random() < 0.0005:
            self.ahead = self._any()

    def stamp(self, now: float) -> int:
        """What it reads, ns."""
        return round((EPOCH + now + self.ahead) * 1e9)

    def _any(self) -> float:
        random = self._random
        if random.random() < 0.05:
            return random.choice((-4e3, 4e3))
        return random.choice((0.0, 0.0, random.uniform(-0.4, 0.4), random.uniform(-7, 7)))


class Scene:
    """Draws the next event and what is true about it; ``heard`` tells it what came of the last."""

    def __init__(self, random: Random, now: float) -> None:
        self._random, self.now = random, now
        self._camera, self._base = Clock(random), Clock(random)
        self._pose, self._velocity = Pose(), Velocity()
        self._published = ""  # the instruction that was last
        self._past: deque[tuple[float, int, str]] = deque(maxlen=200)  # time, stops, instruction
        self.decisions: dict[str, Decision] = {}  # by request
        self._requests = 0
        self._pieces: list[Words] = []
        self._sent: deque[tuple[float, Words]] = deque(maxlen=150)
        self._waiting = self._moving = False

    def heard(self, stops: int, waiting: bool, moving: bool, velocity: Velocity) -> None:
        """The navigator's count, whether it waits for an instruction, and what the base does."""
        self._past.append((self.now, stops, self._published))
        self._waiting, self._moving, self._velocity = waiting, moving, velocity

    def events(self) -> Iterator[Event | Settings]:
        """Without end; ``Settings`` are parameters that were set."""
        while True:
            yield self._pass(self._pause(), Tick())
            self._camera.step()
            self._base.step()
            for _ in range(self._random.choice((0, 1, 1, 1, 2))):
                yield self._pass(self._random.uniform(0.0, 0.02), self._odometry())
            if self._random.random() < (0.04 if self._moving else 0.8):
                yield self._pass(self._random.uniform(0.0, 0.03), self._disturbance())

    def _pause(self) -> float:
        random = self._random
        return random.uniform(0.1, 2.0) if random.random() < 0.01 else random.uniform(0.01, 0.07)

    def _pass(self, seconds: float, event: Event | Settings) -> Event | Settings:
        self.now += seconds
        go, turn = self._velocity.vx * seconds, self._velocity.wz * seconds
        x, y, yaw = self._pose.x, self._pose.y, self._pose.yaw
        self._pose = Pose(x + go * math.cos(yaw), y + go * math.sin(yaw), yaw + turn)
        return event

    def _odometry(self) -> Odometry:
        random, pose = self._random, self._pose
        late = random.expovariate(100.0)
        stamp, age = self._base.stamp(self.now - late), late - self._base.ahead
        fault = random.random()
        if fault < 0.004:
            pose = random.choice((Pose(math.nan), Pose(1e308), replace(pose, x=pose.x + 3.0)))
        elif fault < 0.008:
            stamp = random.choice((0, stamp - 10**9, stamp + 10**9))
        elif fault < 0.01:
            self._pose = Pose()
        elif fault < 0.012:
            age = random.choice((math.nan, math.inf, -1e300))
        return Odometry(pose, stamp, age)

    def _disturbance(self) -> Event | Settings:
        random = self._random
        if self._pieces and random.random() < 0.9:
            return self._pieces.pop(0)
        if self._waiting and random.random() < 0.4:
            return self._instruct(random.choice(INSTRUCTIONS))
        kind = random.random()
        if kind < 0.80:
            return self._words()
        if kind < 0.87:
            return EStop(random.random() < 0.4)
        if kind < 0.91:
            return self._instruct(random.choice((*INSTRUCTIONS, *ODD, "stop", "Stop.")))
        if kind < 0.95:
            cause = random.choice(("parameter", "active"))
            return Hold(random.choice(("", "", "it is held")), cause)
        return settings(random)

    def _instruct(self, text: str) -> Instruction:
        self._published = text
        return Instruction(text)

    def _words(self) -> Words:
        random = self._random
        if self._sent and random.random() < 0.1:  # again
            before, words = random.choice(self._sent)
            return replace(words, age=words.age + self.now - before)
        self._requests += 1
        name = f"r{self._requests}"
        back = random.choice((0, 0, 0, random.randrange(12), random.randrange(200)))
        past = list(self._past)
        at, stops, instruction = past[-1 - min(back, len(past) - 1)]
        taken = at if back else self.now
        if random.random() < 0.03:
            stops = random.choice((0, stops + 1, stops - 1, 2**63))
        if random.random() < 0.03:
            instruction = random.choice(INSTRUCTIONS)
        honest = random.random() < 0.9
        offset = self._camera.ahead - 0.03 if honest else random.choice((0.0, 4.0, -4.0, math.nan))
        age = self.now - taken - self._camera.ahead
        if random.random() < 0.05:
            age = random.choice((math.inf, math.nan, -0.4, 11.0, 0.0))
        verified = random.random() < 0.7
        words = Words(
            request=name,
            position=0,
            count=4,
            text=random.choice(TEXTS),
            verified=verified,
            finished=random.random() < 0.7,
            stamp=self._camera.stamp(taken),
            age=age,
            instruction=instruction.strip(),
            stops=stops,
            camera_offset=offset,
        )
        self._sent.append((self.now, words))
        self.decisions[name] = Decision(taken, instruction.strip(), verified, honest)
        if random.random() < 0.1:
            words = replace(words, request=random.choice(("", "-", "a b")))
        if random.random() < 0.3:
            self._cut(words)
            return self._pieces.pop(0)
        return words

    def _cut(self, words: Words) -> None:
        """In pieces, some of them lost, repeated, in another order or of another kind."""
        random, cut = self._random, self._random.randrange(len(words.text) + 1)
        first = replace(words, text=words.text[:cut], finished=False)
        second = replace(words, text=words.text[cut:], position=4)
        if random.random() < 0.1:
            second = replace(second, verified=not words.verified)
        self._pieces = [first, second]
        fault = random.random()
        if fault < 0.1:
            self._pieces.reverse()
        elif fault < 0.2:
            self._pieces.insert(random.randrange(3), random.choice(self._pieces))
        elif fault < 0.25:
            self._pieces.pop()


def settings(random: Random) -> Settings:
    """Parameters within their ranges."""
    return Settings(
        limits=Limits(
            speed=random.choice((0.05, 0.3, 0.6, 1.5)),
            turn_speed=random.choice((0.2, 1.2, 2.5)),
            acceleration=random.choice((0.5, 2.0)),
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
        lead_time=random.choice((0.0, -1.0, 0.5, 2.0)),
    )
