"""Odometry that is missing, late or wrong: a step keeps its bounds, and the robot stops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words

from edge_cloud_spec.lab.bench.motion import MORE, RATIO, STANDING, Base
from edge_cloud_spec.nav.events import Effect, Odometry, Tick
from edge_cloud_spec.nav.motion import BEND, PERIOD
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.odometer import Track
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import Settings


def test_odometry_that_goes_missing_stops_the_motion() -> None:
    drill = Drill()
    drill.on(Odometry(Pose(), 0))
    drill.on(words(FORWARD))
    effects = drill.run(1.0)
    assert "odometry is missing" in reports(effects) and not drill.navigator.moving
    assert "odometry is missing" in reports(drill.on(words(FORWARD, "r2")))


def test_required_odometry_that_never_came_moves_nothing() -> None:
    assert not drives(Drill(Settings(odometry="required")).on(words(FORWARD)))


def test_odometry_that_is_not_a_number_is_not_used() -> None:
    drill = Drill()
    assert "not a number" in reports(drill.on(Odometry(Pose(float("nan")), 0)))


def test_a_step_counts_from_where_its_frame_was_taken() -> None:
    drill = Drill(Settings(lead_time=0.5))
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(Pose(x=0.2), 2_000_000_000))
    x, effects = 0.2, drill.on(words("action: move forward medium;", stamp=1_000_000_000))
    stamp = 2_000_000_000
    while drill.navigator.moving:
        x, stamp = x + 0.05 * drives(effects)[-1].vx, stamp + 50_000_000
        drill.on(Odometry(Pose(x=x), stamp))
        effects = drill.on(Tick(), 0.05)
    assert x == pytest.approx(0.45, abs=0.03)


def test_a_robot_that_was_carried_away_since_the_frame_does_not_move() -> None:
    drill = Drill()
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(Pose(x=3.0), 9_000_000_000))
    effects = drill.on(words(FORWARD, stamp=1_000_000_000))
    assert not drives(effects) and "moved away" in reports(effects)


class Walk:
    """A navigator on the bench's base, with odometry that ``lie`` makes of time and true pose."""

    def __init__(self, action: str, lie: Callable[[float, Pose], Odometry | Pose | None]) -> None:
        self.base, self.problems = Base(lag=0.1, now=100.0), ""
        self.navigator, self.path, self.turn = Navigator(), 0.0, 0.0
        self.back = self.back_turn = 0.0
        self.still_at, self.begun, now = math.nan, math.nan, 100.0
        self.base.pose = Pose(5.0, 0.0, 0.0)
        effects: list[Effect] = []
        for tick in range(160):
            now += PERIOD
            self._pass(now)
            told = self.base.pose if tick < 20 else lie(now - self.begun, self.base.pose)
            if told is not None:
                told = told if isinstance(told, Odometry) else Odometry(told, int(now * 1e9))
                self.navigator.on(told, now)
            if tick == 20:
                self.begun = now
                said = words(f"action: {action};", stamp=int(now * 1e9), age=0.0)
                effects = self.navigator.on(said, now)
            else:
                effects = self.navigator.on(Tick(), now)
            self.problems += reports(effects)
            for effect in effects:
                self.base.obey(effect)

    def _pass(self, now: float) -> None:
        for vx, vy, wz, dt in self.base.run(now):
            self.path += math.hypot(vx, vy) * dt
            self.turn += abs(wz) * dt
            self.back, self.back_turn = min(self.back, vx), min(self.back_turn, wz)
            if max(abs(vx), abs(vy)) > STANDING[0] or abs(wz) > STANDING[1]:
                self.still_at = now - self.begun


LATE = 0.3  # s into the motion
LIES: dict[str, Callable[[float, Pose], Odometry | Pose | None]] = {
    "frozen": lambda t, p: Odometry(Pose(5.0), 100_000_000_000),
    "frozen_later": lambda t, p: p if t < LATE else Odometry(p, 101_300_000_000),
    "pose_frozen": lambda t, p: Pose(5.0),
    "restarted": lambda t, p: p if t < LATE else Pose(p.x - 5, p.y, p.yaw),
    "back": lambda t, p: p if t < LATE else Pose(p.x - 0.2, p.y, p.yaw - 0.3),
    "jump": lambda t, p: p if t < LATE else Pose(p.x + 3, p.y + 2, p.yaw),
    "spin": lambda t, p: p if t < LATE else Pose(p.x, p.y, p.yaw + 2.0),
    "aside": lambda t, p: p if t < LATE else Pose(p.x, p.y + 0.2, p.yaw + 0.3),
    "1e308": lambda t, p: p if t < LATE else Pose(1e308, -1e308, p.yaw),
    "nan": lambda t, p: p if t < LATE else Pose(math.nan, p.y, p.yaw),
    "a_tenth": lambda t, p: Pose(5.0 + 0.1 * (p.x - 5.0), p.y, 0.1 * p.yaw),
    "reversed": lambda t, p: Pose(10.0 - p.x, p.y, -p.yaw),
    "gone": lambda t, p: p if t < LATE else None,
}
SAYS = {
    "move forward small": (0.2, 0.0),
    "move forward large": (0.9, 0.0),
    "turn left small": (0.0, 7.0),
    "turn left large": (0.0, 48.0),
}


@pytest.mark.parametrize("action", SAYS)
@pytest.mark.parametrize("lie", LIES)
def test_a_step_keeps_its_bounds_and_direction_whatever_odometry_says(
    lie: str, action: str
) -> None:
    walk = Walk(action, LIES[lie])
    distance, angle = SAYS[action]
    assert walk.path <= (RATIO * distance + MORE[0] if distance else 0.0)
    turns = RATIO * math.radians(angle) + MORE[1] if angle else BEND
    assert walk.turn <= turns + 0.002
    assert (walk.back_turn if angle else walk.back) >= 0.0
    if lie in ("gone", "frozen_later", "1e308", "nan"):
        assert walk.still_at < LATE + 0.5 + PERIOD or math.isnan(walk.still_at)
        assert "odometry is missing" in walk.problems or walk.still_at < LATE + 0.5
    if lie in ("jump", "restarted", "spin") and "large" in action:
        assert "odometry jumped" in walk.problems


def test_odometry_is_used_again_once_it_goes_on() -> None:
    drill = Drill()
    for stamp in (10, 10, 10):
        drill.on(Odometry(Pose(), stamp), 0.3)
    effects = drill.on(words(FORWARD, "r1"))
    assert "missing: its stamps do not go on" in reports(effects)
    drill.on(Odometry(Pose(), 11), 0.1)
    assert drives(drill.on(words(FORWARD, "r2", age=0.1)))


def test_two_stamps_in_turn_are_no_progress() -> None:
    track = Track()
    for number in range(40):
        track.add(Pose(), 1000 + number % 2, 0.1 * number, 0.5)
    assert track.silence(3.9) > 3.5 and track.hangs(3.9, 0.5)
