"""Our base follows velocities, shakes and rests; where a robot stands is judged right."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.lagging_base import moved

from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec_lab.sim.camera import eye_at
from edge_cloud_spec_lab.sim.reach import thing_in_front
from edge_cloud_spec_lab.sim.room import Pose, make_room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.thing import Thing
from edge_cloud_spec_lab.sim.world import MAX_VELOCITY, World


@pytest.fixture
def world() -> World:
    return World(Scene(make_room(1)))


def drive(world: World, seconds: float, *velocity: float) -> None:
    for _ in range(round(seconds / 0.05)):
        world.command(*velocity)
        world.step(0.05)


def test_a_curve_is_as_fast_as_a_base_may_be_and_does_not_slide_sideways(world: World) -> None:
    drive(world, 1.0, 0.3, 0.0, 50.0)
    vx, vy, wz = world.velocity
    assert vx == pytest.approx(0.3, abs=0.02)
    assert abs(vy) < 0.02
    assert wz == pytest.approx(MAX_VELOCITY[2], abs=0.02)


def test_the_head_shakes_until_the_base_rests_which_the_next_command_ends(world: World) -> None:
    assert world.eye == eye_at(world.pose)
    rolls = []
    for _ in range(30):
        drive(world, 0.05, 0.0, 0.0, 1.5)
        rolls.append(world.eye.roll)
    assert 0.02 < max(rolls) < 0.1
    world.step(2.0)
    assert world.resting and world.velocity == (0.0, 0.0, 0.0)
    assert world.eye == eye_at(world.pose)
    stood = world.pose
    drive(world, 0.6, 0.4, 0.0, 0.0)
    assert not world.resting
    assert math.hypot(world.pose.x - stood.x, world.pose.y - stood.y) > 0.1


def test_odometry_is_exact_without_drift_and_off_with_it() -> None:
    errors = []
    for drift in (0.0, 0.05):
        world = World(Scene(make_room(1)), drift=drift)
        start = world.pose
        drive(world, 1.5, 0.3, 0.1, 0.8)
        told = moved(start, Velocity(world.odometry.x, world.odometry.y), 1.0)
        errors.append(math.dist((told.x, told.y), (world.pose.x, world.pose.y)))
    assert errors[0] < 2e-3
    assert errors[1] > 3e-3


def stand_at(thing: Thing, distance: float, beside: float) -> Pose:
    """A pose whose camera is ``distance`` from the thing, which is ``beside`` rad off ahead."""
    ahead = eye_at(Pose(0.0, 0.0, beside))
    return Pose(thing.x - thing.half[0] - distance - ahead.x, thing.y - ahead.y, beside)


def test_at_the_lookalike_too_far_or_turned_away_is_not_at_the_thing() -> None:
    room = make_room(2, "silver bottle")
    bottle = replace(room.thing("silver bottle"), x=0.0, y=0.0)
    can = replace(bottle, name="silver can", y=2.0)
    room = replace(room, things=(bottle, can))
    for thing, distance, beside, at in (
        (bottle, 0.7, 0.0, "silver bottle"),
        (bottle, 0.95, 0.3, "silver bottle"),
        (bottle, 1.05, 0.0, ""),
        (bottle, 0.7, 0.6, ""),
        (can, 0.7, 0.0, "silver can"),
    ):
        assert thing_in_front(room, stand_at(thing, distance, beside)) == at
