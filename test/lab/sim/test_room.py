"""Rooms: the same for a seed, never unfair, and as varied as the task says."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from edge_cloud_spec_lab.sim.kinds import LOOKALIKES, THING_KINDS
from edge_cloud_spec_lab.sim.room import CLEARANCE, START_DISTANCE, THINGS_APART_M, make_room


@pytest.mark.parametrize("seed", range(40))
def test_a_room_is_fair_and_the_line_from_start_to_target_is_clear(seed: int) -> None:
    room = make_room(seed)
    target = room.thing(room.target)
    low, high = START_DISTANCE
    assert low <= target.distance(room.start.x, room.start.y) <= high
    assert room.target in THING_KINDS
    assert room.target in room.instruction
    names = [t.name for t in room.things]
    assert {*LOOKALIKES[room.target]} & {*names}, "nothing to be mistaken for the target"
    assert len(names) == len(set(names)), "a name means two things"
    for thing, other in permutations(room.things, 2):
        assert min(other.distance(x, y) for x, y in thing.outline()) >= THINGS_APART_M - 1e-9
    line = np.linspace((room.start.x, room.start.y), (target.x, target.y), 100)
    for piece in (*room.things, *room.furniture):
        if piece is not target:
            assert min(piece.distance(x, y) for x, y in line) >= CLEARANCE - 0.03


def test_a_seed_always_gives_the_same_room_and_what_varies_varies() -> None:
    rooms = [make_room(seed) for seed in range(60)]
    assert make_room(7) == rooms[7] != rooms[8]
    assert {room.target for room in rooms} == set(THING_KINDS)
    assert len({room.instruction for room in rooms}) > 20
    assert len({room.light for room in rooms}) == len({room.wall for room in rooms}) == 60
    bearings = [r.thing(r.target).bearing(r.start.x, r.start.y, r.start.yaw) for r in rooms]
    assert min(bearings) < -math.pi / 2
    assert max(bearings) > math.pi / 2, "the target must be able to start behind the robot"


def test_a_named_target_can_be_asked_for() -> None:
    assert make_room(3, "silver bottle").target == "silver bottle"
    with pytest.raises(ValueError, match="-4"):
        make_room(-4)
    with pytest.raises(ValueError, match="purple cow"):
        make_room(3, "purple cow")


def test_lookalikes_share_colour_or_shape() -> None:
    for name, others in LOOKALIKES.items():
        for other in others:
            assert set(name.split()) & set(other.split())


def test_distance_is_to_the_footprint_and_bearing_to_its_middle() -> None:
    room = make_room(0, "brown door")
    door = room.thing("brown door")
    x, y = door.x + 2.0 * math.cos(door.yaw), door.y + 2.0 * math.sin(door.yaw)
    assert door.distance(x, y) == pytest.approx(2.0 - door.half[0])
    assert door.bearing(x, y, door.yaw + math.pi) == pytest.approx(0.0, abs=1e-9)
    assert door.bearing(x, y, door.yaw + math.pi - 0.3) == pytest.approx(0.3)
