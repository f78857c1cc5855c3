"""A robot that stops before what a lidar sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.drill import Drill, drives, words
from helpers.lagging_base import Base, seen_from
from helpers.lidar import scan_of

from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S
from edge_cloud_spec.nav.events import (
    Effect,
    Odometry,
    Scan,
    Show,
    Tick,
)
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.free_space import NOTHING_SEEN
from edge_cloud_spec.nav.limits import Axis, Limits
from edge_cloud_spec.nav.motion import BLIND, IN_THE_WAY
from edge_cloud_spec.nav.obstacles import BESIDE_PEOPLE_SHARE, WAY_NOT_SEEN
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.sight import rays_of_scan
from edge_cloud_spec.nav.status import WAYS

SEES = ObstacleSettings(scan="scan", front=0.35)
MEASURED = Limits(move=Axis(slowest=0.1), turn=Axis(slowest=0.2))  # a base that overshoots nothing
FAR_OFF = (0.0, 3.0)  # something to see


class Room:
    """A navigator, a base, and the points that a lidar sees of them at 10 Hz."""

    def __init__(
        self, *things: tuple[float, float], odometry: bool = True, settings: ObstacleSettings = SEES
    ) -> None:
        self.drill = Drill(NavigatorSettings(limits=MEASURED, obstacles=settings))
        self.base = Base(0.1, self.drill.now)
        self.things = [*things, FAR_OFF]
        self.lidar: dict[str, Any] = {"settings": settings}  # of `scan_of`
        self.odometry, self.scans, self.ticks = odometry, True, 0
        self.effects: list[Effect] = []
        self.nearest = math.inf  # m from the body that something ever was
        self.run(0.2)

    def on(self, *args: object) -> list[Effect]:
        effects = self.drill.on(*args)  # type: ignore[arg-type]
        for effect in effects:
            self.base.obey(effect)
        self.effects += effects
        return effects

    def seen(self) -> np.ndarray:
        """The things from the base."""
        return np.array([seen_from(self.base.pose, thing) for thing in self.things])

    def scan(self, late: float = 0.0, **changes: object) -> Scan:
        stamp = round((self.drill.now - late) * 1e9)
        rays, problem = np.empty((0, 3)), ""
        try:
            rays = scan_of(self.seen(), **self.lidar)
        except ValueError as error:
            problem = str(error)
        return replace(Scan("scan", stamp, late, rays, problem), **changes)  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / COMMAND_PERIOD_S)):
            self.drill.now += COMMAND_PERIOD_S
            self.ticks += 1
            for _ in self.base.run(self.drill.now):
                pass
            self.nearest = min(self.nearest, SEES.beyond(self.seen()).min())
            if self.odometry:
                self.on(Odometry(self.base.pose, round(self.drill.now * 1e9)))
            if self.scans and self.ticks % 2 == 0:
                self.on(self.scan())
            self.on(Tick())

    def act(self, text: str, seconds: float = 4.0) -> list[Velocity]:
        """Decide it, and let time pass; what was commanded."""
        before = len(self.effects)
        stamp = round(self.drill.now * 1e9)
        self.on(words(f"action: {text};", f"r{self.ticks}", stamp=stamp, age=0.0))
        self.run(seconds)
        return drives(self.effects[before:])


@pytest.mark.parametrize("odometry", [True, False])
@pytest.mark.parametrize("at", [0.6, 0.8, 1.0, 1.2])
def test_it_stops_before_what_stands_ahead(at: float, odometry: bool) -> None:
    room = Room((at, 0.0), odometry=odometry)
    room.act("move forward large")
    assert room.nearest >= SEES.clearance
    assert "move forward large: something is in the way at 0." in room.drill.status, (
        room.drill.status
    )
    assert room.drill.status.endswith("m ahead; clear: left, right, behind")
    assert not room.drill.navigator.moving
    assert odometry is False or room.nearest < SEES.margin + SEES.clearance + 0.1, "and gets near"


def test_it_slows_down_once_and_does_not_chatter() -> None:
    speeds = [velocity.vx for velocity in Room((1.0, 0.05)).act("move forward large")]
    fastest = speeds.index(max(speeds))
    assert max(speeds) > 0.2 and speeds[:fastest] == sorted(speeds[:fastest])
    assert speeds[fastest:] == sorted(speeds[fastest:], reverse=True) and speeds[-1] == 0.0


@pytest.mark.parametrize(
    ("action", "thing", "where"),
    [
        ("move backward large", (-0.6, 0.1), "behind"),
        ("turn left large", (0.3, 0.25), "m beside"),
        ("turn right large", (-0.42, 0.1), "behind"),
    ],
)
def test_moves_back_and_turns_are_held_and_say_where(
    action: str, thing: tuple[float, float], where: str
) -> None:
    room = Room(thing)
    room.act(action)
    assert f"{action}: {IN_THE_WAY} 0." in room.drill.status and where in room.drill.status, (
        room.drill.status
    )
    assert room.nearest > 0.0


def test_what_is_too_near_is_left_but_not_pushed() -> None:
    near = (0.35 + 0.02, 0.0)
    ahead = Room(near)
    assert set(ahead.act("move forward large", 0.2)) == {STILL}, "it says so at once"
    assert f"{IN_THE_WAY} 0.02 m ahead" in ahead.drill.status
    back = Room(near)
    back.act("move backward medium")
    assert "done: move backward medium" in back.drill.status


def test_a_way_that_is_free_again_within_a_second_is_gone_on_with() -> None:
    room = Room((0.8, 0.0))
    room.act("move forward large", 1.4)
    assert room.base.stands and room.drill.navigator.moving
    room.things = [FAR_OFF]
    room.run(3.0)
    assert "done: move forward large" in room.drill.status


@pytest.mark.parametrize(
    "fault",
    ["silent", "frozen", "late", "empty of numbers", "no time"],
)
def test_a_lidar_that_fails_is_an_obstacle_and_is_said(fault: str) -> None:
    room = Room()
    frozen = room.scan()
    changes: dict[str, dict[str, object]] = {
        "late": {"late": 0.8},
        "empty of numbers": {"problem": "no range of the scan is a number"},
        "no time": {"age": math.nan},
    }
    room.act("move forward large", 0.4)
    room.scans = False
    begun = room.drill.now
    while room.drill.now < begun + 0.7:
        room.run(COMMAND_PERIOD_S)
        if fault != "silent":
            room.on(frozen if fault == "frozen" else room.scan(**changes[fault]))  # type: ignore[arg-type]
    assert drives(room.effects)[-1] == STILL, "within the timeout and a tick"
    room.run(1.5)
    ended = [e.status for e in room.effects if isinstance(e, Show) and e.status.state == "idle"]
    assert (
        f"move forward large: {WAY_NOT_SEEN}: " in str(ended[-1])
        and not room.drill.navigator.moving
    )
    waits = room.drill.navigator.status
    assert waits.state == "stopped" and WAY_NOT_SEEN in waits.detail, (
        "no decision is welcome meanwhile"
    )
    assert not room.act("turn left small", 0.2), "nor does another begin"
    assert room.drill.navigator.status.state == "stopped"
    room.scans = True
    room.run(1.0)
    assert room.drill.navigator.status.welcomes_decision
    room.act("turn left small", 2.0)
    assert "done: turn left small" in room.drill.status, "and goes on when it sees again"


def test_actions_that_replace_each_other_before_an_obstacle_end_too() -> None:
    room = Room((0.8, 0.0))
    for _ in range(20):
        room.act("move forward large", 0.2)
    assert room.nearest >= SEES.margin
    ends = [str(e.status) for e in room.effects if isinstance(e, Show)]
    assert sum(IN_THE_WAY in end for end in ends) >= 2, ends


def test_scans_and_odometry_of_another_clock_are_of_one_moment() -> None:
    """The base's clock is 3 s behind; points that are 0.1 s old are moved as it has turned."""
    room = Room()
    navigator, now = room.drill.navigator, room.drill.now
    for tick in range(40):
        now += 0.05
        stamp = round((now - 3.0) * 1e9)
        navigator.on(Odometry(Pose(0.1 * tick, 0.0, 0.0), stamp, 3.0), now)
        scan = Scan("scan", stamp - 100_000_000, 3.1, scan_of([(1.0 + 1e-6 * tick, 0.0)]))
        navigator.on(scan, now)
    points, margin = navigator.obstacles._here(navigator.obstacles._seen["scan"], now)
    assert points[0] == pytest.approx(
        [1.0 - 0.2, 0.0], abs=0.01
    ) and not navigator.obstacles.missing(now)
    assert np.all(margin >= SEES.margin)


