"""A verified move goes around what a lidar sees on its line, within its budget's ellipse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from helpers.drill import Drill, words
from helpers.lagging_base import Base, seen_from
from helpers.lidar import scan_of

from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S, longest_path
from edge_cloud_spec.nav.detour import SWAY_M, Detour, Place, Way
from edge_cloud_spec.nav.events import Announce, Drive, GoAround, Odometry, Scan, Tick
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.obstacles import Obstacles
from edge_cloud_spec.nav.pose import STILL, Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings, Unverified

BODY = ObstacleSettings(scan="scan")
AROUND = NavigatorSettings(obstacles=BODY, around=True)
LARGE, KEEPS = 0.9, 0.295
PATH = longest_path(LARGE)
LINE = Way(((0.0, 0.0), (LARGE, 0.0)))
POLE = [(1.1, 0.0), (1.13, 0.02)]
CHAIR = [(1.1, y) for y in np.linspace(-0.1, 0.1, 5)]
WALL = [(1.1, y) for y in np.linspace(-1.5, 1.5, 61)]
BOTH = (1, -1)


def detour(things: list[Place], size: float = LARGE, sides: tuple[int, ...] = BOTH) -> Detour:
    points = np.array(things).reshape(-1, 2)
    return Detour(size, longest_path(size), BODY, KEEPS, lambda now: (points, sides))


def clutter(seed: int, count: int = 12) -> np.ndarray:
    """Points around a move, none within the margin of the body at its beginning."""
    random = np.random.default_rng(seed)
    points = np.stack([random.uniform(-0.8, 2.0, count), random.uniform(-1.0, 1.0, count)], axis=1)
    return points[BODY.beyond(points) > BODY.margin]


def nearest(corners: tuple[Place, ...], points: np.ndarray) -> float:
    """How near the body comes to a point on this way, m, found by small steps."""
    ahead = np.arange(corners[0][0], corners[-1][0] + 1e-9, 0.002)
    aside = np.interp(ahead, *np.transpose(corners))
    return min(float(BODY.beyond(points - at).min()) for at in np.stack([ahead, aside], axis=1))


def test_a_way_around_meets_nothing_stays_in_the_ellipse_and_leaves_some_of_the_budget() -> None:
    found = 0
    for seed in range(60):
        points = clutter(seed)
        around = detour(list(points))
        around.reference(0.0, (0.0, 0.0), 0.0, PATH)
        if not around.chosen:
            continue
        found += 1
        assert nearest(around.chosen, points) >= BODY.margin - 1e-6
        assert sum(map(math.dist, around.chosen, around.chosen[1:])) < PATH
        for ahead, aside in around.chosen:
            ways = math.hypot(ahead, aside), math.hypot(LARGE - ahead, aside)
            assert sum(ways) <= PATH and abs(aside) <= around.half_width
    assert found > 10


@pytest.mark.parametrize("turned", [0.0, 0.1, -0.1])
def test_the_way_lies_where_the_move_began_however_the_base_has_turned(turned: float) -> None:
    cos, sin = math.cos(turned), math.sin(turned)
    at, chair = (0.1, 0.02), [(1.1, 0.02)]
    seen = [
        (cos * (x - at[0]) + sin * (y - at[1]), cos * (y - at[1]) - sin * (x - at[0]))
        for x, y in chair
    ]
    straight, bent = detour([(x - at[0], y - at[1]) for x, y in chair]), detour(seen)
    assert bent.reference(0.0, at, turned, 1.2) == pytest.approx(
        straight.reference(0.0, at, 0.0, 1.2)
    )
    back = [(at[0] + cos * x - sin * y, at[1] + sin * x + cos * y) for x, y in bent.chosen]
    assert np.array(back) == pytest.approx(np.array(straight.chosen) + at)


def test_what_is_wider_than_the_ellipse_is_passed_in_steps_to_the_side_that_gets_past_it() -> None:
    wide = detour([(1.1, y) for y in np.linspace(-0.7, 0.1, 9)])
    wide.reference(0.0, (0.0, 0.0), 0.0, PATH)
    (_, _), (ahead, aside) = wide.chosen
    assert aside > 0.25 and ahead < 0.3


def test_nothing_on_its_line_and_a_wall_across_it_are_no_reason_to_go_beside_it() -> None:
    for things in ([], [(0.5, 0.6), (-0.6, 0.0)], WALL):
        line = detour(things)
        assert line.reference(0.0, (0.0, 0.0), 0.0, PATH) == (0.0, 0.0) and not line.chosen


def test_a_way_leads_only_to_a_side_that_is_seen_and_is_not_longer_than_what_is_left() -> None:
    for sides in ((1,), (-1,), ()):
        around = detour(POLE, sides=sides)
        around.reference(0.0, (0.0, 0.0), 0.0, PATH)
        assert {math.copysign(1, y) for _, y in around.chosen if y} == {*sides}
    short = detour(POLE)
    short.reference(0.0, (0.0, 0.0), 0.0, 0.1)
    assert not short.chosen


def test_of_a_dense_cloud_it_looks_at_few_points_and_finds_the_same_side() -> None:
    """Between two commands there is no time for a hundred thousand."""
    random = np.random.default_rng(4)
    far, bearing = random.uniform(1.9, 4.0, 100_000), random.uniform(-np.pi, np.pi, 100_000)
    walls = np.stack([far * np.cos(bearing), far * np.sin(bearing)], axis=1)
    dense = np.concatenate([walls, *(np.array(POLE) + random.normal(0.0, 0.005, (500, 1, 2)))])
    around = detour([])
    assert len(around._near(dense)) < 3000
    around._look = lambda now: (dense, BOTH)
    around.reference(0.0, (0.0, 0.0), 0.0, PATH)
    assert around.chosen and nearest(around.chosen, np.array(POLE)) > 0.0


def test_what_remains_of_a_way_begins_where_the_body_is() -> None:
    way = Way(((0.0, 0.0), (0.25, 0.3), (0.6, 0.3), (0.9, 0.0)))
    assert way.at(0.125) == pytest.approx((0.15, 1.2))
    assert way.at(0.4) == pytest.approx((0.3, 0.0))
    assert way.at(2.0) == (0.0, 0.0) and way.at(-1.0) == (0.0, 0.0)
    assert way.after((0.4, 0.28)) == Way(((0.4, 0.28), (0.6, 0.3), (0.9, 0.0)))
    assert way.after((1.0, 0.02)) == Way(((1.0, 0.02),))


def test_a_body_that_is_too_near_may_get_away_and_not_nearer_nor_along() -> None:
    beside = np.array([[0.1, BODY.side + 0.05]])
    for to, is_clear in (((0.9, 0.1), False), ((0.9, 0.0), False), ((0.2, -0.1), True)):
        assert Way(((0.0, 0.0), to)).is_clear(beside, BODY, 0.0) == is_clear


class Walk:
    """The navigator's base among points that a lidar sees; what was commanded, and where it was."""

    def __init__(
        self,
        things: np.ndarray,
        settings: NavigatorSettings = AROUND,
        lag: float = 0.1,
        said: list[Velocity] | None = None,
    ) -> None:
        """``said``: what `Obstacles.slowed` returns, which each command must be."""
        self.said = said
        self.drill, self.things = Drill(settings), things
        self.base = Base(lag, self.drill.now)
        self.scans = self.odometry = True
        self.nearest, self.path = math.inf, 0.0
        self.places: list[tuple[float, float, float]] = []
        self.commands: list[Velocity] = []
        self.told: list[object] = []
        self.run(0.2)

    def on(self, event: object) -> None:
        for effect in self.drill.on(event):  # type: ignore[arg-type]
            self.base.obey(effect)
            if isinstance(effect, Drive):
                self.commands.append(effect.velocity)
                assert self.said is None or effect.velocity == self.said[-1], "no other command"
            self.told.append(effect)

    def run(self, seconds: float) -> None:
        for tick in range(round(seconds / COMMAND_PERIOD_S)):
            self.drill.now += COMMAND_PERIOD_S
            for _ in self.base.run(self.drill.now):
                pass
            here, now = self.base.pose, self.drill.now
            seen = [seen_from(here, (x, y)) for x, y in self.things]
            self.nearest = min(self.nearest, float(BODY.beyond(np.array(seen)).min(initial=9.0)))
            self.path += self.base.command.speed * COMMAND_PERIOD_S
            self.places.append((here.x, here.y, here.yaw))
            stamp = round(now * 1e9)
            if self.odometry:
                self.on(Odometry(here, stamp))
            if self.scans and tick % 2 == 0:
                self.on(Scan("scan", stamp, rays=scan_of([*seen, (0.0, 3.0)], settings=BODY)))
            self.on(Tick())

    def act(self, text: str, **changes: object) -> Walk:
        stamp = round(self.drill.now * 1e9)
        request = f"r{len(self.told)}"
        self.on(words(f"action: {text};", request, stamp=stamp, age=0.0, **changes))
        return self

    @property
    def ways(self) -> list[GoAround]:
        return [each for each in self.told if isinstance(each, GoAround)]


