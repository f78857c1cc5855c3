"""Flats: the same for a seed, within reach, and fulfilled only as the instruction says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from edge_cloud_spec_lab.sim.flat import (
    BACK_FAMILY,
    DOOR_FAMILY,
    DOORWAY,
    INSTRUCTION_FAMILIES,
    TURN_FAMILY,
    flat_of,
    judge,
    make_flat,
    next_doorway,
)
from edge_cloud_spec_lab.sim.room import Pose, make_room
from edge_cloud_spec_lab.sim.thing import Part, Thing
from edge_cloud_spec_lab.sim.ways import ROBOT_GAP_M, Ways


@pytest.mark.parametrize("family", INSTRUCTION_FAMILIES)
def test_a_flat_is_the_same_for_a_seed_and_all_of_it_is_within_reach(family: str) -> None:
    flat = make_flat(11, family)
    assert make_flat(11, family).room == flat.room != make_flat(12, family).room
    start = flat.ways.at(flat.room.start.x, flat.room.start.y)
    field = flat.ways.field(start)
    for door in flat.doorways:
        assert math.isfinite(field[flat.ways.cell(*door.at(0.6))])
    assert 0 < flat.shortest < 40
    names = [t.name for t in flat.room.things if t.name != DOORWAY]
    assert len(names) == len(set(names)), "a name means two things"
    assert all(goal.thing in names for goal in flat.goals if goal.thing)


def _at(flat_thing: Thing, away: float) -> Pose:
    """A pose whose camera is ``away`` metres from the thing's edge, and faces it."""
    x = flat_thing.x - flat_thing.half[0] - away - 0.3
    return Pose(x, flat_thing.y, 0.0)


def test_going_back_counts_only_after_the_other_thing_and_a_stop_there() -> None:
    flat = make_flat(3, BACK_FAMILY)
    first, last = (flat.room.thing(goal.thing) for goal in flat.goals)
    flat = replace(flat, areas=tuple(replace(a, west=-9, east=9) for a in flat.areas))
    way = [flat.room.start, _at(first, 0.7), _at(last, 0.7)]
    done = judge(flat, way, True)
    assert done.success and 0 < done.spl <= 1
    assert not judge(flat, way, False).success, "it did not stop"
    assert not judge(flat, [way[0], way[2]], True).success, "it was not at the first"
    assert not judge(flat, [*way[:2], _at(last, 1.3)], True).success, "it is too far"
    turned = replace(way[2], yaw=1.0)
    assert not judge(flat, [*way[:2], turned], True).success, "it does not face it"


def test_a_turn_and_a_door_are_judged_by_where_the_robot_is() -> None:
    turn = make_flat(1, TURN_FAMILY)
    x, y = turn.areas[0].middle
    yaw = turn.goals[0].yaw
    assert yaw is not None
    assert judge(turn, [turn.room.start, Pose(x, y, yaw)], True).success
    assert not judge(turn, [turn.room.start, Pose(x, y, yaw + math.pi)], True).success
    door = make_flat(5, DOOR_FAMILY)
    middles = [area.middle for area in door.areas]
    reached = [judge(door, [door.room.start, Pose(*m, 0.0)], True).success for m in middles]
    assert reached == [i == door.goals[0].area for i in range(len(middles))]


def test_who_follows_a_wall_comes_to_every_doorway_before_the_first_again() -> None:
    for seed in range(20):
        doorways = make_flat(seed, "find").doorways
        for hand in ("left", "right"):
            here, seen = doorways[0], {0}
            for _ in doorways[1:]:
                following = next_doorway(doorways, here, hand)
                assert following is not None
                here = following
                seen.add(doorways.index(here))
            assert seen == set(range(len(doorways))), (seed, hand)


def test_a_shortest_way_goes_around_what_is_solid() -> None:
    part = Part("box", (0.1, 1.4, 1.0), (0, 0, 1.0), (0, 0, 0))
    wall = Thing("wall", 0.0, -0.6, 0.0, (0.1, 1.4), False, (part,))
    ways = Ways((4.0, 4.0), [wall])
    field = ways.field(ways.at(1.0, -0.5))
    way = ways.way(field, (-1.0, -0.5))
    length = sum(math.dist(a, b) for a, b in pairwise(way))
    straight = 2 * math.dist((-1.0, -0.5), (0.0, 0.8 + ROBOT_GAP_M))
    assert straight - 0.1 < length < 1.15 * straight
    assert Ways((4.0, 4.0), []).clear((-1.0, -0.5), (1.0, -0.5))
    assert not ways.clear((-1.0, -0.5), (1.0, -0.5))
    assert not np.isfinite(field[ways.cell(0.0, -0.6)])


def test_a_room_is_a_flat_without_doorways() -> None:
    flat = flat_of(make_room(4))
    assert not flat.doorways and flat.goals[0].thing == flat.room.target
    assert flat.area_at(0.0, 0.0) == 0 and flat.shortest > 0.2