@pytest.mark.parametrize("says", [math.nan, 0.0, -math.inf, 0.06])
def test_a_half_covered_lidar_moves_it_only_where_it_sees(says: float) -> None:
    room = Room()
    room.lidar |= {"sectors": [(-90.0, 90.0)], "says": says}
    room.run(0.2)
    for action in ("move forward large", "turn left large", "turn right small"):
        assert set(room.act(action, 1.0)) <= {STILL}
        assert f"{action}: {BLIND}: scan sees too little ahead (0 of 31 rays)" in room.drill.status
    if says == -math.inf:  # something stands at the body's edge, all the way to both sides
        assert set(room.act("move backward medium", 1.0)) <= {STILL}
        return
    room.act("move backward medium")
    assert "done: move backward medium" in room.drill.status
    room.lidar["sectors"] = [(90.0, 270.0)]
    room.run(0.2)
    assert set(room.act("move backward medium", 1.0)) <= {STILL}
    assert "too little behind" in room.drill.status
    room.act("move forward small")
    assert "done: move forward small" in room.drill.status


def test_a_lidar_that_is_covered_on_the_way_stops_it() -> None:
    room = Room()
    room.act("move forward large", 0.6)
    room.lidar["sectors"] = [(-20.0, 60.0)]
    room.run(0.2)
    assert drives(room.effects)[-1] == STILL and room.drill.navigator.moving
    room.lidar["sectors"] = []
    room.run(3.0)
    assert "done: move forward large" in room.drill.status, "a hand before it for a moment"