def test_a_move_goes_around_a_pole_and_an_announcement_says_how_far_aside_it_may() -> None:
    walk = Walk(np.array(POLE)).act("move forward large")
    walk.run(6.0)
    assert "done: move forward large" in walk.drill.status
    assert walk.nearest >= BODY.margin and walk.places[-1][0] >= 0.75 * LARGE
    (begun,) = [each for each in walk.told if isinstance(each, Announce)]
    assert begun.aside == pytest.approx(math.sqrt(PATH**2 - LARGE**2) / 2)
    way = walk.ways[0]
    assert max(abs(y) for _, y in way.corners) > 0.2 and way.width == BODY.strip
    off = replace(AROUND, around=False)
    plain = Walk(np.array(POLE), off).act("move forward large")
    plain.run(6.0)
    assert "is in the way" in plain.drill.status and not plain.ways


def commands_slowed(monkeypatch: pytest.MonkeyPatch) -> list[Velocity]:
    """What `Obstacles.slowed` has returned."""
    slowed, said = Obstacles.slowed, []

    def noted(self: Obstacles, wanted: Velocity, now: float) -> Velocity:
        said.append(slowed(self, wanted, now))
        return said[-1]

    monkeypatch.setattr(Obstacles, "slowed", noted)
    return said


def scenes() -> Iterator[tuple[int, str]]:
    for seed in range(40):
        yield seed, ("move forward large", "move forward medium")[seed % 2]


