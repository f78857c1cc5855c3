"""Bases in a small physical simulation: good ones, and those that do not do what they are told.

``PYTHONPATH=test:$PWD python -m helpers.faulty_base`` prints what came of each.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from helpers.lagging_base import GRACE, PART, STANDING, Components, components, moved
from helpers.rover import EPOCH, Rover

from edge_cloud_spec.nav.events import Drive, Effect, Halt, Odometry
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity, wrap
from edge_cloud_spec.nav.settings import NavigatorSettings


@dataclass(frozen=True)
class Kind:
    """A base: what it makes of a command, how late, and what odometry tells of it."""

    makes: Callable[[Components], Components] = lambda told: told
    tells: Callable[[Pose], Pose] = lambda true: true
    dead: float = 0.05  # s until it begins to follow
    lag: float = 0.1  # s, time constant
    push: float = 0.0  # m/s for 0.4 s, now and then, whatever it is told
    carried: float = 0.0  # m/s, a second after each stop
    drift: float = 0.0  # rad/s, always
    noise: float = 0.0  # m and rad of each pose
    sway: float = 0.0  # m to either side, and ahead, at the gait's 3 Hz
    swing: float = 0.0  # m that it swings back after a stop
    sticks: bool = False  # it goes on after a stop
    slip: float = 1.0  # of what it makes, that odometry tells


def _times(vx: float, vy: float, wz: float) -> Callable[[Components], Components]:
    return lambda told: (vx * told[0], vy * told[1], wz * told[2])


GOOD = {
    "nominal": Kind(),
    "slow": Kind(dead=0.25, lag=0.5),
    "very slow": Kind(dead=0.2, lag=0.8),
    "odometry's noise of 1 cm": Kind(noise=0.01),
    "slow, noise of 1 cm": Kind(dead=0.25, lag=0.5, noise=0.01),
    "sways on legs": Kind(sway=0.02, swing=0.06, lag=0.15),
    "slips by 30 %": Kind(makes=_times(0.7, 0.7, 0.7)),
    "odometry tells 70 %": Kind(slip=0.7),
    "odometry tells 130 %": Kind(slip=1.3),
    "1.3 times its commands": Kind(makes=_times(1.3, 1.3, 1.3)),
    "pushed by .4 m/s": Kind(push=0.4),
    "slow, pushed by .4 m/s": Kind(push=0.4, dead=0.25, lag=0.5),
    "carried while it stands": Kind(carried=0.8),
    "drifts by 6 degrees/s": Kind(drift=math.radians(6)),
    "blocked": Kind(makes=lambda told: (min(0.0, told[0]), told[1], told[2]), sway=0.01),
}
BAD = {
    "moves inverted": Kind(makes=_times(-1, 1, 1)),
    "moves inverted, slow": Kind(makes=_times(-1, 1, 1), dead=0.25, lag=0.5),
    "moves inverted, noise of 1 cm": Kind(makes=_times(-1, 1, 1), noise=0.01),
    "all inverted": Kind(makes=_times(-1, -1, -1)),
    "turns inverted": Kind(makes=_times(1, 1, -1)),
    "ahead and left swapped": Kind(makes=lambda told: (told[1], told[0], told[2])),
    "ahead is left": Kind(makes=lambda told: (-told[1], told[0], told[2])),
    "odometry's yaw inverted": Kind(tells=lambda p: replace(p, yaw=-p.yaw)),
    "odometry turned by 90 degrees": Kind(tells=lambda p: Pose(-p.y, p.x, p.yaw)),
    "odometry turned by 180 degrees": Kind(tells=lambda p: Pose(-p.x, -p.y, p.yaw)),
    "1.9 times its commands": Kind(makes=_times(1.9, 1.9, 1.9)),
    "3 times its commands": Kind(makes=_times(3, 3, 3)),
    "goes on after a stop": Kind(sticks=True),
}


class FaultyBase:
    """Follows its commands as its kind does; with the watchdog's half second."""

    def __init__(self, kind: Kind, random: Random, now: float) -> None:
        self.kind, self.now, self._random = kind, now, random
        self.pose, self.velocity = Pose(), (0.0, 0.0, 0.0)
        self._told: deque[tuple[float, Velocity]] = deque([(-math.inf, STILL)], 400)
        self._deadline = self._swings = self._stopped = math.inf
        self.against = [0.0, 0.0]  # m, rad
        self._pushed, self._push = now + random.uniform(2, 5), (0.0, 0.0, 0.0)

    @property
    def stands(self) -> bool:
        vx, vy, wz = self.velocity
        return max(abs(vx), abs(vy)) <= STANDING[0] and abs(wz) <= STANDING[1]

    @property
    def fast(self) -> bool:
        """Whether it is told to drive at cruising speed."""
        return self._told[-1][1].speed > 0.4

    def obey(self, effect: Effect) -> None:
        if isinstance(effect, Drive):
            self._tell(effect.velocity)
            self._deadline = min(effect.until + GRACE, effect.stop_by)
        elif isinstance(effect, Halt):
            self._stand()

    def run(self, until: float) -> Iterator[None]:
        while self.now < until - 1e-9:
            dt = min(PART, until - self.now)
            self.now += dt
            if self.now >= self._deadline:
                self._stand()
            told = next(v for at, v in reversed(self._told) if at <= self.now - self.kind.dead)
            keep = math.exp(-dt / self.kind.lag)
            made = self.kind.makes(components(told))
            vx, vy, wz = (m + (v - m) * keep for m, v in zip(made, self.velocity, strict=True))
            self.velocity = vx, vy, wz
            self.against[0] += max(0.0, -math.copysign(vx, vx * told.vx) * dt) if told.vx else 0.0
            self.against[1] += max(0.0, -math.copysign(wz, wz * told.wz) * dt) if told.wz else 0.0
            px, py, pw = self._disturbed()
            self.pose = moved(self.pose, Velocity(vx + px, vy + py, wz + pw), dt)
            yield

    def _tell(self, velocity: Velocity) -> None:
        if velocity == STILL != self._told[-1][1]:
            self._stopped = self.now
        if velocity != STILL or not self.kind.sticks:
            self._told.append((self.now, velocity))

    def _stand(self) -> None:
        self._deadline = math.inf
        self._tell(STILL)

    def _disturbed(self) -> Components:
        kind, random, since = self.kind, self._random, self.now - self._stopped
        if kind.push and self.now > self._pushed + 0.4:
            self._pushed = self.now + random.uniform(0.5, 3)
            far = kind.push
            self._push = random.uniform(-far, far), random.uniform(-far, far), random.gauss(0, far)
        pushed = self._push if kind.push and self.now >= self._pushed else (0.0, 0.0, 0.0)
        back = -kind.swing / 0.4 if 0.3 <= since < 0.7 else 0.0
        away = kind.carried if 1.0 <= since < 3.0 and self._told[-1][1] == STILL else 0.0
        return pushed[0] + back + away, pushed[1] + away, pushed[2] + kind.drift + away