@pytest.mark.parametrize("odometry", [True, False])
def test_what_gets_too_near_to_be_seen_counts_for_two_seconds(odometry: bool) -> None:
    room = Room((0.75, 0.0), odometry=odometry)
    room.act("move forward large", 2.5)
    assert IN_THE_WAY in room.drill.status
    room.lidar["sectors"] = [(-10.0, 10.0)]
    room.run(0.2)
    before = room.base.pose.x
    room.act("move forward small", 1.5)
    assert (room.base.pose.x < before + 0.02) == odometry, "without it nothing is kept"
    if odometry:
        assert f"move forward small: {IN_THE_WAY} 0." in room.drill.status
        room.run(1.0)
        room.act("move forward small", 1.5)
        assert room.base.pose.x > before + 0.1, "nor longer"


def test_what_a_ray_passes_is_forgotten_at_once() -> None:
    room = Room((0.75, 0.0))
    room.act("move forward large", 2.5)
    assert max(velocity.vx for velocity in room.act("move forward small", 0.3)) < 0.1
    room.things = [FAR_OFF]
    room.run(0.1)
    assert max(velocity.vx for velocity in room.act("move forward small", 0.3)) > 0.2


@pytest.mark.parametrize(
    ("own", "side"), [((0.25, 0.175), "side"), ((0.37, 0.0), "front"), ((-0.37, 0.0), "rear")]
)
def test_rays_that_end_close_beside_the_body_are_told_with_what_to_do(
    own: tuple[float, float], side: str
) -> None:
    room = Room()
    room.seen = lambda: np.array([own, FAR_OFF])  # type: ignore[method-assign]
    room.run(0.2)
    action = "move backward small" if side == "rear" else "move forward small"
    assert set(room.act(action, 1.0)) <= {STILL}
    assert f"if that is the robot itself, raise obstacles.{side}" in room.drill.status