def test_in_any_scene_what_sees_has_the_last_word_and_the_move_keeps_its_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, ways = commands_slowed(monkeypatch), 0
    for seed, action in scenes():
        size = LARGE if "large" in action else 0.45
        most = longest_path(size)
        lag = (0.05, 0.1, 0.25)[seed % 3]
        walk = Walk(clutter(seed, 6 + seed % 9), lag=lag, said=said).act(action)
        walk.run(6.0)
        ways += bool(walk.ways)
        assert walk.path <= most + 1e-6 and walk.nearest > 0.0
        assert all(velocity.vx >= 0.0 for velocity in walk.commands)
        for x, y, yaw in walk.places:
            assert math.hypot(x, y) + math.hypot(size - x, y) <= most + 2 * SWAY_M
            assert abs(math.degrees(yaw)) <= 10.0
    assert ways >= 10


@pytest.mark.parametrize("lost", ["scans", "odometry"])
def test_a_way_around_ends_with_the_lidar_and_with_odometry(lost: str) -> None:
    walk = Walk(np.array(CHAIR)).act("move forward large")
    walk.run(1.0)
    assert walk.ways and walk.commands[-1].vy
    setattr(walk, lost, False)
    walk.run(0.7)
    before = len(walk.commands)
    walk.run(1.5)
    assert all(velocity == STILL for velocity in walk.commands[before:])
    assert not walk.drill.navigator.moving


def test_only_a_verified_move_forward_of_some_length_goes_around() -> None:
    settings = replace(AROUND, allow_unverified=True, unverified=Unverified(move=0.9))
    short = [(x - 0.55, y) for x, y in CHAIR]
    behind = [(-x, y) for x, y in CHAIR]
    for action, things, verified in (
        ("move forward large", CHAIR, False),
        ("move forward small", short, True),
        ("move backward large", behind, True),
        ("turn left large", CHAIR, True),
    ):
        walk = Walk(np.array(things), settings).act(action, verified=verified)
        walk.run(3.0)
        assert not walk.ways and max(abs(v.vy) for v in walk.commands) < 0.05


def test_another_decision_ends_a_way_around_and_begins_one_of_its_own() -> None:
    walk = Walk(np.array(CHAIR)).act("move forward large")
    walk.run(1.0)
    first = walk.ways[-1]
    walk.act("move forward large")
    walk.run(0.3)
    assert walk.drill.navigator.moving and walk.ways[-1] is not first
    walk.act("turn left small")
    walk.run(0.05)
    assert walk.commands[-1].vy == 0.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"obstacles": ObstacleSettings()}, "around needs a lidar"),
        ({"odometry": "off"}, "around needs odometry"),
        ({"limits": Limits(lateral_speed=0.0)}, "around needs a base that goes sideways"),
    ],
)
def test_around_is_refused_where_it_could_not_be_kept(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(AROUND, **changes)  # type: ignore[arg-type]
    replace(AROUND, around=False, **changes)  # type: ignore[arg-type]