@dataclass
class Outcome:
    """What came of one base in its time."""

    held: str  # the reason; empty: it was not held
    against: float  # m that it went against its commands in all
    turned: float  # rad that it turned against them
    travelled: float  # m of path


def drive(kind: Kind, seed: int, seconds: float = 20.0, **settings: Any) -> Outcome:
    """Decisions of all sorts on such a base for so long, or until it is held."""
    random = Random(seed)
    ahead = ["move forward large", "move forward medium", "move forward small"]
    turns = [f"turn {side} {size}" for side in ("left", "right") for size in ("small", "large")]
    answers = [*ahead * 3, *turns, "move back small", "search"]
    each = random.choice([1, 2, 5])  # odometry at 100, 50, 20 Hz
    rover = Rover(
        lambda seen: random.choice(answers),
        lambda number: random.uniform(0.1, 0.5),
        NavigatorSettings(**settings),
    )
    base = FaultyBase(kind, random, rover.now)
    rover.base = base  # type: ignore[assignment]

    def tell(told: Odometry) -> Odometry | None:
        if round(100 * rover.now) % each:
            return None
        x, y, yaw = (random.gauss(0, kind.noise) for _ in range(3))
        phase = 6.0 * math.pi * (told.stamp / 1e9 - EPOCH)
        aside, along = kind.sway * math.sin(phase), kind.sway * math.cos(2 * phase) / 2
        pose = moved(base.pose, Velocity(along, aside), 1.0)
        pose = Pose(kind.slip * pose.x + x, kind.slip * pose.y + y, pose.yaw * kind.slip + yaw)
        pose = kind.tells(pose)
        return replace(told, pose=replace(pose, yaw=wrap(pose.yaw)))

    rover.tell, begun = tell, rover.now
    latch = rover.navigator.stop_latch
    while rover.now < begun + seconds and "base" not in latch.why:
        rover.run(0.05)
        if kind.sticks and base.fast and not latch.why:
            rover.instruct("stop")  # in full motion
    held = latch.why
    rover.run(1.0)
    travelled, _ = rover.made(begun, rover.now)
    return Outcome(held, *base.against, travelled)


def main() -> None:
    """Print a row for each kind."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'base':32s} held  against, m  degrees  travelled, m  held for (most of each)")
    for name, kind in (GOOD | BAD).items():
        runs = [drive(kind, seed) for seed in range(seeds)]
        said = Counter(run.held.split(",")[0] for run in runs if "base" in run.held)
        against, turned, far = (
            max(getattr(run, of) for run in runs) for of in ("against", "turned", "travelled")
        )
        print(
            f"{name:32s} {said.total():2d}/{seeds} {against:9.2f} {math.degrees(turned):9.0f}"
            f" {far:12.2f}   " + "; ".join(f"{why} ({n})" for why, n in said.most_common()),
            flush=True,
        )


if __name__ == "__main__":
    main()
