"""The base follows velocities, stops by itself and bumps; where it stands is judged right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.episode import Episode

from edge_cloud_spec.lab.sim.camera import eye_at
from edge_cloud_spec.lab.sim.kinds import LOOKALIKES
from edge_cloud_spec.lab.sim.reach import thing_in_front
from edge_cloud_spec.lab.sim.room import Pose, Room, make_room
from edge_cloud_spec.lab.sim.scene import Scene
from edge_cloud_spec.lab.sim.world import LIMITS, TIMEOUT, World
from edge_cloud_spec.nav.answer import Action, parse_action
from edge_cloud_spec.nav.motion import Steps


@pytest.fixture
def world() -> World:
    return World(Scene(make_room(1)))


def drive(world: World, seconds: float, *velocity: float) -> None:
    for _ in range(round(seconds / 0.05)):
        world.command(*velocity)
        world.step(0.05)


def test_velocity_follows_within_the_rise_and_does_not_overshoot(world: World) -> None:
    fastest = 0.0
    for tick in range(60):
        world.command(0.0, 0.0, 1.0)
        world.step(0.01)
        fastest = max(fastest, world.velocity[2])
        if tick == 1:
            assert world.velocity[2] < 0.5, "no base jumps to its speed"
    assert world.velocity[2] == pytest.approx(1.0, abs=0.02)
    assert fastest < 1.02


def test_a_curve_does_not_slide_sideways(world: World) -> None:
    drive(world, 1.0, 0.3, 0.0, 1.5)
    vx, vy, _ = world.velocity
    assert vx == pytest.approx(0.3, abs=0.02)
    assert abs(vy) < 0.02


def test_commands_are_bounded_and_nonsense_is_refused(world: World) -> None:
    drive(world, 0.6, 0.0, 0.0, 50.0)
    assert world.velocity[2] <= LIMITS[2] + 0.01
    with pytest.raises(ValueError, match="finite"):
        world.command(math.nan, 0.0, 0.0)


def test_the_base_stops_by_itself_when_commands_end(world: World) -> None:
    drive(world, 0.5, 0.0, 0.0, 1.0)
    world.step(TIMEOUT - 0.1)
    assert world.velocity[2] > 0.9, "a command holds until its timeout"
    world.step(0.1 + 0.5)
    assert abs(world.velocity[2]) < 0.01


def test_walls_stop_the_robot_and_are_felt() -> None:
    room = make_room(1)
    world = World(Scene(room))
    assert not world.contact
    drive(world, 12.0, 1.0, 0.0, 0.0)
    pose = world.pose
    assert world.contact
    assert abs(pose.x) < room.size[0] / 2
    assert abs(pose.y) < room.size[1] / 2
    assert abs(world.velocity[0]) < 0.05


def test_odometry_is_exact_without_drift_and_off_with_it() -> None:
    errors = []
    for drift in (0.0, 0.05):
        world = World(Scene(make_room(1)), drift=drift, seed=3)
        start = world.pose
        drive(world, 1.5, 0.3, 0.1, 0.8)
        odometry, pose = world.odometry, world.pose
        cos, sin = math.cos(start.yaw), math.sin(start.yaw)
        x = start.x + cos * odometry.x - sin * odometry.y
        y = start.y + sin * odometry.x + cos * odometry.y
        errors.append(math.hypot(x - pose.x, y - pose.y))
    assert errors[0] < 2e-3
    assert errors[1] > 3e-3


def test_the_head_shakes_while_walking_and_is_still_when_standing(world: World) -> None:
    assert world.eye == eye_at(world.pose)
    rolls = []
    for _ in range(30):
        drive(world, 0.05, 0.0, 0.0, 1.5)
        rolls.append(world.eye.roll)
    assert 0.02 < max(rolls) < 0.1
    world.step(2.0)
    assert abs(world.eye.roll) < 1e-3


def test_what_is_seen_at_rest_does_not_depend_on_how_long_the_base_stood() -> None:
    actions = [parse_action(text) for text in ("turn left medium", "move forward large", "search")]

    def frames(wait: float) -> list[bytes]:
        with Episode(make_room(4)) as episode:
            seen = []
            for action in actions:
                assert action is not None
                episode.perform(action)
                while not episode.world.resting:
                    episode.world.step(0.05)
                seen.append(episode.frame())
                episode.world.step(wait)
                assert episode.frame() == seen[-1], "it moves while it stands"
            return seen

    short = frames(0.0)
    assert frames(7.77) == short and len(set(short)) == 3


def test_a_base_at_rest_has_no_speed_and_moves_at_the_next_command(world: World) -> None:
    drive(world, 0.6, 0.4, 0.0, 0.3)
    world.command(0.0, 0.0, 0.0)
    world.step(1.0)
    assert world.resting and world.velocity == (0.0, 0.0, 0.0)
    assert world.eye == eye_at(world.pose), "a head that stands does not shake"
    stood = world.pose
    drive(world, 0.6, 0.4, 0.0, 0.0)
    assert not world.resting
    assert math.hypot(world.pose.x - stood.x, world.pose.y - stood.y) > 0.1


@pytest.mark.parametrize(
    ("text", "ahead", "turn"),
    [
        ("move forward medium", 0.45, 0.0),
        ("move backward small", -0.2, 0.0),
        ("turn left medium", 0.0, 24.0),
        ("turn right large", 0.0, -48.0),
        ("search", 0.0, 48.0),
    ],
)
def test_an_action_moves_the_robot_as_far_as_it_says(text: str, ahead: float, turn: float) -> None:
    action = parse_action(text)
    assert action is not None
    with Episode(make_room(0), size=32) as episode:
        before = episode.world.pose
        episode.perform(action)
        after = episode.world.pose
    cos, sin = math.cos(before.yaw), math.sin(before.yaw)
    moved = cos * (after.x - before.x) + sin * (after.y - before.y)
    turned = math.degrees(math.remainder(after.yaw - before.yaw, math.tau))
    assert moved == pytest.approx(ahead, abs=0.03)
    assert turned == pytest.approx(turn, abs=2.0)


def teacher(episode: Episode, name: str) -> Action:
    """What one who knows where everything is would do."""
    eye = episode.world.eye
    thing = episode.room.thing(name)
    bearing = math.degrees(thing.bearing(eye.x, eye.y, eye.yaw))
    distance = thing.distance(eye.x, eye.y)
    if abs(bearing) > 6:
        size = "large" if abs(bearing) > 30 else "medium" if abs(bearing) > 18 else "small"
        return Action("turn", "left" if bearing > 0 else "right", size)
    if distance < 0.8:
        return Action("stop")
    return Action("move", "forward", "small" if distance < 1.3 else "medium")


@pytest.mark.parametrize("seed", range(6))
def test_who_goes_where_the_named_thing_is_stops_at_it_and_meets_nothing(seed: int) -> None:
    with Episode(make_room(seed), size=32, steps=Steps(turn_small=7.0)) as episode:
        for _ in range(40):
            action = teacher(episode, episode.room.target)
            episode.perform(action)
            if action.verb == "stop":
                break
        assert thing_in_front(episode.room, episode.world.pose) == episode.room.target
    assert action.verb == "stop" and not episode.contacts


def stand_at(room: Room, name: str, distance: float, beside: float) -> Pose:
    """A pose whose camera is ``distance`` from the thing, which is ``beside`` rad off ahead."""
    thing = room.thing(name)
    for angle in np.linspace(thing.yaw, thing.yaw + 2 * math.pi, 24, endpoint=False):
        reach = distance + thing.half[0]
        x, y = thing.x + reach * math.cos(angle), thing.y + reach * math.sin(angle)
        yaw = angle + math.pi - beside
        back = eye_at(Pose(0.0, 0.0, yaw))
        others = [t.distance(x, y) for t in room.things if t is not thing]
        if min(others) > 1.1:
            return Pose(x - back.x, y - back.y, yaw)
    raise AssertionError("no place to stand")


def test_at_the_lookalike_too_far_or_turned_away_is_not_at_the_thing() -> None:
    room = make_room(2, "silver bottle")
    [lookalike, *_] = [t.name for t in room.things if t.name in LOOKALIKES[room.target]]
    for name, distance, beside, at in (
        ("silver bottle", 0.7, 0.0, "silver bottle"),
        ("silver bottle", 0.95, 0.3, "silver bottle"),
        ("silver bottle", 1.05, 0.0, ""),
        ("silver bottle", 0.7, 0.6, ""),
        (lookalike, 0.7, 0.0, lookalike),
    ):
        assert thing_in_front(room, stand_at(room, name, distance, beside)) == at