@pytest.mark.parametrize("action", ["move forward large", "turn left large"])
def test_a_scan_that_a_driver_repeats_with_new_stamps_stops_it(action: str) -> None:
    room = Room((1.8, 0.3))
    frozen = scan_of(room.seen())
    room.scan = lambda late=0.0, **changes: Scan(  # type: ignore[method-assign]
        "scan", round(room.drill.now * 1e9), late, frozen
    )
    room.run(0.3)
    room.act(action, 3.0)
    room.act(action, 3.0)
    assert room.drill.navigator.status.state == "stopped"
    assert "scan repeats itself though the base moves" in room.drill.status
    del room.scan
    room.run(0.5)
    assert room.drill.navigator.status.welcomes_decision


# What it tells of free space


# By what is covered, degrees to the left: what is not seen. A turn must be seen all around.
COVERED = {
    (-30.0, 30.0): {"ahead", "left", "right"},
    (150.0, 210.0): {"left", "right", "behind"},
    (-180.0, 180.0): set(WAYS),
    (-5.0, 5.0): set(),
}


@pytest.mark.parametrize("says", [math.nan, 0.0])
@pytest.mark.parametrize("sector", COVERED)
def test_what_is_covered_is_not_seen_and_never_free(
    sector: tuple[float, float], says: float
) -> None:
    room = Room()
    room.lidar |= {"sectors": [sector], "says": says}
    room.run(0.8)
    words = room.drill.navigator.obstacles.free_space(room.drill.now).words
    assert {way for way in WAYS if f"{way} not seen" in words} == COVERED[sector], words


@pytest.mark.parametrize(
    "fault", ["no lidar", "nothing came", "silent", "all inf", "empty", "no numbers"]
)
def test_where_no_lidar_tells_nothing_is_seen_and_no_way_is_clear(fault: str) -> None:
    settings = replace(SEES, scan="") if fault == "no lidar" else SEES
    room = Room(settings=settings)
    if fault == "nothing came":
        room = Room(settings=replace(SEES, points="points"))
    room.scans = fault not in ("silent", "no lidar")
    if fault in ("all inf", "empty", "no numbers"):
        far = {"all inf": [math.inf] * 360, "empty": [], "no numbers": [math.nan] * 360}[fault]
        angles = np.radians(np.arange(len(far)))
        with pytest.raises(ValueError, match="covered"):
            rays_of_scan(np.array(far), angles, 0.05, 12.0, SEES)
        room.lidar |= {"sectors": [(-180.0, 180.0)], "says": math.nan}
    room.run(0.8)
    space = room.drill.navigator.obstacles.free_space(room.drill.now)
    assert space == NOTHING_SEEN and not space.clear
    assert space.words == ", ".join(f"{way} not seen" for way in WAYS)


@pytest.mark.parametrize("odometry", [True, False])
def test_what_was_seen_is_moved_as_the_base_has_moved(odometry: bool) -> None:
    """Without odometry, its margin grows."""
    room = Room((1.2, 0.0), odometry=odometry)
    before = room.drill.navigator.obstacles.free_space(room.drill.now)
    room.act("move forward small", 0.6)
    room.scans = False
    room.run(0.3)
    after = room.drill.navigator.obstacles.free_space(room.drill.now)
    moved = room.base.pose.x
    assert moved > 0.05
    far = before.ahead - moved
    assert after.ahead == pytest.approx(far, abs=0.04) if odometry else after.ahead < far + 0.02


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_to_be_free_can_be_gone_and_what_is_clear_can_be_done(seed: int) -> None:
    """Closed loop: the same navigator, of whose clearances the words tell."""
    random = np.random.default_rng(seed)
    things = random.uniform(-1.5, 1.5, (random.integers(1, 8), 2))
    beside = [(0.62, SEES.side + 0.05)] * (seed % 2)  # of the way, within the margin
    room = Room(*((x, y) for x, y in things if math.hypot(x, y) > 0.6), *beside)
    space = room.drill.navigator.obstacles.free_space(room.drill.now)
    actions = {"ahead": "move forward small", "behind": "move backward small"}
    actions |= {"left": "turn left small", "right": "turn right small"}
    begin = room.base.pose
    for way in space.clear:
        room.base.pose = begin
        room.run(0.5)
        room.act(actions[way], 2.0)
        assert f"done: {actions[way]}" in room.drill.status, (way, space, room.things)
    assert room.nearest > 0.0


