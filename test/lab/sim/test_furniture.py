"""Furnished rooms: always a way to the target, seldom a straight one; what stands and who walks
there is seen, scanned and felt."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec_lab.sim.bases import RAYS, scan
from edge_cloud_spec_lab.sim.camera import Camera, eye_at, posture_of
from edge_cloud_spec_lab.sim.furniture import AT_TARGET_M, PIECES, SIDE_M, WAY_M, make_furnished
from edge_cloud_spec_lab.sim.kinds import OBSTRUCTING_FURNITURE, furnish
from edge_cloud_spec_lab.sim.obstacles import WAITS_M
from edge_cloud_spec_lab.sim.room import Room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.thing import Thing
from edge_cloud_spec_lab.sim.world import World

FINE_M = 0.05


def reached(room: Room, keeps: float) -> bool:
    """Whether a point that keeps so many metres from all but the target gets there, on a fine
    grid."""
    target = room.thing(room.target)
    side = round(SIDE_M / FINE_M) + 1
    x, y = np.meshgrid(*[np.linspace(-SIDE_M / 2, SIDE_M / 2, side)] * 2, indexing="ij")
    solid = [t for t in (*room.things, *room.furniture) if t is not target]
    free = np.minimum(SIDE_M / 2 - abs(x), SIDE_M / 2 - abs(y)) >= keeps
    free &= np.array(
        [
            [min(t.distance(*p) for t in solid) >= keeps for p in zip(a, b, strict=True)]
            for a, b in zip(x, y, strict=True)
        ]
    )
    at = np.zeros_like(free)
    at[tuple(round((v + SIDE_M / 2) / FINE_M) for v in (room.start.x, room.start.y))] = True
    while True:
        near = at.copy()
        near[1:] |= at[:-1]
        near[:-1] |= at[1:]
        near[:, 1:] |= near[:, :-1] | at[:, :-1]
        near[:, :-1] |= at[:, 1:]
        near &= free
        if (near == at).all():
            break
        at = near
    return any(target.distance(*p) <= AT_TARGET_M + 0.1 for p in zip(x[at], y[at], strict=True))


def test_a_way_leads_to_the_target_around_what_stands_on_the_line() -> None:
    rooms = [make_furnished(seed) for seed in range(60)]
    assert make_furnished(7) == rooms[7] != rooms[8]
    assert all(reached(room, WAY_M - 0.02) for room in rooms[:12])
    assert not all(reached(room, WAY_M + 0.3) for room in rooms[:12]), "any room has a way"
    in_the_way = 0
    for room in rooms:
        assert PIECES[0] <= len(room.furniture) <= PIECES[1]
        target = room.thing(room.target)
        line = np.linspace((room.start.x, room.start.y), (target.x, target.y), 100)
        in_the_way += any(t.distance(*p) < 0.25 for t in room.furniture for p in line)
    assert in_the_way > 24
    assert {t.name for room in rooms for t in room.furniture} == set(OBSTRUCTING_FURNITURE)
    with pytest.raises(ValueError, match="purple cow"):
        make_furnished(3, "purple cow")
    with pytest.raises(ValueError, match="-4"):
        make_furnished(-4)


def bare_with(furniture: tuple[Thing, ...]) -> Room:
    room = make_furnished(0)
    start = Pose(-2.0, 0.0, 0.0)
    return replace(room, things=(), furniture=furniture, decoration=(), start=start)


@pytest.mark.parametrize("kind", sorted(set(OBSTRUCTING_FURNITURE)))
def test_a_piece_is_seen_scanned_and_felt(kind: str) -> None:
    # turned, so that a leg is in the middle of the way
    piece = furnish(kind, np.random.default_rng(5), -0.3, 0.0, 0.0)
    piece = replace(piece, x=0.0, y=piece.half[1] if kind in ("chair", "table") else 0.0)
    room, bare = bare_with((piece,)), bare_with(())
    world, empty = World(Scene(room)), World(Scene(bare))
    nearer = (
        scan(empty)[RAYS // 2 - 20 : RAYS // 2 + 20] - scan(world)[RAYS // 2 - 20 : RAYS // 2 + 20]
    )
    assert (nearer > 1.0).sum() >= 1 and (nearer > -0.05).all()
    with Camera(Scene(room), "rays", 64) as one, Camera(Scene(bare), "rays", 64) as other:
        unlike = (one.render(world.eye) != other.render(world.eye)).any(-1)
    assert unlike.mean() > 0.01
    for one in (world, empty):
        for _ in range(100):
            one.command(0.6, 0.0, 0.0)
            one.step(0.05)
    assert world.pose.x < empty.pose.x - 0.3, "it stopped the robot"


def test_walkers_walk_clear_of_furniture_and_wait_for_the_robot() -> None:
    rooms = [make_furnished(seed, people=2) for seed in range(8)]
    assert [replace(room, walkers=()) for room in rooms] == [make_furnished(s) for s in range(8)]
    for room in rooms:
        world = World(Scene(room))
        before = world.data.mocap_pos.copy()
        for _ in range(100):
            world.step(0.2)
            for x, y, _ in world.data.mocap_pos:
                assert all(t.distance(x, y) > 0.2 for t in (*room.things, *room.furniture))
                assert math.hypot(x - room.start.x, y - room.start.y) > WAITS_M - 0.02
        assert np.abs(world.data.mocap_pos - before).max() > 0.1
        x, y, _ = world.data.mocap_pos[0]
        empty = Scene(replace(room, things=(), furniture=()))
        eye = eye_at(Pose(0.0, 0.0, math.atan2(y, x)))
        eye = replace(eye, x=x - 1.2 * math.cos(eye.yaw), y=y - 1.2 * math.sin(eye.yaw))
        with Camera(empty, "rays", 32) as one, Camera(empty, "rays", 32) as other:
            posture = np.array(posture_of(world.data))
            one.place(posture)
            posture[:3] = (9.0, 9.0, 0.0)
            other.place(posture)
            assert (one.render(eye) != other.render(eye)).any(-1).mean() > 0.02