def test_a_blocked_motion_says_which_ways_are_clear_for_programs_and_for_people() -> None:
    ahead = Room((0.62, 0.0))
    ahead.act("move forward large")
    status = ahead.drill.navigator.status
    assert status.clear == ("left", "right", "behind")
    assert status.detail.endswith("m ahead; clear: left, right, behind"), status.detail
    boxed = Room((0.62, 0.0), (0.3, 0.26), (0.3, -0.26), (-0.5, 0.0))
    boxed.act("move forward large")
    assert boxed.drill.navigator.status.clear == () and "clear" not in boxed.drill.status
    ahead.act("turn left small")
    assert ahead.drill.navigator.status.clear == (), "only where it was blocked"


class Street(Room):
    """Among whose things somebody walks: a body of points 30 cm wide, ``at`` a time (s)."""

    def __init__(
        self, at: Callable[[float], tuple[float, float]], *things: tuple[float, float]
    ) -> None:
        self._at = at
        super().__init__(*things)

    def seen(self) -> np.ndarray:
        x, y = self._at(self.drill.now - 50.0)
        body = [(x + 0.15 * math.cos(a), y + 0.15 * math.sin(a)) for a in np.arange(0.0, 6.2, 0.3)]
        return np.array([seen_from(self.base.pose, at) for at in [*body, *self.things]])


def test_it_is_slower_beside_who_walks_and_not_beside_who_stands() -> None:
    for at, slow in (
        (lambda t: (0.9, 0.7), False),
        (lambda t: (0.6 * t - 0.6, 0.8), True),
        (lambda t: (0.6 * t - 0.6, 2.5), False),  # nobody who is far away slows it
    ):
        fastest = max(velocity.vx for velocity in Street(at).act("move forward large", 2.0))
        most = BESIDE_PEOPLE_SHARE * 0.6 + 0.01
        assert 0.1 < fastest <= most if slow else fastest > 0.55


@pytest.mark.parametrize(
    ("begin", "way"),
    [((2.4, 0.1), (-0.8, 0.0)), ((0.5, 2.2), (0.0, -0.8)), ((-2.3, 0.0), (0.8, 0))],
)
def test_it_is_slower_while_somebody_comes_near_and_not_when_they_have_stopped(
    begin: tuple[float, float], way: tuple[float, float]
) -> None:
    """From ahead, from the left and from behind, until .5 m from it."""

    def at(t: float) -> tuple[float, float]:
        return begin[0] + way[0] * min(t, 1.9), begin[1] + way[1] * min(t, 1.9)

    street = Street(at)
    street.run(1.4)
    turns = [abs(velocity.wz) for velocity in street.act("turn left large", 0.3)]
    assert 0.2 < max(turns) <= BESIDE_PEOPLE_SHARE * 1.2 + 0.01
    street.run(2.0)
    assert max(abs(velocity.wz) for velocity in street.act("turn left large")) > 1.0


@pytest.mark.parametrize("seed", range(3))
def test_furniture_slows_nobody_who_drives_past_it(seed: int) -> None:
    """Legs, sides and corners that come into view, noise of 1 cm, and odometry that is off."""
    random, things = Random(seed), []
    for _ in range(12):
        x, y = random.uniform(-1.0, 5.0), random.choice((-1, 1)) * random.uniform(0.4, 1.5)
        wide = random.choice((0.02, 0.2, 0.5))
        things += [(x + wide * u, y) for u in np.linspace(-1.0, 1.0, 2 + int(20 * wide))]
    room = Room(*things)
    plain = room.scan

    def noisy(late: float = 0.0, **changes: object) -> Scan:
        off = np.array([random.gauss(0.0, 0.01), random.gauss(0.0, 0.01)])
        return plain(late, rays=scan_of(room.seen() + off, settings=SEES), **changes)

    room.scan = noisy  # type: ignore[method-assign]
    for _ in range(3):
        room.act("move forward large", 2.5)
    slowed = room.drill.navigator.obstacles
    assert slowed._moves_beside == -math.inf and room.base.pose.x > 1.0
